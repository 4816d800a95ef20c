"""ACK, BATCH_ACK and CHANGE_INVISIBLETIME: handles that are valid, and all kinds that are not."""

import errno
import json

import pytest

from rmqkit.wire.codes import ResponseCode
from tests.broker.handlers.pop_requests import (
    INVISIBLE_MS,
    ack,
    batch_ack,
    batch_of,
    change,
    changed,
    fill,
    popped,
)
from tests.broker.handlers.test_pop import bodies, revive_records
from tests.broker.requests import with_topic

#: when a message that was popped now is there again, with the time of one wake-up
AGAIN_MS = INVISIBLE_MS + 1_001


def test_an_acked_message_does_not_come_again(broker):
    client = with_topic(broker)
    fill(client, 3)
    found = popped(broker, client)
    assert ack(client, found[1]).code == 0
    broker.advance(AGAIN_MS)
    assert bodies(popped(broker, client)) == [found[0].body, found[2].body]


def test_the_ack_is_what_apache_reads(broker):
    client = with_topic(broker)
    fill(client, 1)
    (message,) = popped(broker, client)
    ack(client, message)
    pop_ms = int(message.handle.split(" ")[1])
    record = revive_records(client)[-1]
    assert record.body.decode() == f'{{"ao":0,"bn":"broker-a","c":"CG","pt":{pop_ms},"q":0,"so":0,"t":"T"}}'
    text = record.properties.decode()
    assert "TAGS\x01ack\x02" in text
    assert f"UNIQ_KEY\x01T@0@0@CG@{pop_ms}@broker-a@ack\x02" in text
    assert f"TIMER_DELIVER_MS\x01{pop_ms + INVISIBLE_MS}\x02" in text


def test_a_million_acks_of_one_handle_write_one_record(broker):
    client = with_topic(broker)
    fill(client, 1)
    (message,) = popped(broker, client)
    for _ in range(100):
        assert ack(client, message).code == 0
    assert batch_ack(client, *[batch_of([message])] * 100).code == 0
    assert len(revive_records(client)) == 2


def test_a_handle_of_a_delivery_that_expired_acks_nothing(broker):
    client = with_topic(broker)
    fill(client, 1)
    (first,) = popped(broker, client)
    broker.advance(AGAIN_MS)
    assert ack(client, first).code == 0
    assert change(client, first, 5_000).code == 0
    (again,) = popped(broker, client)
    broker.advance(AGAIN_MS)
    assert len(popped(broker, client)) == 1, "only the new handle would have acked it"
    assert again.handle != first.handle


def test_an_ack_that_is_not_stored_is_refused(broker):
    client = with_topic(broker)
    fill(client, 1)
    (message,) = popped(broker, client)
    broker.disk.write_error = OSError(errno.ENOSPC, "No space left on device")
    assert ack(client, message).code == ResponseCode.SYSTEM_ERROR
    broker.disk.write_error = None
    assert ack(client, message).code == 0
    broker.advance(AGAIN_MS)
    assert popped(broker, client) == []


# --- batches


def test_a_batch_acks_what_its_bits_mark(broker):
    client = with_topic(broker)
    fill(client, 10)
    found = popped(broker, client)
    assert batch_ack(client, batch_of([found[0], found[9], found[4]])).code == 0
    record = revive_records(client)[-1]
    assert json.loads(record.body)["aol"] == [0, 4, 9]
    assert b"TAGS\x01bAck\x02" in record.properties
    broker.advance(AGAIN_MS)
    assert bodies(popped(broker, client)) == sorted(found[each].body for each in (1, 2, 3, 5, 6, 7, 8))


def test_a_batch_acks_redelivered_messages(broker):
    client = with_topic(broker)
    fill(client, 2)
    popped(broker, client)
    broker.advance(AGAIN_MS)
    assert batch_ack(client, batch_of(popped(broker, client)), broker_name="").code == 0
    broker.advance(AGAIN_MS)
    assert popped(broker, client) == []


def test_a_batch_may_use_the_long_names(broker):
    client = with_topic(broker)
    fill(client, 1)
    item = batch_of(popped(broker, client))
    names = {
        "b": "bitSet",
        "c": "consumerGroup",
        "it": "invisibleTime",
        "pt": "popTime",
        "q": "queueId",
        "r": "retry",
        "rq": "reviveQueueId",
        "so": "startOffset",
        "t": "topic",
    }
    assert batch_ack(client, {names[key]: value for key, value in item.items()}).code == 0
    broker.advance(AGAIN_MS)
    assert popped(broker, client) == []


# --- invisible times


def test_a_changed_invisible_time_counts_from_now(broker):
    client = with_topic(broker)
    fill(client, 2)
    first, second = popped(broker, client)
    changed(client, first, 5_000)
    changed(client, second, 120_000)
    broker.advance(6_001)
    (again,) = popped(broker, client)
    assert (again.body, again.reconsume_times) == (first.body, 1)
    broker.advance(60_000)
    assert [each.body for each in popped(broker, client)] == [again.body], "the second one's first time is over"
    broker.advance(60_000)
    assert second.body in [each.body for each in popped(broker, client)]


def test_the_new_handle_acks_and_the_old_one_does_not(broker):
    client = with_topic(broker)
    fill(client, 2)
    first, second = popped(broker, client)
    new = changed(client, first, 5_000)
    changed(client, second, 5_000)
    assert ack(client, new).code == 0
    assert ack(client, second).code == 0
    broker.advance(6_001)
    assert bodies(popped(broker, client)) == [second.body]


def test_a_time_of_zero_gives_the_message_back(broker):
    client = with_topic(broker)
    fill(client, 1)
    (message,) = popped(broker, client)
    changed(client, message, 0)
    broker.advance(1_000)
    assert len(popped(broker, client)) == 1


def test_a_suspended_delivery_is_no_failed_one(broker):
    client = with_topic(broker)
    fill(client, 1)
    (message,) = popped(broker, client)
    changed(client, message, 1_000, suspend="true")
    broker.advance(2_001)
    (again,) = popped(broker, client)
    assert again.reconsume_times == 0


@pytest.mark.parametrize("invisible_ms", [-1, 10 * 365 * 86_400_000])
def test_a_time_beyond_the_limits_is_refused(broker, invisible_ms):
    client = with_topic(broker)
    fill(client, 1)
    (message,) = popped(broker, client)
    assert change(client, message, invisible_ms).code == ResponseCode.INVALID_PARAMETER


def test_the_end_of_the_queue_is_no_message_to_change(broker):
    client = with_topic(broker)
    fill(client, 1)
    (message,) = popped(broker, client)
    assert change(client, message, 1_000, offset=1).code == ResponseCode.NO_MESSAGE
    assert ack(client, message, offset=1).code == 0, "but upstream lets it be acked"
