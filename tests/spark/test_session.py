"""The session: its settings, its workers, what it leaves behind, and what it says when it cannot start."""

import sys

import pytest


@pytest.mark.xdist_group("spark")
def test_a_query_runs_on_this_python(spark):
    from pyspark.sql.functions import udf

    program = udf(lambda _number: sys.executable, "string")
    assert {row[0] for row in spark.range(4).select(program("id")).collect()} == {sys.executable}
