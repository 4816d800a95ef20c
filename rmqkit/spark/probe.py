"""Checks whether Spark works here: runs real queries, one of Python functions and one of rmqkit's
data source for store folders.

    python -m rmqkit.spark.probe

prints one JSON object: `{"spark": "4.3.0", "java": "17.0.15", "from": "PATH", ...}`, or
`{"error": ...}`. The exit code is 0 or 1. `rmqkit doctor` runs it as a process of its own.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rmqkit.errors import RmqkitError
from rmqkit.spark.arrow_tasks import read_in_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1000
TASKS = 2


def _rows(_task: int) -> Iterator[pa.RecordBatch]:
    """Yield a worker's Python, whether that finds `format("rocketmq")`, and numbers."""
    row = {"python": sys.executable, "is_found": find_spec("pyspark_rmqkit") is not None}
    yield pa.RecordBatch.from_pylist([row | {"number": number} for number in range(ROWS)])


def probe(spark: "SparkSession") -> Mapping[str, Any]:
    """Run the query and return versions, the workers' Python, and whether they find rmqkit.

    Raises RmqkitError (one line) if the result is wrong, or whatever Spark raises.
    """
    rows = read_in_tasks(spark, range(TASKS), _rows, "python string, is_found boolean, number bigint")
    found = rows.groupBy("python", "is_found").agg({"number": "sum"}).collect()
    (python, is_found, total) = found[0]
    if len(found) != 1 or total != TASKS * sum(range(ROWS)):
        raise RmqkitError(f"a test query returned {total} instead of {TASKS * sum(range(ROWS))}")
    if is_found:
        with tempfile.TemporaryDirectory() as folder:  # a store without files
            Path(folder, "commitlog").mkdir()
            spark.read.format("rocketmq-store").load(folder).collect()
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
    sys.exit(main())
