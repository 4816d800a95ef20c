"""Data files of a lake, written and read with PyArrow: `TaskWriter` writes, `stored_batches` reads.

    topic=orders/hour=2026-11-22-13/part-00003-4f1c….zstd.parquet

There is a file for each topic and hour that a writer meets, and a `FileReport` of each, with the
statistics that readers prune by. They come from the Parquet footer, which the writer still has, so
no file is read again.

Spark's tasks use this module (`lake_files`), and so does `compact`. It imports neither Spark nor
PySpark.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, BinaryIO
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from rmqkit.spark.delta.lake_table import COMPRESSION, PARTITIONS
from rmqkit.spark.delta.storage import LakeStorage
from rmqkit.spark.delta.times import HOUR_MS, NO_HOUR, hour_name, wall_ms
from rmqkit.spark.sessions import BATCH_ROWS

TOPIC, HOUR = PARTITIONS
#: a row group is written once a file has buffered this much
ROW_GROUP_BYTES = 32 * 1024 * 1024
#: a file ends once it is this large
FILE_BYTES = 128 * 1024 * 1024
#: files that a task keeps open; beyond, it closes the one that has waited longest for a row
OPEN_FILES_MAX = 16
#: characters of a text up to which it is a statistic; Delta truncates longer texts
STATISTIC_CHARS_MAX = 64
_MILLISECOND = timedelta(milliseconds=1)


class QueueSpan(msgspec.Struct, frozen=True):
    """The lowest and the highest offset of a queue in a file."""

    broker: str
    queue: int
    first: int
    last: int


class FileReport(msgspec.Struct, frozen=True):
    """A data file that a task wrote. `path` is relative to the lake, `size` is in bytes.

    `stats` is JSON as in Delta's `add` actions. `written_ms` is the time of its last change.
    """

    path: str
    topic: str
    hour: str
    size: int
    rows: int
    written_ms: int
    stats: str
    queues: list[QueueSpan] = []


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
        hours = pc.divide(_millis(table["store_time"]), HOUR_MS)
        places = pa.table({TOPIC: table[TOPIC], HOUR: hours})
        for place in places.group_by([TOPIC, HOUR], use_threads=False).aggregate([]).to_pylist():
            topic, hour = place[TOPIC], place[HOUR]
            is_here = pc.and_(pc.equal(table[TOPIC], topic), hours.is_null() if hour is None else pc.equal(hours, hour))
            rows = table.filter(is_here) if len(pc.unique(is_here)) > 1 else table
            name = NO_HOUR if hour is None else hour_name(hour * HOUR_MS)
            if self._file(topic, name).put(rows.drop_columns(self._omitted)) >= self._file_bytes:
                self._close((topic, name))

    def close(self) -> list[FileReport]:
        """Make all files durable and return their reports."""
        while self._open:
            self._close(next(iter(self._open)))
        return self._done

    def _file(self, topic: str, hour: str) -> _OpenFile:
        file = self._open.pop((topic, hour), None)
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._close(next(iter(self._open)))
            file = _OpenFile(self._storage, topic, hour, self._partition)
        self._open[topic, hour] = file
        return file

    def _close(self, place: tuple[str, str]) -> None:
        self._done.append(self._open.pop(place).close())


class _OpenFile:
    def __init__(self, storage: LakeStorage, topic: str, hour: str, partition: int) -> None:
        self._storage = storage
        self._topic, self._hour = topic, hour
        folder = f"{TOPIC}={quote(topic, safe='')}/{HOUR}={hour}"
        self._path = f"{folder}/part-{partition:05}-{uuid.uuid4().hex}.{COMPRESSION}.parquet"
        self._file: contextlib.AbstractContextManager[BinaryIO] = storage.create(self._path)
        self._sink = self._file.__enter__()
        self._writer: parquet.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        #: (broker, queue) -> lowest and highest offset
        self._queues: dict[tuple[str, int], tuple[int, int]] = {}

    def put(self, rows: pa.Table) -> int:
        """Add rows; return the bytes of the file so far."""
        spans = rows.group_by(["broker", "queue"], use_threads=False).aggregate([("offset", "min"), ("offset", "max")])
        for span in spans.to_pylist():
            key, first, last = (span["broker"], span["queue"]), span["offset_min"], span["offset_max"]
            known = self._queues.get(key, (first, last))
            self._queues[key] = (min(first, known[0]), max(last, known[1]))
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
        self._file.__exit__(None, None, None)
        metadata = self._writer.writer.metadata
        return FileReport(
            path=self._path,
            topic=self._topic,
            hour=self._hour,
            size=size,
            rows=metadata.num_rows,
            written_ms=wall_ms(),
            stats=statistics(metadata),
            queues=[QueueSpan(*key, *span) for key, span in sorted(self._queues.items())],
        )


def _millis(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.divide(times.cast(pa.int64()), {"s": 1, "ms": 1, "us": 1000, "ns": 1_000_000}[times.type.unit])


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
        name = column.name
        if column.path != name or name in leave_out:
            continue
        groups = [metadata.row_group(group).column(place).statistics for group in range(metadata.num_row_groups)]
        if any(each is None or not each.has_null_count for each in groups):
            continue
        nulls[name] = sum(each.null_count for each in groups)
        bounds = [(each.min, each.max) for each in groups if each.num_values]
        if bounds and all(each.has_min_max for each in groups if each.num_values):
            low, high = min(each[0] for each in bounds), max(each[1] for each in bounds)
            if _is_bound(low) and _is_bound(high):
                lows[name], highs[name] = _bound(low, is_up=False), _bound(high, is_up=True)
    return json.dumps({"numRecords": metadata.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls})


def _is_bound(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= STATISTIC_CHARS_MAX
    return isinstance(value, int | date) and not isinstance(value, bool)


def _bound(value: Any, *, is_up: bool) -> Any:
    if isinstance(value, datetime):
        below = value.replace(microsecond=value.microsecond // 1000 * 1000)
        if is_up and below != value:
            below += _MILLISECOND
        zone = "" if value.tzinfo is None else "Z"
        plain = below if value.tzinfo is None else below.astimezone(UTC).replace(tzinfo=None)
        return plain.isoformat(timespec="milliseconds") + zone
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
