"""Replay: sends messages of a lake, of Parquet files or of a DataFrame to a topic.

    replay(spark, "/data/orders", "orders-again", since=…, until=…, rate=500)

`forwarder` explains the order of messages and which properties they keep. Delivery is at least
once: a task that fails half-way sends its rows again with the same DEDUP_KEY (docs/spark.md). So
does a replay that is given the `run_id` of an earlier one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rmqkit.errors import ConfigError
from rmqkit.spark.pipelines import forwarder, lake
from rmqkit.spark.pipelines.progress import PipelineProgress, jobs
from rmqkit.spark.pipelines.topic_query import query_options
from rmqkit.spark.source.ranges import QueueKey


class ReplayResult(msgspec.Struct, frozen=True):
    """The result of a replay.

    `rows` messages from `queues` source queues were sent to `topic` by `tasks` tasks. `run_id` is
    part of each message's DEDUP_KEY.
    """

    topic: str
    rows: int
    queues: int
    tasks: int
    run_id: str


def replay(
    spark: SparkSession,
    source: str | os.PathLike[str] | DataFrame,
    topic: str,
    *,
    namesrv: str | None = None,
    rate: int | None = None,
    since: lake.Time | None = None,
    until: lake.Time | None = None,
    topics: Iterable[str] | None = None,
    order: str = "queue",
    create: bool = False,
    run_id: str | None = None,
    options: Mapping[str, str] | None = None,
    storage_options: lake.Options = None,
    on_progress: Callable[[PipelineProgress], None] | None = None,
) -> ReplayResult:
    """Send the source's messages with a store time in [since, until) to `topic`.

    `topics` limits the source to these topics. `rate` is the limit in messages per second over all
    tasks. `order` is `queue` or `key`. With `create` a missing topic is created, with the queues of
    the source; without a message to send it stays missing. `options` are those of the sink
    (docs/spark.md), `storage_options` those of a lake's object store. Raises ConfigError, NoRoute,
    LakeDamaged, and the exception of the write (PySparkException).
    """
    target = query_options("sink", options, namesrv, topic=topic)
    forwarder.check_choices(order, rate)
    rows = rows_of(spark, source, topics, since, until, storage_options)
    forwarder.check(rows)
    run_id = run_id or uuid.uuid4().hex
    with jobs(spark, on_progress):
        if not create:
            forwarder.target_queues(topic, target["namesrv"])  # a missing topic is an error before the source is read
        queues = sorted(QueueKey(*row) for row in rows.select(*forwarder.SOURCE).distinct().collect())
        sent = tasks = 0
        if not create or forwarder.create_topic(topic, queues, target["namesrv"]):
            messages, tasks = forwarder.ordered(rows, queues, order, target)
            sent = forwarder.write(messages, target, run_id=run_id, rate=rate)
    return ReplayResult(topic=topic, rows=sent, queues=len(queues), tasks=tasks, run_id=run_id)


def rows_of(
    spark: SparkSession,
    source: str | os.PathLike[str] | DataFrame,
    topics: Iterable[str] | None = None,
    since: lake.Time | None = None,
    until: lake.Time | None = None,
    storage_options: lake.Options = None,
) -> DataFrame:
    """Return the chosen messages of a lake, of Parquet files, or of a DataFrame.

    Raises ConfigError if `topics`, `since` or `until` needs a column that is missing.
    """
    if isinstance(source, DataFrame):
        rows = source
    elif lake.is_lake(source, storage_options=storage_options):
        found = lake.read(spark, source, topics=topics, since=since, until=until, storage_options=storage_options)
        return found.drop(*forwarder.DELAYS)
    else:
        rows = spark.read.parquet(os.fspath(source))
    for name, bound in (("topic", topics), ("store_time", since), ("store_time", until)):
        if bound is not None and name not in rows.columns:
            raise ConfigError(f"{'topics' if name == 'topic' else 'since and until'} need the column {name}")
    if topics is not None:
        rows = rows.where(F.col("topic").isin(list(topics)))
    return lake.stored_in(rows, since, until)
