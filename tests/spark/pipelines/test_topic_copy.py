"""Copies from topic to topic: once, resumed, following; order, failed batches, bad input."""

import pytest

pytest.importorskip("pyspark")

from rmqkit import Message
from rmqkit.errors import ConfigError
from rmqkit.spark.pipelines import forwarder
from rmqkit.spark.pipelines.topic_copy import copy
from rmqkit.spark.source import ranges
from tests.spark.lakes import stored


def send(own, topic, begin, end):
    producer = own.producer()
    for number in range(begin, end):
        producer.send(Message(topic, b"%d" % number, keys=f"k{number}"), ordering_key=f"k{number % 3}")


def bodies(own, topic):
    """Return the bodies of each queue in order.

    Of messages with the same DEDUP_KEY only the first counts.
    """
    found, seen = {}, set()
    for message in stored(own, topic):
        key = message.properties.get("DEDUP_KEY", message.msg_id)
        if key not in seen:
            seen.add(key)
            found.setdefault((message.queue.broker_name, message.queue.queue_id), []).append(message.body)
    return found


@pytest.mark.long
def test_a_copy_goes_on(spark, own, tmp_path, monkeypatch):
    """The copy dies after it sent its second batch, and resumes with the same keys.

    Every queue has its messages in order, on the same broker and under the same number.
    """
    topic, to_topic = own.topic("from"), own.topic("to")
    send(own, topic, 0, 20)
    write, calls, told = forwarder.write, [], []

    def dies(*args, **named):
        calls.append(write(*args, **named))
        if len(calls) == 2:
            raise RuntimeError("killed after it has sent")
        return calls[-1]

    monkeypatch.setattr(forwarder, "write", dies)
    given = {"namesrv": own.namesrv, "checkpoint": tmp_path, "on_progress": told.append}
    with pytest.raises(RuntimeError, match="killed after it has sent"):
        copy(spark, topic, to_topic, options={"maxMessagesPerTrigger": "15"}, **given)
    assert (calls, [each.rows for each in told]) == ([15, 5], [15])
    send(own, topic, 20, 30)

    def stop():
        return told[-1].offsets != told[0].offsets and told[-1].lag == 0

    done = copy(spark, topic, to_topic, follow=True, trigger="200 milliseconds", stop=stop, **given)
    assert done.rows == 15
    assert sum(ranges.flat(done.offsets).values()) == 30
    assert len(stored(own, to_topic)) == 35
    assert bodies(own, to_topic) == bodies(own, topic)


def test_invalid_copies_are_refused(spark, own):
    with pytest.raises(ConfigError, match="T cannot be copied into itself"):
        copy(spark, "T", "T", namesrv=own.namesrv)
    with pytest.raises(ConfigError, match="needs a checkpoint"):
        copy(spark, "T", "U", namesrv=own.namesrv, follow=True)
    with pytest.raises(ConfigError, match="requireStatus is not known"):
        copy(spark, "T", "U", namesrv=own.namesrv, sink_options={"requireStatus": "any"})
