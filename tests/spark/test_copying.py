"""Copies from topic to topic: once, going on, following; order, errors of a batch, bad input."""

import pytest

pytest.importorskip("pyspark")

from rmqkit import Message
from rmqkit.errors import ConfigError
from rmqkit.spark import ranges
from rmqkit.spark.pipelines import forwarding
from rmqkit.spark.pipelines.copying import copy
from tests.spark.lakes import stored


def send(own, topic, begin, end):
    producer = own.producer()
    for number in range(begin, end):
        producer.send(Message(topic, b"%d" % number, keys=f"k{number}"), ordering_key=f"k{number % 3}")


def bodies(own, topic):
    """By queue, in their order there."""
    found = {}
    for message in stored(own, topic):
        found.setdefault((message.queue.broker_name, message.queue.queue_id), []).append(message.body)
    return found


def test_a_copy_goes_on(spark, own, tmp_path):
    """Every queue has its messages in their order, on the same broker and under the same number."""
    topic, to_topic = own.topic("from"), own.topic("to")
    send(own, topic, 0, 20)
    told = []
    done = copy(
        spark,
        topic,
        to_topic,
        namesrv=own.namesrv,
        checkpoint=tmp_path,
        options={"maxMessagesPerTrigger": "15"},
        on_progress=told.append,
    )
    assert (done.rows, done.batches, told[-1].lag) == (20, 2, 0)
    assert sum(ranges.flat(done.offsets).values()) == 20
    assert bodies(own, to_topic) == bodies(own, topic)
    send(own, topic, 20, 30)

    def stop():
        return told[-1].rows == 10

    done = copy(
        spark,
        topic,
        to_topic,
        namesrv=own.namesrv,
        checkpoint=tmp_path,
        follow=True,
        trigger="200 milliseconds",
        on_progress=told.append,
        stop=stop,
    )
    assert done.rows == 10
    assert bodies(own, to_topic) == bodies(own, topic)
    keys = [message.properties["DEDUP_KEY"] for message in stored(own, to_topic)]
    assert len(set(keys)) == 30


def test_a_batch_that_failed_is_sent_again_with_the_same_keys(spark, own, tmp_path, monkeypatch):
    topic, to_topic = own.topic("from"), own.topic("to")
    send(own, topic, 0, 6)
    write = forwarding.write

    def dies(*args, **named):
        write(*args, **named)
        raise RuntimeError("killed after it has sent")

    monkeypatch.setattr(forwarding, "write", dies)
    with pytest.raises(RuntimeError, match="killed after it has sent"):
        copy(spark, topic, to_topic, namesrv=own.namesrv, checkpoint=tmp_path, order="key")
    monkeypatch.undo()
    assert copy(spark, topic, to_topic, namesrv=own.namesrv, checkpoint=tmp_path, order="key").rows == 6
    found = stored(own, to_topic)
    assert len(found) == 12
    assert len({(message.body, message.properties["DEDUP_KEY"]) for message in found}) == 6


def test_what_cannot_be(spark, own):
    with pytest.raises(ConfigError, match="T cannot be copied into itself"):
        copy(spark, "T", "T", namesrv=own.namesrv)
    with pytest.raises(ConfigError, match="wants a checkpoint"):
        copy(spark, "T", "U", namesrv=own.namesrv, follow=True)
    with pytest.raises(ConfigError, match="requireStatus is not known"):
        copy(spark, "T", "U", namesrv=own.namesrv, sink_options={"requireStatus": "any"})
