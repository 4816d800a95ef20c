"""Turns messages that were read into messages to send, for `replay` and `topic_copy`.

A message keeps its body, keys, tags and user properties. RocketMQ's own properties (ids, delay,
transaction, retries) belong to the original message; the sink leaves them out. Two properties name
the origin, so that a consumer can recognise a copy: REPLAY_ID is the original message id, REPLAY_OF
is `topic/broker/queue/offset`.

Order `queue`: all messages of a source queue go to one target queue, from one task, in offset
order. The target queue is the first of these that exists: the same broker and queue number; the
same number on another broker; any queue.

Order `key`: all messages with the same key go to one target queue, in the order of store time. The
key is the sharding key, else KEYS, else the source queue.

Messages may be delayed: rows with the columns DELAYS keep them. The caller drops these columns from
rows that were read from a topic. Such messages were delivered before, so the columns can only be
fields of JSON bodies with such names.

Within a task, messages are also sent in the order of time across queues. A clock that was set back
does not change the order within a queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as F

from rmqkit.api import Admin, Producer
from rmqkit.errors import BrokerError, ConfigError
from rmqkit.spark.pipelines.topic_query import FORMAT
from rmqkit.spark.sink.pace import serve_pace
from rmqkit.spark.source.ranges import QueueKey
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.properties import PROPERTY_SHARDING_KEY

ORDERS = ("queue", "key")
ID, OF = "REPLAY_ID", "REPLAY_OF"
SOURCE = ("topic", "broker", "queue")
NEEDED = (*SOURCE, "offset", "body")
#: Columns of the sink that say when a message is delivered.
DELAYS = ("delay_level", "delay_ms", "deliver_at")
#: temporary columns; they are renamed or dropped before the sink gets the rows
TIME, TO_BROKER, TO_QUEUE, KEY = "_time", "_to_broker", "_to_queue", "_key"
#: tasks per core; more than one, since queues differ in size and extra tasks even that out
TASKS_A_CORE = 2


def check_choices(order: str, rate: int | None) -> None:
    """Raise ConfigError if the order is unknown or the rate too small. Needs no Spark."""
    if order not in ORDERS:
        raise ConfigError(f"order {order}: choose from {', '.join(ORDERS)}")
    if rate is not None and rate < 1:
        raise ConfigError(f"rate {rate}: must be 1 message a second or more")


def check(rows: DataFrame) -> None:
    """Raise ConfigError if the rows lack a needed column."""
    missing = [name for name in NEEDED if name not in rows.columns]
    if missing:
        raise ConfigError(f"columns {', '.join(missing)} are missing: a replay or copy needs {', '.join(NEEDED)}")


def target_queues(topic: str, namesrv: str) -> list[MessageQueue]:
    """Return the writable queues of a topic, sorted. Raises NoRoute."""
    with Producer("rmqkit-spark-plan", namesrv=namesrv) as producer:
        return sorted(producer.queues(topic))


def create_topic(topic: str, sources: Sequence[QueueKey], namesrv: str) -> bool:
    """Create the topic with the queues of the source, if it is missing.

    Return whether the topic exists then; a source without queues creates none.
    """
    with Admin(namesrv) as admin:
        try:
            admin.route(topic)
            return True
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
        counts = queue_counts(sources, sorted(admin.masters()))
        for broker, count in counts.items():
            admin.create_topic(topic, queue_nums=count, broker=broker)
        return bool(counts)


def queue_counts(sources: Sequence[QueueKey], brokers: Sequence[str]) -> dict[str, int]:
    """Return broker -> number of queues, so that each source queue finds one of its own number.

    A broker of the source has as many queues as there. The queues of brokers that are missing here
    need the same numbers on each of the others: on those of the source, or on all if none is here.
    """
    needed: dict[str, int] = {}
    for source in sources:
        needed[source.broker] = max(needed.get(source.broker, 0), source.queue + 1)
    here = {broker: count for broker, count in needed.items() if broker in brokers}
    elsewhere = max((count for broker, count in needed.items() if broker not in brokers), default=0)
    return {broker: max(needed.get(broker, 0), elsewhere) for broker in (here or brokers if elsewhere else here)}


def placed(sources: Sequence[QueueKey], targets: Sequence[MessageQueue]) -> dict[QueueKey, MessageQueue]:
    """Choose a target queue for each source queue; `targets` must not be empty."""
    by_number: dict[int, list[MessageQueue]] = {}
    for target in targets:
        by_number.setdefault(target.queue_id, []).append(target)
    brokers = sorted({source.broker for source in sources})
    chosen: dict[QueueKey, MessageQueue] = {}
    for place, source in enumerate(sources):
        same = by_number.get(source.queue, [])
        same = [target for target in same if target.broker_name == source.broker] or same
        chosen[source] = same[brokers.index(source.broker) % len(same)] if same else targets[place % len(targets)]
    return chosen


def ordered(rows: DataFrame, queues: Sequence[QueueKey], order: str, target: Mapping[str, str]) -> tuple[DataFrame, int]:
    """Return the messages in an order of ORDERS, and the number of tasks that send them.

    `queues` are those of the rows, `target` the options of the sink. Raises NoRoute.
    """
    # At most one task for each source queue.
    tasks = max(1, min(len(queues), TASKS_A_CORE * rows.sparkSession.sparkContext.defaultParallelism))
    if order == "key":
        return in_key_order(rows, tasks), tasks
    return in_queue_order(rows, placed(queues, target_queues(target["topic"], target["namesrv"])), tasks), tasks


def in_queue_order(rows: DataFrame, places: Mapping[QueueKey, MessageQueue], tasks: int) -> DataFrame:
    """Return the rows with the sink's columns, each source queue in one task."""
    table = [(*source, target.broker_name, target.queue_id) for source, target in places.items()]
    kinds = f"topic string, broker string, queue int, {TO_BROKER} string, {TO_QUEUE} int"
    where = F.broadcast(rows.sparkSession.createDataFrame(table, kinds))
    # A left join: a queue that appeared after the listing has no target yet; the sink chooses one.
    known = rows.join(where, list(SOURCE), "left")
    ordered = _timed(known.repartition(tasks, *SOURCE)).sortWithinPartitions(TIME, *SOURCE, "offset")
    return ordered.select(*_message_columns(rows), F.col(TO_BROKER).alias("broker"), F.col(TO_QUEUE).alias("queue"))


