"""The brokers of one process: those it starts with, and those added or removed while it runs.

`Brokers` is the `BrokerHost` of the container's node. The node receives the request, `Brokers`
reads the file, and the shell (`NodeHost`) creates the broker. If a broker cannot be added to a
running process, the error goes to the caller and to the log; the other brokers are not affected. At
the start of the process, the same error ends the start.

**Which files are read.** Those given at the start, and those below the container's folder, both
after symbolic links are resolved. Any other path is refused with the same message whether it exists
or not.

**What may not be shared.** Each broker of a process has its own key (cluster, name, id), store
folder and ports.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rmqkit.access.table import Accounts
from rmqkit.broker.node import Broker
from rmqkit.container import BrokerKey, BrokerSummary, Container, ContainerNode
from rmqkit.container.container import identity_of
from rmqkit.container.node import ChangeResult, Then
from rmqkit.errors import CannotStart, ConfigError, RmqkitError
from rmqkit.process.node_specs import broker_name_of, broker_spec, config_of, tls_of
from rmqkit.shell.listener import release_reserved
from rmqkit.shell.log import LogSink
from rmqkit.shell.node_host import Listen, NodeHost, NodeSpec
from rmqkit.shell.run import reason_of
from rmqkit.wire.codes import ResponseCode

if TYPE_CHECKING:
    from rmqkit.config import LogSettings, NodeConfig
    from rmqkit.runtime.node import Node
    from rmqkit.runtime.ports import Ports

#: the default port of Apache's container
CONTAINER_PORT = 10811
CONTAINER = "container"
LOG_NAME = "log"
#: interval between two checks whether a new broker serves
SERVING_POLL_MS = 10
LOOPBACK = "127.0.0.1"


class Brokers:
    """The brokers of one process, and their settings.

    - `settings` override every file.
    - `folder`: files below it may be added ("": only the given ones).
    - `own_log` creates a broker's log from its path and log settings; None: its lines go to the
      process's log.
    """

    def __init__(
        self,
        *,
        settings: Sequence[str] = (),
        folder: str = "",
        own_log: Callable[[str, LogSettings], LogSink] | None = None,
    ) -> None:
        self.container = Container()
        self._settings = settings
        self._folder = os.path.realpath(folder) if folder else ""
        self._own_log = own_log
        self._start_paths: dict[str, None] = {}
        self._hosting: NodeHost | None = None
        self._configs: dict[str, NodeConfig] = {}
        #: by key: path of the settings file, state during a change, and name in the log
        self._paths: dict[str, str] = {}
        self._states: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._listens = Listen("remoting", LOOPBACK, 0)

    # --- at the start

    def first(self, paths: Sequence[str | None], name: str = "") -> list[NodeSpec]:
        """Return the specs of the brokers that the process starts with.

        `name` is the name in the log if there is only one. Raises ConfigError, RmqkitError.
        """
        self._start_paths = {os.path.realpath(path): None for path in paths if path}
        specs = []
        for path in paths:
            config = config_of(path, self._settings, "broker")
            specs.append(self._spec(config, path, name if len(paths) == 1 else ""))
        return specs

    @property
    def main(self) -> NodeConfig:
        """The settings of the first broker; its limits and log sizes apply to the whole process."""
        return next(iter(self._configs.values()))

    def port(self, port: int) -> NodeSpec:
        """Return the spec of the container's own node.

        It listens on loopback, unless the first broker lets other machines change settings. It has
        the TLS of the first broker.
        """
        first = self.main
        remote = first.limits.remote_config_update
        self._listens = Listen("remoting", first.network.bind_address if remote else LOOPBACK, port)

        def make(ports: Ports, numbers: Mapping[str, int]) -> Node:
            self._listens = self._listens._replace(port=numbers["remoting"])
            return ContainerNode(CONTAINER, ports, self, limits=first.limits, remote_update=remote, access=first.access)

        return NodeSpec(CONTAINER, first.paths.store_path_root_dir, make, [self._listens], tls=tls_of(first))

    def live_in(self, hosting: NodeHost) -> None:
        """Take over the brokers that `hosting` has created and is about to start."""
        self._hosting = hosting
        for resident in hosting.residents.values():
            if isinstance(resident.node, Broker):
                self.container.join(resident.node)

    # --- what the container's node asks

    def add(self, path: str, then: Then) -> None:
        self._loop_soon(lambda: self._add(path, then))

    def remove(self, identity: BrokerKey, then: Then) -> None:
        self._loop_soon(lambda: self._remove(identity, then))

    def tables(self) -> Sequence[Accounts]:
        return [table for broker in self._brokers() for table in broker.view.access.tables]

    def shown(self) -> Sequence[BrokerSummary]:
        return [self._summary(key, broker) for key, broker in self.container.brokers.items()]

    def settings(self) -> Mapping[str, str]:
        return {
            "brokerConfigPaths": ":".join(path for path in self._paths.values() if path),
            "brokerContainerIP": self._listens.host,
            "listenPort": str(self._listens.port),
            "namesrvAddr": ";".join(dict.fromkeys(each for broker in self._brokers() for each in _namesrv(broker))),
        }

    # --- inside

    def _brokers(self) -> Sequence[Broker]:
        return list(self.container.brokers.values())

    def _summary(self, key: str, broker: Broker) -> BrokerSummary:
        identity = identity_of(broker.config)
        state = self._states.get(key) or ("serving" if broker.serving else "starting")
        store = broker.config.paths.store_path_root_dir
        return BrokerSummary(*identity, broker.context.address_text, state, self._paths[key], store)

    def _loop_soon(self, function: Callable[[], None]) -> None:
        assert self._hosting is not None
        self._hosting.loop.call_soon_threadsafe(function)

    def _spec(self, config: NodeConfig, path: str | None, name: str = "") -> NodeSpec:
        """Build the spec of a broker, and reserve its key, store folder and ports.

        Raises ConfigError, RmqkitError.
        """
        self._check_apart(config, path or "its settings")
        key = str(identity_of(config))
        name = name or broker_name_of(config)
        if name in self._names.values():
            name = key
        sink = None
        if self._own_log is not None and path:
            sink = self._own_log(os.path.join(_folder_of(path), LOG_NAME), config.logs)
        spec = broker_spec(config, name, path, sink)
        self._configs[key], self._paths[key], self._names[key] = config, os.path.abspath(path) if path else "", name
        return spec

    def _check_apart(self, config: NodeConfig, path: str) -> None:
        """Raise ConfigError if another broker of this process uses something of this broker's own.

        That is its key, its store folder, a port, or with `own_log` the folder of its settings
        file.
        """
        key = str(identity_of(config))
        if key in self._configs:
            raise ConfigError(
                f"config: {path}: broker {config.identity.broker_name}:{config.identity.broker_id} of cluster"
                f" {config.identity.broker_cluster_name} is in this process already; set another brokerName or brokerId"
            )
        for other_key, other in self._configs.items():
            name = self._names[other_key]
            if _store(config) == _store(other):
                raise ConfigError(f"config: {path}: storePathRootDir = {_store(config)} is used by {name}; set another one")
            shared = sorted(_ports(config) & _ports(other))
            if shared:
                raise ConfigError(
                    f"config: {path}: port {shared[0]} is one of {name}'s (listenPort P takes P-2 and P+1 as well);"
                    f" set another listenPort, for example 10 higher"
                )
            if self._own_log is not None and _folder_of(path) == os.path.dirname(self._paths[other_key]):
                raise ConfigError(f"config: {path}: with --own-logs each broker needs its own folder for its settings file")

    def _forget(self, key: str) -> None:
        for table in (self._configs, self._paths, self._names, self._states):
            table.pop(key, None)

    def _allowed(self, path: str) -> str:
        """Return the real path of a file that may be read. Raises ConfigError for any other."""
        real = os.path.realpath(os.path.join(self._folder, path))
        if real in self._start_paths:
            return real
        if not self._folder or os.path.commonpath([self._folder, real]) != self._folder:
            below = f" and those below {self._folder}" if self._folder else ""
            raise ConfigError(
                f"this container reads the files it was started with{below} only (--container-folder), not {path}"
            )
        if not os.path.isfile(real):
            raise ConfigError(f"config: cannot read {path}: it is not a file")
        return real

    def _add(self, path: str, then: Then) -> None:
        assert self._hosting is not None
        key = ""
        try:
            real = self._allowed(path)
        except (RmqkitError, OSError, ValueError) as error:
            then(ChangeResult(str(error)))
            return
        hidden = f"{path} cannot be used; the container's log says why"
        try:
            config = config_of(real, self._settings, "broker")
            spec = self._spec(config, real)
            key = str(identity_of(config))
            starting = _BrokerStart(self, key, then)
            resident = self._hosting.add(spec, starting.failed)
        except (RmqkitError, OSError, ValueError, RecursionError) as error:
            # ValueError: an invalid path; RecursionError: a file nested too deeply. Neither may end
            # the running brokers.
            release_reserved()
            if key:
                self._forget(key)
            why = reason_of(error) if isinstance(error, RmqkitError | OSError) else f"{path} cannot be used: {error}"
            then(ChangeResult(why, for_others=hidden))
            return
        assert isinstance(resident.node, Broker)
        starting.broker = resident.node
        self.container.join(resident.node)
        resident.log.info("added", config=real, **{f"{tag}_port": port for tag, port in resident.started.ports.items()})
        starting.look()

    def _remove(self, identity: BrokerKey, then: Then) -> None:
        assert self._hosting is not None
        key = str(identity)
        broker = self.container.brokers.get(key)
        if broker is None:
            then(ChangeResult("Broker not exist", ResponseCode.BROKER_NOT_EXIST))
            return
        if key in self._states:
            then(ChangeResult(f"broker {identity.name}:{identity.broker_id} is being stopped already"))
            return
        self._states[key] = "stopping"

        def gone() -> None:
            self.left(key, broker)
            then(ChangeResult())

        self._hosting.remove(self._names[key], gone)

    def left(self, key: str, broker: Broker) -> None:
        """Forget a broker that has left the process."""
        self.container.leave(broker)
        self._forget(key)

    def after(self, delay_ms: int, function: Callable[[], None]) -> None:
        assert self._hosting is not None
        self._hosting.loop.after(delay_ms, function)


class _BrokerStart:
    """Waits until an added broker serves, fails to start or is removed, and reports the result."""

    def __init__(self, brokers: Brokers, key: str, then: Then) -> None:
        self.brokers = brokers
        self.key = key
        self.broker: Broker | None = None
        self._then: Then | None = then

    def look(self) -> None:
        assert self.broker is not None
        if self.broker.serving:
            self._end(ChangeResult())
        elif self.broker.stopping:
            self._end(ChangeResult("the broker was asked to stop before it served"))
        elif self._then is not None:
            self.brokers.after(SERVING_POLL_MS, self.look)

    def failed(self, error: CannotStart) -> None:
        if self.broker is not None:
            self.brokers.left(self.key, self.broker)
        self._end(ChangeResult(str(error), for_others="the broker cannot start; the container's log says why"))

    def _end(self, outcome: ChangeResult) -> None:
        then, self._then = self._then, None
        if then is not None:
            then(outcome)


def _namesrv(broker: Broker) -> Sequence[str]:
    return broker.config.network.namesrv_addrs


def _folder_of(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))


def _store(config: NodeConfig) -> str:
    return os.path.realpath(config.paths.store_path_root_dir)


def _ports(config: NodeConfig) -> set[int]:
    network, metrics = config.network, config.metrics
    found = {network.listen_port, network.vip_listen_port, network.ha_listen_port}
    if metrics.exporter_type == "PROM":
        found.add(metrics.prom_exporter_port)
    return found - {0}
