"""The queries of pipelines: their options, and the run of a streaming query with its checkpoint.

`QueryCheckpoint` reads what Spark has written into the checkpoint of a query: its id, and the
offsets of batches. A checkpoint lies on this machine or on a file system of Spark's JVM (`hdfs://`,
`s3a://` with its jar).

`run_batches` runs a query until it ends. It polls the query's progress every LOOK_S seconds, and
reports each micro-batch once. Of the error of a batch Spark gets one short line (`shortened`). For
Spark searches the text of the error with a regular expression that recurses for each character. On
the stack traces of a batch that `stop` cancelled the stack overflows, and the JVM prints a thousand
lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.errors import ConfigError, RmqkitError
from rmqkit.spark.delta.storage import LakeDamaged, LakeStorage
from rmqkit.spark.options import parse
from rmqkit.spark.pipelines.progress import LOOK_S, PipelineProgress
from rmqkit.spark.source import ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: the data source and sink
FORMAT = "rocketmq"


def query_options(
    where: str, options: Mapping[str, str] | None, namesrv: str | None, *, start: str = "", **fixed: str
) -> dict[str, str]:
    """Return checked options of a query; `where` is `batch`, `stream` or `sink`.

    `options` are the caller's, `fixed` those that the pipeline sets. `start` are the
    `startingOffsets`, if the options choose no start. Raises ConfigError.
    """
    given = {key: str(value) for key, value in (options or {}).items()} | fixed
    if namesrv:
        given["namesrv"] = namesrv
    if start and not {key.lower() for key in given} & {"startingoffsets", "startingtimestamp"}:
        given["startingOffsets"] = start
    # Resolve the name servers here: the environment of Spark's processes may name others.
    return given | {"namesrv": ";".join(parse(given, where).namesrv)}


class Offsets(NamedTuple):
    """The offset range [begin, end) of a batch; both map topic -> broker -> queue -> offset."""

    begin: dict[str, Any]
    end: dict[str, Any]


class QueryCheckpoint:
    """The checkpoint at a path or URI; it need not exist yet. One that `is_kept` can be resumed."""

    def __init__(self, path: str | os.PathLike[str], spark: SparkSession | None = None, *, is_kept: bool = True) -> None:
        self.is_kept = is_kept
        place = LakeStorage(path)
        self._local = Path(place.uri) if place.is_local else None
        self._spark: Any = spark
        #: as Spark takes it
        self.uri = f"file://{place.uri}" if place.is_local else place.uri

    def query_id(self) -> str | None:
        """Return the id of the query that owns the checkpoint, None for a new checkpoint."""
        content = self._read("metadata")
        return None if content is None else str(json.loads(content)["id"])

    def offsets_of(self, batch: int, starts: Mapping[ranges.QueueKey, int] | None = None) -> Offsets:
        """Return the offsets that Spark recorded before it ran the batch.

        Spark does not record where batch 0 begins. For it `begin` is taken from `starts`, for the
        queues that `starts` names. Raises LakeDamaged if there are no offsets for the batch.
        """
        end = self._offsets(batch)
        if end is None:
            raise LakeDamaged(f"{self.uri}/offsets/{batch} is missing: the checkpoint does not belong to a running query")
        if batch:
            return Offsets(self._offsets(batch - 1) or {}, end)
        ends = ranges.flat(end)
        return Offsets(ranges.nested({key: min(at, ends[key]) for key, at in (starts or {}).items() if key in ends}), end)

    def _offsets(self, batch: int) -> dict[str, Any] | None:
        content = self._read(f"offsets/{batch}")
        if content is None:
            return None
        # Spark writes a version line, a line about the query, then a line per source. We have one.
        lines = content.decode().splitlines()
        if len(lines) != 3 or lines[0] != "v1":
            raise LakeDamaged(f"{self.uri}/offsets/{batch} does not have Spark's format for the offsets of one source")
        return json.loads(lines[2]) or {}

    def _read(self, name: str) -> bytes | None:
        if self._local is not None:
            path = self._local / name
            return path.read_bytes() if path.exists() else None
        hadoop = self._spark._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}")
        files = hadoop.getFileSystem(self._spark._jsc.hadoopConfiguration())
        if not files.exists(hadoop):
            return None
        with contextlib.closing(files.open(hadoop)) as stream:
            return bytes(self._spark._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))


@contextlib.contextmanager
def opened(path: str | os.PathLike[str] | None, spark: SparkSession) -> Iterator[QueryCheckpoint]:
    """Yield the checkpoint at a path; without one, a temporary one that is removed at the end."""
    if path is not None:
        yield QueryCheckpoint(path, spark)
        return
    with tempfile.TemporaryDirectory(prefix="rmqkit-checkpoint-", ignore_cleanup_errors=True) as folder:
        yield QueryCheckpoint(folder, is_kept=False)


def shortened(process: Callable[[DataFrame, int], None], errors: list[Exception]) -> Callable[[DataFrame, int], None]:
    """Return `process` with one line as its error, for Spark. The error itself goes to `errors`."""

    def run(rows: DataFrame, batch: int) -> None:
        try:
            process(rows, batch)
        except Exception as error:
            errors.append(error)
            raise RmqkitError(f"batch {batch} failed: {type(error).__name__}") from None

    return run


def run_batches(
    rows: DataFrame,
    process: Callable[[DataFrame, int], None],
    checkpoint: QueryCheckpoint,
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
    if checkpoint.query_id() in [str(each.id) for each in rows.sparkSession.streams.active]:
        raise ConfigError(f"the query of {checkpoint.uri} runs in this session already: stop it, or use another checkpoint")
    errors: list[Exception] = []
    writer = rows.writeStream.foreachBatch(shortened(process, errors)).option("checkpointLocation", checkpoint.uri)
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
        if errors:
            raise errors[0] from None
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
