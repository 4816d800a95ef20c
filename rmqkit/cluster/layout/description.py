"""The description of a cluster: the content of `cluster.toml`, and the nodes that it results in.

    name = "default"
    groups = 1            # broker-a, broker-b, ...
    replicas = 2          # brokers of a group: id 0 is the master, the others are its slaves
    nameservers = 1
    controllers = 0       # above 0: they elect the master of each group, whose ids begin with 1
    bind = "127.0.0.1"
    advertise = ""        # the address that clients are given; empty: the address bound to
    base_port = 0         # 0: name servers from 9876, brokers from 10911
    any_port = false      # choose another port when one is taken
    log_format = "text"   # of the nodes' logs; or "json"
    layout = "apart"      # which brokers share a process: none (apart), all, those with the
                          # same id (replica), crosswise
    secure = false        # TLS everywhere, with certificates of an authority that `up` makes

    [settings]            # RocketMQ's names; a key applies to the kinds of node that know it
    flushDiskType = "SYNC_FLUSH"

Default ports, each 10 above the one before:

- Name servers use 9876 and up, brokers 10911 and up. With `base_port` the name servers start there
  and the brokers follow them.
- A broker at port P also uses P-2 and, for its replicas, P+1.
- A broker container (a process of several brokers, `container-0`, …) has an admin port, 10811 and
  up. With `base_port` these ports follow those of the brokers.
- Controllers use 19876 and up. With `base_port` their ports follow those of the brokers.
- With `metricsExporterType = "PROM"` each node has a metrics port, `metricsPromExporterPort` and
  up, name servers first.

The actual ports of a node are in its `node.toml`.
"""

import socket
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from rmqkit.cluster.errors import UsageProblem
from rmqkit.cluster.layout.names import DEFAULT, GROUPS_MAX, check_cluster_name, container_name, group_name, number_of
from rmqkit.settings.replication_sections import REPLICAS_MAX
from rmqkit.settings.table import Kind
from rmqkit.suggestions import suggest

Setting = bool | int | float | str

