"""Generates docs/metrics.md: the metrics of each kind of node, from their tables."""

from collections.abc import Iterator

from rmqkit.broker.metrics import FAMILIES as BROKER
from rmqkit.broker.metrics import latency_family
from rmqkit.controller.metrics import FAMILIES as CONTROLLER
from rmqkit.metrics.families import Family
from rmqkit.metrics.latency import Latency
from rmqkit.nameserver.metrics import FAMILIES as NAMESERVER

SWITCHES = {
    "connection": "enableConnectionMetrics",
    "lag_and_dlq": "enableLagAndDlqMetrics",
    "message_store": "enableMessageStoreMetrics",
    "pop": "enablePopMetrics",
    "remoting": "enableRemotingMetrics",
    "request": "enableRequestMetrics",
    "stats": "enableStatsMetrics",
    "transactions": "enableTransactionMetrics",
}

HEAD = """\
# Metrics

Every metric that a broker, a name server and a controller report to Prometheus, and how to switch
them on. For people who watch a cluster with Prometheus and Grafana.

## Switch it on

```console
$ pip install 'rmqkit[metrics]'
$ rmqkit cluster up --set metricsExporterType=PROM
```

`cluster up` gives every node a port and prints the addresses: 5557 for the first name server, then
10 more for each node. `rmqkit cluster status --json` lists them under `metrics`.

```yaml
# prometheus.yml
scrape_configs:
  - job_name: rocketmq
    scrape_interval: 15s
    static_configs:
      - targets: ["127.0.0.1:5557", "127.0.0.1:5567"]   # ns-0, broker-a-0
```

A node answers `GET /metrics` in the Prometheus text format, and `/-/healthy` with 200 while it
serves. It listens on `metricsPromExporterPort` (5557) of `metricsPromExporterHost`; the default
host is a broker's `brokerIP1`, or the `bindAddress` of a name server or controller. A controller
inside a name server has no metrics. Access control admits the addresses of
`metricsSourceAddresses`; without it, **anybody who reaches this port can read the metrics**.

The endpoint is off by default and then costs nothing. Switched on, it takes about 12 MiB of memory
and 0.15 s at start-up. A large answer is written in pieces, one per turn of the node's loop, so a
scrape does not delay clients.

The progress of an ingest with Spark has [metrics of its
own](pipelines.md#progress-for-prometheus).

## How the metrics compare with Apache's

Names and labels are those of Apache RocketMQ 5.5.0 as a scrape shows them (its exporter appends
units to names), so its dashboards work. The label `otel_scope_name` is left out. Metrics that
Apache does not have begin with `rmqkit_`. Every metric also has the labels `node_type`, `node_id`
(the broker name, or the name of the node), `cluster` on brokers, `group` and `peer_id` on
controllers, and those of `metricsLabel`. One metric has at most `metricsOtelCardinalityLimit`
series (50,000).

- Lag is reported for online groups and for groups with committed offsets. Apache reports online
  groups only.
- `message_type` is taken from the topic's attribute `+message.type`, and is `normal` without it.
  Apache inspects each message.
- `rocketmq_finish_message_latency_milliseconds` holds seconds, as in Apache's scrape.
- `rocketmq_half_messages` counts what waits in the log. Apache keeps a count in a file, which
  drifts when the broker is killed. Up to 500 half messages per scrape are looked up; the rest
  is shown with the topic `unknown`.
- `rocketmq_rpc_latency_milliseconds` needs `rpcLatencyMetrics=true`, which costs about a
  microsecond per request. It measures from the turn that reads the request to the turn that
  writes the reply.

## Limits of the endpoint

| limit | value | at the limit |
|---|---|---|
| `httpConnectionsMax` | 64 | the connection that was idle longest is closed, else 503 |
| `httpHeaderSizeMax` | 16 KiB | 431, then the connection is closed |
| `httpRequestMillis` | 10 s | 408, then the connection is closed |
| size of a request's body | 64 KiB | 413, then the connection is closed |
| bytes of answers that the client has not read | 8 MiB | the connection is closed |

A method other than GET and HEAD is answered with 405, an unknown path with 404. Bytes that are not
HTTP are answered with 400, then the connection is closed.

`make docs` generates this page.
"""


def lines() -> Iterator[str]:
    yield HEAD
    tables: tuple[tuple[str, tuple[Family, ...]], ...] = (
        ("Broker", (*BROKER, latency_family(Latency()))),
        ("Name server", NAMESERVER),
        ("Controller", CONTROLLER),
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
