"""A lake: Parquet files by topic and hour, and a log that says which of them belong to it.

    PATH/_lake/log/…                                               the log (`log`)
    PATH/_lake/checkpoints/…                                       Spark's checkpoints of ingests
    PATH/files/QUERY/BATCH/ATTEMPT/lake_topic=T/hour=H/part-….parquet

    orders = lake.read(spark, "/data/orders", since=1_730_000_000_000)

Readers use only the files that the log names. They never see files that a dead ingest left behind
or that a running one has not committed. Each file has all columns, so other tools can read the
files that `files` lists.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from rmqkit.spark.pipelines import coverage
from rmqkit.spark.pipelines.folders import Folder, open_folder
from rmqkit.spark.pipelines.log import LakeLog, LakeMissing, LakeState, merged_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FILES = "files"
HOUR_MS = 3_600_000
#: the hour of rows without a store time
NO_HOUR = "none"
#: how long replaced and uncommitted files are kept before `vacuum` removes them
GRACE_MS = 24 * HOUR_MS

#: a time: ms since 1970, or a datetime (UTC if it names no zone)
Time = int | datetime


class LakeDescription(msgspec.Struct, frozen=True):
    """The content of a lake.

    `covered` maps topic -> broker -> queue -> [[begin, end], …]. `gaps` has one text per gap
    between covered intervals.
    """

    path: str
    topics: list[str]
    hours: int
    rows: int
    files: int
    bytes: int
    covered: dict[str, Any]
    gaps: list[str]


class VacuumResult(msgspec.Struct, frozen=True):
    """What `vacuum` removed: data files, their bytes, and log entries including snapshots."""

    files: int
    bytes: int
    entries: int


def read(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    topics: Iterable[str] | None = None,
    since: Time | None = None,
    until: Time | None = None,
) -> DataFrame:
    """Return the current rows of a lake, of these topics and store times [since, until).

    Files of other topics and hours are not opened. Later ingests do not change the result, and
    `vacuum` keeps its files for the grace time. Raises LakeMissing, LakeDamaged.
    """
    from pyspark.sql.types import StructType

    folder = open_folder(path, spark)
    state = _state(folder)
    first = "" if since is None else hour_name(millis(since))
    last = "" if until is None else hour_name(millis(until) - 1)
    schema = StructType.fromJson(merged_schema(state.schemas))
    names = [f"{folder.uri}/{file.path}" for file in state.chosen(topics, first, last)]
    if not names:
        return spark.createDataFrame([], schema)
    rows = spark.read.schema(schema).parquet(*names)
    return rows.where(stored(since, until)) if since is not None or until is not None else rows


def is_lake(path: str | os.PathLike[str], spark: SparkSession | None = None) -> bool:
    return LakeLog(open_folder(path, spark)).state().number > 0


def files(
    path: str | os.PathLike[str], spark: SparkSession | None = None, *, topics: Iterable[str] | None = None
) -> list[str]:
    """Return the URIs of the lake's current files, for tools other than Spark.

    Raises LakeMissing, LakeDamaged.
    """
    folder = open_folder(path, spark)
    return [f"{folder.uri}/{file.path}" for file in _state(folder).chosen(topics)]


def describe(path: str | os.PathLike[str], spark: SparkSession | None = None) -> LakeDescription:
    """Return the topics, counts and covered offsets of a lake. Raises LakeMissing, LakeDamaged."""
    folder = open_folder(path, spark)
    state = _state(folder)
    return LakeDescription(
        path=folder.uri,
        topics=state.topics,
        hours=len({file.hour for file in state.files.values()}),
        rows=state.rows,
        files=len(state.files),
        bytes=sum(file.size for file in state.files.values()),
        covered=coverage.nested(state.covered),
        gaps=[f"{gap.key} {gap.begin} to {gap.end}" for gap in coverage.gaps(state.covered)],
    )


def vacuum(
    path: str | os.PathLike[str],
    spark: SparkSession | None = None,
    *,
    grace_ms: int = GRACE_MS,
    now_ms: int | None = None,
) -> VacuumResult:
    """Remove data files that are not in the lake, and log entries that a snapshot covers.

    Only files and entries older than `grace_ms` are removed. The grace must be longer than any
    reader runs, and longer than any batch takes from its first file to its commit. Raises
    LakeMissing, LakeDamaged.
    """
    now_ms = wall_ms() if now_ms is None else now_ms
    folder = open_folder(path, spark)
    before_ms = now_ms - grace_ms
    log = LakeLog(folder)
    _state(folder, log)
    # Read the log after listing the files, so that files committed in between are kept.
    old = {name: file for name, file in folder.list(FILES).items() if file.changed_ms <= before_ms}
    kept = log.state().files.keys() | log.replaced_since(before_ms)
    removed = {name: file for name, file in old.items() if _data_name(name) not in kept}
    for name in removed:
        folder.remove(name)
    log.write_snapshot(now_ms)
    data = [file for name, file in removed.items() if name == _data_name(name)]
    return VacuumResult(files=len(data), bytes=sum(file.size for file in data), entries=log.forget(before_ms))


def _data_name(name: str) -> str:
    """Return the data file of a checksum file; any other name is returned unchanged."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/{last[1:-4]}" if last.startswith(".") and last.endswith(".crc") else name


def _state(folder: Folder, log: LakeLog | None = None) -> LakeState:
    state = (log or LakeLog(folder)).state()
    if not state.number:
        raise LakeMissing(f"there is no lake at {folder.uri}: `rmqkit pipeline ingest TOPIC --to PATH` makes one")
    return state


# --- time


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def millis(moment: Time) -> int:
    if isinstance(moment, int):
        return moment
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def hour_name(time_ms: int) -> str:
    """Return the hour in UTC, such as `2026-11-22-13`; names sort in the order of time."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%d-%H")


def hour_column(moment: Column) -> Column:
    """Return `hour_name` as a column expression; the session's time zone has no influence."""
    from pyspark.sql import functions as F

    hours = F.floor(F.unix_millis(moment) / HOUR_MS)
    day = F.date_add(F.lit("1970-01-01").cast("date"), F.floor(hours / 24).cast("int")).cast("string")
    name = F.concat(day, F.lit("-"), F.lpad(F.pmod(hours, F.lit(24)).cast("string"), 2, "0"))
    return F.coalesce(name, F.lit(NO_HOUR))


def stored(since: Time | None, until: Time | None) -> Column:
    """Return the condition that a row's store time is in [since, until)."""
    from pyspark.sql import functions as F

    condition = F.lit(True)
    if since is not None:
        condition = condition & (F.col("store_time") >= F.timestamp_millis(F.lit(millis(since))))
    if until is not None:
        condition = condition & (F.col("store_time") < F.timestamp_millis(F.lit(millis(until))))
    return condition
