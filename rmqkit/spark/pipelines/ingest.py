"""Ingests topics into a lake: a streaming query whose batches are committed by the lake's own log.

    # read up to the current end of the topic
    ingest(spark, ["orders"], "/data/orders", namesrv="127.0.0.1:9876")
    # follow the topic until stopped
    ingest(spark, ["orders"], "s3a://bucket/orders", follow=True, trigger="1 minute")

The same call continues where the last one ended: its checkpoint is stored in the lake, under the
names of its topics. Without a checkpoint, the query begins where the lake ends. A message that is
read twice is in the lake once (see `batches`).

With `packages`, a lake format replaces rmqkit's lake. Then the format's own commit and its own
readers are used (see `formats`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rmqkit.errors import ConfigError
from rmqkit.spark.options import SourceOptions, parse
from rmqkit.spark.pipelines import batches, formats, lake
from rmqkit.spark.pipelines.folders import Folder, open_folder
from rmqkit.spark.pipelines.log import LakeLog
from rmqkit.spark.pipelines.progress import PipelineProgress, check_alone, wait
from rmqkit.spark.source.ranges import Ends

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CHECKPOINTS = "_lake/checkpoints"
TRIGGER = "10 seconds"
SOURCE = "rocketmq"


class IngestResult(msgspec.Struct, kw_only=True):
    """The result of an ingest.

    `repeated` counts messages that were read again and left out. `offsets` maps topic -> broker ->
    queue to the offset that is read next; None if no batch ended. `bytes` is the size of the files
    written.
    """

    path: str
    checkpoint: str
    query: str
    batches: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    repeated: int = 0
    offsets: dict[str, Any] | None = None


def ingest(
    spark: SparkSession,
    topics: str | Sequence[str],
    path: str | os.PathLike[str],
    *,
    namesrv: str | None = None,
    follow: bool = False,
    options: Mapping[str, str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    packages: str | Sequence[str] | None = None,
    trigger: str = TRIGGER,
    on_progress: Callable[[PipelineProgress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> IngestResult:
    """Ingest the messages of the topics into the lake at `path`.

    Without `follow`, the ingest ends at the topics' current end. With it, a batch runs every
    `trigger` until `stop` returns True or the user presses Ctrl-C.

    `options` are those of the data source (docs/spark.md). A `checkpoint` given by the caller must
    always be used with the same `path`. Raises ConfigError, LakeConflict, LakeDamaged, and the
    exception of the query (StreamingQueryException).
    """
    names = [topics] if isinstance(topics, str) else sorted(dict.fromkeys(topics))
    if not names or not all(names):
        raise ConfigError("name a topic to ingest")
    format_ = formats.of_packages(packages)
    folder = open_folder(path, spark)
    place = open_folder(checkpoint or f"{folder.uri}/{default_checkpoint(names)}", spark)
    check_alone(spark, place.uri, batches.query_id(place))
    log = LakeLog(folder)
    given = _source_options(names, namesrv, options, log, format_)
    parsed = parse(given, "stream")
    # Resolve the name servers here: the environment of Spark's processes may name others.
    given["namesrv"] = ";".join(parsed.namesrv)
    starts = _starts(parsed)
    rows = spark.readStream.format(SOURCE).options(**given).load()
    done = IngestResult(path=folder.uri, checkpoint=place.uri, query="")
    errors: list[Exception] = []
    query = _start(rows, _sink(log, place, starts, done, errors, format_), place, trigger if follow else None)
    done.query = str(query.id)

    def report(progress: PipelineProgress) -> None:
        done.offsets = progress.offsets
        if format_:
            done.rows = progress.rows
        if on_progress:
            on_progress(progress)

    try:
        wait(query, report, stop, endless=follow)
    except Exception:
        # Spark wraps a batch's exception in its own with a JVM stack trace. Raise the original.
        if errors:
            raise errors[0] from None
        raise
    return done


def default_checkpoint(topics: Sequence[str]) -> str:
    """Return the path of the checkpoint of these topics, relative to the lake."""
    readable = "+".join(topics).replace("%", "_")[:60]
    return f"{CHECKPOINTS}/{readable}-{hashlib.sha256(','.join(topics).encode()).hexdigest()[:12]}"


def _source_options(
    topics: Sequence[str],
    namesrv: str | None,
    options: Mapping[str, str] | None,
    log: LakeLog,
    format_: formats.LakeFormat | None,
) -> dict[str, str]:
    given = {key: str(value) for key, value in (options or {}).items()}
    if namesrv:
        given["namesrv"] = namesrv
    given["subscribe"] = ",".join(topics)
    chosen = {key.lower() for key in given}
    if not chosen & {"startingoffsets", "startingtimestamp"}:
        given["startingOffsets"] = "earliest" if format_ else batches.unread(log.state(), topics)
    return given


def _starts(options: SourceOptions) -> Ends:
    """Return the start offsets of the queues for which the options name one."""
    chosen = options.starting_offsets
    return {} if isinstance(chosen, str) else {key: offset for key, offset in chosen.items() if offset >= 0}


def _sink(
    log: LakeLog,
    checkpoint: Folder,
    starts: Ends,
    done: IngestResult,
    errors: list[Exception],
    format_: formats.LakeFormat | None,
) -> Callable[[DataFrame, int], None]:
    """Return the function that Spark calls with each micro-batch.

    It adds the batch to `done`. An exception is appended to `errors` and raised.
    """

    def to_lake(rows: DataFrame, batch: int) -> None:
        query = batches.query_id(checkpoint)
        if query is None:
            raise ConfigError(f"{checkpoint.uri} has no checkpoint any more: it was removed while the query ran")
        if format_:
            format_.write(rows, log.folder.uri, query, batch)
            done.batches += 1
            return
        offsets = batches.offsets_of(checkpoint, batch, starts)
        added = batches.add(log, rows, query=query, batch=batch, offsets=offsets, now_ms=lake.wall_ms())
        done.batches += added.is_new
        done.rows += added.rows
        done.files += added.files
        done.bytes += added.size
        done.repeated += added.repeated

    def sink(rows: DataFrame, batch: int) -> None:
        try:
            to_lake(rows, batch)
        except Exception as error:
            errors.append(error)
            raise

    return sink


def _start(
    rows: DataFrame, sink: Callable[[DataFrame, int], None], checkpoint: Folder, trigger: str | None
) -> StreamingQuery:
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint.uri)
    writer = writer.trigger(availableNow=True) if trigger is None else writer.trigger(processingTime=trigger)
    return writer.start()
