"""Topics into a lake: a streaming query whose batches are committed by the lake's own log.

    ingest(spark, ["orders"], "/data/orders", namesrv="127.0.0.1:9876")                 # what is there now
    ingest(spark, ["orders"], "s3a://bucket/orders", follow=True, trigger="1 minute")   # for ever

The same call goes on where it ended: its checkpoint lies in the lake, by the names of its topics. Without a
checkpoint the query begins where the lake ends. Whatever is read twice is in the lake once (`batches`). With
`packages` a lake format takes the lake's place: its own commit decides, and its own readers read it (`formats`).
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
    """What an ingest did. `repeated` messages were read again and are in the lake once. `offsets` (topic, broker,
    queue) are read next, None when no batch ended."""

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
    """Bring what the topics have into the lake at `path`; with `follow` also what comes, every `trigger`, until `stop` says
    so or Ctrl-C.

    `options` are the data source's (docs/spark.md). A `checkpoint` of your own belongs to one path for ever. Raises
    ConfigError, LakeConflict, LakeDamaged, and what the query raised (StreamingQueryException).
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
    # Not what the environment of Spark's own processes says.
    given["namesrv"] = ";".join(parsed.namesrv)
    starts = _starts(parsed)
    rows = spark.readStream.format(SOURCE).options(**given).load()
    done = IngestResult(path=folder.uri, checkpoint=place.uri, query="")
    errors: list[Exception] = []
    query = _start(rows, _sink(log, place, starts, done, errors, format_), place, trigger if follow else None)
    done.query = str(query.id)

    def told(progress: PipelineProgress) -> None:
        done.offsets = progress.offsets
        if format_:
            done.rows = progress.rows
        if on_progress:
            on_progress(progress)

    try:
        wait(query, told, stop, endless=follow)
    except Exception:
        # Spark wraps what a batch raised in its own words and a JVM's stack.
        if errors:
            raise errors[0] from None
        raise
    return done


def default_checkpoint(topics: Sequence[str]) -> str:
    """Where the checkpoint of an ingest of these topics lies in its lake."""
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
    """Where the query begins, of the queues whose offsets are named."""
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
    """What Spark calls with each micro-batch."""

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

    def kept(rows: DataFrame, batch: int) -> None:
        try:
            to_lake(rows, batch)
        except Exception as error:
            errors.append(error)
            raise

    return kept


def _start(
    rows: DataFrame, sink: Callable[[DataFrame, int], None], checkpoint: Folder, trigger: str | None
) -> StreamingQuery:
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint.uri)
    writer = writer.trigger(availableNow=True) if trigger is None else writer.trigger(processingTime=trigger)
    return writer.start()
