"""Runs the streaming query of a pipeline until it ends, and reports the progress of a pipeline.

A query's progress is polled every LOOK_S seconds. Each micro-batch is reported once.

`BatchFunction` is what Spark calls with each micro-batch. It keeps the error of a batch and gives
Spark one short line instead. For Spark searches the text of the error with a regular expression
that recurses for each character. On the stack traces of a batch that `stop` cancelled the stack
overflows, and the JVM prints a thousand lines.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from rmqkit.errors import ConfigError, RmqkitError
from rmqkit.spark.source import ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from rmqkit.spark.pipelines.query_checkpoint import QueryCheckpoint

#: poll interval in seconds; typed Any, since PySpark declares int although it accepts fractions
LOOK_S: Any = 0.25


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


class BatchFailed(RmqkitError):
    """A micro-batch failed; its function has the error. The text is one line."""


class BatchFunction:
    """Calls `process` with the rows and the number of each micro-batch.

    `error` is the exception of the batch that failed, None if none has.
    """

    def __init__(self, process: "Callable[[DataFrame, int], None]") -> None:
        self._process = process
        self.error: Exception | None = None

    def __call__(self, rows: "DataFrame", batch: int) -> None:
        try:
            self._process(rows, batch)
        except Exception as error:
            self.error = error
            raise BatchFailed(f"batch {batch} failed: {type(error).__name__}") from None


def run_batches(
    rows: "DataFrame",
    process: "Callable[[DataFrame, int], None]",
    checkpoint: "QueryCheckpoint",
    *,
    trigger: str | None,
    on_progress: Callable[[PipelineProgress], None] | None,
    stop: Callable[[], bool] | None,
) -> dict[str, Any] | None:
    """Run `process` for each micro-batch, until the rows end, `stop` returns True or Ctrl-C.

    With a `trigger`, the interval of batches, the rows do not end, and Ctrl-C is the normal end;
    else it raises KeyboardInterrupt. The query may be stopped within a batch; Spark runs that batch
    again at the next start. Return the offsets that are read next, None if no batch ended. Raises
    the error of the batch that failed, or that of the query; ConfigError if the query of this
    checkpoint runs already: Spark would stop it, which looks like its normal end to its caller.
    """
    for other in rows.sparkSession.streams.active:
        if str(other.id) == checkpoint.query_id():
            uri = checkpoint.uri
            raise ConfigError(f"the query of {uri} runs in this session already: stop it, or use another checkpoint")
    batch = BatchFunction(process)
    writer = rows.writeStream.foreachBatch(batch).option("checkpointLocation", checkpoint.uri)
    writer = writer.trigger(availableNow=True) if trigger is None else writer.trigger(processingTime=trigger)
    query = writer.start()
    done, last, offsets, is_over = 0, -1, None, False
    try:
        while not is_over:
            is_over = bool(query.awaitTermination(LOOK_S))
            for report in [json.loads(each.json) for each in query.recentProgress]:
                # Spark reports an idle trigger under the number of the next batch.
                if report["batchId"] > last and "addBatch" in report.get("durationMs", {}):
                    done, last = done + report["numInputRows"], report["batchId"]
                    progress = of_query(report, done)
                    offsets = progress.offsets
                    if on_progress:
                        on_progress(progress)
            is_over = is_over or (stop is not None and stop())
    except KeyboardInterrupt:
        if trigger is None:
            raise
    except Exception:
        if batch.error is not None:
            raise batch.error from None
        raise
    finally:
        if query.isActive:
            query.stop()
    return offsets


def of_query(told: Mapping[str, Any], rows: int) -> PipelineProgress:
    """Convert Spark's progress of a micro-batch (the data of `StreamingQueryProgress.json`).

    `rows` is the number of rows since the start of the query.
    """
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


def _offsets(report: Any) -> dict[str, Any]:
    """Return a source's offsets; Spark reports them as JSON, or as a string that holds JSON."""
    if isinstance(report, str):
        report = json.loads(report)
    return report if isinstance(report, dict) else {}


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
