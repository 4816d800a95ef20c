"""`node.toml`: all settings of a node in a cluster, written out for users to read and edit.

It has three kinds of keys, in order of precedence:

1. Keys that tie the node into its cluster: names, addresses, ports, folders, a slave's role. They
   are rewritten at each start.
2. The cluster's `[settings]`.
3. The defaults of `cluster up`. They are written once, so that an edit stays. Those that depend on
   the number of replicas change with it, unless they were edited.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from rmqkit.cluster.errors import ClusterError, UsageProblem
from rmqkit.cluster.layout.description import METRICS_PORT_KEY, Description, NodePlan, Setting
from rmqkit.cluster.layout.home import CONTAINER_FILE, NODE_FILE, STORE, write_whole
from rmqkit.cluster.layout.names import number_of
from rmqkit.errors import ConfigError
from rmqkit.settings import keys
from rmqkit.settings.table import Kind
from rmqkit.suggestions import suggest

#: recommended settings of a broker that differ from Apache's defaults
BROKER_DEFAULTS: Mapping[str, Setting] = {
    "brokerRole": "SYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "enableAutoInSyncReplicas": True,
    "slaveReadEnable": True,
    "enablePropertyFilter": True,
    "recallMessageEnable": True,
    "haAcceptAnonymous": False,
    "drillFaultsEnable": True,
    "slaveTimeout": 2000,
    "syncFlushTimeout": 2500,
}
#: additional ones for a group with slaves
ACTING_DEFAULTS: Mapping[str, Setting] = {"enableSlaveActingMaster": True, "escapeStrategy": "auto"}
#: those of a group whose master is elected
ELECTED_DEFAULTS: Mapping[str, Setting] = {"allAckInSyncStateSet": True}
NAMESERVER_DEFAULTS: Mapping[str, Setting] = {"supportActingMaster": True, "notifyMinBrokerIdChanged": True}

#: keys that only this module writes
BROKER_TIES = (
    "brokerClusterName", "brokerName", "brokerId", "listenPort", "haListenPort", "bindAddress", "brokerIP1", "brokerIP2",
    "namesrvAddr", "storePathRootDir", "enableControllerMode", "controllerAddr",
)  # fmt: skip
NAMESERVER_TIES = ("listenPort", "bindAddress", "kvConfigPath", "configStorePath")
CONTROLLER_TIES = (
    "listenPort", "bindAddress", "controllerDLegerGroup", "controllerDLegerPeers", "controllerDLegerSelfId",
    "controllerStorePath", "configStorePath",
)  # fmt: skip

#: keys of a cluster's description that are no settings of its nodes; two are chosen by a preset
SHAPE = frozenset(each.name for each in fields(Description)) - {"name", "settings"}
PRESET_ONLY = frozenset({"controllers", "secure"})
CONTAINER_PORT_KEY = "containerPort"
METRICS_HOST_KEY = "metricsPromExporterHost"
ROLE_KEY = "brokerRole"
ESCAPE_KEY = "escapeStrategy"
REMOTE_ESCAPE_KEY = "enableRemoteEscape"
SLAVE = "SLAVE"


def wire_name(name: str) -> str:
    """Return the cluster's name on the wire. Apache's tools expect DefaultCluster."""
    return "DefaultCluster" if name == "default" else name


def contents(
    description: Description,
    plan: NodePlan,
    folder: Path,
    *,
    port: int,
    namesrv: str,
    there: Mapping[str, Setting],
    metrics_port: int | None = None,
    secured: Mapping[str, Setting] | None = None,
    controllers: Sequence[str] = (),
) -> dict[str, Setting]:
    """Return the content of one node's file.

    `there` is the current content of the file. `metrics_port` is None if metrics are off. `secured`
    are the settings of a secure cluster. `controllers` are the addresses of all controllers, in the
    order of their numbers.
    """
    store = folder / STORE
    defaults = default_settings(plan, description)
    if plan.is_broker:
        ties: dict[str, Setting] = {
            "brokerClusterName": wire_name(description.name),
            "brokerName": plan.broker_name,
            "listenPort": port,
            "bindAddress": description.bound,
            "brokerIP1": description.advertised,
            "brokerIP2": description.advertised,
            "namesrvAddr": namesrv,
            "storePathRootDir": str(store),
        }
        if plan.is_elected:
            ties |= {"enableControllerMode": True, "controllerAddr": ";".join(controllers)}
        else:
            ties["brokerId"] = plan.broker_id
        if plan.is_slave:
            ties[ROLE_KEY] = SLAVE
    elif plan.is_controller:
        peers = [f"n{number}-{address}" for number, address in enumerate(controllers)]
        ties = {
            "listenPort": port,
            "bindAddress": description.bound,
            "controllerDLegerGroup": f"{wire_name(description.name)}-controllers",
            "controllerDLegerPeers": ";".join(peers),
            "controllerDLegerSelfId": f"n{number_of(plan.node)}",
            "controllerStorePath": str(store / "controller"),
            "configStorePath": str(store / "controller.properties"),
        }
    else:
        ties = {
            "listenPort": port,
            "bindAddress": description.bound,
            "kvConfigPath": str(store / "kvConfig.json"),
            "configStorePath": str(store / "namesrv.properties"),
        }
    ties |= secured or {}
    if metrics_port is not None:
        ties[METRICS_PORT_KEY] = metrics_port
        if METRICS_HOST_KEY not in description.settings:
            ties[METRICS_HOST_KEY] = description.bound
    settings = {
        key: value
        for key, value in description.settings.items()
        if knows(plan.kind, key) and key != METRICS_PORT_KEY and not (plan.is_slave and key == ROLE_KEY)
    }
    kept = {key: value for key, value in there.items() if key not in ties and key not in _of_other_shape(there)}
    return {**ties, **defaults, **kept, **settings}


def replica_defaults(replicas: int, settings: Mapping[str, Setting], *, is_elected: bool = False) -> dict[str, Setting]:
    """Return the defaults that depend on the number of replicas, on the cluster's settings, and on
    whether controllers elect the master."""
    acting = dict(ELECTED_DEFAULTS if is_elected else ACTING_DEFAULTS if replicas > 1 else {})
    if REMOTE_ESCAPE_KEY in settings:
        # The user has set Apache's older key for the same thing; the two must not disagree.
        acting.pop(ESCAPE_KEY, None)
    return {"totalReplicas": replicas, "inSyncReplicas": min(2, replicas), "minInSyncReplicas": 1, **acting}


def _of_other_shape(there: Mapping[str, Setting]) -> set[str]:
    """Return the keys of a file that still have the default for its number of replicas.

    Nobody has edited them, so another number of replicas may change them.
    """
    total = there.get("totalReplicas")
    if not isinstance(total, int) or total < 1:
        # Files from releases without replication have the defaults of a single broker.
        total = 1
    is_elected = bool(there.get("enableControllerMode"))
    found = replica_defaults(total, {}, is_elected=is_elected)
    return {key for key, value in found.items() if there.get(key) == value}


def default_settings(plan: NodePlan, description: Description) -> dict[str, Setting]:
    """Return the defaults of `cluster up` for a node."""
    if plan.is_broker:
        depends = replica_defaults(description.replicas, description.settings, is_elected=plan.is_elected)
        wanted = {**BROKER_DEFAULTS, **depends}
        if plan.is_slave:
            del wanted[ROLE_KEY]
        return wanted
    return {} if plan.is_controller else dict(NAMESERVER_DEFAULTS)


def knows(kind: Kind, key: str) -> bool:
    """Whether this kind of node has the setting `key`."""
    return key.startswith("plugin.") or keys.find(kind, key) is not None


def check_settings(settings: Mapping[str, Setting], replicas: int = 1, controllers: int = 0) -> None:
    """Check the `[settings]` of a cluster whose groups have `replicas` brokers.

    Raises UsageProblem for an unknown key, a key that only this module may write, or a wrong value.
    """
    from rmqkit import config

    for key in settings:
        row = keys.find("broker", key) or keys.find("nameserver", key) or keys.find("controller", key)
        if row is None and key in SHAPE:
            option = "--preset" if key in PRESET_ONLY else f"--{key.replace('_', '-')}"
            raise UsageProblem(
                f"{key} is no setting of a node: use {option}, or write it above [settings] in the description"
            )
        if row is None and not key.startswith("plugin."):
            raise UsageProblem(f"unknown setting {key!r}{suggest(key, keys.every_key())}")
        if row is not None and row.key in (*BROKER_TIES, *NAMESERVER_TIES, *CONTROLLER_TIES):
            raise UsageProblem(
                f"{row.key} differs per node and cannot be set; see --base-port, --bind, --advertise, --preset controller"
            )
        if row is not None and row.key == ROLE_KEY and str(settings[key]).upper() == SLAVE:
            raise UsageProblem(f"{ROLE_KEY} = {SLAVE}: all brokers of a group but the first are slaves; see --replicas")
    assumed: dict[str, Setting] = {"enableControllerMode": True, "controllerAddr": "127.0.0.1:1"} if controllers else {}
    defaults = {**replica_defaults(replicas, settings, is_elected=bool(controllers)), **assumed}
    for kind in keys.KINDS:
        values = {**(defaults if kind == "broker" else {}), **settings}
        try:
            config.from_values(kind, {key: value for key, value in values.items() if knows(kind, key)})
        except ConfigError as error:
            raise UsageProblem(str(error)) from None


def check(folder: Path, kind: Kind) -> None:
    """Check a node's file. Raises UsageProblem if the node would not start with it."""
    from rmqkit import config

    try:
        config.load([folder / NODE_FILE], (), kind)
    except ConfigError as error:
        raise UsageProblem(str(error)) from None


