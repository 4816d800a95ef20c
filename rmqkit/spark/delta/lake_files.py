"""Makes Spark's tasks write the data files of a lake, and on object stores read them.

Each task gets its rows as Arrow batches (`mapInArrow`), writes them (`data_files`) and returns a
report of each file as its own rows. Spark passes on the rows of exactly one attempt of each task.
Files of other attempts, and of drivers that died before their commit, are in no commit; `vacuum`
removes them.

Compared with Spark's own Parquet sink this needs half the time, since rows need no sort: a task of
the source reads its queue in order. Compared with a Python data source it needs two Python
processes fewer on the driver, one that plans the write and one that commits it. It also is the same
code for each place that deltalake knows.

Storage options may be credentials. They travel in the pickled function, which no plan shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.taskcontext import TaskContext

from rmqkit.spark.arrow_tasks import map_in_arrow, read_in_tasks
from rmqkit.spark.delta.data_files import HOUR, PARTITIONS, TOPIC, FileReport, Schema, TaskWriter, stored_batches
from rmqkit.spark.delta.storage import LakeStorage


def write(rows: DataFrame, storage: LakeStorage, *, has_topics: bool = False) -> list[FileReport]:
    """Write all rows into files of the lake and return these; they are durable, not committed.

    With `has_topics` the files have the column `topic`.
    """

    def write_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        writer = TaskWriter(storage, 0 if context is None else context.partitionId(), has_topics=has_topics)
        for batch in batches:
            writer.put(batch)
        yield pa.record_batch({"reports": [msgspec.json.encode(writer.close())]})

    reports = map_in_arrow(rows, write_task, "reports binary").collect()
    return [file for each in reports for file in msgspec.json.decode(each.reports, type=list[FileReport])]


def read(spark: SparkSession, storage: LakeStorage, schema: Schema, files: Mapping[str, Sequence[str]]) -> DataFrame:
    """Return the rows of data files, given as topic → URIs, with the columns of `schema`."""
    columns = StructType.fromJson(schema)
    # Delta's files do not have the columns of their partition.
    stored = StructType([field for field in columns if field.name not in PARTITIONS])

    def read_file(uri: str) -> Iterator[pa.RecordBatch]:
        return stored_batches(storage, uri.removeprefix(f"{storage.uri}/"), to_arrow_schema(stored, timezone="UTC"))

    names = [name for name in columns.names if name != HOUR]
    rows = spark.createDataFrame([], StructType([columns[name] for name in names]))
    for number, (topic, uris) in enumerate((topic, uris) for topic, uris in files.items() if uris):
        if storage.is_local:
            part = spark.read.schema(stored).parquet(*[f"file://{name}" for name in uris])
        else:
            part = read_in_tasks(spark, uris, read_file, stored)
        part = part.withColumn(TOPIC, F.lit(topic)).select(*names)
        rows = rows.union(part) if number else part
    return rows
