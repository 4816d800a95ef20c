"""Spark's data sources against Apache's name server and broker 5.5.0 and its store folder.

What Spark reads is compared with what our own client pulls. What Spark writes is verified with
Apache's own answers.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import Row, SparkSession

from rmqkit import Admin, Message, MessageExt, Producer, PullConsumer
from tests.interop import apache
from tests.interop.until import until
from tests.spark.conftest import spark  # noqa: F401 (a fixture)

TOPIC, BATCHED, WRITTEN = "SparkPlain", "SparkBatched", "SparkWritten"
#: bytes; small, so that the log has many files
LOG_FILE_SIZE = 128 * 1024
PLACE = ("topic", "queue", "offset")


class Seen(NamedTuple):
    """A message as both our client and Spark can describe it."""

    topic: str
    queue: int
    offset: int
    body: bytes
    keys: str
    tags: str
    born_ms: int
    store_ms: int
    properties: dict[str, str]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apache.ApacheCluster]:
    sizes = {"mappedFileSizeCommitLog": str(LOG_FILE_SIZE), "waitTimeMillsInSendQueue": "10000"}
    with apache.ApacheCluster(home=tmp_path_factory.mktemp("apache"), broker_properties=sizes) as made:
        with Admin(made.namesrv) as admin:
            for name, count in ((TOPIC, 4), (BATCHED, 2), (WRITTEN, 3)):
                admin.create_topic(name, queue_nums=count)
                until(f"a route of {name}", lambda name=name, count=count: len(admin.queues(name)) == count)
        send(made.namesrv, 600)
        yield made


def send(namesrv: str, count: int) -> None:
    """Send messages of every kind: plain, batched, compressed, non-ASCII, a bare NUL byte."""
    with Producer("spark-interop", namesrv=namesrv, send_msg_timeout_ms=10_000) as producer:
        for number in range(count):
            properties = {"n": str(number), "名前": "мир"} if number % 7 == 0 else {"n": str(number)}
            keys, tags = f"key{number} common", f"Tag{number % 3}"
            producer.send(
                Message(TOPIC, f"message {number} " + "x" * (number % 900), keys=keys, tags=tags, properties=properties)
            )
        for number in range(8):
            producer.send_batch([Message(BATCHED, f"{number}-{place}", keys=f"batch{number}") for place in range(25)])
        producer.send(Message(TOPIC, "compress " * 8192))
        producer.send(Message(TOPIC, "grüße, 世界 🚀", tags="标签"))
        producer.send(Message(TOPIC, b"\0"))


def pulled(namesrv: str, topic: str) -> list[Seen]:
    """Return every message of a topic, as our client pulls it from the broker."""
    with Admin(namesrv) as admin, PullConsumer(namesrv=namesrv) as consumer:
        queues = consumer.queues(topic)
        wanted = sum(admin.offset_max(queue) - admin.offset_min(queue) for queue in queues)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)
        found: list[MessageExt] = []
        until(f"{wanted} messages of {topic}", lambda: len(found.__iadd__(consumer.poll(200))) >= wanted)
    return sorted(
        Seen(
            each.topic,
            each.queue_id,
            each.queue_offset,
            each.body,
            each.properties.get("KEYS", ""),
            each.properties.get("TAGS", ""),
            each.born_timestamp_ms,
            each.store_timestamp_ms,
            dict(each.properties),
        )
        for each in found
    )


def seen(rows: list[Row]) -> list[Seen]:
    return sorted(
        Seen(
            row.topic,
            row.queue,
            row.offset,
            bytes(row.body),
            row["keys"] or "",
            row.tags or "",
            round(row.born_time.timestamp() * 1000),
            round(row.store_time.timestamp() * 1000),
            dict(row.properties),
        )
        for row in rows
    )


def reading(spark: SparkSession, namesrv: str, **options: Any) -> Any:  # noqa: F811
    return spark.read.format("rocketmq").options(namesrv=namesrv, **options).load()


def test_a_batch_has_every_message_as_the_client_pulls_it(spark, servers) -> None:  # noqa: F811
    rows = reading(spark, servers.namesrv, subscribe=f"{TOPIC},{BATCHED}", maxMessagesPerPartition=100).collect()
    wanted = sorted(pulled(servers.namesrv, TOPIC) + pulled(servers.namesrv, BATCHED))
    assert len(wanted) == 603 + 200
    assert seen(rows) == wanted
    assert {(row.broker, row.read_from, row.store_host) for row in rows} == {("broker-a", "master", servers.broker_address)}
    assert len({row.message_id for row in rows}) == len(rows)


def test_options_narrow_what_apaches_broker_is_asked_for(spark, servers) -> None:  # noqa: F811
    whole = pulled(servers.namesrv, TOPIC)
    tagged = reading(spark, servers.namesrv, subscribe=TOPIC, tags="Tag1 || 标签").collect()
    assert seen(tagged) == [each for each in whole if each.tags in ("Tag1", "标签")]
    middle = whole[len(whole) // 2].store_ms
    later = reading(
        spark, servers.namesrv, subscribe=TOPIC, startingTimestamp=middle, startingOffsetsByTimestampStrategy="latest"
    )
    assert seen(later.collect()) == [each for each in whole if each.store_ms >= middle]
    ends = json.dumps({TOPIC: {"broker-a": {"0": 20, "1": 0, "2": 0, "3": 0}}})
    begins = json.dumps({TOPIC: {"broker-a": {"0": 5}}})
    part = reading(spark, servers.namesrv, subscribe=TOPIC, startingOffsets=begins, endingOffsets=ends)
    assert seen(part.collect()) == [each for each in whole if each.queue == 0 and 5 <= each.offset < 20]


def test_available_now_has_each_offset_once_and_goes_on_where_it_ended(spark, servers, tmp_path: Path) -> None:  # noqa: F811
    def run() -> None:
        rows = (
            spark.readStream.format("rocketmq")
            .options(namesrv=servers.namesrv, subscribe=TOPIC, startingOffsets="earliest", maxMessagesPerTrigger=250)
            .load()
        )
        writing = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writing.option("path", str(tmp_path / "rows")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    run()
    assert seen(spark.read.parquet(str(tmp_path / "rows")).collect()) == pulled(servers.namesrv, TOPIC)
    send(servers.namesrv, 40)
    run()
    assert seen(spark.read.parquet(str(tmp_path / "rows")).collect()) == pulled(servers.namesrv, TOPIC)


def test_what_the_sink_writes_is_what_clients_get(spark, servers) -> None:  # noqa: F811
    rows = [(f"body {number}".encode(), f"key{number}", f"Tag{number % 2}", {"n": str(number)}) for number in range(300)]
    frame = spark.createDataFrame(rows, "body binary, keys string, tags string, properties map<string,string>")
    frame.write.format("rocketmq").options(namesrv=servers.namesrv, topic=WRITTEN).mode("append").save()
    found = pulled(servers.namesrv, WRITTEN)
    assert sorted((each.body, each.keys, each.tags, each.properties["n"]) for each in found) == sorted(
        (body, keys, tags, properties["n"]) for body, keys, tags, properties in rows
    )
    assert len({each.properties["DEDUP_KEY"] for each in found}) == 300
    # Apache's own index must find what Spark wrote.
    with Admin(servers.namesrv) as admin:
        until("the index", lambda: len(admin.query_messages(WRITTEN, "key17")) == 1)


@pytest.mark.parametrize("how", ["clean", "kill"])
def test_a_store_folder_of_apaches_has_every_message(spark, servers, how: str) -> None:  # noqa: F811
    """Must come last in the module, because it stops the broker."""
    if servers.broker is None:
        servers.start_broker()
    store = spark.read.format("rocketmq-store")
    send(servers.namesrv, 30)
    topics = (TOPIC, BATCHED, WRITTEN)
    wanted = sorted(message for topic in topics for message in pulled(servers.namesrv, topic))
    with pytest.raises(Exception, match="a broker runs on"):
        store.load(str(servers.store)).count()
    live = store.option("allowRunning", "true").load(str(servers.store))
    assert live.where("damage is not null").count() == 0
    servers.stop_broker(clean=how == "clean")
    assert (servers.store / "abort").exists() is (how == "kill")
    stopped = spark.read.format("rocketmq-store").load(str(servers.store))
    rows = stopped.collect()
    assert [row.damage for row in rows if row.damage is not None] == []
    assert len({row.file for row in rows}) > 2
    assert seen([row for row in rows if row.topic in topics]) == wanted
    assert {row.body_crc_ok for row in rows} == {True}
    ordered = sorted(rows, key=lambda row: row.physical_offset)
    for row, after in pairwise(ordered):
        # There is no gap between two records of one file. At a file's end there is a blank record.
        gap = after.physical_offset - row.physical_offset - row.size
        assert gap == 0 or (gap > 0 and after.physical_offset % LOG_FILE_SIZE == 0)
