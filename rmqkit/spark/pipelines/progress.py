"""Progress of a pipeline, and how a streaming query is waited for.

Spark's progress of a query is asked for a few times a second; each micro-batch is told of once.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from rmqkit.errors import ConfigError
from rmqkit.spark.source import ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Spark takes whole seconds by its types, and parts of them in fact
LOOK_S: Any = 0.25


class PipelineProgress(msgspec.Struct, frozen=True):
    """How far a pipeline is. `rows` so far and `rows_per_s` of the last batch; `lag`: messages that the brokers have
    and the query has not read; `offsets` (topic, broker, queue) are read next."""

    rows: int = 0
    rows_per_s: float = 0.0
    lag: int | None = None
    batch: int | None = None
    batch_rows: int = 0
    offsets: dict[str, Any] = {}
    #: of a job that is no stream: tasks of the stages that run now
    tasks_done: int = 0
    tasks: int = 0


def check_alone(spark: "SparkSession", checkpoint: str, query_id: str | None) -> None:
    """Raises ConfigError when the query of this checkpoint runs in this session: Spark would end it to start anew, and who
    waits for it could not tell that from its own end."""
    for query in spark.streams.active:
        if str(query.id) == query_id:
            raise ConfigError(f"the query of {checkpoint} runs in this session already: end it first, or name another one")


class QueryWatch:
    """Turns Spark's progress of one query into `PipelineProgress`, each micro-batch once."""

    def __init__(self, query: "StreamingQuery") -> None:
        self._query = query
        self._batch = -1
        self._rows = 0

    def new(self) -> Iterator[PipelineProgress]:
        for progress in self._query.recentProgress:
            told = json.loads(progress.json)
            batch = int(told["batchId"])
            # An idle trigger is told under the number of the batch that comes next.
            if batch <= self._batch or not _has_run(told):
                continue
            self._batch = batch
            self._rows += int(told["numInputRows"])
            yield of_query(told, self._rows)


def _has_run(told: Mapping[str, Any]) -> bool:
    return "addBatch" in told.get("durationMs", {})


def of_query(told: Mapping[str, Any], rows: int) -> PipelineProgress:
    """Spark's progress of a micro-batch (`StreamingQueryProgress.json`); `rows` in all."""
    source = (told.get("sources") or [{}])[0]
    offsets, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    return PipelineProgress(
        rows=rows,
        rows_per_s=float(told.get("processedRowsPerSecond") or 0.0),
        lag=ranges.count(ranges.waiting(ranges.flat(offsets), ranges.flat(latest))) if latest else None,
        batch=int(told["batchId"]),
        batch_rows=int(told["numInputRows"]),
        offsets=offsets,
    )


def _offsets(told: Any) -> dict[str, Any]:
    """Spark tells them as JSON, or as JSON in a string."""
    if isinstance(told, str):
        told = json.loads(told)
    return told if isinstance(told, dict) else {}


def wait(
    query: "StreamingQuery",
    on_progress: Callable[[PipelineProgress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    *,
    endless: bool = False,
) -> None:
    """Until the query ends, or `stop` says so, or Ctrl-C: then it is stopped, between two batches or within one (which runs
    again the next time). Raises what the query raised; of an endless one Ctrl-C is the end that is meant.
    """
    watch = QueryWatch(query)
    try:
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(LOOK_S))
            for progress in watch.new():
                if on_progress:
                    on_progress(progress)
            if not ended and stop is not None and stop():
                break
    except KeyboardInterrupt:
        if not endless:
            raise
    finally:
        if query.isActive:
            query.stop()


@contextmanager
def jobs(spark: "SparkSession", on_progress: Callable[[PipelineProgress], None] | None) -> Iterator[None]:
    """Tell of the tasks of what runs meanwhile in the session, from a thread of its own."""
    if on_progress is None:
        yield
        return
    ended = threading.Event()
    told = PipelineProgress()

    def look() -> None:
        nonlocal told
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(LOOK_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            done = sum(stage.numCompletedTasks for stage in stages if stage)
            tasks = sum(stage.numTasks for stage in stages if stage)
            now = PipelineProgress(tasks_done=done, tasks=tasks)
            if tasks and now != told:
                told = now
                on_progress(now)

    thread = threading.Thread(target=look, name="spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
