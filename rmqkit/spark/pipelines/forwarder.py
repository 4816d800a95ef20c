"""Messages that were read become messages to be sent: what `replay` and `copying` have in common.

What a message keeps: body, keys, tags, its own properties. RocketMQ's own (ids, delay, transaction, retries) belong
to its first life; the sink leaves them out. REPLAY_ID (the id it had) and REPLAY_OF (`topic/broker/queue/offset`) say
where it came from, so that a consumer can tell a copy.

Order `queue`: all messages of a source queue go to one target queue, in one task, in the order of their offsets. It
is the queue of the same broker and number when the target has it, else one of the same number, else another. Order
`key`: messages with the same key (sharding key, else KEYS, else the source queue) go to one target queue in the order
of store time. Within a task messages go in the order of time too, as far as their queues allow: a clock that was set
back does not change the order of a queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rmqkit.errors import ConfigError
from rmqkit.spark.source.ranges import QueueKey
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.properties import PROPERTY_SHARDING_KEY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORDERS = ("queue", "key")
ID, OF = "REPLAY_ID", "REPLAY_OF"
SOURCE = ("topic", "broker", "queue")
NEEDED = (*SOURCE, "offset", "body")
#: columns of the way between
TIME, TO_BROKER, TO_QUEUE, KEY = "_time", "_to_broker", "_to_queue", "_key"
SINK = "rocketmq"
#: queues differ in size: some more tasks than run at once even that out
TASKS_A_CORE = 2


def check(rows: DataFrame, order: str) -> None:
    """Raises ConfigError for rows that cannot be sent on in that order."""
    if order not in ORDERS:
        raise ConfigError(f"order {order}: choose from {', '.join(ORDERS)}")
    missing = [name for name in NEEDED if name not in rows.columns]
    if missing:
        raise ConfigError(f"columns {', '.join(missing)} are missing: messages to send on have {', '.join(NEEDED)}")


def target_queues(topic: str, namesrv: str | None) -> list[MessageQueue]:
    """Where messages of a topic may be sent. Raises NoRoute."""
    from rmqkit.api import Producer

    with Producer("rmqkit-spark-plan", namesrv=namesrv) as producer:
        return sorted(producer.queues(topic))


def source_queues(rows: DataFrame) -> list[QueueKey]:
    return sorted(QueueKey(*row) for row in rows.select(*SOURCE).distinct().collect())


def placed(sources: Sequence[QueueKey], targets: Sequence[MessageQueue]) -> dict[QueueKey, MessageQueue]:
    """A target queue for each source queue."""
    by_place = {(target.broker_name, target.queue_id): target for target in targets}
    by_number: dict[int, list[MessageQueue]] = {}
    for target in targets:
        by_number.setdefault(target.queue_id, []).append(target)
    brokers = {name: place for place, name in enumerate(sorted({source.broker for source in sources}))}
    chosen: dict[QueueKey, MessageQueue] = {}
    for place, source in enumerate(sources):
        same = by_number.get(source.queue)
        exact = by_place.get((source.broker, source.queue))
        chosen[source] = exact or (same[brokers[source.broker] % len(same)] if same else targets[place % len(targets)])
    return chosen


def in_queue_order(rows: DataFrame, places: Mapping[QueueKey, MessageQueue], tasks: int) -> DataFrame:
    """What the sink takes, each source queue in one task."""
    from pyspark.sql import functions as F

    table = [(*source, target.broker_name, target.queue_id) for source, target in places.items()]
    kinds = f"topic string, broker string, queue int, {TO_BROKER} string, {TO_QUEUE} int"
    where = F.broadcast(rows.sparkSession.createDataFrame(table, kinds))
    # A queue that came after the others were listed goes where the sink finds room; it is not left out.
    known = rows.join(where, list(SOURCE), "left")
    ordered = _timed(known.repartition(tasks, *SOURCE)).sortWithinPartitions(TIME, *SOURCE, "offset")
    return ordered.select(*_kept(rows), F.col(TO_BROKER).alias("broker"), F.col(TO_QUEUE).alias("queue"))


def in_key_order(rows: DataFrame, tasks: int) -> DataFrame:
    """What the sink takes, all messages of a key in one task."""
    from pyspark.sql import functions as F

    own = F.concat_ws("/", *SOURCE)
    keys = [F.element_at("properties", PROPERTY_SHARDING_KEY)] if "properties" in rows.columns else []
    keys += [F.col("keys")] if "keys" in rows.columns else []
    keyed = _timed(rows).withColumn(KEY, F.coalesce(*[F.nullif(key, F.lit("")) for key in keys], own))
    ordered = keyed.repartition(tasks, KEY).sortWithinPartitions(TIME, *SOURCE, "offset")
    return ordered.select(*_kept(rows), F.col(KEY).alias("ordering_key"))


def _timed(rows: DataFrame) -> DataFrame:
    """With a time that never goes back within a queue: the latest store time up to here."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if "store_time" not in rows.columns:
        return rows.withColumn(TIME, F.col("offset"))
    until_here = Window.partitionBy(*SOURCE).orderBy("offset")
    return rows.withColumn(TIME, F.max("store_time").over(until_here))


def _kept(rows: DataFrame) -> list[Column]:
    from pyspark.sql import functions as F

    columns = [F.col(name) for name in ("body", "keys", "tags") if name in rows.columns]
    own = F.col("properties") if "properties" in rows.columns else F.lit(None).cast("map<string,string>")
    before = F.map_filter(F.coalesce(own, F.create_map().cast("map<string,string>")), lambda name, _: ~name.isin(ID, OF))
    marks = [F.lit(OF), F.concat_ws("/", *SOURCE, "offset")]
    if "message_id" in rows.columns:
        marks += [F.lit(ID), F.coalesce("message_id", F.lit(""))]
    return [*columns, F.map_concat(before, F.create_map(*marks)).alias("properties")]


def write(
    messages: DataFrame,
    topic: str,
    namesrv: str | None,
    *,
    run_id: str,
    per_task: int = 0,
    options: Mapping[str, str] | None = None,
) -> int:
    """Send them, and return how many were sent. Raises what the sink raised."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen = Observation()
    given = {key: str(value) for key, value in (options or {}).items()} | {"topic": topic, "runId": run_id}
    if namesrv:
        given["namesrv"] = namesrv
    if per_task:
        given["messagesPerSecond"] = str(per_task)
    counted = messages.observe(seen, F.count(F.lit(1)).alias("rows"))
    counted.write.format(SINK).options(**given).mode("append").save()
    return int(seen.get["rows"])


def tasks_of(rows: DataFrame, queues: int, rate: int | None) -> tuple[int, int]:
    """How many tasks send, and how many messages a second each may send (0: no limit).

    With a rate there are only as many tasks as run at the same time, so that their paces add up to it.
    """
    at_once = rows.sparkSession.sparkContext.defaultParallelism
    if rate is None:
        return max(1, min(queues, TASKS_A_CORE * at_once)), 0
    if rate < 1:
        raise ConfigError(f"rate {rate}: must be 1 message a second or more")
    tasks = max(1, min(queues, at_once, rate))
    return tasks, rate // tasks
