"""What Spark and the caller get of the error of a batch."""

import traceback

import pytest

from rmqkit.errors import ConfigError, RmqkitError
from rmqkit.spark.pipelines.topic_query import shortened


def test_spark_gets_one_line_and_the_caller_the_error():
    original = ConfigError("a long text\n" * 1000)

    def fail(rows, batch):
        raise original

    errors = []
    with pytest.raises(RmqkitError) as raised:
        shortened(fail, errors)(None, 7)
    assert str(raised.value) == "batch 7 failed: ConfigError"
    assert "a long text" not in "".join(traceback.format_exception(raised.value))
    assert errors == [original]


def test_a_batch_without_an_error():
    seen, errors = [], []
    shortened(lambda rows, batch: seen.append((rows, batch)), errors)("rows", 3)
    assert (seen, errors) == ([("rows", 3)], [])
