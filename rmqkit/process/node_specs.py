"""Read a node's settings and build the `NodeSpec` of a node process.

Plug-ins, nodes and metrics are imported inside the functions, so that a process only loads what it
runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rmqkit.access.listeners import check_listeners
from rmqkit.errors import ConfigError

if TYPE_CHECKING:
    from rmqkit.config import Kind, NodeConfig
    from rmqkit.runtime.node import Node
    from rmqkit.runtime.ports import Ports
    from rmqkit.shell.log import LogSink
    from rmqkit.shell.node_host import Listen, NodeSpec
    from rmqkit.tls.node_tls import NodeTls

PORT_TRIES = 100
METRICS_PACKAGES = ("h11", "prometheus_client")  # the extra `rmqkit[metrics]`


def config_of(path: str | None, settings: Sequence[str], kind: Kind) -> NodeConfig:
    """Return the settings of one node, completed with values from this machine.

    If a broker's `listenPort` is 0, three ports that belong together are reserved here; they stay
    bound until the node listens on them. A broker address given by name is resolved to an IP
    address, since it becomes part of message ids.

    Raises ConfigError, RmqkitError.
    """
    from rmqkit import config

    paths = [path] if path else []
    loaded = config.load(paths, settings, kind)
    if kind != "broker":
        return loaded
    network = loaded.network
    found = {}
    if network.listen_port == 0:
        from rmqkit.shell.listener import reserve

        # P-2 is for requests of the VIP channel, P+1 for slaves.
        found["listenPort"] = str(reserve(network.bind_address, (-2, 1), PORT_TRIES))
    for key, host in (("brokerIP1", network.broker_ip1), ("brokerIP2", network.broker_ip2)):
        if (number := _numeric(key, host)) != host:
            found[key] = number
    if not found:
        return loaded
    return config.load(paths, [*settings, *(f"{key}={value}" for key, value in found.items())], kind)


def _numeric(key: str, host: str) -> str:
    """Return the IP address of a host, IPv4 preferred. Raises ConfigError for an unknown name."""
    import socket

    try:
        found = socket.getaddrinfo(host, None, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigError(f"config: {key} = {host!r}: no such host") from None
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


def broker_name_of(config: NodeConfig) -> str:
    """Return the broker's name in the log."""
    return f"{config.identity.broker_name}-{config.identity.broker_id}"


def nameserver_spec(config: NodeConfig, name: str) -> NodeSpec:
    """Return the spec of a name server; `name` is its name in the log."""
    import posixpath

    from rmqkit.nameserver.node import NameServer
    from rmqkit.shell.node_host import Listen, NodeSpec

    name = name or "nameserver"

    def make(ports: Ports, numbers: Mapping[str, int]) -> Node:
        return NameServer(name, ports, config)

    settings = config.nameserver
    listens = [Listen("remoting", settings.bind_address, settings.listen_port)]
    listens += _metrics(config, settings.bind_address)
    check_listeners(each.tag for each in listens)
    return NodeSpec(name, posixpath.dirname(settings.kv_config_path), make, listens, tls=tls_of(config))


def controller_spec(config: NodeConfig, name: str) -> NodeSpec:
    """Return the spec of a controller, alone or inside a name server's process.

    Raises ConfigError, PluginError.
    """
    from rmqkit import plugins
    from rmqkit.controller.group import log_type_of
    from rmqkit.controller.node import Controller
    from rmqkit.shell.node_host import Listen, NodeSpec

    name = name or "controller"
    settings = config.controller
    is_inside = config.kind == "nameserver"
    make_log = plugins.pick(plugins.load().controller_logs, log_type_of(settings), "controllerType")

    def make(ports: Ports, numbers: Mapping[str, int]) -> Node:
        return Controller(name, ports, config, make_log, numbers["remoting"])

    host = config.nameserver.bind_address if is_inside else settings.bind_address
    port = next((each.port for each in settings.peers if each.id == settings.self_id), settings.listen_port)
    listens = [Listen("remoting", host, port)]
    if not is_inside:  # a name server's port has the metrics of its own
        listens += _metrics(config, host)
    check_listeners(each.tag for each in listens)
    return NodeSpec(name, settings.store_path, make, listens, tls=tls_of(config))


def broker_spec(config: NodeConfig, name: str, path: str | None, sink: LogSink | None = None) -> NodeSpec:
    """Return the spec of a broker. Raises ConfigError, PluginError.

    `path` is its settings file: drills find their socket beside it, or in the store folder without
    one.
    """
    import os.path

    from rmqkit import plugins
    from rmqkit.broker.node import Broker
    from rmqkit.shell.node_host import Listen, NodeSpec

    name = name or broker_name_of(config)
    parts = plugins.load().broker_parts(config)

    drills = config.drills
    if drills.defects:
        from rmqkit.drill.defects.table import check

        check(drills.defects)

    def make(ports: Ports, numbers: Mapping[str, int]) -> Node:
        if config.access.plain_acl_path:
            from rmqkit.process.acl_files import read_acl_files

            ports = ports._replace(read_acl=partial(read_acl_files, config.access.plain_acl_path))
        broker = Broker(name, ports, config, parts)
        if drills.defects:
            from rmqkit.drill.defects.table import plant

            plant(broker, drills.defects)
        return broker

    network = config.network
    listens = [Listen("remoting", network.bind_address, network.listen_port)]
    if network.vip_listen_port:
        listens.append(Listen("vip", network.bind_address, network.vip_listen_port))
    if network.ha_listen_port:
        listens.append(Listen("ha", network.bind_address, network.ha_listen_port))
    listens += _metrics(config, network.broker_ip1)
    check_listeners(each.tag for each in listens)
    folder = config.paths.store_path_root_dir
    drill_folder = os.path.dirname(os.path.abspath(path)) if path else folder
    return NodeSpec(name, folder, make, listens, drill_folder if drills.faults else None, sink, tls_of(config))


def tls_of(config: NodeConfig) -> NodeTls | None:
    """Return the TLS of a node, None if none of its connections may use it. Raises ConfigError."""
    server, client = config.tls, config.tls_client
    if not (server.listens or client.use_tls or client.enable):
        return None
    from rmqkit.tls.node_tls import NodeTls  # loads `ssl`

    return NodeTls(server, client)


def _metrics(config: NodeConfig, host: str) -> list[Listen]:
    """Return the listener of the Prometheus endpoint, [] if it is off.

    It listens on `host` unless the settings name another. Raises ConfigError if the endpoint's
    packages are not installed.
    """
    from importlib.util import find_spec

    from rmqkit.shell.node_host import Listen

    metrics = config.metrics
    if metrics.exporter_type != "PROM":
        return []
    if missing := [package for package in METRICS_PACKAGES if find_spec(package) is None]:
        raise ConfigError(
            f"config: metricsExporterType = PROM needs {', '.join(missing)}: pip install 'rmqkit[metrics]', or set DISABLE"
        )
    return [Listen("metrics", metrics.prom_exporter_host or host, metrics.prom_exporter_port)]
