"""Sections of a name server, of a controller, and of every kind of node: limits, metrics, logs.

The keys of a controller are those of Apache's `ControllerConfig`. `controllerType` names a log of
our own there: an rmqkit controller reads neither the files nor the traffic of Apache's DLedger or
jRaft.

Apache's name server has no metrics; it has these keys for the controller inside it. An rmqkit name
server reports its own metrics.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rmqkit.errors import ConfigError
from rmqkit.settings.declaration import key, parts
from rmqkit.settings.table import Refusal, Type, Value

_LABELS = r"(?:[A-Za-z_][A-Za-z0-9_]*:[^:,]*(?:,[A-Za-z_][A-Za-z0-9_]*:[^:,]*)*)?"
_ONLY_PROM = "the Prometheus endpoint is the only exporter here, so nothing would be exported"


def seconds_as_ms(value: Value) -> int:
    return int(value) * 1000


def label_pairs(value: Value) -> tuple[tuple[str, str], ...]:
    pairs = (item.partition(":") for item in str(value).split(",") if item)
    return tuple((name, text) for name, _, text in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class NameserverSettings:
    """Settings of a name server."""

    kv_config_path: str = key(
        "kvConfigPath", "${user.home}/namesrv/kvConfig.json", "file with the key-value configuration", type=Type.PATH
    )
    config_store_path: str = key(
        "configStorePath",
        "${user.home}/namesrv/namesrv.properties",
        "file with settings that were changed at run time",
        type=Type.PATH,
    )
    bind_address: str = key("bindAddress", "0.0.0.0", "address to listen on", pattern=r"\S+", allowed="an address")
    listen_port: int = key("listenPort", 9876, "port to listen on; 0 lets the system choose", low=0, high=65_535)
    scan_not_active_broker_interval_ms: int = key(
        "scanNotActiveBrokerInterval",
        5000,
        "most ms between two scans for silent brokers; each is found when its own timeout ends, regardless of this",
        type=Type.LONG,
        low=10,
        live=True,
    )
    order_message_enable: bool = key(
        "orderMessageEnable", False, "routes include the order configuration of their topic", live=True
    )
    return_order_topic_config_to_broker: bool = key(
        "returnOrderTopicConfigToBroker", True, "the answer to a registration lists the ordered topics", live=True
    )
    support_acting_master: bool = key(
        "supportActingMaster",
        False,
        "routes of a group without a master have the smallest live broker id in the master's place, read-only",
        live=True,
    )
    notify_min_broker_id_changed: bool = key(
        "notifyMinBrokerIdChanged",
        False,
        "members of a group are notified at once when its smallest live broker id changes",
        live=True,
    )
    enable_all_topic_list: bool = key(
        "enableAllTopicList", True, "the name server returns the list of all topics", live=True
    )
    enable_topic_list: bool = key(
        "enableTopicList",
        True,
        "the name server returns lists of topics by cluster or unit, and of system topics",
        live=True,
    )
    need_wait_for_service: bool = key(
        "needWaitForService", False, "routes are refused for waitSecondsForService after the start", live=True
    )
    wait_for_service_ms: int = key(
        "waitSecondsForService",
        45,
        "seconds after the start for which needWaitForService refuses routes",
        convert=seconds_as_ms,
        low=0,
        live=True,
    )
    delete_topic_with_broker_registration: bool = key(
        "deleteTopicWithBrokerRegistration",
        False,
        "topics that a broker's registration no longer lists are deleted",
        live=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLimits:
    """The limits for peers. Sizes are bytes; `*_max` is the largest value that is still allowed."""

    frame_size_max: int = key(
        "frameSizeMax",
        16_777_216,
        "largest frame, in bytes; a larger one closes its connection",
        low=65_536,
        high=1_073_741_824,
    )
    frame_complete_ms: int = key(
        "frameCompleteMillis",
        60_000,
        "ms that a frame may take from its first byte to its last; then the connection is closed",
        low=100,
    )
    connections_max: int = key("connectionsMax", 10_000, "most connections at a time; more are closed at once", low=1)
    connections_per_ip_max: int = key(
        "connectionsPerIpMax",
        5000,
        "most connections at a time from one address (IPv6: one /64); more are closed at once",
        low=1,
    )
    partial_bytes_max: int = key(
        "partialBytesMax",
        268_435_456,
        "most bytes of incomplete frames, over all connections",
        type=Type.LONG,
        low=65_536,
    )
    remote_config_update: bool = key(
        "remoteConfigUpdateEnable",
        False,
        "other machines may change settings at run time: with authenticationEnabled users who have the right, else anyone",
    )
    outbox_high_water: int = key(
        "outboxHighWater", 4_194_304, "unsent bytes of a connection above which the node stops reading from it", low=1024
    )
    outbox_low_water: int = key(
        "outboxLowWater", 1_048_576, "unsent bytes of a connection below which the node reads from it again", low=0
    )
    outbox_max: int = key("outboxMax", 67_108_864, "unsent bytes at which a connection is closed", low=65_536)
    unsent_bytes_max: int = key(
        "unsentBytesMax",
        536_870_912,
        "most unsent bytes over all connections; above it the connection with the most is closed",
        type=Type.LONG,
        low=65_536,
    )
    waiters_max: int = key("waitersMax", 100_000, "most calls that wait at a time, for each kind of wait", low=1)
    idle_close_ms: int = key(
        "serverChannelMaxIdleTimeSeconds",
        120,
        "seconds of silence after which a connection is closed",
        convert=seconds_as_ms,
        low=1,
        high=86_400,
    )
    connect_timeout_ms: int = key(
        "connectTimeoutMillis", 3000, "ms after which an attempt to connect to another node fails", low=1
    )
    socket_backlog: int = key("serverSocketBacklog", 1024, "most connections that wait to be accepted", low=1, high=65_535)
    spin_polls: int = key(
        "spinPolls",
        400,
        "polls for more work before a node sleeps (0.7 µs each; none with one processor or several senders)",
        low=0,
        high=100_000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """The Prometheus endpoint of a node, and the metrics it has.

    It exists if `exporter_type` is PROM.
    """

    exporter_type: str = key(
        "metricsExporterType",
        "DISABLE",
        "`PROM` answers GET /metrics for Prometheus",
        choices=("DISABLE", "OTLP_GRPC", "PROM", "LOG"),
        refusal=Refusal(why=_ONLY_PROM, values=("OTLP_GRPC", "LOG")),
    )
    prom_exporter_port: int = key(
        "metricsPromExporterPort", 5557, "port of the endpoint; 0 lets the system choose", low=0, high=65_535
    )
    prom_exporter_host: str = key(
        "metricsPromExporterHost",
        "",
        "address of the endpoint; empty: brokerIP1, on a name server or controller bindAddress",
        pattern=r"\S*",
        allowed="an address",
    )
    labels: tuple[tuple[str, str], ...] = key(
        "metricsLabel",
        "",
        "labels of every metric besides `cluster`, `node_type` and `node_id`: `name:value,name:value`",
        convert=label_pairs,
        pattern=_LABELS,
        allowed="name:value pairs separated by commas",
    )
    series_max: int = key(
        "metricsOtelCardinalityLimit",
        50_000,
        "most series of a metric; the rest are summed up in one, labelled otel_metric_overflow",
        low=1,
        only="broker",
    )
    remoting: bool = key("enableRemotingMetrics", True, "metrics of requests: count and duration", only="broker")
    rpc_latency: bool = key(
        "rpcLatencyMetrics",
        False,
        "also rocketmq_rpc_latency, with enableRemotingMetrics; costs about 1 µs per request",
        only="broker",
    )
    message_store: bool = key("enableMessageStoreMetrics", True, "metrics of the store", only="broker")
    connection: bool = key("enableConnectionMetrics", True, "metrics of connected producers and consumers", only="broker")
    stats: bool = key("enableStatsMetrics", True, "metrics of topics, groups, permission and waiting calls", only="broker")
    request: bool = key("enableRequestMetrics", True, "metrics of messages and bytes, in and out", only="broker")
    lag_and_dlq: bool = key("enableLagAndDlqMetrics", True, "metrics of consumer lag", only="broker")
    http_connections_max: int = key("httpConnectionsMax", 64, "most connections to the endpoint", low=1)
    http_header_size_max: int = key(
        "httpHeaderSizeMax", 16_384, "most bytes of a request's head; more is answered 431", low=1024, high=1_048_576
    )
    http_request_ms: int = key(
        "httpRequestMillis",
        10_000,
        "ms that a request may take from its first byte to its last; then the answer is 408",
        low=10,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The log file of a node, and its rotation."""

    file_size_max: int = key(
        "logFileSizeMax",
        67_108_864,
        "size of the log file (`--log-file`), in bytes, at which it is renamed to LOG.1, and LOG.1 to LOG.2",
        type=Type.LONG,
        low=4096,
    )
    files_max: int = key("logFilesMax", 5, "number of older log files to keep", low=0, high=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """The plug-ins that a node uses, in order.

    `values` has the settings of plug-ins: `plugin.NAME.KEY` in a file is `values["NAME"]["KEY"]`,
    as text.
    """

    plugins: tuple[str, ...] = key(
        "plugins",
        "",
        "names of plug-ins to switch on, `a;b`; their own keys are `plugin.NAME.KEY`",
        convert=parts,
        pattern=r"[A-Za-z0-9_.-]*(?:[;,]\s*[A-Za-z0-9_.-]+)*",
        allowed="names separated by ;",
    )
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


# --- a controller

#: Apache's port of a controller that runs alone (`ControllerStartup`)
CONTROLLER_PORT = 19876
_PEER = r"[^-;\s]+-[^;\s]+:[0-9]{1,5}"


class PeerSetting(NamedTuple):
    """A controller of the group, from `controllerDLegerPeers`."""

    id: str
    host: str
    port: int


def peers_of(value: Value) -> tuple[PeerSetting, ...]:
    """Return the peers of `n0-host:port;n1-host:port`."""
    found = []
    for text in str(value).split(";"):
        if text.strip():
            peer_id, _, address = text.strip().partition("-")
            host, _, port = address.rpartition(":")
            found.append(PeerSetting(peer_id, host.removeprefix("[").removesuffix("]"), int(port)))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings of a controller."""

    in_nameserver: bool = key(
        "enableControllerInNamesrv",
        False,
        "a controller runs in the process of the name server, at its own port of controllerDLegerPeers",
        only="nameserver",
    )
    log_type: str = key(
        "controllerType",
        "DLedger",
        "log of the decisions: `single` (one controller), `raft` (several), or a plug-in's; `DLedger` means `single` "
        "with one peer and `raft` with more",
        refusal=Refusal(
            why="its ports and members come from other keys: set raft, and controllerDLegerPeers", values=("jRaft",)
        ),
    )
    group: str = key(
        "controllerDLegerGroup", None, "name of the group of controllers; the same at each of them", unset="controllers"
    )
    peers: tuple[PeerSetting, ...] = key(
        "controllerDLegerPeers",
        None,
        "all controllers of the group, `n0-host:port;n1-host:port`; brokers and other controllers use this port",
        convert=peers_of,
        unset=(),
        pattern=rf"(?:{_PEER}(?:;{_PEER})*;?)?",
        allowed="ID-HOST:PORT entries separated by ;",
    )
    self_id: str = key("controllerDLegerSelfId", None, "id of this controller in controllerDLegerPeers", unset="n0")
    store_path: str = key(
        "controllerStorePath",
        "",
        "folder of the controller's files; empty: `rmqkit-controller` in the user's home folder",
        type=Type.PATH,
    )
    bind_address: str = key(
        "bindAddress", "0.0.0.0", "address to listen on", pattern=r"\S+", allowed="an address", only="controller"
    )
    listen_port: int = key(
        "listenPort",
        CONTROLLER_PORT,
        "port to listen on without controllerDLegerPeers; 0 lets the system choose",
        low=0,
        high=65_535,
        only="controller",
    )
    config_store_path: str = key(
        "configStorePath",
        "${user.home}/controller/controller.properties",
        "file with settings that were changed at run time",
        type=Type.PATH,
        only="controller",
    )
    scan_inactive_master_interval_ms: int = key(
        "scanInactiveMasterInterval",
        5000,
        "most ms between two checks for sets without a live master; a death that is noticed is handled at once",
        type=Type.LONG,
        low=10,
        live=True,
    )
    elect_unclean: bool = key(
        "enableElectUncleanMaster",
        False,
        "if no member of the SyncStateSet is alive, another one becomes master; acknowledged messages may be lost",
        live=True,
    )
    notify_role_changed: bool = key(
        "notifyBrokerRoleChanged",
        True,
        "controllers report an election to the members of the set at once (1008)",
        live=True,
    )
    election_timeout_ms: int = key(
        "controllerElectionTimeoutMillis",
        1000,
        "ms after which controllers that hear nothing of their leader elect another one",
        low=50,
        high=60_000,
    )
    snapshot_entries: int = key(
        "controllerSnapshotEntries", 1000, "entries of the log after which it is replaced by a snapshot", low=10
    )


def check_controller(peers: str | None, self_id: str | None) -> None:
    """Raises ConfigError for a group of controllers that cannot work."""
    found = peers_of(peers or "")
    ids = [each.id for each in found]
    if len(set(ids)) < len(ids):
        raise ConfigError(f"config: controllerDLegerPeers = {peers}: an id occurs twice")
    if found and self_id not in ids:
        raise ConfigError(
            f"config: controllerDLegerSelfId = {self_id}: must be an id of controllerDLegerPeers: {', '.join(ids)}"
        )
    wrong = [each for each in found if not 0 < each.port <= 65_535]
    if wrong:
        raise ConfigError(f"config: controllerDLegerPeers: port {wrong[0].port} of {wrong[0].id} must be from 1 to 65535")
    local = [each for each in found if is_loopback(each.host)]
    if local and len(local) < len(found):
        raise ConfigError(
            f"config: controllerDLegerPeers: {local[0].host} of {local[0].id} is this machine only, so the controllers on "
            "other machines cannot reach it: give its address in the network"
        )


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
