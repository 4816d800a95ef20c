"""Data files of a lake, written and read with PyArrow: `TaskWriter` writes, `stored_batches` reads.

    topic=orders/hour=2026-11-22-13/part-00003-4f1c….zstd.parquet

There is a file for each topic and hour that a writer meets, and a `FileReport` of each, with the
statistics that readers prune by. They come from the Parquet footer, which the writer still has, so
no file is read again.

Spark's tasks use this module (`lake_files`), and so does `compact`. It imports neither Spark nor
PySpark.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from rmqkit.spark.delta.storage import LakeStorage
from rmqkit.spark.delta.times import NO_HOUR, wall_ms
from rmqkit.spark.sessions import BATCH_ROWS

PARTITIONS = [TOPIC, HOUR] = ["topic", "hour"]
COMPRESSION = "zstd"
#: the columns of a table, as Delta's (and Spark's) JSON
Schema = dict[str, Any]
#: a row group is written once a file has buffered this much
ROW_GROUP_BYTES = 32 * 1024 * 1024
#: a file ends once it is this large
FILE_BYTES = 128 * 1024 * 1024
#: files that a task keeps open; beyond, it closes the one that has waited longest for a row
OPEN_FILES_MAX = 16
#: characters of a text up to which it is a statistic; Delta truncates longer texts
STATISTIC_CHARS_MAX = 64


class FileReport(msgspec.Struct, frozen=True):
    """A data file that a task wrote. `path` is relative to the lake, `size` is in bytes.

    `stats` is JSON as in Delta's `add` actions. `written_ms` is the time of its last change.
    `queues` has the broker, the queue number and the lowest offset of each queue in the file.
    """

    path: str
    topic: str
    hour: str
    size: int
    rows: int
    written_ms: int
    stats: str
    queues: list[tuple[str, int, int]] = []


class TaskWriter:
    """Writes the rows of one task, a file for each topic and hour.

    With `has_topics` the files have the column `topic`.
    """

    def __init__(
        self, storage: LakeStorage, partition: int, file_bytes: int = FILE_BYTES, *, has_topics: bool = False
    ) -> None:
        self._storage = storage
        #: the columns that Delta has in its log only
        self._omitted = [] if has_topics else [TOPIC]
        self._partition = partition
        self._file_bytes = file_bytes
        #: (topic, hour) -> file; the one that got rows last is last
        self._open: dict[tuple[str, str], _OpenFile] = {}
        self._done: list[FileReport] = []

    def put(self, batch: pa.RecordBatch) -> None:
        table = pa.Table.from_batches([batch])
        times = table["store_time"].cast(pa.timestamp("s", "UTC"), safe=False)
        hours = pc.floor_temporal(times, unit="hour")
        found = pa.table({TOPIC: table[TOPIC], HOUR: hours}).group_by([TOPIC, HOUR], use_threads=False).aggregate([])
        for topic, hour in zip(*found.to_pydict().values(), strict=True):
            rows = table
            if len(found) > 1:
                is_hour = pc.is_in(hours, pa.array([hour], hours.type))  # also if it is null
                rows = table.filter(pc.and_(pc.equal(table[TOPIC], topic), is_hour))
            self._put(topic, f"{hour:%Y-%m-%d-%H}" if hour else NO_HOUR, rows.drop_columns(self._omitted))

    def _put(self, topic: str, hour: str, rows: pa.Table) -> None:
        file = self._open.pop((topic, hour), None)
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._close(next(iter(self._open)))
            file = _OpenFile(self._storage, topic, hour, self._partition)
        self._open[topic, hour] = file
        if file.put(rows) >= self._file_bytes:
            self._close((topic, hour))

    def _close(self, place: tuple[str, str]) -> None:
        self._done.append(self._open.pop(place).close())

    def close(self) -> list[FileReport]:
        """Make all files durable and return their reports."""
        while self._open:
            self._close(next(iter(self._open)))
        return self._done


class _OpenFile:
    def __init__(self, storage: LakeStorage, topic: str, hour: str, partition: int) -> None:
        self._storage = storage
        self._topic, self._hour = topic, hour
        folder = f"{TOPIC}={quote(topic, safe='')}/{HOUR}={hour}"
        self._path = f"{folder}/part-{partition:05}-{uuid.uuid4().hex}.{COMPRESSION}.parquet"
        self._sink = storage.create(self._path)
        self._writer: parquet.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        #: (broker, queue) -> lowest offset
        self._queues: dict[tuple[str, int], int] = {}

    def put(self, rows: pa.Table) -> int:
        """Add rows; return the bytes of the file so far."""
        lowest = rows.group_by(["broker", "queue"], use_threads=False).aggregate([("offset", "min")])
        for each in lowest.to_pylist():
            key, offset = (each["broker"], each["queue"]), each["offset_min"]
            self._queues[key] = min(offset, self._queues.get(key, offset))
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write()
        return int(self._sink.tell())

    def _write(self) -> None:
        rows = pa.concat_tables(self._waiting)
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._sink, rows.schema, compression=COMPRESSION)
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> FileReport:
        if self._waiting:
            self._write()
        assert self._writer is not None
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        self._storage.sync([self._path])
        metadata = self._writer.writer.metadata
        queues = [(*key, offset) for key, offset in sorted(self._queues.items())]
        return FileReport(
            self._path, self._topic, self._hour, size, metadata.num_rows, wall_ms(), statistics(metadata), queues
        )


# --- statistics


def statistics(metadata: parquet.FileMetaData, leave_out: Sequence[str] = ()) -> str:
    """Return the statistics of a Parquet file as Delta has them, from its footer.

    Nested and binary columns have none. Times have ms: a lower bound is rounded down, an upper
    bound up. A column without a bound in one row group, or with a long text, has no bounds.
    """
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for place in range(metadata.num_columns):
        column = metadata.schema.column(place)
        groups = [metadata.row_group(group).column(place).statistics for group in range(metadata.num_row_groups)]
        if (
            column.path != column.name
            or column.name in leave_out
            or not all(each and each.has_null_count for each in groups)
        ):
            continue
        nulls[column.name] = sum(each.null_count for each in groups)
        filled = [each for each in groups if each.num_values]
        if filled and all(each.has_min_max for each in filled):
            low, high = min(each.min for each in filled), max(each.max for each in filled)
            if _is_bound(low) and _is_bound(high):
                lows[column.name], highs[column.name] = _bound(low, is_up=False), _bound(high, is_up=True)
    return json.dumps({"numRecords": metadata.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls})


def _is_bound(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= STATISTIC_CHARS_MAX
    return isinstance(value, int | date) and not isinstance(value, bool)


def _bound(value: Any, *, is_up: bool) -> Any:
    if isinstance(value, datetime):
        beyond = timedelta(microseconds=value.microsecond % 1000)
        rounded = value - beyond + timedelta(milliseconds=bool(is_up and beyond))
        return rounded.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value


# --- reading


def stored_batches(storage: LakeStorage, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a data file with the columns of `schema`; one that it lacks has nulls."""
    with parquet.ParquetFile(name, filesystem=storage.files()) as file:
        there = [field.name for field in schema if field.name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=there):
            columns = [
                batch.column(field.name).cast(field.type) if field.name in there else pa.nulls(len(batch), field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
