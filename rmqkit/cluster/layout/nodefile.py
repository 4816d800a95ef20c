"""`node.toml`: everything a node of a cluster is told, written out so that it can be read and changed by hand.

Three kinds of keys, in this order of strength: those that tie the node into its cluster (names, addresses, ports, folders,
a slave's role), which are written anew at each start; the cluster's `[settings]`; and the defaults of `cluster up`, which
are written once, so that an edit stays. The defaults that follow from the number of replicas change with it, unless they
were edited. A default whose feature is not built yet is left out, and appears once it is.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from rmqkit.cluster.errors import ClusterError, UsageProblem
from rmqkit.cluster.layout.description import METRICS_PORT_KEY, Description, NodePlan, Setting
from rmqkit.cluster.layout.home import CONTAINER_FILE, NODE_FILE, STORE, write_whole
from rmqkit.errors import ConfigError
from rmqkit.settings import keys
from rmqkit.settings.table import Kind, Status
from rmqkit.suggestions import suggest

#: what a cluster worth having has, beyond Apache's defaults
BROKER_DEFAULTS: Mapping[str, Setting] = {
    "brokerRole": "SYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "enableAutoInSyncReplicas": True,
    "slaveReadEnable": True,
    "enablePropertyFilter": True,
    "haAcceptAnonymous": False,
    "drillFaultsEnable": True,
    "slaveTimeout": 2000,
    "syncFlushTimeout": 2500,
}
#: of a group that has slaves
ACTING_DEFAULTS: Mapping[str, Setting] = {"enableSlaveActingMaster": True, "escapeStrategy": "auto"}
NAMESERVER_DEFAULTS: Mapping[str, Setting] = {"supportActingMaster": True, "notifyMinBrokerIdChanged": True}

#: keys that only this module writes
BROKER_TIES = (
    "brokerClusterName", "brokerName", "brokerId", "listenPort", "haListenPort", "bindAddress", "brokerIP1", "brokerIP2",
    "namesrvAddr", "storePathRootDir",
)  # fmt: skip
NAMESERVER_TIES = ("listenPort", "bindAddress", "kvConfigPath", "configStorePath")

CONTAINER_PORT_KEY = "containerPort"
METRICS_HOST_KEY = "metricsPromExporterHost"
ROLE_KEY = "brokerRole"
ESCAPE_KEY = "escapeStrategy"
REMOTE_ESCAPE_KEY = "enableRemoteEscape"
SLAVE = "SLAVE"


def wire_name(name: str) -> str:
    """What the cluster is called on the wire; Apache's tools look for DefaultCluster."""
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
) -> dict[str, Setting]:
    """The content for one node; `there` is what its file holds so far. `metrics_port` is None when metrics are off."""
    store = folder / STORE
    defaults = default_settings(plan, description)
    if plan.is_broker:
        ties: dict[str, Setting] = {
            "brokerClusterName": wire_name(description.name),
            "brokerName": plan.broker_name,
            "brokerId": plan.broker_id,
            "listenPort": port,
            "bindAddress": description.bound,
            "brokerIP1": description.advertised,
            "brokerIP2": description.advertised,
            "namesrvAddr": namesrv,
            "storePathRootDir": str(store),
        }
        if plan.is_slave:
            ties[ROLE_KEY] = SLAVE
    else:
        ties = {
            "listenPort": port,
            "bindAddress": description.bound,
            "kvConfigPath": str(store / "kvConfig.json"),
            "configStorePath": str(store / "namesrv.properties"),
        }
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


