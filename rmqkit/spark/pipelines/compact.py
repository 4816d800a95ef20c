"""Compaction: merges the many small files of closed hours into few large ones with the same rows.

    compact("/data/orders")            # every hour that ended at least one hour ago

It runs in this process, without Spark. The files of an hour are read in the order of their queues
and offsets, so the row groups of the new files have narrow statistics. One commit for each topic
and hour swaps them. It is made only if the table still has all of the old files, and at exactly the
next version: whatever another writer did, rows never get lost or doubled.

An ingest may commit meanwhile. Of two compactions of one hour, the second changes nothing.

deltalake has `optimize.compact`, which is not used: in 1.6 two that run at once both commit, and
each row is in the table twice. It drops the application transactions and `max_commit_retries` of a
caller, which could prevent that. A test shows both.
"""

import os
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from rmqkit.spark.delta.data_files import FILE_BYTES, PARTITIONS, FileReport, TaskWriter, stored_batches
from rmqkit.spark.delta.lake_table import LakeTable
from rmqkit.spark.delta.storage import LakeError, LakeStorage
from rmqkit.spark.pipelines import lake


class CompactionResult(msgspec.Struct, frozen=True):
    """The result of a compaction.

    `hours` counts the swapped (topic, hour) pairs; the other counts are of these hours only.
    `vacuumed` counts files of earlier versions that were removed.
    """

    path: str
    hours: int
    rows: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    vacuumed: int


def compact(
    path: str | os.PathLike[str],
    *,
    before_hour: str | lake.Time | None = None,
    topics: Iterable[str] | None = None,
    file_bytes: int = FILE_BYTES,
    grace_ms: int = lake.GRACE_MS,
    now_ms: int | None = None,
    storage_options: lake.Options = None,
) -> CompactionResult:
    """Replace the files of every hour before `before_hour` that has more files than it needs.

    `before_hour` is an hour in UTC (`2026-11-22-13`) or a time; by default, hours that ended at
    least one hour ago are compacted. Afterwards files out of use for longer than `grace_ms` are
    removed. Raises LakeMissing, LakeError.
    """
    now_ms = lake.wall_ms() if now_ms is None else now_ms
    before = now_ms - lake.HOUR_MS if before_hour is None else before_hour
    before = before if isinstance(before, str) else lake.hour_name(lake.millis(before))
    table = LakeTable(LakeStorage(path, storage_options))
    hours = _hours(table, before, topics, file_bytes)
    done = [(files, new) for files in hours if (new := _swap(table, files, file_bytes))]
    return CompactionResult(
        path=table.storage.uri,
        hours=len(done),
        rows=sum(file.rows for _, new in done for file in new),
        files_before=sum(len(old) for old, _ in done),
        files_after=sum(len(new) for _, new in done),
        bytes_before=sum(file["size_bytes"] for old, _ in done for file in old),
        bytes_after=sum(file.size for _, new in done for file in new),
        vacuumed=lake.vacuum(path, grace_ms=grace_ms, storage_options=storage_options),
    )


def _hours(table: LakeTable, before: str, topics: Iterable[str] | None, file_bytes: int) -> list[list[dict[str, Any]]]:
    """Return the files of each (topic, hour) that has more files than its bytes need.

    A file is what `get_add_actions(flatten=True)` says of it.
    """
    wanted = None if topics is None else set(topics)
    added = pa.table(table.opened().get_add_actions(flatten=True))
    place = ("partition.topic", "partition.hour")
    order = (*place, "min.broker", "min.queue", "min.offset")
    added = added.sort_by([(name, "ascending") for name in order if name in added.column_names])
    found = []
    for (topic, hour), group in groupby(added.to_pylist(), itemgetter(*place)):
        files = list(group)
        needed = max(1, -(-sum(file["size_bytes"] for file in files) // file_bytes))
        if hour < before and (wanted is None or topic in wanted) and len(files) > needed:
            found.append(files)
    return found


def _swap(table: LakeTable, files: list[dict[str, Any]], file_bytes: int) -> list[FileReport]:
    """Write and commit the new files of one hour; return none if another writer was first."""
    topic, hour = files[0]["partition.topic"], files[0]["partition.hour"]
    schema = pa.schema([each for each in pa.schema(table.opened().schema().to_arrow()) if each.name not in PARTITIONS])
    writer = TaskWriter(table.storage, 0, file_bytes)
    paths = [unquote(file["path"]) for file in files]
    for path in paths:
        for batch in stored_batches(table.storage, path, schema):
            writer.put(batch.append_column("topic", pa.repeat(pa.scalar(topic, pa.string()), batch.num_rows)))
    new = writer.close()
    rows, made = sum(file["num_records"] for file in files), sum(file.rows for file in new)
    hours = {(file.topic, file.hour) for file in new}
    if rows != made or hours != {(topic, hour)}:
        raise LakeError(
            f"compaction of {topic} {hour} would turn {rows} rows into {made} of {len(hours)} hours: nothing was "
            "changed; check whether its data files were modified"
        )
    return new if table.swap(paths, new) else []
