"""Streams in Spark: AvailableNow, a restart from the checkpoint, a new topic, a lost master."""

import time

import pytest

from rmqkit import Message
from rmqkit.testing import factories

LIMIT_S = 120

#: a group with a slave, whose master a test kills
trio = factories.cluster(groups=1, replicas=2, nameservers=1, scope="module")
broken = factories.clean("trio")


def stream(spark, where, **given):
    return spark.readStream.format("rocketmq").options(namesrv=where.namesrv, startingOffsets="earliest", **given).load()


def started(frame, folder, **trigger):
    writing = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return writing.trigger(**trigger).start(str(folder / "rows"))


def rows(spark, folder):
    return spark.read.parquet(str(folder / "rows")).collect()


def wait(query, reached):
    """Wait until `reached` is true; raise the query's error if it fails."""
    for _ in range(LIMIT_S * 10):
        if reached():
            return
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.1)
    raise AssertionError(f"not reached in {LIMIT_S} s: {query.lastProgress}")


def send(own, topic, numbers):
    producer = own.producer(own.name(f"producer-{numbers.start}"))
    for number in numbers:
        producer.send(Message(topic, b"x" * 50, keys=str(number)))


@pytest.mark.long
def test_AvailableNow_reads_each_message_once_over_a_restart(spark, own, tmp_path):
    topic, group = own.topic(queue_nums=2), own.group()
    send(own, topic, range(60))
    frame = stream(spark, own, subscribe=topic, maxMessagesPerTrigger="25", commitGroup=group, columns="keys,queue")
    query = started(frame, tmp_path, availableNow=True)
    query.awaitTermination()
    assert sorted(int(row.keys) for row in rows(spark, tmp_path)) == list(range(60))
    assert [each.numInputRows for each in query.recentProgress if each.numInputRows] == [25, 25, 10]
    # Spark asks for offsets once more after the last batch, so all of them are committed.
    assert sum(each.consumer_offset for each in own.admin.consume_stats(group, topic).values()) == 60
    own.admin.create_topic(topic, queue_nums=3)
    send(own, topic, range(60, 90))
    query = started(frame, tmp_path, availableNow=True)
    query.awaitTermination()
    found = rows(spark, tmp_path)
    assert sorted(int(row.keys) for row in found) == list(range(90))
    assert {row.queue for row in found} == {0, 1, 2}
    other = stream(spark, own, subscribe=own.topic("other"), columns="keys,queue")
    query = started(other, tmp_path, availableNow=True)
    with pytest.raises(Exception, match=f"the checkpoint has topics {topic}, the query reads {own.prefix}other"):
        query.awaitTermination()


@pytest.mark.long
def test_a_query_outlives_its_master_and_finds_new_topics(spark, broken, tmp_path):
    """A topic appears after the first batch; the master dies after the second, with a backlog."""
    topic, later = broken.topic("one", queue_nums=2), broken.name("three")
    broken.topic("two", queue_nums=1)
    send(broken, topic, range(120))
    found = []

    def each_batch(frame, number):
        found.extend(frame.collect())
        if number == 0:
            send(broken, broken.topic("three", queue_nums=1), range(120, 140))
        if number == 1:
            wait_until_copied(broken, later)
            broken.cluster.kill("master")

    given = {"maxMessagesPerTrigger": "40", "requestTimeout": "2s", "columns": "keys,read_from"}
    frame = stream(spark, broken, subscribePattern=broken.prefix + "(one|three)", **given)
    writing = frame.writeStream.foreachBatch(each_batch).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writing.trigger(processingTime="100 milliseconds").start()
    try:
        wait(query, lambda: len(found) >= 140)
    finally:
        query.stop()
    assert sorted(int(row.keys) for row in found) == list(range(140))
    assert {row.read_from for row in found} == {"master", "slave"}


def wait_until_copied(where, topic):
    """Wait until the slave knows the topic. Before that it serves none of the topic's messages."""
    slave = where.admin.queues(topic)[0].broker_name + ":1"
    for _ in range(LIMIT_S * 10):
        if where.admin.topic_config(topic, slave) is not None:
            return
        time.sleep(0.1)
    raise AssertionError(f"the slave has no topic {topic}")
