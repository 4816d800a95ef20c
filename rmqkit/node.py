"""`python -m rmqkit.node -c node.toml`: a node process. Puts settings, plug-ins, nodes and the shell together.

    -c, --config FILE     a node's settings: TOML, or an Apache `.conf` as it is; once for each node of the process
    --set KEY=VALUE       over the files, for each of the nodes
    --kind KIND           what the nodes are: broker (default) or nameserver
    --name NAME           what the log calls a single node
    --lifeline FD         end when the other end of this pipe is closed
    --log-file FILE       where the log goes (stderr otherwise), --log-format text|json; rotated as logFileSizeMax and
                          logFilesMax of the first node say

What keeps a node from starting is one line on stderr: exit code 2 for settings, 1 for the rest. The log says "ready"
with the ports once the nodes run; the other exit codes are `rmqkit.shell.run`'s.

This module is imported by every node process, so it takes in no more than a node needs: neither the command line's
libraries nor psutil.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.errors import ConfigError, RmqkitError

if TYPE_CHECKING:
    from argparse import Namespace

    from rmqkit.config import Kind, NodeConfig
    from rmqkit.runtime.node import Node
    from rmqkit.runtime.ports import Ports
    from rmqkit.shell.run import Listen, NodeSpec, Started

EXIT_FAILED = 1
EXIT_USAGE = 2
PORT_TRIES = 100


class Options(NamedTuple):
    """What a node process is told on its command line."""

    configs: Sequence[str] = ()
    settings: Sequence[str] = ()
    kind: Kind = "broker"
    name: str = ""
    lifeline_fd: int | None = None
    log_file: str | None = None
    log_format: str = "text"


def run(options: Options) -> int:
    """Run the nodes until they are stopped; the exit code. Start-up errors are told on stderr."""
    if not __debug__:
        return _refuse("nodes do not run under python -O: their checks are needed", EXIT_FAILED)
    if sys.platform == "win32":
        return _refuse("nodes run on Linux and macOS; on Windows only clients do", EXIT_FAILED)
    from rmqkit.shell.log import LogSink, NodeLog
    from rmqkit.shell.run import run_nodes

    try:
        configs = [_config(path, options) for path in options.configs or (None,)]
        specs = [_spec(config, options, path) for config, path in zip(configs, options.configs or (None,), strict=True)]
    except ConfigError as error:
        return _refuse(str(error), EXIT_USAGE)
    except RmqkitError as error:
        return _refuse(str(error), EXIT_FAILED)
    logs = configs[0].logs
    sink = LogSink(
        options.log_file,
        log_format="json" if options.log_format == "json" else "text",
        size_max=logs.file_size_max,
        kept=logs.files_max,
    )

    def ready(started: Sequence[Started]) -> None:
        for node in started:
            NodeLog(sink, node.name).info("ready", **{f"{tag}_port": port for tag, port in node.ports.items()})

    return run_nodes(specs, sink=sink, limits=configs[0].limits, lifeline_fd=options.lifeline_fd, ready=ready)


def _config(path: str | None, options: Options) -> NodeConfig:
    """The settings of one node, with what only the machine can say put in.

    A broker that may choose its port has it chosen here, since it needs three that belong together; a broker address that
    was given by name becomes a number, since it is a part of message ids.
    """
    from rmqkit import config

    paths = [path] if path else []
    loaded = config.load(paths, options.settings, options.kind)
    if options.kind != "broker":
        return loaded
    network = loaded.network
    found = {}
    if network.listen_port == 0:
        found["listenPort"] = str(_free_port(network.bind_address))
    for key, host in (("brokerIP1", network.broker_ip1), ("brokerIP2", network.broker_ip2)):
        if (number := _numeric(key, host)) != host:
            found[key] = number
    if not found:
        return loaded
    return config.load(paths, [*options.settings, *(f"{key}={value}" for key, value in found.items())], options.kind)


def _numeric(key: str, host: str) -> str:
    """The address of a host, IPv4 first. Raises ConfigError when it has none."""
    import socket

    try:
        found = socket.getaddrinfo(host, None, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigError(f"config: {key} = {host!r}: no such host") from None
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


def _free_port(host: str) -> int:
    """A port P that the system gives, with P-2 and P+1 (for slaves) free as well."""
    from rmqkit.shell.listener import bind

    for _ in range(PORT_TRIES):
        with bind(host, 0, 1) as chosen:
            port = int(chosen.getsockname()[1])
            try:
                for own in (port - 2, port + 1):
                    bind(host, own, 1).close()
            except RmqkitError:
                continue
            return port
    raise RmqkitError("no three ports that belong together are free")


def _spec(config: NodeConfig, options: Options, path: str | None) -> NodeSpec:
    name = options.name if len(options.configs) < 2 else ""
    return _nameserver(config, name) if config.kind == "nameserver" else _broker(config, name, path)


def _nameserver(config: NodeConfig, name: str) -> NodeSpec:
    import posixpath

    from rmqkit.nameserver.node import NameServer
    from rmqkit.shell.run import Listen, NodeSpec

    name = name or "nameserver"

    def make(ports: Ports, numbers: Mapping[str, int]) -> Node:
        return NameServer(name, ports, config)

    settings = config.nameserver
    listens = [Listen("remoting", settings.bind_address, settings.listen_port)]
    listens += _metrics(config, settings.bind_address)
    return NodeSpec(name, posixpath.dirname(settings.kv_config_path), make, listens)


def _broker(config: NodeConfig, name: str, path: str | None) -> NodeSpec:
    """`path` is where its settings come from; drills find their socket beside them, else in the store folder."""
    import os.path

    from rmqkit import plugins
    from rmqkit.broker.node import Broker
    from rmqkit.shell.run import Listen, NodeSpec

    name = name or f"{config.identity.broker_name}-{config.identity.broker_id}"
    parts = plugins.load().broker_parts(config)

    replication = config.replication
    if replication.drill_defects:
        from rmqkit.drill.defects import check

        check(replication.drill_defects)

    def make(ports: Ports, numbers: Mapping[str, int]) -> Node:
        broker = Broker(name, ports, config, parts)
        if replication.drill_defects:
            from rmqkit.drill.defects import plant

            plant(broker, replication.drill_defects)
        return broker

    network = config.network
    listens = [Listen("remoting", network.bind_address, network.listen_port)]
    if network.vip_listen_port:
        listens.append(Listen("vip", network.bind_address, network.vip_listen_port))
    if network.ha_listen_port:
        listens.append(Listen("ha", network.bind_address, network.ha_listen_port))
    listens += _metrics(config, network.broker_ip1)
    folder = config.paths.store_path_root_dir
    drill_folder = os.path.dirname(os.path.abspath(path)) if path else folder
    return NodeSpec(name, folder, make, listens, drill_folder if replication.drill_faults else None)


def _metrics(config: NodeConfig, host: str) -> list[Listen]:
    """The listener of the Prometheus endpoint, on `host` unless another was set; none when it is off."""
    from rmqkit.shell.run import Listen

    metrics = config.metrics
    if metrics.exporter_type != "PROM":
        return []
    return [Listen("metrics", metrics.prom_exporter_host or host, metrics.prom_exporter_port)]


def _refuse(why: str, code: int) -> int:
    print(f"error: {why}", file=sys.stderr)
    return code


def parse_options(argv: Sequence[str]) -> Options:
    """Raises SystemExit with 2 for a command line that makes no sense."""
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            self.exit(EXIT_USAGE, f"error: {message}\n")

    parser = Parser(prog="python -m rmqkit.node", allow_abbrev=False, description="Run a name server or brokers.")
    parser.add_argument("-c", "--config", action="append", default=[], metavar="FILE", help="a node's settings")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="over the files")
    parser.add_argument("--kind", choices=("broker", "nameserver"), default="broker")
    parser.add_argument("--name", default="", help="what the log calls the node")
    parser.add_argument("--lifeline", type=int, metavar="FD", help="end when the other end of this pipe is closed")
    parser.add_argument("--log-file", metavar="FILE")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    told: Namespace = parser.parse_args(argv)
    return Options(told.config, told.set, told.kind, told.name, told.lifeline, told.log_file, told.log_format)


if __name__ == "__main__":
    sys.exit(run(parse_options(sys.argv[1:])))
