"""Copies a topic to another topic, of the same or another cluster: once, or continuously.

    copy(spark, "orders", "orders", namesrv="east:9876", to_namesrv="west:9876")
    copy(spark, "orders", "orders", …, follow=True, checkpoint="/data/copies/orders")

A streaming query reads the topic and sends each micro-batch in the order that `forwarder`
describes. Batches run one after another, so the order of a queue (or key) also holds across
batches.

Delivery is at least once: a batch that runs again is sent again with the same DEDUP_KEY, `<query
id>/<batch>//<task>/<row>`. With a checkpoint, the next copy continues where the last one ended.
Without one, a copy begins at the earliest message.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from rmqkit.errors import ConfigError
from rmqkit.spark.pipelines import forwarder
from rmqkit.spark.pipelines.progress import PipelineProgress
from rmqkit.spark.pipelines.topic_query import FORMAT, opened, query_options, run_batches
from rmqkit.spark.source import ranges

TRIGGER = "5 seconds"


class CopyResult(msgspec.Struct, kw_only=True):
    """The result of a copy.

    `offsets` maps topic -> broker -> queue to the offset that is read next; None if no batch ended.
    `checkpoint` is None if the copy used a temporary one.
    """

    topic: str
    to_topic: str
    checkpoint: str | None
    rows: int = 0
    batches: int = 0
    offsets: dict[str, Any] | None = None


def copy(
    spark: SparkSession,
    topic: str,
    to_topic: str,
    *,
    namesrv: str | None = None,
    to_namesrv: str | None = None,
    follow: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    order: str = "queue",
    rate: int | None = None,
    options: Mapping[str, str] | None = None,
    sink_options: Mapping[str, str] | None = None,
    trigger: str = TRIGGER,
    on_progress: Callable[[PipelineProgress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> CopyResult:
    """Copy the messages of `topic` to `to_topic`.

    Without `follow`, the copy ends at the topic's current end. With it, a batch runs every
    `trigger` until `stop` returns True or the user presses Ctrl-C; it needs a `checkpoint`.

    `to_namesrv` defaults to `namesrv`. `options` are those of the source, `sink_options` those of
    the sink (docs/spark.md). `rate` is the limit in messages per second over all tasks. Raises
    ConfigError, NoRoute, and the exception of the query.
    """
    if follow and checkpoint is None:
        raise ConfigError("follow needs a checkpoint: a folder in which the copy stores its progress")
    given = query_options("stream", options, namesrv, start="earliest", subscribe=topic)
    target = query_options("sink", sink_options, to_namesrv or given["namesrv"], topic=to_topic)
    forwarder.check_choices(order, rate)
    if topic == to_topic and given["namesrv"] == target["namesrv"]:
        raise ConfigError(f"{topic} cannot be copied into itself: each copy would be copied again")
    with opened(checkpoint, spark) as place:
        done = CopyResult(topic=topic, to_topic=to_topic, checkpoint=place.uri if place.is_kept else None)

        def send(rows: DataFrame, batch: int) -> None:
            queues = list(ranges.flat(place.offsets_of(batch).end))
            messages, _ = forwarder.ordered(rows.drop(*forwarder.DELAYS), queues, order, target)
            done.rows += forwarder.write(messages, target, run_id=f"{place.query_id()}/{batch}", rate=rate)
            done.batches += 1

        rows = spark.readStream.format(FORMAT).options(**given).load()
        forwarder.check(rows)
        interval = trigger if follow else None
        done.offsets = run_batches(rows, send, place, trigger=interval, on_progress=on_progress, stop=stop)
        return done
