"""Messages with a delivery time, and their recall, against real brokers."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from rmqkit import Message, aio
from rmqkit.errors import BrokerError, ClientError, InvalidMessage
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.msgid import RecallHandle
from rmqkit.wire.trace import TraceType
from tests.api.test_trace import records_of
from tests.api.until import until


def bodies(own, topic, count):
    reader = own.closes(own.pull_consumer(consume_from="first"))
    reader.assign(reader.queues(topic))
    found = []
    until(lambda: found.extend(reader.poll(100, 100)) or len(found) >= count)
    return found


def test_a_message_is_delivered_at_its_time_unless_it_is_recalled(own):
    topic = own.topic()
    producer = own.producer()
    at = datetime.now(UTC) + timedelta(seconds=2)
    kept = producer.send(Message(topic, b"kept", deliver_at=at))
    gone = producer.send(Message(topic, b"gone", delay_ms=2_500))
    plain = producer.send(Message(topic, b"plain"))
    assert kept.recall_handle
    assert plain.recall_handle is None
    assert producer.recall(gone.recall_handle) == gone.msg_id
    assert sum(own.admin.timer_counts(gone.queue.broker_name).values()) >= 0
    found = bodies(own, topic, 2)
    assert [each.body for each in found] == [b"plain", b"kept"]
    assert found[1].msg_id == kept.msg_id
    assert found[1].store_timestamp_ms >= at.timestamp() * 1000


def test_what_is_no_handle_or_comes_too_late_is_an_error(own):
    topic = own.topic()
    producer = own.producer()
    sent = producer.send(Message(topic, b"x", delay_ms=60_000))
    with pytest.raises(InvalidMessage, match="recall handle is invalid"):
        producer.recall("nonsense")
    late = RecallHandle.decode(sent.recall_handle)._replace(time="1").encode()
    with pytest.raises(BrokerError, match="timestamp invalid") as caught:
        producer.recall(late)
    assert caught.value.code == ResponseCode.ILLEGAL_OPERATION
    with pytest.raises(ClientError, match="has no master"):
        producer.recall(RecallHandle.decode(sent.recall_handle)._replace(broker_name="nobody").encode())


def test_coroutines_recall_too(own):
    topic = own.topic()

    async def main():
        async with aio.Producer(namesrv=own.namesrv) as producer:
            sent = await producer.send(Message(topic, b"x", delay_ms=60_000))
            return sent.msg_id, await producer.recall(sent.recall_handle)

    sent, recalled = asyncio.run(asyncio.wait_for(main(), 40))
    assert sent == recalled


def test_a_recall_is_traced(own):
    topic = own.topic()
    producer = own.closes(own.producer(trace=True))
    sent = producer.send(Message(topic, b"x", delay_ms=60_000))
    producer.recall(sent.recall_handle)
    producer.close()
    until(lambda: {each.type for each in records_of(own, sent.msg_id)} == {TraceType.PUB, TraceType.RECALL})
