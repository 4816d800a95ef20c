"""`python -m rmqkit.process -c node.toml`: a node process. Puts settings, plug-ins, nodes and the shell together.

    -c, --config FILE     a node's settings: TOML, or an Apache `.conf` as it is; once for each node of the process
    --set KEY=VALUE       over the files, for each of the nodes
    --kind KIND           what the nodes are: broker (default) or nameserver
    --name NAME           what the log calls a single node
    --lifeline FD         end when the other end of this pipe is closed
    --log-file FILE       where the log goes (stderr otherwise), --log-format text|json; rotated as logFileSizeMax and
                          logFilesMax of the first node say
    --own-logs            each broker's lines go to `log` beside its settings instead
    --container-port P    where brokers are added and removed while the process runs (`rmqkit container`): a port, 0 for one
                          of the system's, or off; by default 10811 when there are several brokers, else off
    --check               look at the settings and plug-ins of each node by itself, and end before anything is opened
    --container-folder D  below it lie the files that may be added, beside those given (default: where the first one is)

Several brokers in one process are a container (`rmqkit.process.broker_container`): each has
its listeners, store, log lines and metrics.

What keeps a node from starting is one line on stderr: exit code 2 for settings, 1 for the rest. The log says "ready"
with the ports once the nodes run; the other exit codes are `rmqkit.shell.run`'s.

This module is imported by every node process, so it takes in no more than a node needs: neither the command line's
libraries nor psutil.
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
    """What a node process is told on its command line."""

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
    """What the process is to run. `config` is the node's whose limits and log sizes are the process's."""

    specs: Sequence[NodeSpec]
    config: NodeConfig
    hosting: Callable[[NodeHost], None] | None = None


def run(options: NodeOptions) -> int:
    """Run the nodes until they are stopped; the exit code. Start-up errors are told on stderr."""
    if not __debug__:
        return _refuse("nodes do not run under python -O: their checks are needed", EXIT_FAILED)
    if sys.platform == "win32":
        return _refuse("nodes run on Linux and macOS; on Windows only clients do", EXIT_FAILED)
    if options.check:
        return _check(options)
    from rmqkit.shell.log import NodeLog
    from rmqkit.shell.run import run_nodes

    try:
        made = _brokers(options) if options.kind == "broker" else _nameservers(options)
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
    """Tell on stderr what would keep each node from starting: a line that begins with its file."""
    make = _brokers if options.kind == "broker" else _nameservers
    code = 0
    for path in options.configs:
        try:
            make(options._replace(configs=(path,), own_logs=False))
        except RmqkitError as error:
            code = _refuse(f"{path}: {error}", EXIT_FAILED)
    return code


def _nameservers(options: NodeOptions) -> _ProcessParts:
    """Raises ConfigError, RmqkitError."""
    from rmqkit.process.node_specs import config_of, nameserver_spec

    if options.container_port or options.container_folder or options.own_logs:
        raise ConfigError("--container-port, --container-folder and --own-logs are for brokers")
    paths = options.configs or (None,)
    configs = [config_of(path, options.settings, "nameserver") for path in paths]
    several = len(configs) > 1
    specs = [nameserver_spec(each, f"nameserver-{at}" if several else options.name) for at, each in enumerate(configs)]
    return _ProcessParts(specs, configs[0])


def _brokers(options: NodeOptions) -> _ProcessParts:
    """Raises ConfigError, RmqkitError."""
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
    """The port of the container's own node, None without one. Raises ConfigError."""
    from rmqkit.process.broker_container import CONTAINER_PORT

    if not text:
        return CONTAINER_PORT if brokers > 1 else None
    if text == OFF:
        return None
    if not text.isascii() or not text.isdigit() or int(text) > PORT_MAX:
        raise ConfigError(f"--container-port {text}: must be a port, 0 for one of the system's, or {OFF}")
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
    """Raises SystemExit with 2 for a command line that makes no sense."""
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            self.exit(EXIT_USAGE, f"error: {message}\n")

    parser = Parser(prog="python -m rmqkit.process", allow_abbrev=False, description="Run a name server or brokers.")
    parser.add_argument("-c", "--config", action="append", default=[], metavar="FILE", help="a node's settings")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="over the files")
    parser.add_argument("--kind", choices=("broker", "nameserver"), default="broker")
    parser.add_argument("--name", default="", help="what the log calls the node")
    parser.add_argument("--lifeline", type=int, metavar="FD", help="end when the other end of this pipe is closed")
    parser.add_argument("--log-file", metavar="FILE")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--own-logs", action="store_true", help="each broker's log beside its settings")
    parser.add_argument("--container-port", default="", metavar="PORT", help="where brokers are added and removed, or off")
    parser.add_argument("--container-folder", default="", metavar="FOLDER", help="whose files may be added")
    parser.add_argument("--check", action="store_true", help="only see whether settings and plug-ins are right")
    told: Namespace = parser.parse_args(argv)
    return NodeOptions(
        told.config,
        told.set,
        told.kind,
        told.name,
        told.lifeline,
        told.log_file,
        told.log_format,
        told.own_logs,
        told.container_port,
        told.container_folder,
        told.check,
    )


if __name__ == "__main__":
    sys.exit(run(parse_options(sys.argv[1:])))