def in_key_order(rows: DataFrame, tasks: int) -> DataFrame:
    """Return the rows with the sink's columns, all messages of a key in one task."""
    own = F.concat_ws("/", *SOURCE)
    keys = [F.element_at("properties", PROPERTY_SHARDING_KEY)] if "properties" in rows.columns else []
    keys += [F.col("keys")] if "keys" in rows.columns else []
    keyed = _timed(rows).withColumn(KEY, F.coalesce(*[F.nullif(key, F.lit("")) for key in keys], own))
    ordered = keyed.repartition(tasks, KEY).sortWithinPartitions(TIME, *SOURCE, "offset")
    return ordered.select(*_message_columns(rows), F.col(KEY).alias("ordering_key"))


def _timed(rows: DataFrame) -> DataFrame:
    """Add the column TIME, which never decreases within a queue: the highest store time so far."""
    if "store_time" not in rows.columns:
        return rows.withColumn(TIME, F.col("offset"))
    until_here = Window.partitionBy(*SOURCE).orderBy("offset")
    return rows.withColumn(TIME, F.max("store_time").over(until_here))


def _message_columns(rows: DataFrame) -> list[Column]:
    """Return the columns that a sent message keeps, REPLAY_OF and REPLAY_ID included."""
    columns = [F.col(name) for name in ("body", "keys", "tags", *DELAYS) if name in rows.columns]
    own = F.col("properties") if "properties" in rows.columns else F.lit(None).cast("map<string,string>")
    before = F.map_filter(F.coalesce(own, F.create_map().cast("map<string,string>")), lambda name, _: ~name.isin(ID, OF))
    marks = [F.lit(OF), F.concat_ws("/", *SOURCE, "offset")]
    if "message_id" in rows.columns:
        marks += [F.lit(ID), F.coalesce("message_id", F.lit(""))]
    return [*columns, F.map_concat(before, F.create_map(*marks)).alias("properties")]


def write(messages: DataFrame, target: Mapping[str, str], *, run_id: str, rate: int | None = None) -> int:
    """Send the messages through the sink and return their number.

    `target` are the options of the sink. `rate` is the limit in messages per second over all tasks.
    Exceptions of the sink are passed on.
    """
    given = {**target, "runId": run_id}
    if rate is not None:
        serve_pace(messages.sparkSession)
        given["messagesPerSecond"] = str(rate)
    seen = Observation()
    counted = messages.observe(seen, F.count(F.lit(1)).alias("rows"))
    counted.write.format(FORMAT).options(**given).mode("append").save()
    return int(seen.get["rows"])
