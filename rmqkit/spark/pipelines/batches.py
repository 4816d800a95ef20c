"""A micro-batch into a lake, exactly once, whatever dies and however often it runs.

Spark writes down which offsets batch N has before it runs, and that it is done after; between the two it may run
again, in this process or the next. So a batch here is: write the files, then one entry of the log. The entry names
query and batch: a batch that is in the log already was committed by who died afterwards, and nothing is written. What
attempts without an entry left over is removed when the batch gets its entry; nobody can commit it any more.

Another query may bring offsets that the lake has: a checkpoint was lost or is an older one, two ingests have a topic
in common. Their rows are left out, after a look at each: it must be in the lake with the same message id. If not (the
topic was made anew, it is another cluster's, or was read with a filter before), the batch fails and says which
message it is about.
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
    """Of a batch: topic -> broker -> queue -> the first offset that it reads, and the first that it does not."""

    begin: dict[str, Any]
    end: dict[str, Any]


class BatchResult(NamedTuple):
    """What a batch brought; `repeated` messages were in the lake before. `is_new` is false for one that was committed
    earlier."""

    rows: int
    files: int
    size: int
    repeated: int
    is_new: bool


NOTHING = BatchResult(0, 0, 0, 0, is_new=False)


def query_id(checkpoint: Folder) -> str | None:
    """Of the query whose checkpoint it is; None for a new one."""
    content = checkpoint.read("metadata")
    return None if content is None else str(json.loads(content)["id"])


def offsets_of(checkpoint: Folder, batch: int, starts: ranges.Ends | None = None) -> Offsets:
    """What Spark wrote down of a batch before it ran it; where the first one begins it does not write: at `starts`, as far
    as that is known. Raises LakeDamaged when the checkpoint does not have it."""
    end = _written(checkpoint, batch)
    if end is None:
        raise LakeDamaged(f"{checkpoint.uri}/offsets/{batch} is not there: the checkpoint is not that of a running query")
    if batch:
        return Offsets(_written(checkpoint, batch - 1) or {}, end)
    ends = ranges.flat(end)
    return Offsets(ranges.nested({key: min(at, ends[key]) for key, at in (starts or {}).items() if key in ends}), end)


def _written(checkpoint: Folder, batch: int) -> dict[str, Any] | None:
    content = checkpoint.read(f"offsets/{batch}")
    if content is None:
        return None
    # A version, a line about the query, then a line for each source: we have one.
    lines = content.decode().splitlines()
    if len(lines) != 3 or lines[0] != "v1":
        raise LakeDamaged(f"{checkpoint.uri}/offsets/{batch} is not as Spark writes the offsets of one source")
    offsets = json.loads(lines[2])
    return offsets if isinstance(offsets, dict) else {}


def add(log: LakeLog, rows: DataFrame, *, query: str, batch: int, offsets: Offsets, now_ms: int) -> BatchResult:
    """Bring a batch of a query into a lake. Raises LakeConflict, LakeDamaged, ConfigError."""
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
    """Whether the lake has this very batch. The number is not enough: with a checkpoint that was put back from a
    copy, a number comes again with other offsets. Of a queue whose begin is not known the last offset speaks."""
    if not state.has(query, batch):
        return False
    begins = ranges.flat(offsets.begin)
    asked = [OffsetRange(*key, begins.get(key, max(end - 1, 0)), end) for key, end in ranges.flat(offsets.end).items()]
    asked = [each for each in asked if each.size]
    return coverage.common(state.covered, asked) == asked


def _plain_schema(rows: DataFrame) -> str:
    """Every column may be null, and nothing but names and types is kept: the same columns give the same text."""
    return json.dumps(merged_schema([rows.schema.json()]), separators=(",", ":"))


def _check_cluster(state: LakeState, end: Mapping[str, Any]) -> None:
    names = set(ranges.clusters(end))
    for topic in ranges.topics(end):
        known = set(state.clusters.get(topic, []))
        if names and known and not names & known:
            raise LakeConflict(
                f"the lake has topic {topic} of cluster {', '.join(sorted(known))}, this is {', '.join(sorted(names))}: "
                "their offsets have nothing to do with each other; give it another path"
            )


def _begins(rows: DataFrame, folder: Folder, files: Sequence[DataFile], offsets: Offsets) -> dict[str, Any]:
    """Where each queue of a batch begins. One without a begin (the first batch of a source that does not begin empty)
    begins at its first row, or where it ends."""
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
    """Nothing that is about to be committed came in while it was written."""
    left_out = coverage.added({}, repeated)
    for each in coverage.common(now.covered, fresh):
        if coverage.common(left_out, [each]) != [each]:
            raise LakeConflict(
                f"another ingest has brought {each.key} {each.begin} to {each.end} into the lake while this one read it: "
                "run one ingest of a topic at a time; started again, this one leaves out what is there"
            )


def _without(rows: DataFrame, folder: Folder, state: LakeState, repeated: Sequence[OffsetRange]) -> tuple[DataFrame, int]:
    """The rows but for those that the lake has, and how many those are. Raises LakeConflict when one of them is not there,
    or is another message."""
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
        has = "has no such row, though it has read there with other options" if other is None else f"has {other} there"
        raise LakeConflict(
            f"{topic} {broker}:{queue} {offset} is message {message_id}, the lake {has}: the topic was made anew, it is "
            "another cluster's, or was ingested with a filter; give it another path"
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
    """Attempts of a committed batch that its entry does not name. Files of a compacted batch stay for `vacuum`."""
    under = batch_folder(query, batch)
    attempts = {name.split("/")[3] for name in folder.list(under)}
    committed = {path.split("/")[3] for path in state.files if path.startswith(f"{under}/")}
    if len(attempts) > 1 and committed:
        for attempt in sorted(attempts - committed):
            folder.remove(f"{under}/{attempt}")


def unread(state: LakeState, topics: Sequence[str]) -> str:
    """`startingOffsets` for a query that goes on where a lake ends; queues that the lake does not know begin at their
    earliest."""
    known = coverage.ends(state.covered, topics)
    return json.dumps(ranges.nested(known)) if known else "earliest"