NAMESERVER_PORT = 9876
BROKER_PORT = 10911
METRICS_PORT = 5557
METRICS_PORT_KEY = "metricsPromExporterPort"
CONTAINER_PORT = 10811
CONTROLLER_PORT = 19876
PORT_STEP = 10
LOG_FORMATS = ("text", "json")
NAMESERVERS_MAX = 9
#: as many as a group of controllers may have
CONTROLLERS_MAX = 5
APART = "apart"
#: crosswise: process i has the master of group i and slaves of other groups
LAYOUTS = (APART, "all", "replica", "crosswise")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node that the cluster should have. `port` is its default, used if the port is free."""

    node: str
    port: int
    broker_name: str = ""
    broker_id: int = 0
    #: its default metrics port; 0 if metrics are off
    metrics_port: int = 0
    #: the container process that it shares with other brokers; "" if it has its own process
    container: str = ""
    is_controller: bool = False
    #: a broker in controller mode: which member of the group is master changes while it runs
    is_elected: bool = False

    @property
    def is_broker(self) -> bool:
        return bool(self.broker_name)

    @property
    def is_nameserver(self) -> bool:
        return not self.is_broker and not self.is_controller

    @property
    def is_slave(self) -> bool:
        """Whether it is a slave for good."""
        return bool(self.broker_id) and not self.is_elected

    @property
    def master(self) -> str:
        """The node that is this slave's master."""
        return f"{self.broker_name}-0"

    @property
    def process(self) -> str:
        """The name of its process, which is also the name of that process's folder."""
        return self.container or self.node

    @property
    def kind(self) -> Kind:
        if self.is_controller:
            return "controller"
        return "broker" if self.broker_name else "nameserver"

    def ports(self, port: int) -> tuple[int, ...]:
        """Return all ports that the node uses if its main port is `port`."""
        return (port, port - 2, port + 1) if self.broker_name else (port,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The content of `cluster.toml`; the head of this module explains each field."""

    name: str = DEFAULT
    groups: int = 1
    replicas: int = 2
    nameservers: int = 1
    controllers: int = 0
    bind: str = "127.0.0.1"
    advertise: str = ""
    base_port: int = 0
    any_port: bool = False
    log_format: str = "text"
    layout: str = APART
    secure: bool = False
    settings: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def advertised(self) -> str:
        """The numeric address that clients are given. It becomes a part of message ids.

        Raises UsageProblem.
        """
        if self.advertise:
            return numeric("advertise", self.advertise)
        return "127.0.0.1" if self.bind in ("0.0.0.0", "::") else self.bound

    @property
    def bound(self) -> str:
        """The numeric address to listen on. Raises UsageProblem."""
        return numeric("bind", self.bind)

    @property
    def has_metrics(self) -> bool:
        return self.settings.get("metricsExporterType") == "PROM"

    def changed(self, **given: Any) -> "Description":
        """Return a copy with the given values that are not None. `settings` are merged.

        Raises UsageProblem if the result is invalid.
        """
        asked = {key: value for key, value in given.items() if value is not None}
        if "settings" in asked:
            asked["settings"] = {**self.settings, **asked["settings"]}
        return replace(self, **asked).checked()

    def checked(self) -> "Description":
        """Return this description. Raises UsageProblem if it is invalid."""
        check_cluster_name(self.name)
        _check_count("groups", self.groups, GROUPS_MAX)
        _check_count("nameservers", self.nameservers, NAMESERVERS_MAX)
        _check_count("replicas", self.replicas, REPLICAS_MAX)
        if not 0 <= self.controllers <= CONTROLLERS_MAX:
            raise UsageProblem(f"controllers = {self.controllers}: must be from 0 to {CONTROLLERS_MAX}")
        if self.log_format not in LOG_FORMATS:
            raise UsageProblem(f"log_format = {self.log_format!r}: must be {' or '.join(LOG_FORMATS)}")
        if self.layout not in LAYOUTS:
            raise UsageProblem(f"layout = {self.layout!r}: must be {', '.join(LAYOUTS[:-1])} or {LAYOUTS[-1]}")
        if self.controllers and self.layout != APART:
            raise UsageProblem(f"layout = {self.layout!r} with controllers: must be {APART}")
        plans = [*self.nodes(), *self.containers()]
        top = max(max(*plan.ports(plan.port), plan.metrics_port) for plan in plans)
        if self.base_port and (self.base_port < 1024 or top > 65535):
            raise UsageProblem(f"base_port = {self.base_port}: all ports of the nodes must be between 1024 and 65535")
        return self

    def nodes(self) -> list[NodePlan]:
        """Return the nodes: name servers, controllers, then the brokers by group and id.

        With controllers the ids of a group begin with 1, as the controllers give them.
        """
        first_ns = self.base_port or NAMESERVER_PORT
        first_broker = self.base_port + PORT_STEP * self.nameservers if self.base_port else BROKER_PORT
        plans = [NodePlan(node=f"ns-{i}", port=first_ns + PORT_STEP * i) for i in range(self.nameservers)]
        brokers = []
        for group in range(self.groups):
            for number in range(self.replicas):
                name, broker_id = group_name(group), number + (1 if self.controllers else 0)
                plan = NodePlan(
                    node=f"{name}-{broker_id}",
                    port=first_broker + PORT_STEP * (group * self.replicas + number),
                    broker_name=name,
                    broker_id=broker_id,
                    container=self._container_of(group, number),
                    is_elected=bool(self.controllers),
                )
                brokers.append(plan)
        first_controller = first_broker + PORT_STEP * len(brokers) if self.base_port else CONTROLLER_PORT
        controllers = [
            NodePlan(node=f"controller-{i}", port=first_controller + PORT_STEP * i, is_controller=True)
            for i in range(self.controllers)
        ]
        every = [*plans, *controllers, *brokers]
        if self.has_metrics:
            first = self._first_metrics_port()
            every = [replace(plan, metrics_port=first + PORT_STEP * at) for at, plan in enumerate(every)]
        return every

    def _container_of(self, group: int, broker_id: int) -> str:
        if self.layout == APART:
            return ""
        numbers = {
            "all": 0,
            "replica": broker_id,
            "crosswise": (group + broker_id) % max(self.groups, self.replicas),
        }
        return container_name(numbers[self.layout])

    def containers(self) -> list[NodePlan]:
        """Return the broker containers, each with the port for adding and removing brokers."""
        names = sorted({self._container_of(group, each) for group in range(self.groups) for each in range(self.replicas)})
        if self.layout == APART:
            return []
        brokers = self.groups * self.replicas
        first = self.base_port + PORT_STEP * (self.nameservers + brokers) if self.base_port else CONTAINER_PORT
        return [NodePlan(node=name, port=first + PORT_STEP * number_of(name)) for name in names]

    def _first_metrics_port(self) -> int:
        """Return the first node's metrics port. Raises UsageProblem if the setting is invalid."""
        text = str(self.settings.get(METRICS_PORT_KEY, METRICS_PORT))
        if not text.isdigit() or not 1 <= int(text) <= 65535:
            raise UsageProblem(f"{METRICS_PORT_KEY} = {text}: must be a port; each node uses one, 10 above the last")
        return int(text)

    def toml(self) -> str:
        import tomli_w

        content = {item.name: getattr(self, item.name) for item in fields(self)}
        return tomli_w.dumps({**content, "settings": dict(self.settings)})


@cache
def numeric(what: str, host: str) -> str:
    """Return a host's numeric address, IPv4 if it has one. Raises UsageProblem if it has none.

    `what` is the name of the field, for the error text.
    """
    try:
        found = socket.getaddrinfo(host, None, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UsageProblem(f"{what} = {host!r}: no such host") from None
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


def plan_by_name(node: str) -> NodePlan:
    """Return what a node's name says about it. Its port is unknown (0)."""
    group, _, number = node.rpartition("-")
    if group in ("ns", "controller"):
        return NodePlan(node=node, port=0, is_controller=group == "controller")
    return NodePlan(node=node, port=0, broker_name=group, broker_id=int(number))


def parse(text: str, where: str) -> Description:
    """Parse the content of a `cluster.toml`. Raises UsageProblem that names the file as `where`."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageProblem(f"{where}: {error}") from None
    given: dict[str, Any] = {}
    known = {item.name: type(item.default) for item in fields(Description) if item.name != "settings"}
    for key, value in content.items():
        if key == "settings":
            given[key] = _settings(value, where)
        elif key not in known:
            raise UsageProblem(f"{where}: unknown key {key!r}{suggest(key, [*known, 'settings'])}")
        elif type(value) is not known[key]:
            raise UsageProblem(f"{where}: {key} must be {_in_words(known[key])}, not {value!r}")
        else:
            given[key] = value
    try:
        return Description(**given).checked()
    except UsageProblem as error:
        raise UsageProblem(f"{where}: {error}") from None


def read(path: Path) -> Description:
    """Read a `cluster.toml`. Raises UsageProblem if it is invalid or cannot be read."""
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageProblem(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def parse_settings(pairs: Iterable[str]) -> dict[str, Setting]:
    """Parse `key=value` texts from the command line. The values stay text. Raises UsageProblem."""
    settings: dict[str, Setting] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageProblem(f"--set {pair}: must be key=value")
        settings[key.strip()] = value.strip()
    return settings


def _settings(value: object, where: str) -> dict[str, Setting]:
    if not isinstance(value, dict):
        raise UsageProblem(f"{where}: [settings] must be a table")
    for key, item in value.items():
        if not isinstance(item, (bool, int, float, str)):
            raise UsageProblem(f"{where}: settings.{key} must be text, a number or true/false")
    return value


def _check_count(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise UsageProblem(f"{name} = {value}: must be from 1 to {most}")


def _in_words(kind: type) -> str:
    return {bool: "true or false", int: "a whole number", str: "text"}[kind]
