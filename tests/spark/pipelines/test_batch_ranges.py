"""Which batches a lake has already: a batch of Spark may run again, after an error or a crash."""

import pytest

pytest.importorskip("pyspark")

from rmqkit.spark.delta.lake_table import NOTHING
from rmqkit.spark.delta.transactions import Ledger
from rmqkit.spark.pipelines import ingest
from rmqkit.spark.pipelines.topic_query import Offsets
from rmqkit.spark.source.ranges import QueueKey

FIRST, SECOND = QueueKey("T", "b", 0), QueueKey("T", "b", 1)
#: a lake with batch 3 of query "q", up to offset 9 of the first queue
LAKE = NOTHING._replace(version=0, known=Ledger({"q": 3}, {FIRST: [[0, 9]], SECOND: [[0, 4]]}, {}))


def offsets(begin: dict[str, int], end: dict[str, int]) -> Offsets:
    """The offsets of a batch: queue number -> offset."""
    return Offsets({"T": {"b": begin}} if begin else {}, {"T": {"b": end}})


@pytest.mark.parametrize(
    ("query", "batch", "begin", "end", "is_done"),
    [
        ("q", 3, {"0": 5, "1": 0}, {"0": 9, "1": 4}, True),
        ("q", 3, {"0": 5, "1": 0}, {"0": 10, "1": 4}, False),
        ("q", 3, {"0": 5}, {"0": 9, "1": 5}, False),
        ("q", 4, {"0": 5}, {"0": 9}, False),
        (None, 3, {"0": 5}, {"0": 9}, False),
        # The begins are unknown in the first batch of a checkpoint.
        ("q", 3, {}, {"0": 9, "1": 4}, True),
        ("q", 3, {}, {"0": 10}, False),
        # The topic was made anew, and loss is allowed: the first queue went back.
        ("q", 3, {"0": 9, "1": 0}, {"0": 2, "1": 4}, True),
        ("q", 3, {"0": 9, "1": 0}, {"0": 2, "1": 5}, False),
    ],
)
def test_a_batch_is_done_if_the_lake_has_all_that_it_reads(query, batch, begin, end, is_done):
    assert ingest._is_done(LAKE, query, batch, offsets(begin, end)) == is_done
