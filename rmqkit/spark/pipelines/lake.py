"""A lake: a Delta table of messages, partitioned by topic and hour (`lake_table`).

    orders = lake.read(spark, "/data/orders", since=1_730_000_000_000)

Any reader of Delta tables sees the same rows. `read` needs no jar: deltalake lists the files, of
the topics and hours asked for and whose statistics allow a row, and Spark reads these as Parquet.
From an object store the tasks read them with PyArrow (`data_files`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from rmqkit.spark.delta.data_files import HOUR, NO_HOUR
from rmqkit.spark.delta.lake_table import Filters, LakeTable, files_of
from rmqkit.spark.delta.storage import LakeMissing, LakeStorage
from rmqkit.spark.source import ranges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HOUR_MS = 3_600_000
#: how long replaced and uncommitted files are kept before `vacuum` removes them; Delta's default
GRACE_MS = 7 * 24 * HOUR_MS

#: a time: ms since 1970, or a datetime (UTC if it names no zone)
Time = int | datetime
Options = Mapping[str, str] | None


class LakeDescription(msgspec.Struct, frozen=True):
    """The content of a lake at a version of its table.

    `covered` maps topic -> broker -> queue -> [[begin, end], …]. `gaps` has one text per gap
    between covered intervals.
    """

    path: str
    version: int
    topics: list[str]
    hours: int
    rows: int
    files: int
    bytes: int
    covered: dict[str, Any]
    gaps: list[str]


def read(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    topics: Iterable[str] | None = None,
    since: Time | None = None,
    until: Time | None = None,
    version: int | datetime | None = None,
    storage_options: Options = None,
) -> DataFrame:
    """Return the rows of a lake, of these topics and store times [since, until).

    `version` is a version of the table, or a datetime: the newest version of that time. By default
    the newest version is read; later ingests do not change the result, and `vacuum` keeps its files
    for the grace time. Raises LakeMissing, LakeError.
    """
    rows = LakeTable(LakeStorage(path, storage_options)).rows(spark, topics, time_bounds(since, until), version)
    return stored_in(rows, since, until)


def is_lake(path: str | os.PathLike[str], *, storage_options: Options = None) -> bool:
    """Return whether there is a lake. Raises LakeError for a lake that must be migrated first."""
    try:
        LakeTable(LakeStorage(path, storage_options)).opened()
    except LakeMissing:
        return False
    return True


def files(
    path: str | os.PathLike[str],
    *,
    topics: Iterable[str] | None = None,
    since: Time | None = None,
    until: Time | None = None,
    storage_options: Options = None,
) -> list[str]:
    """Return the files that have all rows of these topics and times, as paths or URIs.

    Topic and hour are in the table, not in the files. Raises LakeMissing, LakeError.
    """
    opened = LakeTable(LakeStorage(path, storage_options)).opened()
    return [name for names in files_of(opened, topics, time_bounds(since, until)).values() for name in names]


def describe(path: str | os.PathLike[str], *, storage_options: Options = None) -> LakeDescription:
    """Return the topics, counts and covered offsets of a lake. Raises LakeMissing, LakeDamaged."""
    table = LakeTable(LakeStorage(path, storage_options))
    opened = table.opened()
    state = table.state_of(opened)
    gaps = [(key, *pair) for key, intervals in state.covered.items() for pair in pairwise(intervals)]
    partitions = opened.partitions()
    added = opened.get_add_actions()
    return LakeDescription(
        path=table.storage.uri,
        version=state.version,
        topics=sorted({each["topic"] for each in partitions} | {key.topic for key in state.covered}),
        hours=len({each[HOUR] for each in partitions}),
        rows=sum(added.column("num_records").to_pylist()),
        files=added.num_rows,
        bytes=sum(added.column("size_bytes").to_pylist()),
        covered=ranges.nested(state.covered),  # type: ignore[arg-type]  # the same form, with intervals for offsets
        gaps=[f"{key} {before[1]} to {after[0]}" for key, before, after in gaps],
    )


def vacuum(path: str | os.PathLike[str], *, grace_ms: int = GRACE_MS, storage_options: Options = None) -> int:
    """Remove files that are in no version of the table since `grace_ms`; return their number.

    The grace must be longer than any reader runs, and longer than any batch takes from its first
    file to its commit. Older versions cannot be read afterwards. Raises LakeMissing.
    """
    opened = LakeTable(LakeStorage(path, storage_options)).opened()
    hours = -(-grace_ms // HOUR_MS)
    return len(opened.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True))


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


def time_bounds(since: Time | None, until: Time | None) -> Filters:
    """Return what partitions and statistics can say about store times [since, until)."""
    bounds: Filters = []
    if since is not None:
        bounds.append((HOUR, ">=", hour_name(millis(since))))
    if until is not None:
        bounds.append((HOUR, "<=", hour_name(millis(until) - 1)))
    return bounds


def hour_column(moment: Column) -> Column:
    """Return `hour_name` as a column expression; the session's time zone has no influence."""
    from pyspark.sql import functions as F

    hours = F.floor(F.unix_millis(moment) / HOUR_MS)
    day = F.date_add(F.lit("1970-01-01").cast("date"), F.floor(hours / 24).cast("int")).cast("string")
    name = F.concat(day, F.lit("-"), F.lpad(F.pmod(hours, F.lit(24)).cast("string"), 2, "0"))
    return F.coalesce(name, F.lit(NO_HOUR))


def stored_in(rows: DataFrame, since: Time | None, until: Time | None) -> DataFrame:
    """Return the rows with a store time in [since, until)."""
    from pyspark.sql import functions as F

    if since is not None:
        rows = rows.where(F.col("store_time") >= F.timestamp_millis(F.lit(millis(since))))
    if until is not None:
        rows = rows.where(F.col("store_time") < F.timestamp_millis(F.lit(millis(until))))
    return rows
