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
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rmqkit.errors import ConfigError
from rmqkit.spark.options import parse
from rmqkit.spark.pipelines import forwarder
from rmqkit.spark.pipelines.progress import PipelineProgress, run_batches
from rmqkit.spark.pipelines.query_checkpoint import QueryCheckpoint
from rmqkit.spark.source import ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRIGGER = "5 seconds"
SOURCE = "rocketmq"


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
    spark: "SparkSession",
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
    given = {"startingOffsets": "earliest"} | {key: str(value) for key, value in (options or {}).items()}
    given |= {"subscribe": topic} | ({"namesrv": namesrv} if namesrv else {})
    servers = parse(given, "stream").namesrv
    given["namesrv"] = ";".join(servers)
    given_to = {"topic": to_topic, "namesrv": to_namesrv or ";".join(servers)}
    to_servers = parse({**(sink_options or {}), **given_to}, "sink").namesrv
    forwarder.check_choices(order, rate)
    if topic == to_topic and servers == to_servers:
        raise ConfigError(f"{topic} cannot be copied into itself: each copy would be copied again")
    temporary = tempfile.mkdtemp(prefix="rmqkit-copy-") if checkpoint is None else None
    place = QueryCheckpoint(os.fspath(checkpoint or temporary or ""), spark)
    done = CopyResult(topic=topic, to_topic=to_topic, checkpoint=None if temporary else place.uri)
    sender = _CopySender(place, done, ";".join(to_servers), order, rate, sink_options)

    def report(progress: PipelineProgress) -> None:
        done.offsets = progress.offsets
        if on_progress:
            on_progress(progress)

    try:
        rows = spark.readStream.format(SOURCE).options(**given).load()
        forwarder.check(rows)
        run_batches(rows, sender.send, place, trigger=trigger if follow else None, on_progress=report, stop=stop)
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
    return done


class _CopySender:
    """Sends each micro-batch, and adds it to `done`."""

    def __init__(
        self,
        checkpoint: QueryCheckpoint,
        done: CopyResult,
        namesrv: str,
        order: str,
        rate: int | None,
        options: Mapping[str, str] | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._done = done
        self._namesrv = namesrv
        self._order = order
        self._rate = rate
        self._options = options

    def send(self, rows: "DataFrame", batch: int) -> None:
        query = self._checkpoint.query_id()
        queues = list(ranges.flat(self._checkpoint.offsets_of(batch).end))
        rows = forwarder.without_delays(rows)
        tasks = forwarder.tasks_of(rows, len(queues))
        if self._order == "queue":
            targets = forwarder.target_queues(self._done.to_topic, self._namesrv)
            messages = forwarder.in_queue_order(rows, forwarder.placed(queues, targets), tasks)
        else:
            messages = forwarder.in_key_order(rows, tasks)
        self._done.rows += forwarder.write(
            messages,
            self._done.to_topic,
            self._namesrv,
            run_id=f"{query}/{batch}",
            rate=self._rate,
            options=self._options,
        )
        self._done.batches += 1
