"""Serves the progress of a pipeline to Prometheus, over HTTP (`rmqkit[metrics]`).

    with ProgressMetrics("ingest", "127.0.0.1:9100") as metrics:
        ingest(spark, ["orders"], "/data/orders", follow=True, on_progress=metrics.update)

The server is that of `prometheus-client`, in a thread of its own. A scrape shows the last report of
progress; it asks neither Spark nor a broker. Before the first micro-batch ends, only
`rmqkit_pipeline_info` is there.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rmqkit.errors import ConfigError
from rmqkit.runtime.connection import Address
from rmqkit.spark.source import ranges

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from rmqkit.spark.pipelines.progress import PipelineProgress

#: Limit of the series of `rmqkit_pipeline_offset`: one for each queue, in the order of their names.
#: `rmqkit_pipeline_queues_omitted` has the number of those beyond it.
QUEUES_MAX = 10_000

#: labels beside the pipeline's → value
Labelled = Mapping[tuple[str, ...], float]


def address_of(text: str) -> Address:
    """Return the address `HOST:PORT`; port 0 means that the system chooses one.

    Raises ConfigError for another text, or if prometheus-client is missing.
    """
    from importlib.util import find_spec

    host, _colon, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"{text} is not an address to serve metrics at: use HOST:PORT, as in 127.0.0.1:9100")
    if find_spec("prometheus_client") is None:
        raise ConfigError("metrics need prometheus-client: pip install 'rmqkit[metrics]'")
    return Address(host.strip("[]"), int(port))


class ProgressMetrics:
    """An endpoint with the last progress of one pipeline; it serves while the context lasts.

    `pipeline` is a label of all metrics. Opening the context raises ConfigError if the address
    cannot be listened on. `address` is then what it listens on.
    """

    def __init__(self, pipeline: str, address: str, *, topics: str = "", wall_s: Callable[[], float] = time.time) -> None:
        self.address = address_of(address)
        self._pipeline = pipeline
        self._topics = topics
        self._wall_s = wall_s
        self._last: tuple[PipelineProgress, float] | None = None
        self._server: Any = None

    def update(self, progress: "PipelineProgress") -> None:
        """Show this progress from now on; for `on_progress` of a pipeline."""
        self._last = (progress, self._wall_s())

    def __enter__(self) -> "ProgressMetrics":
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(self.address.port, self.address.host, registry)
        except OSError as error:
            raise ConfigError(f"metrics cannot be served at {self.address}: {error.strerror or error}") from None
        self.address = Address(self.address.host, self._server.server_port)
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> "Iterator[Metric]":
        """Yield the metrics, for prometheus-client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        def family(name: str, text: str, values: Labelled, *labels: str, kind: Any = GaugeMetricFamily) -> Any:
            made = kind(f"rmqkit_pipeline_{name}", text, labels=["pipeline", *labels])
            for words, value in values.items():
                made.add_metric([self._pipeline, *words], value)
            return made

        yield family("info", "1; the labels name the pipeline", {(self._topics,): 1}, "topics")
        if self._last is None:
            return
        progress, at_s = self._last
        yield family("rows", "messages since the start", {(): progress.rows}, kind=CounterMetricFamily)
        offsets = [((key.topic, key.broker, str(key.queue)), each) for key, each in ranges.flat(progress.offsets).items()]
        shown: Labelled = dict(offsets[:QUEUES_MAX])
        yield family("offset", "offset of a queue that is read next", shown, "topic", "broker", "queue")
        for name, text, value in (
            ("rows_per_second", "messages per second of the last micro-batch", progress.rows_per_s),
            ("last_batch_rows", "messages of the last micro-batch", progress.batch_rows),
            ("last_batch", "number of the last micro-batch", progress.batch),
            ("last_batch_timestamp_seconds", "Unix time of the report on the last micro-batch", at_s),
            ("lag_messages", "messages that the brokers have and the pipeline has not read", progress.lag),
            ("queues_omitted", "queues whose offsets are not shown", len(offsets) - len(shown)),
        ):
            if value is not None:
                yield family(name, text, {(): value})
