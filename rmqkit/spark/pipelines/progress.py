"""The progress of a pipeline, and its metrics for Prometheus, over HTTP (`rmqkit[metrics]`).

    with ProgressMetrics("ingest", "127.0.0.1:9100") as metrics:
        ingest(spark, ["orders"], "/data/orders", follow=True, on_progress=metrics.update)

The server of the metrics is that of `prometheus-client`, in a thread of its own. A scrape shows the
last report of progress; it asks neither Spark nor a broker. Before the first micro-batch ends, only
`rmqkit_pipeline_info` is there.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from rmqkit.errors import ConfigError
from rmqkit.runtime.connection import Address
from rmqkit.spark.source import ranges

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from pyspark.sql import SparkSession

#: poll interval in seconds; typed Any, since PySpark declares int although it accepts fractions
LOOK_S: Any = 0.25
#: Limit of the series of `rmqkit_pipeline_offset`: one for each queue, in the order of their names.
#: `rmqkit_pipeline_queues_omitted` has the number of those beyond it.
QUEUES_MAX = 10_000


class PipelineProgress(msgspec.Struct, frozen=True):
    """The progress of a pipeline.

    `rows` counts all rows since the start; `rows_per_s` is the rate of the last batch. `lag` is the
    number of messages that the brokers have and the query has not read; None if unknown. `offsets`
    maps topic -> broker -> queue to the offset that is read next.
    """

    rows: int = 0
    rows_per_s: float = 0.0
    lag: int | None = None
    batch: int | None = None
    batch_rows: int = 0
    offsets: dict[str, Any] = {}
    #: only for jobs that are not streams: tasks of the stages that run now
    tasks_done: int = 0
    tasks: int = 0


@contextmanager
def jobs(spark: "SparkSession", on_progress: Callable[[PipelineProgress], None] | None) -> Iterator[None]:
    """Report the session's running tasks during the `with` block, from a background thread."""
    if on_progress is None:
        yield
        return
    ended = threading.Event()

    def poll() -> None:
        reported = PipelineProgress()
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(LOOK_S):
            stages = [stage for each in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(each))]
            done = sum(stage.numCompletedTasks for stage in stages)
            now = PipelineProgress(tasks_done=done, tasks=sum(stage.numTasks for stage in stages))
            if now.tasks and now != reported:
                reported = now
                on_progress(now)

    thread = threading.Thread(target=poll, name="spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class ProgressMetrics:
    """An endpoint with the last progress of one pipeline; it serves while the context lasts.

    `pipeline` is a label of all metrics. `address` is `HOST:PORT`; with port 0 the system chooses
    one, and in the context the attribute is what the server listens on. Raises ConfigError for
    another text, or if prometheus-client is missing. Entering the context raises it if nothing can
    listen at the address.
    """

    def __init__(self, pipeline: str, address: str, *, topics: str = "", wall_s: Callable[[], float] = time.time) -> None:
        try:
            self.address = Address.parse(address)
        except ValueError:
            why = "is not an address to serve metrics at: use HOST:PORT, as in 127.0.0.1:9100"
            raise ConfigError(f"{address} {why}") from None
        if find_spec("prometheus_client") is None:
            raise ConfigError("metrics need prometheus-client: pip install 'rmqkit[metrics]'")
        self._pipeline = pipeline
        self._topics = topics
        self._wall_s = wall_s
        self._last: tuple[PipelineProgress, float] | None = None
        self._server: Any = None

    def update(self, progress: PipelineProgress) -> None:
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

        def family(name: str, text: str, values: Mapping[Any, float], *labels: str, kind: Any = GaugeMetricFamily) -> Any:
            """Return a family; `values` maps the values of `labels` to figures."""
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
        shown = dict(offsets[:QUEUES_MAX])
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
