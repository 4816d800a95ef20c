"""`python -m rmqkit.process -c node.toml`: run a name server, brokers or a controller.

    -c, --config FILE     settings of a node: TOML, or an unmodified Apache `.conf`;
                          repeat it for each node of the process
    --set KEY=VALUE       override the files, for each of the nodes
    --kind KIND           kind of the nodes: broker (default), nameserver or controller
    --name NAME           name of a single node in the log
    --lifeline FD         end when the other end of this pipe is closed
    --log-file FILE       write the log here (default: stderr), rotated by logFileSizeMax and
                          logFilesMax of the first node; --log-format text|json
    --own-logs            write each broker's lines to `log` beside its settings instead
    --container-port P    port for adding and removing brokers while the process runs
                          (`rmqkit container`), 0 to let the system choose, or off;
                          default: 10811 if there are several brokers, else off
    --container-folder D  only files below this folder, and those given, may be added
                          (default: the folder of the first file)
    --check               check the settings and plug-ins of each node by itself, and end
                          before anything is opened

Several brokers in one process form a container (`rmqkit.process.broker_container`). Each has its
own ports, store, log lines and metrics.

If a node cannot start, the process prints one line on stderr and ends with exit code 2 for bad
settings, 1 for any other reason. Once the nodes run, the log has "ready" with their ports.
`rmqkit.shell.run` defines the other exit codes.

Every node process imports this module, so it only imports what a node needs: neither the libraries
of the command line nor psutil.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.errors import ConfigError, RmqkitError

if TYPE_CHECKING:
    from argparse import Namespace

    from rmqkit.config import Kind, LogSettings, NodeConfig
    from rmqkit.shell.log import LogSink
    from rmqkit.shell.node_host import NodeHost, NodeSpec, ReadyNode

EXIT_FAILED = 1
EXIT_USAGE = 2
PORT_MAX = 65535
OFF = "off"


class NodeOptions(NamedTuple):
    """The options on the command line of a node process."""

    configs: Sequence[str] = ()
    settings: Sequence[str] = ()
    kind: Kind = "broker"
    name: str = ""
    lifeline_fd: int | None = None
    log_file: str | None = None
    log_format: str = "text"
    own_logs: bool = False
    container_port: str = ""
    container_folder: str = ""
    check: bool = False


class _ProcessParts(NamedTuple):
    """What the process runs.

    The limits and log sizes of `config` apply to the whole process.
    """

    specs: Sequence[NodeSpec]
    config: NodeConfig
    hosting: Callable[[NodeHost], None] | None = None


def run(options: NodeOptions) -> int:
    """Run the nodes until they stop; return the exit code. Prints start-up errors on stderr."""
    if not __debug__:
        return _refuse("nodes do not run under python -O: their checks are needed", EXIT_FAILED)
    if sys.platform == "win32":
        return _refuse("nodes run on Linux and macOS; on Windows only clients do", EXIT_FAILED)
    if options.check:
        return _check(options)
    from rmqkit.shell.log import NodeLog
    from rmqkit.shell.run import run_nodes

    try:
        made = _makers()[options.kind](options)
    except ConfigError as error:
        return _refuse(str(error), EXIT_USAGE)
    except RmqkitError as error:
        return _refuse(str(error), EXIT_FAILED)
    sink = _sink(options.log_file, options, made.config.logs)

    def ready(started: Sequence[ReadyNode]) -> None:
        sinks = {spec.name: spec.sink or sink for spec in made.specs}
        for node in started:
            NodeLog(sinks[node.name], node.name).info("ready", **{f"{tag}_port": port for tag, port in node.ports.items()})

    return run_nodes(
        made.specs,
        sink=sink,
        limits=made.config.limits,
        lifeline_fd=options.lifeline_fd,
        ready=ready,
        hosting=made.hosting,
    )


def _check(options: NodeOptions) -> int:
    """Print on stderr why a node could not start: one line per node, beginning with its file."""
    make = _makers()[options.kind]
    code = 0
    for path in options.configs:
        try:
            make(options._replace(configs=(path,), own_logs=False))
        except RmqkitError as error:
            code = _refuse(f"{path}: {error}", EXIT_FAILED)
    return code


def _makers() -> dict[Kind, Callable[[NodeOptions], _ProcessParts]]:
    return {"broker": _brokers, "nameserver": _nameservers, "controller": _controllers}


def _nameservers(options: NodeOptions) -> _ProcessParts:
    """Build the parts of a process of name servers. Raises ConfigError, RmqkitError."""
    from rmqkit.process.node_specs import config_of, controller_spec, nameserver_spec

    _refuse_broker_options(options)
    paths = options.configs or (None,)
    configs = [config_of(path, options.settings, "nameserver") for path in paths]
    several = len(configs) > 1
    specs = [nameserver_spec(each, f"nameserver-{at}" if several else options.name) for at, each in enumerate(configs)]
    for at, each in enumerate(configs):
        if each.controller.in_nameserver:
            specs.append(controller_spec(each, f"controller-{at}" if several else "controller"))
    return _ProcessParts(specs, configs[0])


def _controllers(options: NodeOptions) -> _ProcessParts:
    """Build the parts of a process of controllers. Raises ConfigError, RmqkitError."""
    from rmqkit.process.node_specs import config_of, controller_spec

    _refuse_broker_options(options)
    configs = [config_of(path, options.settings, "controller") for path in options.configs or (None,)]
    several = len(configs) > 1
    specs = [controller_spec(each, f"controller-{at}" if several else options.name) for at, each in enumerate(configs)]
    return _ProcessParts(specs, configs[0])


def _refuse_broker_options(options: NodeOptions) -> None:
    if options.container_port or options.container_folder or options.own_logs:
        raise ConfigError("--container-port, --container-folder and --own-logs are only for brokers")


def _brokers(options: NodeOptions) -> _ProcessParts:
    """Build the parts of a process of brokers. Raises ConfigError, RmqkitError."""
    import os.path

    from rmqkit.process.broker_container import Brokers

    paths = options.configs or (None,)
    port = _container_port(options.container_port, len(paths))
    folder = options.container_folder or (os.path.dirname(os.path.abspath(options.configs[0])) if options.configs else "")

    def own_log(path: str, logs: LogSettings) -> LogSink:
        return _sink(path, options, logs)

    brokers = Brokers(settings=options.settings, folder=folder, own_log=own_log if options.own_logs else None)
    specs = brokers.first(paths, options.name)
    if port is not None:
        specs.append(brokers.port(port))
    return _ProcessParts(specs, brokers.main, brokers.live_in)


def _container_port(text: str, brokers: int) -> int | None:
    """Return the port of the container's own node, None without one. Raises ConfigError."""
    from rmqkit.process.broker_container import CONTAINER_PORT

    if not text:
        return CONTAINER_PORT if brokers > 1 else None
    if text == OFF:
        return None
    if not text.isascii() or not text.isdigit() or int(text) > PORT_MAX:
        raise ConfigError(f"--container-port {text}: must be a port, 0 to let the system choose, or {OFF}")
    return int(text)


