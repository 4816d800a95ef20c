"""Makes Spark's tasks write the data files of a lake, and on object stores read them.

A private data source of Spark (`LakeFiles`) hands each task its rows as Arrow batches. The task
writes them (`data_files`) and returns a report of each file. Spark passes on the reports of exactly
one attempt of each task. Files of other attempts, and of drivers that died before their commit, are
in no commit; `vacuum` removes them.

Compared with Spark's own Parquet sink this needs half the time, since rows need no sort: a task of
the source reads its queue in order. It also is the same code for each place that deltalake knows.

The reports return through a file on the driver's machine, because Spark runs `commit` of a data
source in a process of its own. Storage options may be credentials. They travel in the class, which
Spark pickles, and not in options, which Spark shows in plans.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from rmqkit.spark.delta.data_files import HOUR, TOPIC, FileReport, TaskWriter, stored_batches
from rmqkit.spark.delta.lake_table import PARTITIONS, Filters
from rmqkit.spark.delta.storage import LakeStorage

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class TaskReports(WriterCommitMessage):
    """The result of a task."""

    files: list[FileReport]


# --- on the driver


class LakeFiles(DataSource):
    """The private data source; `storage` is set in a subclass for each lake."""

    storage: ClassVar[LakeStorage]

    @classmethod
    def name(cls) -> str:
        return "rmqkit-lake-files"

    def writer(self, schema: StructType, overwrite: bool) -> FilesWriter:
        return FilesWriter(self.storage, self.options["reports"], self.options["has_topics"] == "true")

    def reader(self, schema: StructType) -> FilesReader:
        return FilesReader(self.storage, json.loads(self.options["files"]), schema)


def register(spark: SparkSession, storage: LakeStorage) -> str:
    """Make Spark know the data source for this lake, and return its name."""
    # Not found in its module, the class is pickled by value, with its storage.
    spark.dataSource.register(type("LakeFilesOfLake", (LakeFiles,), {"storage": storage, "__module__": __name__}))
    return LakeFiles.name()


def write(rows: DataFrame, storage: LakeStorage, *, has_topics: bool = False) -> list[FileReport]:
    """Write all rows into files of the lake and return these; they are durable, not committed.

    With `has_topics` the files have the column `topic`.
    """
    with tempfile.TemporaryDirectory(prefix="rmqkit-lake-") as folder:
        reports = Path(folder, "reports")
        writer = rows.write.format(register(rows.sparkSession, storage)).mode("append")
        writer.options(reports=str(reports), has_topics=has_topics).save()
        return msgspec.json.decode(reports.read_bytes(), type=list[FileReport])


def rows_of(
    spark: SparkSession, storage: LakeStorage, opened: DeltaTable, topics: Iterable[str], bounds: Filters
) -> DataFrame:
    """Return the rows of all files that may have rows of these topics within these bounds."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(opened.schema().to_json()))
    names = [name for name in schema.names if name != HOUR]
    # Delta's files do not have the columns of their partition.
    stored_schema = StructType([field for field in schema.fields if field.name not in PARTITIONS])
    parts = []
    for topic in topics:
        found = opened.file_uris(file_pruning_predicate=[(TOPIC, "=", topic), *bounds])
        if not found:
            continue
        if storage.is_local:
            rows = spark.read.schema(stored_schema).parquet(*[f"file://{name}" for name in found])
        else:
            rows = _read(spark, storage, [name.removeprefix(f"{storage.uri}/") for name in found], stored_schema)
        parts.append(rows.withColumn(TOPIC, F.lit(topic)).select(*names))
    if not parts:
        return spark.createDataFrame([], StructType([schema[name] for name in names]))
    return reduce(lambda one, other: one.union(other), parts)


def _read(spark: SparkSession, storage: LakeStorage, names: Sequence[str], schema: StructType) -> DataFrame:
    """Return the rows of data files, read by PyArrow; Spark needs no jar for the place."""
    reader = spark.read.format(register(spark, storage)).schema(schema)
    return reader.option("files", json.dumps(list(names))).load()


class FilesWriter(DataSourceArrowWriter):
    def __init__(self, storage: LakeStorage, reports: str, has_topics: bool) -> None:
        self._storage = storage
        self._reports = reports
        self._has_topics = has_topics

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReports:
        from pyspark.taskcontext import TaskContext

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        writer = TaskWriter(self._storage, partition, has_topics=self._has_topics)
        for batch in iterator:
            writer.put(batch)
        return TaskReports(writer.close())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        files = [file for message in messages if isinstance(message, TaskReports) for file in message.files]
        Path(self._reports).write_bytes(msgspec.json.encode(files))


# --- reading by the tasks


class FilePartition(InputPartition):
    def __init__(self, name: str) -> None:
        super().__init__(name)


class FilesReader(DataSourceReader):
    """Reads data files, a task each."""

    def __init__(self, storage: LakeStorage, names: Sequence[str], schema: StructType) -> None:
        self._storage = storage
        self._names = names
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [FilePartition(name) for name in self._names]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        yield from stored_batches(self._storage, partition.value, to_arrow_schema(self._schema, timezone="UTC"))
