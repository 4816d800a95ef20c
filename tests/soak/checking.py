"""Checks that a lake has every offset exactly once: anti-joins with the offsets of the brokers."""

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rmqkit import Admin
from tests.soak.filling import HEAD_SIZE

PLACE = ("topic", "broker", "queue", "offset")


class Expected(NamedTuple):
    """The offsets that the lake must have of one queue; the end is exclusive."""

    topic: str
    broker: str
    queue: int
    begin: int
    end: int


class Checked(NamedTuple):
    """The result of a check: expected offsets, rows in the lake, and everything that is wrong."""

    expected: int
    rows: int
    missing: int
    beyond: int
    twice: int
    wrong_bodies: int
    lost_numbers: int
    from_slave: int

    @property
    def is_right(self) -> bool:
        return self.rows == self.expected and not any(self[2:7])


def expected_of(namesrv: str, topic: str) -> list[Expected]:
    """Return the offsets that the masters have of a topic."""
    with Admin(namesrv) as admin:
        return [
            Expected(topic, queue.broker_name, queue.queue_id, admin.offset_min(queue), admin.offset_max(queue))
            for queue in sorted(admin.queues(topic))
        ]


def check(spark: SparkSession, rows: DataFrame, expected: Sequence[Expected], numbers: int) -> Checked:
    """Check the rows of a lake; `numbers` messages were sent, numbered from 0."""
    queues = spark.createDataFrame(
        [tuple(each) for each in expected if each.end > each.begin],
        "topic string, broker string, queue int, begin bigint, end bigint",
    )
    wanted = queues.select(*PLACE[:3], F.explode(F.sequence("begin", F.col("end") - 1)).alias("offset"))
    there = rows.select(*PLACE)
    payload = F.substring("body", HEAD_SIZE + 1, 2**31 - 1)
    stored = F.conv(F.substring("body", 17, 8).cast("string"), 16, 10).cast("bigint")
    number = F.conv(F.substring("body", 1, 16).cast("string"), 16, 10).cast("bigint")
    told = rows.agg(
        F.count("*").alias("rows"),
        F.count_if(~F.crc32(payload).eqNullSafe(stored)).alias("wrong"),
        F.countDistinct(F.when((number >= 0) & (number < numbers), number)).alias("numbers"),
        F.count_if(F.col("read_from") == "slave").alias("slave"),
    ).first()
    assert told is not None
    return Checked(
        expected=sum(each.end - each.begin for each in expected),
        rows=int(told["rows"]),
        missing=wanted.join(there, list(PLACE), "left_anti").count(),
        beyond=there.join(wanted, list(PLACE), "left_anti").count(),
        twice=there.groupBy(*PLACE).count().where("count > 1").count(),
        wrong_bodies=int(told["wrong"]),
        lost_numbers=numbers - int(told["numbers"]),
        from_slave=int(told["slave"]),
    )