def _sink(path: str | None, options: NodeOptions, logs: LogSettings) -> LogSink:
    from rmqkit.shell.log import LogSink

    return LogSink(
        path,
        log_format="json" if options.log_format == "json" else "text",
        size_max=logs.file_size_max,
        kept=logs.files_max,
    )


def _refuse(why: str, code: int) -> int:
    print(f"error: {why}", file=sys.stderr)
    return code


def parse_options(argv: Sequence[str]) -> NodeOptions:
    """Parse the command line. Raises SystemExit(2) if it is invalid."""
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            self.exit(EXIT_USAGE, f"error: {message}\n")

    parser = Parser(
        prog="python -m rmqkit.process", allow_abbrev=False, description="Run a name server, brokers or a controller."
    )
    parser.add_argument("-c", "--config", action="append", default=[], metavar="FILE", help="read the settings of a node")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting of the files")
    parser.add_argument("--kind", choices=("broker", "nameserver", "controller"), default="broker")
    parser.add_argument("--name", default="", help="set the name of the node in the log")
    parser.add_argument("--lifeline", type=int, metavar="FD", help="end when the other end of this pipe is closed")
    parser.add_argument("--log-file", metavar="FILE")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--own-logs", action="store_true", help="write each broker's log beside its settings")
    parser.add_argument("--container-port", default="", metavar="PORT", help="add and remove brokers by this port, or off")
    parser.add_argument("--container-folder", default="", metavar="FOLDER", help="allow to add the files below this folder")
    parser.add_argument("--check", action="store_true", help="only check settings and plug-ins")
    parsed: Namespace = parser.parse_args(argv)
    return NodeOptions(
        parsed.config,
        parsed.set,
        parsed.kind,
        parsed.name,
        parsed.lifeline,
        parsed.log_file,
        parsed.log_format,
        parsed.own_logs,
        parsed.container_port,
        parsed.container_folder,
        parsed.check,
    )


if __name__ == "__main__":
    sys.exit(run(parse_options(sys.argv[1:])))
