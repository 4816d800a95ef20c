"""docs/metrics.md: the metrics of a broker and a name server, from their tables of metrics."""

from collections.abc import Iterator

from rmqkit.broker.metrics import FAMILIES as BROKER
from rmqkit.broker.metrics import latency_family
from rmqkit.metrics.families import Family
from rmqkit.metrics.latency import Latency
from rmqkit.nameserver.metrics import FAMILIES as NAMESERVER

SWITCHES = {
    "connection": "enableConnectionMetrics",
    "lag_and_dlq": "enableLagAndDlqMetrics",
    "message_store": "enableMessageStoreMetrics",
    "remoting": "enableRemotingMetrics",
    "request": "enableRequestMetrics",
    "stats": "enableStatsMetrics",
}

HEAD = """\
# Metrics

With `metricsExporterType=PROM` a broker or a name server answers `GET /metrics` in Prometheus' text format (and
`/-/healthy` with 200 while it serves). It listens on `metricsPromExporterPort` (5557) of `metricsPromExporterHost` (a
broker's `brokerIP1`, a name server's `bindAddress`). There is no access control at this port: bind it where only
Prometheus comes. It is off by default and costs nothing then; switched on it takes about 12 MiB and 0.15 s at the
start. The node answers on its own loop, one piece a turn, so a scrape of many series delays no client.

`rmqkit cluster up --set metricsExporterType=PROM` gives every node a port, 10 apart from 5557 on (name servers
first), and prints the addresses; `rmqkit cluster status --json` has them as `metrics`.

```yaml
# prometheus.yml
scrape_configs:
  - job_name: rocketmq
    scrape_interval: 15s
    static_configs:
      - targets: ["127.0.0.1:5557", "127.0.0.1:5567"]   # ns-0, broker-a-0
```

Names and labels are those that a scrape of Apache RocketMQ 5.5.0 shows (its exporter appends units to the names), so
its dashboards work; `otel_scope_name` is left out. What Apache does not have is called `rmqkit_…`. Every metric also
has the labels `node_type`, `node_id` (the broker name; the node's name for a name server), on brokers `cluster`, and
those of `metricsLabel`. One metric has at most `metricsOtelCardinalityLimit` series (50,000).

- Lag is reported for groups that are online and for those that have committed offsets; Apache reports the former alone.
- `message_type` is that of the topic (`+message.type` attribute), `normal` without one; Apache looks into each
  message.
- `rocketmq_message_size` and the metrics of pop, transactions and timers do not exist yet.
- `rocketmq_rpc_latency_milliseconds` needs `rpcLatencyMetrics=true`: it costs each request about a microsecond. It
  counts from the turn a request came in to the turn it was answered in.

Limits of the endpoint: `httpConnectionsMax` (64; the one idle longest gives way, else 503), `httpHeaderSizeMax` (16
KiB; 431), `httpRequestMillis` (10 s; 408), a body of 64 KiB (413), 8 MiB of answers unread (closed). Other methods
than GET and HEAD are 405, other paths 404, what is not HTTP is 400; after 400, 408, 413 and 431 the connection is
closed.

`make docs` generates this page.
"""


def lines() -> Iterator[str]:
    yield HEAD
    tables: tuple[tuple[str, tuple[Family, ...]], ...] = (
        ("Broker", (*BROKER, latency_family(Latency()))),
        ("Name server", NAMESERVER),
    )
    for title, families in tables:
        yield f"## {title}\n"
        yield "| metric | type | labels of its own | what it is | switched by |"
        yield "|---|---|---|---|---|"
        for family in families:
            labels = ", ".join(f"`{label}`" for label in family.labels) or "–"
            switch = f"`{SWITCHES[family.switch]}`" if family.switch else "–"
            yield f"| `{family.name}` | {family.kind} | {labels} | {family.help} | {switch} |"
        yield ""


def page() -> str:
    return "\n".join(lines())
