"""Commits a micro-batch to a lake exactly once, after any crash and any number of reruns.

Spark records the offsets of batch N before it runs the batch, and its completion afterwards. If the
driver dies in between, Spark runs the batch again, in this process or a later one. Therefore a
batch first writes its data files, then one log entry, which is the commit. The entry names the
query and the batch number:

- If the log has an entry for the batch, an earlier attempt committed it, and nothing is written.
- An attempt without an entry can never be committed once the batch has one. Its files are removed
  then.

Another query may read offsets that the lake already has: its checkpoint was lost or restored from
an older copy, or two ingests share a topic. Rows at such offsets are left out, but each is compared
first: the lake must have the same message id at that offset. It does not if the topic was
recreated, belongs to another cluster, or was ingested with a filter. Then the batch fails, and the
error names the message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.spark.pipelines import coverage
from rmqkit.spark.pipelines.folders import Folder
from rmqkit.spark.pipelines.lake_writer import attempt_folder, batch_folder, check_columns, write
from rmqkit.spark.pipelines.log import BatchEntry, DataFile, LakeConflict, LakeDamaged, LakeLog, LakeState, merged_schema
from rmqkit.spark.source import ranges
from rmqkit.spark.source.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

IDENTITY = ("topic", "broker", "queue", "offset", "message_id")


class Offsets(NamedTuple):
    """The offset range [begin, end) of a batch; both map topic -> broker -> queue -> offset."""

    begin: dict[str, Any]
    end: dict[str, Any]


class BatchResult(NamedTuple):
    """The result of one batch.

    `size` is in bytes. `repeated` counts the messages left out because the lake already had them.
    `is_new` is False for a batch that was committed earlier.
    """

    rows: int
    files: int
    size: int
    repeated: int
    is_new: bool


NOTHING = BatchResult(0, 0, 0, 0, is_new=False)


def query_id(checkpoint: Folder) -> str | None:
    """Return the id of the query that owns the checkpoint, None for a new checkpoint."""
    content = checkpoint.read("metadata")
    return None if content is None else str(json.loads(content)["id"])


def offsets_of(checkpoint: Folder, batch: int, starts: ranges.Ends | None = None) -> Offsets:
    """Return the offsets that Spark recorded in the checkpoint before it ran the batch.

    Spark does not record where batch 0 begins. For it `begin` is taken from `starts`, for the
    queues that `starts` names. Raises LakeDamaged if the checkpoint has no offsets for the batch.
    """
    end = _written(checkpoint, batch)
    if end is None:
        raise LakeDamaged(f"{checkpoint.uri}/offsets/{batch} is missing: the checkpoint does not belong to a running query")
    if batch:
        return Offsets(_written(checkpoint, batch - 1) or {}, end)
    ends = ranges.flat(end)
    return Offsets(ranges.nested({key: min(at, ends[key]) for key, at in (starts or {}).items() if key in ends}), end)


def _written(checkpoint: Folder, batch: int) -> dict[str, Any] | None:
    content = checkpoint.read(f"offsets/{batch}")
    if content is None:
        return None
    # Spark writes a version line, a line about the query, then one line per source. We have one.
    lines = content.decode().splitlines()
    if len(lines) != 3 or lines[0] != "v1":
        raise LakeDamaged(f"{checkpoint.uri}/offsets/{batch} does not have Spark's format for the offsets of one source")
    offsets = json.loads(lines[2])
    return offsets if isinstance(offsets, dict) else {}


def add(log: LakeLog, rows: DataFrame, *, query: str, batch: int, offsets: Offsets, now_ms: int) -> BatchResult:
    """Write and commit a batch of a query. Raises LakeConflict, LakeDamaged, ConfigError."""
    state = log.state()
    if _is_done(state, query, batch, offsets):
        _remove_left_overs(log.folder, state, query, batch)
        return NOTHING
    check_columns(rows)
    _check_cluster(state, offsets.end)
    merged_schema([*state.schemas, rows.schema.json()])
    begins, ends = ranges.flat(offsets.begin), ranges.flat(offsets.end)
    asked = [OffsetRange(*key, begins.get(key, 0), end) for key, end in ends.items()]
    repeated = coverage.common(state.covered, asked)
    left_out = 0
    if repeated:
        rows, left_out = _without(rows, log.folder, state, repeated)
    name = attempt_folder(query, batch)
    files = write(rows, log.folder, name)
    begin = _begins(rows, log.folder, files, offsets)
    entry = BatchEntry(
        query=query,
        batch=batch,
        begin=begin,
        end=offsets.end,
        clusters={topic: list(ranges.clusters(offsets.end)) for topic in ranges.topics(offsets.end)},
        rows=sum(file.rows for file in files),
        files=files,
        schema=_plain_schema(rows),
        written_ms=now_ms,
    )
    made: list[BatchEntry] = []

    def make(now: LakeState) -> BatchEntry | None:
        made.clear()
        if _is_done(now, query, batch, offsets):
            return None
        _check_fresh(now, entry.ranges(), repeated)
        made.append(entry)
        return entry

    now = log.commit(make, now_ms)
    _remove_left_overs(log.folder, now, query, batch)
    if not made:
        return NOTHING
    size = sum(file.size for file in files)
    return BatchResult(entry.rows, len(files), size, left_out, is_new=True)


def _is_done(state: LakeState, query: str, batch: int, offsets: Offsets) -> bool:
    """Return whether the lake already has this batch.

    The batch number alone is not enough: with a checkpoint restored from a copy, a number comes
    again with other offsets. Therefore the offsets must be covered too. Where the begin of a queue
    is unknown, only its last offset is checked.
    """
    if not state.has(query, batch):
        return False
    begins = ranges.flat(offsets.begin)
    asked = [OffsetRange(*key, begins.get(key, max(end - 1, 0)), end) for key, end in ranges.flat(offsets.end).items()]
    asked = [each for each in asked if each.size]
    return coverage.common(state.covered, asked) == asked


def _plain_schema(rows: DataFrame) -> str:
    """Return the schema as JSON with all columns nullable and without metadata.

    The same columns always give the same text.
    """
    return json.dumps(merged_schema([rows.schema.json()]), separators=(",", ":"))


def _check_cluster(state: LakeState, end: Mapping[str, Any]) -> None:
    names = set(ranges.clusters(end))
    for topic in ranges.topics(end):
        known = set(state.clusters.get(topic, []))
        if names and known and not names & known:
            raise LakeConflict(
                f"the lake has topic {topic} of cluster {', '.join(sorted(known))}, this is {', '.join(sorted(names))}: "
                "offsets of different clusters are unrelated; choose another path"
            )


def _begins(rows: DataFrame, folder: Folder, files: Sequence[DataFile], offsets: Offsets) -> dict[str, Any]:
    """Return where each queue of a batch begins, as nested JSON data.

    In batch 0 the begin of a queue is unknown unless the start offsets name it. Such a queue begins
    at its first row, or at its end if it has no row.
    """
    known = ranges.flat(offsets.begin)
    begins = {**ranges.flat(offsets.end), **known}
    unknown = [key for key in begins if key not in known]
    if unknown and files:
        from pyspark.sql import functions as F

        written = rows.sparkSession.read.schema(rows.schema).parquet(*[f"{folder.uri}/{file.path}" for file in files])
        first = written.groupBy("topic", "broker", "queue").agg(F.min("offset")).collect()
        found = {ranges.QueueKey(*row[:3]): int(row[3]) for row in first}
        begins |= {key: found[key] for key in unknown if key in found}
    return ranges.nested(begins, ranges.clusters(offsets.end))


def _check_fresh(now: LakeState, fresh: Sequence[OffsetRange], repeated: Sequence[OffsetRange]) -> None:
    """Raise LakeConflict if another ingest has committed any of these offsets meanwhile.

    `repeated` is what the lake had before and this batch left out; it is not a conflict.
    """
    left_out = coverage.added({}, repeated)
    for each in coverage.common(now.covered, fresh):
        if coverage.common(left_out, [each]) != [each]:
            raise LakeConflict(
                f"another ingest has committed {each.key} {each.begin} to {each.end} while this one ran: "
                "run one ingest of a topic at a time; restart this one, it skips messages that the lake has"
            )


def _without(rows: DataFrame, folder: Folder, state: LakeState, repeated: Sequence[OffsetRange]) -> tuple[DataFrame, int]:
    """Return the rows that the lake does not have, and the number of rows left out.

    Raises LakeConflict if the lake lacks a row at a covered offset, or has another message there.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    again = rows.where(_within(repeated)).select(*IDENTITY)
    schema = StructType.fromJson(merged_schema([rows.schema.json(), *state.schemas]))
    names = [f"{folder.uri}/{file.path}" for file in state.chosen({each.topic for each in repeated})]
    session = rows.sparkSession
    there = session.read.schema(schema).parquet(*names) if names else session.createDataFrame([], schema)
    place = list(IDENTITY[:-1])
    old = there.where(_within(repeated)).select(*place, F.col("message_id").alias("there"))
    is_wrong = ~F.col("message_id").eqNullSafe(F.col("there"))
    first_wrong = F.min(F.when(is_wrong, F.struct(*IDENTITY, "there")))
    looked = again.join(old, place, "left").agg(F.count("*"), first_wrong).collect()[0]
    if looked[1] is not None:
        topic, broker, queue, offset, message_id, other = looked[1]
        has = "has no such row, although it covers the offset" if other is None else f"has {other} there"
        raise LakeConflict(
            f"{topic} {broker}:{queue} {offset} is message {message_id}, the lake {has}: the topic was recreated, "
            "belongs to another cluster, or was ingested with a filter; choose another path"
        )
    return rows.where(~_within(repeated)), int(looked[0])


def _within(parts: Sequence[OffsetRange]) -> Column:
    from pyspark.sql import functions as F

    condition = F.lit(False)
    for each in parts:
        queue = (F.col("topic") == each.topic) & (F.col("broker") == each.broker) & (F.col("queue") == each.queue)
        condition = condition | (queue & (F.col("offset") >= each.begin) & (F.col("offset") < each.end))
    return condition


def _remove_left_overs(folder: Folder, state: LakeState, query: str, batch: int) -> None:
    """Remove the attempts of a committed batch that its entry does not name.

    The files of a compacted batch stay until `vacuum`, because readers may still use them.
    """
    under = batch_folder(query, batch)
    attempts = {name.split("/")[3] for name in folder.list(under)}
    committed = {path.split("/")[3] for path in state.files if path.startswith(f"{under}/")}
    if len(attempts) > 1 and committed:
        for attempt in sorted(attempts - committed):
            folder.remove(f"{under}/{attempt}")


def unread(state: LakeState, topics: Sequence[str]) -> str:
    """Return `startingOffsets` for a query that continues where the lake ends.

    Queues that the lake does not know start at their earliest offset.
    """
    known = coverage.ends(state.covered, topics)
    return json.dumps(ranges.nested(known)) if known else "earliest"
