"""`BatchFunction`: what Spark and the caller get of an error."""

import traceback

import pytest

from rmqkit.errors import ConfigError
from rmqkit.spark.pipelines.progress import BatchFailed, BatchFunction


def test_spark_gets_one_line_and_the_caller_the_error():
    original = ConfigError("a long text\n" * 1000)

    def fail(rows, batch):
        raise original

    function = BatchFunction(fail)
    with pytest.raises(BatchFailed) as raised:
        function(None, 7)
    assert str(raised.value) == "batch 7 failed: ConfigError"
    assert "a long text" not in "".join(traceback.format_exception(raised.value))
    assert function.error is original


def test_a_batch_without_an_error():
    seen = []
    function = BatchFunction(lambda rows, batch: seen.append((rows, batch)))
    function("rows", 3)
    assert (seen, function.error) == ([("rows", 3)], None)
