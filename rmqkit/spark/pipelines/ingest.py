"""Ingests topics into a lake: a streaming query whose batches are commits of a table.

    # read up to the current end of the topic
    ingest(spark, ["orders"], "/data/orders", namesrv="127.0.0.1:9876")
    # follow the topic until stopped
    ingest(spark, ["orders"], "s3://bucket/orders", follow=True, storage_options={…})

The same call continues where the last one ended: its checkpoint is stored in the lake, under the
names of its topics. Without a checkpoint, the query begins where the lake ends. So it does on an
object store, which Spark cannot write without a jar, unless the caller names a checkpoint.

A batch is committed exactly once (`add_batch`), after any crash and any number of reruns. Spark
runs it again if the driver dies between the offsets that it records before the batch and the
completion that it records afterwards. Therefore a batch first writes its data files, then one
commit of the table (Delta or Iceberg), which names the files, the query with the batch number, and
the offsets that it covers (`transactions`):

- If the table has the batch and covers its offsets, an earlier attempt committed it. The number
  alone is not enough: with an old checkpoint, a number comes again with other offsets.
- If two drivers write the same batch, or the same queues, the second commit is refused. It looks
  again: the same batch is done, other rows at the same offsets are an error.
- Files without a commit are in no version of the table. `vacuum` removes them.

Rows at offsets that the lake already has (the checkpoint was lost or is old, or two ingests share a
topic) are left out, after a comparison of their message ids. These differ if the topic was
recreated, belongs to another cluster, or was ingested with a filter. Then the batch fails.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rmqkit.errors import ConfigError
from rmqkit.spark.delta import data_files
from rmqkit.spark.delta.data_files import HOUR, FileReport
from rmqkit.spark.delta.iceberg_table import IcebergTable
from rmqkit.spark.delta.lake_table import Batch, Filters, LakeState, LakeTable, merged_schema
from rmqkit.spark.delta.storage import LakeConflict, LakeError, LakeStorage
from rmqkit.spark.delta.transactions import common
from rmqkit.spark.options import parse
from rmqkit.spark.pipelines import topic_query
from rmqkit.spark.pipelines.progress import PipelineProgress
from rmqkit.spark.pipelines.topic_query import Offsets
from rmqkit.spark.source import ranges
from rmqkit.spark.source.ranges import OffsetRange

BatchTable = LakeTable | IcebergTable
CHECKPOINTS = "_lake/checkpoints"
TRIGGER = "10 seconds"
FORMATS: Mapping[str, Callable[[LakeStorage], BatchTable]] = {"delta": LakeTable, "iceberg": IcebergTable}
IDENTITY = ("topic", "broker", "queue", "offset", "message_id")
NEEDED = (*IDENTITY, "store_time")


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
    format: str = "delta",
    trigger: str = TRIGGER,
    storage_options: Mapping[str, str] | None = None,
    on_progress: Callable[[PipelineProgress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> IngestResult:
    """Ingest the messages of the topics into the lake at `path`.

    Without `follow`, the ingest ends at the topics' current end. With it, a batch runs every
    `trigger` until `stop` returns True or the user presses Ctrl-C.

    `options` are those of the data source (docs/spark.md), `storage_options` those of deltalake for
    an object store. A `checkpoint` given by the caller must always be used with the same `path`.
    With the `format` iceberg the lake is an Iceberg table, with the same promises. Raises
    ConfigError, LakeConflict, LakeDamaged, and the query's exception (StreamingQueryException).
    """
    names = [topics] if isinstance(topics, str) else sorted(dict.fromkeys(topics))
    if not names or not all(names):
        raise ConfigError("name a topic to ingest")
    table = table_at(path, format, storage_options)
    if checkpoint is None and table.storage.is_local:
        checkpoint = table.storage.full(default_checkpoint(names))
    with topic_query.opened(checkpoint, spark) as place:
        start = unread(table.state(), names)
        given = topic_query.query_options("stream", options, namesrv, start=start, subscribe=",".join(names))
        chosen = parse(given, "stream").starting_offsets
        starts = {} if isinstance(chosen, str) else {key: offset for key, offset in chosen.items() if offset >= 0}
        done = IngestResult(path=table.storage.uri, checkpoint=place.uri, query="")

        def add(rows: DataFrame, batch: int) -> None:
            if (query := place.query_id()) is None:
                raise ConfigError(f"{place.uri} has no checkpoint any more: it was removed while the query ran")
            offsets = place.offsets_of(batch, starts)
            added = add_batch(table, rows, query=query if place.is_kept else None, batch=batch, offsets=offsets)
            if added is not None:
                done.batches += 1
                done.rows += added.rows
                done.files += added.files
                done.bytes += added.size
                done.repeated += added.repeated

        rows = spark.readStream.format(topic_query.FORMAT).options(**given).load()
        interval = trigger if follow else None
        done.offsets = topic_query.run_batches(rows, add, place, trigger=interval, on_progress=on_progress, stop=stop)
        done.query = place.query_id() or ""
        return done


def table_at(path: str | os.PathLike[str], format: str, options: Mapping[str, str] | None) -> BatchTable:
    """Return the table of a format at a place, where there may be none yet. Needs no Spark.

    Raises ConfigError for an unknown format, or if it is not possible here.
    """
    if format not in FORMATS:
        raise ConfigError(f"format {format}: choose from {', '.join(FORMATS)}")
    return FORMATS[format](LakeStorage(path, options))


def default_checkpoint(topics: Sequence[str]) -> str:
    """Return the path of the checkpoint of these topics, relative to the lake."""
    readable = "+".join(topics).replace("%", "_")[:60]
    return f"{CHECKPOINTS}/{readable}-{hashlib.sha256(','.join(topics).encode()).hexdigest()[:12]}"


# --- batches


class BatchResult(NamedTuple):
    """The counts of one batch, as in `IngestResult`. `size` is in bytes."""

    rows: int
    files: int
    size: int
    repeated: int


def add_batch(table: BatchTable, rows: DataFrame, *, query: str | None, batch: int, offsets: Offsets) -> BatchResult | None:
    """Write and commit a batch of a query. Return None if it was committed earlier.

    Raises LakeConflict, LakeDamaged, ConfigError.
    """
    state = table.state()
    if _is_done(state, query, batch, offsets):
        return None
    _check(rows, state, offsets)
    schema = json.loads(rows.schema.json())
    merged_schema(state.schema, schema)
    repeated = common(state.covered, _ranges(offsets, dict.fromkeys(ranges.flat(offsets.end), 0)))
    rows, left_out = _without(rows, table, repeated) if repeated else (rows, 0)
    files = data_files.write(rows, table.storage, has_topics=table.has_topics)
    if table.storage.is_local:
        _check_there(table.storage, files)
    # In batch 0 the begin of a queue is unknown unless the start offsets name it. Such a queue
    # begins at its lowest row, here its last, or at its end if it has no row.
    lowest = [(at, ranges.QueueKey(file.topic, broker, queue)) for file in files for broker, queue, at in file.queues]
    covers = _ranges(offsets, {key: at for at, key in sorted(lowest, reverse=True)})
    clusters = {topic: list(ranges.clusters(offsets.end)) for topic in ranges.topics(offsets.end)}

    def make(now: LakeState) -> Batch | None:
        if _is_done(now, query, batch, offsets):
            return None
        _check_fresh(state, now, covers)
        return Batch(query, batch, covers, clusters, files, schema)

    if table.commit(make) is None:
        return None
    return BatchResult(sum(file.rows for file in files), len(files), sum(file.size for file in files), left_out)


def _check(rows: DataFrame, state: LakeState, offsets: Offsets) -> None:
    """Raise ConfigError for wrong columns, LakeConflict for rows of another cluster."""
    if missing := [name for name in NEEDED if name not in rows.columns]:
        raise ConfigError(f"a lake needs the columns {', '.join(missing)} too: add them to option `columns`, or omit it")
    if HOUR in rows.columns:
        raise ConfigError(f"column {HOUR}: a lake reserves this name; rename the column")
    names = set(ranges.clusters(offsets.end))
    for topic in ranges.topics(offsets.end):
        known = set(state.known.clusters.get(topic, []))
        if names and known and not names & known:
            raise LakeConflict(
                f"the lake has topic {topic} of cluster {', '.join(sorted(known))}, this is {', '.join(sorted(names))}: "
                "offsets of different clusters are unrelated; choose another path"
            )


def _is_done(state: LakeState, query: str | None, batch: int, offsets: Offsets) -> bool:
    """Return whether the lake already has this batch.

    Where the begin of a queue is unknown, only its last offset is checked.
    """
    if not state.has(query, batch):
        return False
    asked = _ranges(offsets, {key: max(end - 1, 0) for key, end in ranges.flat(offsets.end).items()})
    return common(state.covered, asked) == asked


def _ranges(offsets: Offsets, begins: ranges.Ends) -> list[OffsetRange]:
    """Return the ranges of a batch that are not empty; unknown begins of queues are in `begins`."""
    return ranges.waiting({**begins, **ranges.flat(offsets.begin)}, ranges.flat(offsets.end))


def _check_there(storage: LakeStorage, files: Sequence[FileReport]) -> None:
    """Raise LakeError unless this machine sees what the tasks wrote.

    On a Spark cluster, each machine may have a folder of its own under a local path.
    """
    seen = storage.files().get_file_info([file.path for file in files])
    there = sum(file.rows for file, info in zip(files, seen, strict=True) if info.size == file.size)
    rows = sum(file.rows for file in files)
    if there != rows:
        raise LakeError(
            f"{rows} rows were written to {storage.uri}, and {there} are there: do all executors see this folder? "
            "A Spark cluster needs a path that all its machines share"
        )


def _check_fresh(before: LakeState, now: LakeState, covers: Sequence[OffsetRange]) -> None:
    """Raise LakeConflict if another ingest has committed any of these offsets meanwhile."""
    known = common(before.covered, covers)
    for each in common(now.covered, covers):
        if each not in known:
            raise LakeConflict(
                f"another ingest has committed {each.key} {each.begin} to {each.end} while this one ran: "
                "run one ingest of a topic at a time; restart this one, it skips messages that the lake has"
            )


def _without(rows: DataFrame, table: BatchTable, repeated: Sequence[OffsetRange]) -> tuple[DataFrame, int]:
    """Return the rows that the lake does not have, and the number of rows left out.

    Raises LakeConflict if the lake lacks a row at a covered offset, or has another message there.
    """
    again = rows.where(_within(repeated)).select(*IDENTITY)
    first, last = min(each.begin for each in repeated), max(each.end for each in repeated)
    bounds: Filters = [("offset", ">=", first), ("offset", "<", last)]
    there = table.rows(rows.sparkSession, {each.topic for each in repeated}, bounds)
    place = IDENTITY[:-1]
    old = there.where(_within(repeated)).select(*place, F.col("message_id").alias("there"))
    is_wrong = ~F.col("message_id").eqNullSafe(F.col("there"))
    first_wrong = F.min(F.when(is_wrong, F.struct(*IDENTITY, "there")))
    [(number, wrong)] = again.join(old, [*place], "left").agg(F.count("*"), first_wrong).collect()
    if wrong is not None:
        topic, broker, queue, offset, message_id, other = wrong
        has = "has no such row, although it covers the offset" if other is None else f"has {other} there"
        raise LakeConflict(
            f"{topic} {broker}:{queue} {offset} is message {message_id}, the lake {has}: the topic was recreated, "
            "belongs to another cluster, or was ingested with a filter; choose another path"
        )
    return rows.where(~_within(repeated)), number


def _within(parts: Sequence[OffsetRange]) -> Column:
    condition = F.lit(False)
    for each in parts:
        queue = (F.col("topic") == each.topic) & (F.col("broker") == each.broker) & (F.col("queue") == each.queue)
        condition |= queue & (F.col("offset") >= each.begin) & (F.col("offset") < each.end)
    return condition


def unread(state: LakeState, topics: Sequence[str]) -> str:
    """Return `startingOffsets` for a query that continues where the lake ends.

    Queues that the lake does not know start at their earliest offset.
    """
    known = {key: intervals[-1][1] for key, intervals in state.covered.items() if key.topic in topics}
    return json.dumps(ranges.nested(known)) if known else "earliest"