def replica_defaults(replicas: int, settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """What follows from the number of replicas, where the cluster's settings leave it open."""
    acting = dict(ACTING_DEFAULTS) if replicas > 1 else {}
    if REMOTE_ESCAPE_KEY in settings:
        # Apache's older word for the same: the two may not disagree.
        acting.pop(ESCAPE_KEY, None)
    return {"totalReplicas": replicas, "inSyncReplicas": min(2, replicas), "minInSyncReplicas": 1, **acting}


def _of_other_shape(there: Mapping[str, Setting]) -> set[str]:
    """Keys of a file that have what its number of replicas gave them, so that another number may change them."""
    total = there.get("totalReplicas")
    if not isinstance(total, int) or total < 1:
        # Files of releases without replication have their one broker's numbers.
        total = 1
    return {key for key, value in replica_defaults(total, {}).items() if there.get(key) == value}


def default_settings(plan: NodePlan, description: Description) -> dict[str, Setting]:
    """The defaults of `cluster up` for a node, as far as their features exist."""
    if plan.is_broker:
        wanted = {**BROKER_DEFAULTS, **replica_defaults(description.replicas, description.settings)}
        if plan.is_slave:
            del wanted[ROLE_KEY]
    else:
        wanted = dict(NAMESERVER_DEFAULTS)
    return {
        key: value for key, value in wanted.items() if (row := keys.find(plan.kind, key)) and row.status is Status.WORKS
    }


def knows(kind: Kind, key: str) -> bool:
    """Whether this kind of node has the key."""
    return key.startswith("plugin.") or keys.find(kind, key) is not None


def check_settings(settings: Mapping[str, Setting], replicas: int = 1) -> None:
    """Raises UsageProblem for a key that no node knows or that only the cluster may write, and for a wrong value.

    Values are checked as those of a group of so many brokers.
    """
    from rmqkit import config

    for key in settings:
        row = keys.find("broker", key) or keys.find("nameserver", key)
        if row is None and not key.startswith("plugin."):
            raise UsageProblem(f"unknown setting {key!r}{suggest(key, keys.every_key())}")
        if row is not None and row.key in (*BROKER_TIES, *NAMESERVER_TIES):
            raise UsageProblem(f"{row.key} is each node's own; see --base-port, --bind, --advertise")
        if row is not None and row.key == ROLE_KEY and str(settings[key]).upper() == SLAVE:
            raise UsageProblem(f"{ROLE_KEY} = {SLAVE}: every broker but the first of a group is one; see --replicas")
    for kind in keys.KINDS:
        values = {**(replica_defaults(replicas, settings) if kind == "broker" else {}), **settings}
        try:
            config.from_values(kind, {key: value for key, value in values.items() if knows(kind, key)})
        except ConfigError as error:
            raise UsageProblem(str(error)) from None


def check(folder: Path, kind: Kind) -> None:
    """Raises UsageProblem when a node would not start with its file."""
    from rmqkit import config

    try:
        config.load([folder / NODE_FILE], (), kind)
    except ConfigError as error:
        raise UsageProblem(str(error)) from None


def load(folder: Path) -> dict[str, Setting]:
    """The node's file, {} when there is none yet. Raises ClusterError when it is broken."""
    return _read(folder / NODE_FILE)


def _read(path: Path) -> dict[str, Setting]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ClusterError(f"cannot read {path}: {error}") from None


def save(folder: Path, content: Mapping[str, Setting]) -> None:
    """Write the node's file, with its folders. Raises ClusterError."""
    import tomli_w

    try:
        (folder / STORE).mkdir(parents=True, exist_ok=True)
        write_whole(folder / NODE_FILE, tomli_w.dumps(content))
    except OSError as error:
        raise ClusterError(f"cannot write {folder / NODE_FILE}: {error.strerror}") from None


def container_port(folder: Path) -> int | None:
    """The port of the process of several brokers in that folder, None when it has none yet. Raises ClusterError."""
    return port_of(_read(folder / CONTAINER_FILE), CONTAINER_PORT_KEY)


def save_container(folder: Path, port: int, brokers: Sequence[str]) -> None:
    """Write that port down, and for people who read it, which brokers it has. Raises ClusterError."""
    import tomli_w

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(f"cannot write {folder}: {error.strerror}") from None
    write_whole(folder / CONTAINER_FILE, tomli_w.dumps({CONTAINER_PORT_KEY: port, "brokers": list(brokers)}))


def port_of(content: Mapping[str, Setting], key: str = "listenPort") -> int | None:
    port = content.get(key)
    return port if isinstance(port, int) and not isinstance(port, bool) else None