def load(folder: Path) -> dict[str, Setting]:
    """Read a node's file; {} if it does not exist yet. Raises ClusterError if it is broken."""
    return _read(folder / NODE_FILE)


def _read(path: Path) -> dict[str, Setting]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ClusterError(
            f"cannot read {path}: {error}; correct it, or delete it: the next start writes it again, with defaults"
        ) from None


def save(folder: Path, content: Mapping[str, Setting], *, private: bool = False) -> None:
    """Write a node's file; a `private` one has secrets. Create its folders. Raises ClusterError."""
    import tomli_w

    try:
        (folder / STORE).mkdir(parents=True, exist_ok=True)
        write_whole(folder / NODE_FILE, tomli_w.dumps(content), private=private)
    except OSError as error:
        raise ClusterError(f"cannot write {folder / NODE_FILE}: {error.strerror}") from None


def container_port(folder: Path) -> int | None:
    """Return the port of the broker container in `folder`, or None if it has none yet.

    Raises ClusterError.
    """
    return port_of(_read(folder / CONTAINER_FILE), CONTAINER_PORT_KEY)


def save_container(folder: Path, port: int, brokers: Sequence[str]) -> None:
    """Write a broker container's file: its port and, for human readers only, its brokers.

    Raises ClusterError.
    """
    import tomli_w

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(f"cannot write {folder}: {error.strerror}") from None
    write_whole(folder / CONTAINER_FILE, tomli_w.dumps({CONTAINER_PORT_KEY: port, "brokers": list(brokers)}))


def port_of(content: Mapping[str, Setting], key: str = "listenPort") -> int | None:
    """Return a port from the content of a file, or None if it is missing or not an integer."""
    port = content.get(key)
    return port if isinstance(port, int) and not isinstance(port, bool) else None
