"""Rows of what can be seen of a node from outside: metrics (Apache's keys, for both kinds of node) and log files (our own).

Apache's name server has no metrics; it knows the keys for the controller inside it. Here they are the name server's own.
"""

from __future__ import annotations

from rmqkit.settings.table import Refusal, Row, Type, Value, in_area, later, no_effect, works

LABELS = r"(?:[A-Za-z_][A-Za-z0-9_]*:[^:,]*(?:,[A-Za-z_][A-Za-z0-9_]*:[^:,]*)*)?"
ONLY_PROM = "the Prometheus endpoint is the only exporter here, so nothing would be exported"


def labels(value: Value) -> tuple[tuple[str, str], ...]:
    pairs = (item.partition(":") for item in str(value).split(",") if item)
    return tuple((name, text) for name, _, text in pairs)


EXPORTER = (
    works(
        "metricsExporterType",
        Type.ENUM,
        "DISABLE",
        "metrics.exporter_type",
        "`PROM` answers GET /metrics for Prometheus",
        choices=("DISABLE", "OTLP_GRPC", "PROM", "LOG"),
        refusal=Refusal(why=ONLY_PROM, values=("OTLP_GRPC", "LOG")),
    ),
    works(
        "metricsPromExporterPort",
        Type.INT,
        5557,
        "metrics.prom_exporter_port",
        "port of the endpoint; 0 lets the system choose",
        low=0,
        high=65_535,
    ),
    works(
        "metricsPromExporterHost",
        Type.STR,
        "",
        "metrics.prom_exporter_host",
        "address of the endpoint; empty is brokerIP1, on a name server bindAddress",
        pattern=r"\S*",
        allowed="an address",
    ),
    works(
        "metricsLabel",
        Type.STR,
        "",
        "metrics.labels",
        "labels of every metric besides `cluster`, `node_type` and `node_id`: `name:value,name:value`",
        pattern=LABELS,
        allowed="name:value pairs separated by commas",
        convert=labels,
    ),
    *no_effect(
        "the Prometheus endpoint does not push",
        """
        metricsGrpcExporterTarget: str = ""
        metricsGrpcExporterHeader: str = ""
        metricGrpcExporterTimeOutInMills: long = 3000
        metricGrpcExporterIntervalInMills: long = 60000
        metricLoggingExporterIntervalInMills: long = 10000
        """,
    ),
    *no_effect("Prometheus wants totals", "metricsInDelta: bool = false"),
)


def switch(key: str, feeds: str, text: str) -> Row:
    return works(key, Type.BOOL, True, feeds, text)


FAMILIES = (
    works(
        "metricsOtelCardinalityLimit",
        Type.INT,
        50_000,
        "metrics.series_max",
        "series of one metric; what is beyond comes summed up as one, labelled otel_metric_overflow",
        low=1,
    ),
    switch("enableRemotingMetrics", "metrics.remoting", "metrics of requests: how often, how long"),
    works(
        "rpcLatencyMetrics",
        Type.BOOL,
        False,
        "metrics.rpc_latency",
        "rocketmq_rpc_latency as well, which costs each request about 1 µs; with enableRemotingMetrics",
    ),
    switch("enableMessageStoreMetrics", "metrics.message_store", "metrics of the store"),
    switch("enableConnectionMetrics", "metrics.connection", "metrics of producers and consumers that are connected"),
    switch("enableStatsMetrics", "metrics.stats", "metrics of topics, groups, permission and calls that wait"),
    switch("enableRequestMetrics", "metrics.request", "metrics of messages and bytes, in and out"),
    switch("enableLagAndDlqMetrics", "metrics.lag_and_dlq", "metrics of how far consumers are behind"),
    *no_effect("the Prometheus endpoint does not push", "metricsExportBatchMaxDataPoints: int = 1000"),
    *later("pop", "enablePopMetrics: bool = true"),
    *later("transactions", "enableTransactionMetrics: bool = true"),
)

HTTP = (
    works("httpConnectionsMax", Type.INT, 64, "metrics.http_connections_max", "connections to the endpoint", low=1),
    works(
        "httpHeaderSizeMax",
        Type.INT,
        16_384,
        "metrics.http_header_size_max",
        "bytes of a request's head; more is answered 431",
        low=1024,
        high=1_048_576,
    ),
    works(
        "httpRequestMillis",
        Type.INT,
        10_000,
        "metrics.http_request_ms",
        "a request that is not complete so long after its first byte is answered 408, in ms",
        low=10,
    ),
)

LOGS = in_area(
    "Logs",
    works(
        "logFileSizeMax",
        Type.LONG,
        67_108_864,
        "logs.file_size_max",
        "bytes of the log file (`--log-file`) at which it becomes LOG.1, and LOG.1 becomes LOG.2",
        low=4096,
    ),
    works(
        "logFilesMax",
        Type.INT,
        5,
        "logs.files_max",
        "older log files that are kept beside it; 0 keeps none",
        low=0,
        high=1000,
    ),
)

BROKER_ROWS: tuple[Row, ...] = in_area("Metrics", *EXPORTER, *HTTP, *FAMILIES) + LOGS
NAMESERVER_ROWS: tuple[Row, ...] = in_area("Metrics", *EXPORTER, *HTTP) + LOGS
