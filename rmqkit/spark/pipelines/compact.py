"""Compaction: replaces the many small files of closed hours by a few large ones with the same rows.

    compact(spark, "/data/orders")            # every hour that ended at least one hour ago

New files are written beside the old ones. One log entry then swaps all hours at once. A reader has
listed either the old files or the new ones, and both have the same rows.

- A compaction that dies before its entry leaves files that no reader sees; `vacuum` removes them.
- An ingest that runs at the same time adds files beside the swapped ones. A later compaction takes
  them in.
- If two compactions choose the same hour, the second finds its input replaced. It discards its own
  files and changes nothing.
"""

import os
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from rmqkit.spark.pipelines import lake
from rmqkit.spark.pipelines.folders import Folder, open_folder
from rmqkit.spark.pipelines.lake_writer import ORDER, attempt_folder, write
from rmqkit.spark.pipelines.log import Compaction, DataFile, LakeError, LakeLog, LakeMissing, LakeState, merged_schema
from rmqkit.spark.pipelines.progress import PipelineProgress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_BYTES = 128 * 1024 * 1024
#: consecutive offsets of a queue that stay in one file when an hour is split over several files
BLOCK = 65_536
OF = "compaction"

Hours = dict[tuple[str, str], list[DataFile]]


class CompactionResult(msgspec.Struct, frozen=True):
    """The result of a compaction.

    `hours` counts the swapped (topic, hour) pairs; the other counts are of these hours only.
    `vacuumed` is what `vacuum` removed of files replaced earlier.
    """

    path: str
    hours: int
    rows: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    vacuumed: lake.VacuumResult


def compact(
    spark: "SparkSession",
    path: str | os.PathLike[str],
    *,
    before_hour: str | lake.Time | None = None,
    topics: Iterable[str] | None = None,
    file_bytes: int = FILE_BYTES,
    grace_ms: int = lake.GRACE_MS,
    now_ms: int | None = None,
    on_progress: Callable[[PipelineProgress], None] | None = None,
) -> CompactionResult:
    """Replace the files of every hour before `before_hour` that has more files than it needs.

    `before_hour` is an hour in UTC (`2026-11-22-13`) or a time; by default, hours that ended at
    least one hour ago are compacted. Afterwards the files replaced longer than `grace_ms` ago are
    removed.

    Raises LakeMissing, LakeDamaged.
    """
    now_ms = lake.wall_ms() if now_ms is None else now_ms
    folder = open_folder(path, spark)
    log = LakeLog(folder)
    state = log.state()
    if not state.number:
        raise LakeMissing(f"there is no lake at {folder.uri}")
    hours = _hours(state, _before(before_hour, now_ms), topics, file_bytes)
    old = [file for files in hours.values() for file in files]
    new: list[DataFile] = []
    if hours:
        new = _swap(spark, log, state, hours, file_bytes, now_ms)
        if on_progress and new:
            on_progress(PipelineProgress(rows=sum(file.rows for file in new)))
    if not new:
        hours, old = {}, []
    return CompactionResult(
        path=folder.uri,
        hours=len(hours),
        rows=sum(file.rows for file in new),
        files_before=len(old),
        files_after=len(new),
        bytes_before=sum(file.size for file in old),
        bytes_after=sum(file.size for file in new),
        vacuumed=lake.vacuum(path, spark, grace_ms=grace_ms, now_ms=now_ms),
    )


def _before(before_hour: str | lake.Time | None, now_ms: int) -> str:
    if before_hour is None:
        return lake.hour_name(now_ms - lake.HOUR_MS)
    return before_hour if isinstance(before_hour, str) else lake.hour_name(lake.millis(before_hour))


def _hours(state: LakeState, before: str, topics: Iterable[str] | None, file_bytes: int) -> Hours:
    """Return the files of each (topic, hour) that has more files than its bytes need."""
    hours: Hours = {}
    for file in state.chosen(topics):
        if file.hour < before:
            hours.setdefault((file.topic, file.hour), []).append(file)
    return {place: files for place, files in sorted(hours.items()) if len(files) > _files_for(files, file_bytes)}


def _files_for(files: Iterable[DataFile], file_bytes: int) -> int:
    return max(1, -(-sum(file.size for file in files) // file_bytes))


def _swap(
    spark: "SparkSession", log: LakeLog, state: LakeState, hours: Hours, file_bytes: int, now_ms: int
) -> list[DataFile]:
    """Write and commit the new files. Return them, or [] if another compaction was first."""
    folder = log.folder
    rows = _rows(spark, folder, state, hours, file_bytes)
    name = attempt_folder(OF, state.number)
    new = write(rows, folder, name)
    _check_rows(hours, new)
    replaces = [file.path for files in hours.values() for file in files]
    made: list[Compaction] = []

    def entry(now: LakeState) -> Compaction | None:
        made.clear()
        if not now.files.keys() >= set(replaces):
            return None
        made.append(Compaction(replaces=replaces, files=new, written_ms=now_ms))
        return made[0]

    log.commit(entry, now_ms)
    if made:
        return new
    folder.remove(name)
    return []


def _rows(spark: "SparkSession", folder: Folder, state: LakeState, hours: Hours, file_bytes: int) -> "DataFrame":
    """Return the rows of these hours, partitioned so that each new file is one partition."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    names = [f"{folder.uri}/{file.path}" for files in hours.values() for file in files]
    rows = spark.read.schema(StructType.fromJson(merged_schema(state.schemas))).parquet(*names)
    counts = [(topic, hour, _files_for(files, file_bytes)) for (topic, hour), files in hours.items()]
    total = sum(count for _, _, count in counts)
    topic, hour, parts, part = (f"_{uuid.uuid4().hex[:6]}_{name}" for name in ("topic", "hour", "parts", "part"))
    wanted = spark.createDataFrame(counts, f"`{topic}` string, `{hour}` string, `{parts}` int")
    here = (F.col("topic") == F.col(topic)) & (lake.hour_column(F.col("store_time")) == F.col(hour))
    block = F.xxhash64(*ORDER[:-1], F.floor(F.col(ORDER[-1]) / BLOCK))
    # A left join: a row in a file of the wrong hour must show in the row count, not disappear.
    placed = rows.join(F.broadcast(wanted), here, "left").withColumn(part, F.pmod(block, F.col(parts)))
    return placed.repartition(total, topic, hour, part).drop(topic, hour, parts, part)


def _check_rows(hours: Hours, new: Iterable[DataFile]) -> None:
    """Raise LakeError if the swap would change the number of rows of a topic and hour."""
    before = {place: sum(file.rows for file in files) for place, files in hours.items()}
    after: dict[tuple[str, str], int] = {}
    for file in new:
        after[file.topic, file.hour] = after.get((file.topic, file.hour), 0) + file.rows
    if before != after:
        place = next(place for place in sorted({*before, *after}) if before.get(place) != after.get(place))
        raise LakeError(
            f"compaction of {place[0]} {place[1]} would turn {before.get(place, 0)} rows into {after.get(place, 0)}: "
            "nothing was changed; check whether its data files were modified"
        )
