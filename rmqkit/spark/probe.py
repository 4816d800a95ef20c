"""Checks whether Spark works here: runs a real query over a small data source in Python.

    python -m rmqkit.spark.probe

prints one JSON object: `{"spark": "4.3.0", "java": "17.0.15", "from": "PATH", ...}`, or
`{"error": ...}`. The exit code is 0 or 1. `rmqkit doctor` runs it as a process of its own.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from rmqkit.errors import RmqkitError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

ROWS = 1000
PARTITIONS = 2


class Numbers(DataSource):
    """Data source whose rows are made by workers.

    Each row has the worker's Python, whether that finds `format("rocketmq")`, and a number.
    """

    @classmethod
    def name(cls) -> str:
        return "rmqkit_probe"

    def schema(self) -> str:
        return "python string, is_found boolean, number bigint"

    def reader(self, schema: "StructType") -> "NumbersReader":
        return NumbersReader()


class NumbersReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        from importlib.util import find_spec

        import pyarrow as pa

        row = {"python": sys.executable, "is_found": find_spec("pyspark_rmqkit") is not None}
        yield pa.RecordBatch.from_pylist([row | {"number": number} for number in range(ROWS)])


def probe(spark: "SparkSession") -> Mapping[str, Any]:
    """Run the query and return versions, the workers' Python, and whether they find rmqkit.

    Raises RmqkitError (one line) if the result is wrong, or whatever Spark raises.
    """
    spark.dataSource.register(Numbers)
    rows = spark.read.format(Numbers.name()).load()
    found = rows.groupBy("python", "is_found").agg({"number": "sum"}).collect()
    (python, is_found, total) = found[0]
    if len(found) != 1 or total != PARTITIONS * sum(range(ROWS)):
        raise RmqkitError(f"a test query returned {total} instead of {PARTITIONS * sum(range(ROWS))}")
    jvm: Any = spark.sparkContext._jvm
    version = jvm.java.lang.System.getProperty("java.version")
    return {"spark": spark.version, "java": version, "python": python, "is_found": is_found}


def main() -> int:
    from rmqkit.spark import session
    from rmqkit.spark.java import find_java

    try:
        source = find_java().source
        spark = session("rmqkit doctor", master="local[1]", conf={"spark.driver.memory": "512m"})
        answer, code = {**probe(spark), "from": source}, 0
        spark.stop()
    except Exception as error:
        answer, code = {"error": " ".join(str(error).split())[:500] or type(error).__name__}, 1
    print(json.dumps(answer))
    return code


if __name__ == "__main__":
    # Workers unpickle the classes of this module by its name, so they must not be in `__main__`.
    from rmqkit.spark import probe as module

    sys.exit(module.main())
