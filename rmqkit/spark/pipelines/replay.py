"""Replay: messages of a lake (or of any Parquet or DataFrame with their columns) are sent to a topic again.

    replay(spark, "/data/orders", "orders-again", namesrv="127.0.0.1:9876", since=…, until=…, rate=500)

Order and what a message keeps: `forwarding`. At least once: a task that fails half-way sends its rows again, with the same
DEDUP_KEY (docs/spark.md), as does a replay that is given the `run_id` of the one before.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from rmqkit.errors import ConfigError
from rmqkit.spark.options import parse
from rmqkit.spark.pipelines import forwarder, lake
from rmqkit.spark.pipelines.progress import PipelineProgress, jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ReplayResult(msgspec.Struct, frozen=True):
    """`rows` messages went from `queues` source queues to `topic`; `tasks` of them at a time. `run_id` is in their
    DEDUP_KEY."""

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
    run_id: str | None = None,
    options: Mapping[str, str] | None = None,
    on_progress: Callable[[PipelineProgress], None] | None = None,
) -> ReplayResult:
    """Send what was stored in [since, until), of `topics` of the source, to `topic`; `rate` messages a second in all.

    `order` is `queue` or `key`; `options` are the sink's (docs/spark.md). Raises ConfigError, NoRoute, LakeDamaged,
    and what the write raised (PySparkException).
    """
    given = {**(options or {}), "topic": topic, **({"namesrv": namesrv} if namesrv else {})}
    servers = ";".join(parse(given, "sink").namesrv)
    rows = rows_of(spark, source, topics, since, until)
    forwarder.check(rows, order)
    run_id = run_id or uuid.uuid4().hex
    with jobs(spark, on_progress):
        targets = forwarder.target_queues(topic, servers)
        queues = forwarder.source_queues(rows)
        tasks, per_task = forwarder.tasks_of(rows, len(queues), rate)
        if order == "queue":
            messages = forwarder.in_queue_order(rows, forwarder.placed(queues, targets), tasks)
        else:
            messages = forwarder.in_key_order(rows, tasks)
        sent = forwarder.write(messages, topic, servers, run_id=run_id, per_task=per_task, options=options)
    return ReplayResult(topic=topic, rows=sent, queues=len(queues), tasks=tasks, run_id=run_id)


def rows_of(
    spark: SparkSession,
    source: str | os.PathLike[str] | DataFrame,
    topics: Iterable[str] | None = None,
    since: lake.Time | None = None,
    until: lake.Time | None = None,
) -> DataFrame:
    """Messages of a lake, of Parquet files, or of a DataFrame. Raises ConfigError when a bound wants a column they lack."""
    from pyspark.sql import functions as F

    if isinstance(source, str | os.PathLike):
        if lake.is_lake(source, spark):
            return lake.read(spark, source, topics=topics, since=since, until=until)
        rows = spark.read.parquet(os.fspath(source))
    else:
        rows = source
    bounds = [("topic", topics), ("store_time", since), ("store_time", until)]
    for name, bound in bounds:
        if bound is not None and name not in rows.columns:
            raise ConfigError(f"{'topics' if name == 'topic' else 'since and until'} want a column {name}")
    if topics is not None:
        rows = rows.where(F.col("topic").isin(list(topics)))
    return rows.where(lake.stored(since, until)) if since is not None or until is not None else rows
