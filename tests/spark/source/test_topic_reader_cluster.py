"""Ranges read from real brokers contain the same messages that a consumer gets.

One test kills the master in the middle of a range.
"""

from rmqkit import Message
from rmqkit.cluster.health.caller import NoAnswer
from rmqkit.drill.real.node_client import NodeClient
from rmqkit.spark.columns import COLUMNS, arrow_schema
from rmqkit.spark.options import parse
from rmqkit.spark.source import topic_reader
from rmqkit.spark.source.ranges import OffsetRange
from rmqkit.spark.source.replicas import members_of
from rmqkit.spark.source.topic_reader import RangeReader
from rmqkit.testing import factories
from tests.api.until import until
from tests.spark.stand_in import close_idle_links

up = factories.cluster(groups=1, replicas=2, nameservers=1, settings={"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"})
replicated = factories.clean("up")


def ranges_of(consumer, topic):
    return [
        OffsetRange(topic, queue.broker_name, queue.queue_id, consumer.offset_min(queue), consumer.offset_max(queue))
        for queue in sorted(consumer.queues(topic))
    ]


def rows_of(namesrv, ranges, **more):
    options, schema = parse({"namesrv": namesrv, "subscribe": "T", **more}, "batch"), arrow_schema(COLUMNS)
    return [row for each in ranges for batch in RangeReader(each, options, schema).batches() for row in batch.to_pylist()]


def slave_shows(namesrv, whole):
    """Return whether the slave serves the whole range.

    A slave learns of a new topic shortly after it has the topic's messages.
    """
    options = parse({"namesrv": namesrv, "subscribe": whole.topic}, "batch")
    (slave,) = [each for each in members_of(options, whole.topic, whole.broker) if each.broker_id]
    try:
        with NodeClient(*slave.address, 5) as asked:
            return asked.pull(whole.topic, whole.queue, whole.end - 1)[1] == whole.end
    except NoAnswer:
        return False


def test_rows_are_the_messages_that_a_consumer_gets(replicated):
    topic = replicated.topic("orders", queue_nums=2)
    producer = replicated.producer()
    for number in range(40):
        big = b"much of the same " * 400 if number % 5 == 0 else b""
        tags = ("a", "b", None)[number % 3]
        producer.send(
            Message(topic, big + b"%d" % number, keys=[f"k{number}", "all"], tags=tags, properties={"n": str(number)})
        )
    producer.send_batch([Message(topic, b"batch", keys=f"b{number}") for number in range(20)])
    consumer = replicated.pull_consumer()
    ranges = ranges_of(consumer, topic)
    queues = sorted(consumer.queues(topic))
    consumer.assign(queues)
    for queue in queues:
        consumer.seek(queue, 0)
    messages = []
    while len(messages) < 60:
        messages += consumer.poll(timeout_ms=10_000)
    by_place = {(message.queue_id, message.queue_offset): message for message in messages}
    rows = rows_of(replicated.namesrv, ranges)
    assert [(row["queue"], row["offset"]) for row in rows] == sorted(by_place)
    for row in rows:
        message = by_place[row["queue"], row["offset"]]
        assert (row["topic"], row["broker"], row["read_from"]) == (topic, message.broker_name, "master")
        assert (row["message_id"], row["keys"], row["tags"]) == (message.msg_id, message.keys, message.tags)
        assert (row["body"], dict(row["properties"])) == (message.body, message.properties)
        assert (row["born_host"], row["store_host"]) == (message.born_host, message.store_host)
        assert row["store_time"].timestamp() * 1000 == message.store_timestamp_ms
        assert (row["sys_flag"], row["reconsume_times"]) == (message.record.sys_flag, 0)
    tagged = rows_of(replicated.namesrv, ranges, tags="a || b")
    assert [row["body"] for row in tagged] == [row["body"] for row in rows if row["tags"] in ("a", "b")]


def test_a_master_that_is_killed_in_the_middle_of_a_range(replicated, monkeypatch):
    topic = replicated.topic("much", queue_nums=1)
    producer = replicated.producer()
    count = 2000
    for begin in range(0, count, 100):
        producer.send_batch([Message(topic, b"%d" % number) for number in range(begin, begin + 100)])
    (whole,) = ranges_of(replicated.pull_consumer(), topic)
    assert whole.end == count
    until(lambda: slave_shows(replicated.namesrv, whole))
    monkeypatch.setattr(topic_reader, "BATCH_ROWS", 100)
    options = parse({"namesrv": replicated.namesrv, "subscribe": topic, "requestTimeout": "2s"}, "batch")
    reader = RangeReader(whole, options, arrow_schema(["offset", "body", "read_from"])).batches()
    batches = [next(reader)]
    replicated.cluster.kill("master")
    batches += list(reader)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(count))
    assert [row["body"] for row in rows] == [b"%d" % number for number in range(count)]
    assert (rows[0]["read_from"], rows[-1]["read_from"]) == ("master", "slave")
    close_idle_links()
