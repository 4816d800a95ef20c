"""ACK_MESSAGE: the acks of one turn share a record for each checkpoint, and its fate."""

import errno
import json

from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.handlers.pop_requests import INVISIBLE_MS, ack_fields, fill, popped
from tests.broker.handlers.test_pop import bodies, revive_records
from tests.broker.requests import with_topic
from tests.helpers.script import write_command

#: when a message that was popped now is there again, with the time of one wake-up
AGAIN_MS = INVISIBLE_MS + 1_001


def acks_in_one_turn(client, *messages):
    """Send an ack for each message in one turn; return the answers' codes in order."""
    frames = [
        write_command(RequestCode.ACK_MESSAGE, ack_fields(message), opaque=5_000 + number)
        for number, message in enumerate(messages)
    ]
    client.send(b"".join(frames))
    answers = {answer.opaque: answer.code for answer in client.take()}
    assert len(answers) == len(messages), "each ack is answered once"
    return [answers[5_000 + number] for number in range(len(messages))]


def ack_records(client):
    return [record for record in revive_records(client) if b"TAGS\x01ck\x02" not in record.properties]


def test_the_acks_of_a_checkpoint_are_one_record(broker):
    client = with_topic(broker)
    fill(client, 4)
    found = popped(broker, client)
    assert acks_in_one_turn(client, found[0], found[3], found[1]) == [0, 0, 0]
    (record,) = ack_records(client)
    pop_ms = int(found[0].handle.split(" ")[1])
    assert json.loads(record.body) == {
        "ao": -1, "aol": [0, 3, 1], "bn": "broker-a", "c": "CG", "pt": pop_ms, "q": 0, "so": 0, "t": "T",
    }  # fmt: skip
    assert b"TAGS\x01bAck\x02" in record.properties
    broker.advance(AGAIN_MS)
    assert bodies(popped(broker, client)) == [found[2].body]


def test_an_ack_that_is_repeated_in_its_turn_is_stored_once(broker):
    client = with_topic(broker)
    fill(client, 2)
    found = popped(broker, client)
    assert acks_in_one_turn(client, *[found[1]] * 50) == [0] * 50
    (record,) = ack_records(client)
    assert json.loads(record.body)["ao"] == 1
    broker.advance(AGAIN_MS)
    assert bodies(popped(broker, client)) == [found[0].body]


def test_each_checkpoint_has_a_record_of_its_own(broker):
    client = with_topic(broker)
    fill(client, 2)
    first, second = popped(broker, client, maxMsgNums="1"), popped(broker, client, maxMsgNums="1")
    assert acks_in_one_turn(client, *first, *second) == [0, 0]
    assert len(ack_records(client)) == 2
    assert not len(broker.node.view.revive.pending)


def test_acks_that_are_not_stored_are_all_refused(broker):
    client = with_topic(broker)
    fill(client, 2)
    found = popped(broker, client)
    broker.disk.write_error = OSError(errno.ENOSPC, "No space left on device")
    assert acks_in_one_turn(client, *found) == [ResponseCode.SYSTEM_ERROR] * 2
    broker.disk.write_error = None
    broker.advance(AGAIN_MS)
    assert sorted(bodies(popped(broker, client))) == sorted(each.body for each in found)


def test_acks_are_refused_if_the_duty_stops_in_their_turn(broker):
    client = with_topic(broker)
    fill(client, 2)
    found = popped(broker, client)
    records = len(revive_records(client))
    node = broker.node
    broker.turn(lambda: (
        node.received(
            client.conn,
            b"".join(write_command(RequestCode.ACK_MESSAGE, ack_fields(each), opaque=n) for n, each in enumerate(found)),
        ),
        node.view.revive.stop(),
    ))  # fmt: skip
    assert [answer.code for answer in client.take()] == [ResponseCode.SYSTEM_ERROR] * 2
    assert len(revive_records(client)) == records


def test_an_ack_is_read_from_the_topic_if_other_records_precede_it(broker):
    """What this broker has put is applied without a read only if its record is the next one."""
    client = with_topic(broker)
    fill(client, 2)
    found = popped(broker, client)
    revive = broker.node.view.revive
    (pending,) = revive.pending
    queue = revive.pending.revive_queues[pending.revive_queue]
    queue.next -= 1  # as if the checkpoint were unread
    assert acks_in_one_turn(client, *found) == [0, 0]
    assert queue.next == queue.finished == queue.awaited
    assert not len(revive.pending)
