"""Runs functions over Arrow batches in Spark's tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Work of a task: its rows as batches, to the batches of its result.
TaskFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
T = TypeVar("T")


def map_in_arrow(rows: DataFrame, function: TaskFunction, schema: StructType | str) -> DataFrame:
    """Do what `rows.mapInArrow(function, schema)` does, also without pandas.

    PySpark 4.3 asks for pandas there, which the function itself does not need.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    udf = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = udf(*[rows[name] for name in rows.columns])
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)


def read_in_tasks(
    spark: SparkSession, sources: Sequence[T], read: Callable[[T], Iterator[pa.RecordBatch]], schema: StructType | str
) -> DataFrame:
    """Return the rows that `read` yields for each source, a task each. No plan shows a source."""

    def read_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read(sources[number])

    return map_in_arrow(spark.range(0, len(sources), 1, len(sources)), read_task, schema)
