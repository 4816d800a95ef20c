"""Data files of a lake, written and read with PyArrow: by Spark's tasks, or without Spark.

    topic=orders/hour=2026-11-22-13/part-00003-4f1c….zstd.parquet

There is a file for each topic and hour that a writer meets, and a `FileReport` of each, with the
statistics that readers prune by. They come from the Parquet footer, which the writer still has, so
no file is read again.

Each task of `write` gets its rows as Arrow batches (`mapInArrow`), writes them and returns its
reports as its own rows. Spark passes on the rows of exactly one attempt of each task; files of
other attempts are in no commit. Compared with Spark's own Parquet sink this needs half the time,
since rows need no sort: a task of the source reads its queue in order. The same code serves each
place that deltalake knows. A Python data source would need two more Python processes on the driver.
Storage options may be credentials: they travel in the pickled function, which no plan shows.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyarrow.dataset import dataset

from rmqkit.spark.arrow_tasks import map_in_arrow, read_in_tasks
from rmqkit.spark.delta.storage import LakeStorage
from rmqkit.spark.sessions import BATCH_ROWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = [TOPIC, HOUR] = ["topic", "hour"]
#: the hour of rows without a store time
NO_HOUR = "none"
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


class FileReport(msgspec.Struct, frozen=True, rename={"size": "bytes"}):
    """A data file that a task wrote. `path` is relative to the lake, `size` is in bytes.

    `stats` is JSON as in Delta's `add` actions. `written_ms` is the time of its last change.
    `queues` has the broker, the queue number and the lowest offset of each queue in the file. The
    log of rmqkit 0.2 (`migrate`) has the first five as JSON.
    """

    path: str
    topic: str
    hour: str
    size: int
    rows: int
    written_ms: int = 0
    stats: str = ""
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
            rows = rows.drop_columns(self._omitted)
            place = (topic, f"{hour:%Y-%m-%d-%H}" if hour else NO_HOUR)
            if place not in self._open and len(self._open) >= OPEN_FILES_MAX:
                self._close(next(iter(self._open)))
            file = self._open.pop(place, None) or _OpenFile(self._storage, *place, self._partition, rows.schema)
            self._open[place] = file
            if file.put(rows) >= self._file_bytes:
                self._close(place)

    def _close(self, place: tuple[str, str]) -> None:
        self._done.append(self._open.pop(place).close())

    def close(self) -> list[FileReport]:
        """Make all files durable and return their reports."""
        while self._open:
            self._close(next(iter(self._open)))
        return self._done


class _OpenFile:
    def __init__(self, storage: LakeStorage, topic: str, hour: str, partition: int, schema: pa.Schema) -> None:
        self._storage = storage
        self._topic, self._hour = topic, hour
        folder = f"{TOPIC}={quote(topic, safe='')}/{HOUR}={hour}"
        self._path = f"{folder}/part-{partition:05}-{uuid.uuid4().hex}.{COMPRESSION}.parquet"
        files = storage.files()
        files.create_dir(folder)
        self._sink = files.open_output_stream(self._path)
        self._writer = parquet.ParquetWriter(self._sink, schema, compression=COMPRESSION)
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
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> FileReport:
        if self._waiting:
            self._write()
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        self._storage.sync([self._path])
        metadata, now_ms = self._writer.writer.metadata, time.time_ns() // 1_000_000
        queues = [(*key, offset) for key, offset in sorted(self._queues.items())]
        return FileReport(
            self._path, self._topic, self._hour, size, metadata.num_rows, now_ms, statistics(metadata), queues
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
            low, high = _bound(min(each.min for each in filled)), _bound(max(each.max for each in filled), is_up=True)
            if low is not None and high is not None:
                lows[column.name], highs[column.name] = low, high
    return json.dumps({"numRecords": metadata.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls})


def _bound(value: Any, *, is_up: bool = False) -> str | int | None:
    if isinstance(value, datetime):
        beyond = timedelta(microseconds=value.microsecond % 1000)
        rounded = value - beyond + timedelta(milliseconds=bool(is_up and beyond))
        return rounded.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    is_short = type(value) is int or (isinstance(value, str) and len(value) <= STATISTIC_CHARS_MAX)
    return value if is_short else None


# --- reading, and Spark's tasks


def stored_batches(storage: LakeStorage, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a data file with the columns of `schema`; one that it lacks has nulls."""
    rows = dataset(name, schema, format="parquet", filesystem=storage.files())
    yield from rows.to_batches(batch_size=BATCH_ROWS, batch_readahead=1)


def write(rows: DataFrame, storage: LakeStorage, *, has_topics: bool = False) -> list[FileReport]:
    """Write all rows into files of the lake and return these; they are durable, not committed."""
    from pyspark.taskcontext import TaskContext

    def write_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        writer = TaskWriter(storage, 0 if context is None else context.partitionId(), has_topics=has_topics)
        for batch in batches:
            writer.put(batch)
        yield pa.record_batch({"reports": [msgspec.json.encode(writer.close())]})

    reports = map_in_arrow(rows, write_task, "reports binary").collect()
    return [file for each in reports for file in msgspec.json.decode(each.reports, type=list[FileReport])]


def read(spark: SparkSession, storage: LakeStorage, schema: Schema, files: Mapping[str, Sequence[str]]) -> DataFrame:
    """Return the rows of data files, topic → URIs, with the columns of `schema` except `hour`."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    columns = StructType([field for field in StructType.fromJson(schema) if field.name != HOUR])
    # Delta's files do not have the columns of their partition.
    stored = StructType([field for field in columns if field.name != TOPIC])

    def read_file(uri: str) -> Iterator[pa.RecordBatch]:
        return stored_batches(storage, uri.removeprefix(f"{storage.uri}/"), to_arrow_schema(stored, timezone="UTC"))

    rows = spark.createDataFrame([], columns)
    for number, (topic, uris) in enumerate((topic, uris) for topic, uris in files.items() if uris):
        if storage.is_local:
            part = spark.read.schema(stored).parquet(*[f"file://{name}" for name in uris])
        else:
            part = read_in_tasks(spark, uris, read_file, stored)
        part = part.withColumn(TOPIC, F.lit(topic)).select(*columns.names)
        rows = rows.union(part) if number else part
    return rows
