"""Sections of a name server, and those that both kinds of node have: limits, metrics, logs, plug-ins.

Apache's name server has no metrics; it knows their keys for the controller inside it. Here they are the name server's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """A name server."""

    kv_config_path: str = key(
        "kvConfigPath", "${user.home}/namesrv/kvConfig.json", "file of the key-value configuration", type=Type.PATH
    )
    config_store_path: str = key(
        "configStorePath",
        "${user.home}/namesrv/namesrv.properties",
        "file that keeps what was changed at run time",
        type=Type.PATH,
    )
    bind_address: str = key("bindAddress", "0.0.0.0", "address to listen on", pattern=r"\S+", allowed="an address")
    listen_port: int = key("listenPort", 9876, "port; 0 lets the system choose", low=0, high=65_535)
    scan_not_active_broker_interval_ms: int = key(
        "scanNotActiveBrokerInterval",
        5000,
        "longest ms between two scans for silent brokers; each is found when its own timeout ends, whatever this says",
        type=Type.LONG,
        low=10,
        live=True,
    )
    order_message_enable: bool = key(
        "orderMessageEnable", False, "routes carry the order configuration of their topic", live=True
    )
    return_order_topic_config_to_broker: bool = key(
        "returnOrderTopicConfigToBroker", True, "the answer to a registration names the ordered topics", live=True
    )
    support_acting_master: bool = key(
        "supportActingMaster",
        False,
        "a group without its master is shown with its smallest live broker id in the master's place, read-only",
        live=True,
    )
    notify_min_broker_id_changed: bool = key(
        "notifyMinBrokerIdChanged",
        False,
        "members of a group are notified at once when its smallest live broker id changes",
        live=True,
    )
    enable_all_topic_list: bool = key("enableAllTopicList", True, "the list of all topics is served", live=True)
    enable_topic_list: bool = key(
        "enableTopicList", True, "lists of topics by cluster, unit or system are served", live=True
    )
    need_wait_for_service: bool = key(
        "needWaitForService", False, "routes are refused until waitSecondsForService have passed since the start", live=True
    )
    wait_for_service_ms: int = key(
        "waitSecondsForService", 45, "that time, in seconds", convert=seconds_as_ms, low=0, live=True
    )
    delete_topic_with_broker_registration: bool = key(
        "deleteTopicWithBrokerRegistration", False, "topics that a registration no longer names are deleted", live=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLimits:
    """What a node grants its peers. Sizes are bytes; `*_max` is the largest value still allowed."""

    frame_size_max: int = key(
        "frameSizeMax",
        16_777_216,
        "largest frame, in bytes; a longer one closes its connection",
        low=65_536,
        high=1_073_741_824,
    )
    frame_complete_ms: int = key(
        "frameCompleteMillis",
        60_000,
        "a frame that is not complete so long after its first byte closes its connection, in ms",
        low=100,
    )
    connections_max: int = key("connectionsMax", 10_000, "connections at a time; more are closed at once", low=1)
    connections_per_ip_max: int = key(
        "connectionsPerIpMax",
        5000,
        "connections at a time from one address (of IPv6, from one /64); more are closed at once",
        low=1,
    )
    partial_bytes_max: int = key(
        "partialBytesMax",
        268_435_456,
        "bytes of half-received frames that all connections may hold together",
        type=Type.LONG,
        low=65_536,
    )
    remote_config_update: bool = key(
        "remoteConfigUpdateEnable",
        False,
        "settings may be changed at run time from other machines too; without access control anyone may",
    )
    outbox_high_water: int = key(
        "outboxHighWater", 4_194_304, "unsent bytes of a connection above which it is not read any more", low=1024
    )
    outbox_low_water: int = key("outboxLowWater", 1_048_576, "unsent bytes below which it is read again", low=0)
    outbox_max: int = key("outboxMax", 67_108_864, "unsent bytes at which it is closed", low=65_536)
    unsent_bytes_max: int = key(
        "unsentBytesMax",
        536_870_912,
        "unsent bytes that all connections may hold together; beyond it the one with the most is closed",
        type=Type.LONG,
        low=65_536,
    )
    waiters_max: int = key("waitersMax", 100_000, "calls that may wait at a time, for each kind of wait", low=1)
    idle_close_ms: int = key(
        "serverChannelMaxIdleTimeSeconds",
        120,
        "seconds of silence after which a connection is closed",
        convert=seconds_as_ms,
        low=1,
        high=86_400,
    )
    connect_timeout_ms: int = key("connectTimeoutMillis", 3000, "ms that connecting to another node may take", low=1)
    socket_backlog: int = key("serverSocketBacklog", 1024, "connections that may wait to be accepted", low=1, high=65_535)
    spin_polls: int = key(
        "spinPolls",
        400,
        "polls for more work before a node sleeps (about 0.7 µs each; none with one processor, or if none helped)",
        low=0,
        high=100_000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """The Prometheus endpoint of a node, which exists if `exporter_type` is PROM, and the metrics it has."""

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
        "address of the endpoint; empty is brokerIP1, on a name server bindAddress",
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
        "series of one metric; those beyond are summed up as one, labelled otel_metric_overflow",
        low=1,
        only="broker",
    )
    remoting: bool = key("enableRemotingMetrics", True, "metrics of requests: how often, how long", only="broker")
    rpc_latency: bool = key(
        "rpcLatencyMetrics",
        False,
        "rocketmq_rpc_latency as well, which costs each request about 1 µs; with enableRemotingMetrics",
        only="broker",
    )
    message_store: bool = key("enableMessageStoreMetrics", True, "metrics of the store", only="broker")
    connection: bool = key(
        "enableConnectionMetrics", True, "metrics of producers and consumers that are connected", only="broker"
    )
    stats: bool = key(
        "enableStatsMetrics", True, "metrics of topics, groups, permission and calls that wait", only="broker"
    )
    request: bool = key("enableRequestMetrics", True, "metrics of messages and bytes, in and out", only="broker")
    lag_and_dlq: bool = key("enableLagAndDlqMetrics", True, "metrics of how far consumers are behind", only="broker")
    http_connections_max: int = key("httpConnectionsMax", 64, "connections to the endpoint", low=1)
    http_header_size_max: int = key(
        "httpHeaderSizeMax", 16_384, "bytes of a request's head; more is answered 431", low=1024, high=1_048_576
    )
    http_request_ms: int = key(
        "httpRequestMillis",
        10_000,
        "a request that is not complete so long after its first byte is answered 408, in ms",
        low=10,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The log file of a node and its rotation."""

    file_size_max: int = key(
        "logFileSizeMax",
        67_108_864,
        "bytes of the log file (`--log-file`) at which it becomes LOG.1, and LOG.1 becomes LOG.2",
        type=Type.LONG,
        low=4096,
    )
    files_max: int = key("logFilesMax", 5, "older log files that are kept beside it; 0 keeps none", low=0, high=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """The plug-ins that a node uses, in order.

    `values` has the plug-ins' own settings: `plugin.NAME.KEY` in a file is `values["NAME"]["KEY"]`, as text.
    """

    plugins: tuple[str, ...] = key(
        "plugins",
        "",
        "plug-ins to switch on, by name: `a;b`; their own keys are written `plugin.NAME.KEY`",
        convert=parts,
        pattern=r"[A-Za-z0-9_.-]*(?:[;,]\s*[A-Za-z0-9_.-]+)*",
        allowed="names separated by ;",
    )
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
