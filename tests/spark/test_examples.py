"""Runs the Spark examples as functions in the shared session; each script would start a JVM.

The part of `lake_query.py` that needs no Java runs in a process that can import neither PySpark nor
py4j, on a table written here.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from rmqkit.spark.delta.lake_table import LakeTable
from rmqkit.spark.delta.storage import LakeStorage
from tests.spark.lakes import NOON_MS, arrow_rows, batch_of_rows, part

FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = sorted([*FOLDER.glob("spark_*.py"), *FOLDER.glob("lake_*.py")])

#: arguments: folder of the examples, the table
WITHOUT_JAVA = """\
import json, os, sys
sys.modules["pyspark"] = sys.modules["py4j"] = None  # to import them is an ImportError
os.environ["JAVA_HOME"] = os.environ["PATH"] = "/nowhere"
sys.path.insert(0, sys.argv[1])
import lake_query
before = lake_query.failures(sys.argv[2])
found = lake_query.tidy(sys.argv[2])
after = lake_query.failures(sys.argv[2])
print(json.dumps({"before": before, "after": after, "rows": found.rows, "files": found.files}))
"""


@pytest.mark.long
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_example(spark, pair, script, tmp_path, monkeypatch):
    pair.put_right()
    monkeypatch.setenv("NAMESRV_ADDR", pair.namesrv)
    spec = importlib.util.spec_from_file_location(script.stem, script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(spark, tmp_path / "lake")


def test_the_table_is_queried_without_java(tmp_path):
    topic = "example-lake-payments"
    table = LakeTable(LakeStorage(tmp_path))
    for number, tag in enumerate(("paid", "failed")):
        covered = part(topic, 0, 10 * number, 10 * number + 10)
        rows = arrow_rows(covered)
        for name, values in (
            ("body", [json.dumps({"bank": "north" if offset % 2 else "south"}).encode() for offset in range(10)]),
            ("tags", [tag if offset % 2 else "paid" for offset in range(10)]),
        ):
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, rows.schema.field(place), pa.array(values, rows.schema.field(place).type))
        made = batch_of_rows(table.storage, number, rows, covered)
        table.commit(lambda state, made=made: made)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAVA, str(FOLDER), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said, result = done.stdout.splitlines()
    assert said == f"20 rows of {topic}: 2 files merged into 1"
    found = json.loads(result)
    assert found["before"] == [["north", 10, 5, NOON_MS, NOON_MS], ["south", 10, 0, None, None]]
    assert (found["after"], found["rows"], found["files"]) == (found["before"], 20, 1)
