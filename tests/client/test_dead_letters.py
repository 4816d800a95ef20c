"""Dead letters: what a requeued copy keeps, and where a requeue continues after an error."""

import pytest

from rmqkit.client.admin.dead_letters import DeadLetterQueue, copy_of, requeue_step
from rmqkit.client.admin.groups import AdminCore
from rmqkit.client.flow import Deferred, start
from rmqkit.client.message import MessageExt
from rmqkit.errors import ClientError
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag, RequestCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.record import iter_records
from tests.client.group import found, offsets, record
from tests.client.peers import A, Peers, route

PROPERTIES = b"RETRY_TOPIC\x01T\x02ORIGIN_MESSAGE_ID\x01OID\x02KEYS\x01k\x02a\x01b\x02DELAY\x01-1\x02UNIQ_KEY\x01ID\x02"
DLQ = MessageQueue("%DLQ%G", "broker-a", 0)


def letter(properties: bytes = PROPERTIES, **more) -> MessageExt:
    (plain,) = iter_records(record(3, b"dead", topic="%DLQ%G", properties=properties, reconsume_times=17, **more))
    return MessageExt(plain, "broker-a")


def test_a_copy_is_a_first_delivery_for_its_group():
    copy = copy_of(letter(sys_flag=MessageSysFlag.COMPRESSED), "G", None)
    assert (copy.topic, copy.body, copy.reconsume_times, copy.max_reconsume_times) == ("%RETRY%G", b"dead", 0, None)
    assert copy.sys_flag == MessageSysFlag.COMPRESSED
    assert props.decode(copy.properties.encode()) == {
        "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "OID", "KEYS": "k", "a": "b", "UNIQ_KEY": "ID",
    }  # fmt: skip


def test_a_copy_for_a_topic_is_a_plain_message_of_it():
    copy = copy_of(letter(), "G", "U")
    assert copy.topic == "U"
    assert "RETRY_TOPIC" not in props.decode(copy.properties.encode())


def test_a_letter_without_its_topic_needs_one():
    with pytest.raises(ClientError, match="choose a topic"):
        copy_of(letter(b"UNIQ_KEY\x01ID\x02"), "G", None)
    assert copy_of(letter(b"UNIQ_KEY\x01ID\x02"), "G", "U").topic == "U"


def test_a_requeue_continues_at_the_copy_that_failed():
    peers = Peers(routes={each: route(("broker-a", {0: A}), queues=1) for each in ("%DLQ%G", "%RETRY%G")})
    state = DeadLetterQueue("G", DLQ, 0, 0, 3)
    box: list[Deferred] = []
    peers.do(lambda: box.append(start(requeue_step(AdminCore(peers.client), state))))
    letters = [record(number, b"dead", topic="%DLQ%G", properties=PROPERTIES) for number in range(3)]
    found(peers.take(RequestCode.PULL_MESSAGE), *letters, next_offset=3)
    sent = {"msgId": "0A00020100002A9F0000000000000001", "queueId": "0", "queueOffset": "7"}
    peers.take(RequestCode.SEND_MESSAGE_V2).answer(0, sent)
    while refused := peers.take_all(RequestCode.SEND_MESSAGE_V2):  # the producer tries three times
        for asked in refused:
            assert "%RETRY%G" in asked.ext.values()
            asked.answer(16, remark="forbidden")
    commit = peers.take(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert (commit.ext["consumerGroup"], commit.ext["topic"], commit.ext["commitOffset"]) == (
        "TOOLS_CONSUMER",
        "%DLQ%G",
        "1",
    )
    commit.answer()
    after, requeued, error = box[0].result()
    assert (after.offset_requeued, after.fresh, requeued) == (1, 2, 1)
    assert "forbidden" in str(error)


def test_letters_that_were_deleted_with_their_file_are_skipped():
    peers = Peers(routes={each: route(("broker-a", {0: A}), queues=1) for each in ("%DLQ%G", "%RETRY%G")})
    box: list[Deferred] = []
    peers.do(lambda: box.append(start(requeue_step(AdminCore(peers.client), DeadLetterQueue("G", DLQ, 0, 0, 3)))))
    peers.take(RequestCode.PULL_MESSAGE).answer(21, offsets(3, low=3, high=3))
    commit = peers.take(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert commit.ext["commitOffset"] == "3"
    commit.answer()
    assert box[0].result() == (DeadLetterQueue("G", DLQ, 0, 3, 3), 0, None)
