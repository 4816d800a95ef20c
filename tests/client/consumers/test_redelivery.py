"""Failed messages: sent back, else copied to the retry topic, else kept. Slow listeners.

Source: `DefaultMQPushConsumerImpl.sendMessageBack`,
`ConsumeMessageConcurrentlyService.cleanExpireMsg`.
"""

import json

import pytest

from rmqkit.client.consumers.redelivery import copy_for_retry
from rmqkit.client.message import MessageExt
from rmqkit.wire import properties as props
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.record import iter_records
from tests.client.group import MEMBERS, PULL, SEND_BACK, Group, found, members, offsets, record
from tests.client.peers import CLIENT_ID, A, B, Peers, route

SEND = RequestCode.SEND_MESSAGE_V2
RETRY = "%RETRY%CG"
ONE_QUEUE = route(("broker-a", {0: A}), queues=1)
MINUTE = 60_000
SENT = {"msgId": "0A00020100002A9F0000000000000001", "queueId": "0", "queueOffset": "7"}


@pytest.fixture
def peers():
    return Peers(routes={"T": ONE_QUEUE, RETRY: ONE_QUEUE})


def running(peers, **settings) -> Group:
    group = Group(peers, **settings)
    for _ in range(3):
        group.join()
    return group


def pass_time(peers, group, ms) -> dict[str, str]:
    """Let time pass while the broker has no new message. Returns the offsets stored meanwhile."""
    stored = {}
    while ms > 0:
        peers.advance(min(ms, 1000), 500)
        ms -= 1000
        for asked in peers.take_all(PULL):
            asked.answer(19, offsets(int(asked.ext["queueOffset"])))
        for asked in peers.take_all(MEMBERS):
            asked.answer(0, body=members(CLIENT_ID))
        stored |= group.commits()
    return stored


def answer_sends(peers) -> None:
    """Refuse all copies, however often they are retried."""
    while sends := peers.take_all(SEND):
        for asked in sends:
            asked.answer(16, remark="forbidden")


def failed(peers, group, *records) -> None:
    """Fail the listener with the only message, and refuse to take it back."""
    found(group.pull(), *(records or [record(0, b"bad", properties=b"UNIQ_KEY\x01ID\x02")]), next_offset=1)
    group.finish(False)
    peers.take(SEND_BACK).answer(1, remark="no")


def test_a_refused_send_back_becomes_a_send_to_the_retry_topic(peers):
    """`sendMessageBackAsNormalMessage`; RECONSUME_TIME and MAX_RECONSUME_TIMES become header
    fields.
    """
    group = running(peers, max_reconsume_times=5)
    wire = record(
        0,
        b"bad",
        reconsume_times=2,
        flag=9,
        properties=b"UNIQ_KEY\x01ID\x02TRAN_MSG\x01true\x02ORIGIN_MESSAGE_ID\x01first\x02",
    )
    failed(peers, group, wire)
    asked = peers.take(SEND)
    ext = asked.ext
    assert (ext["a"], ext["b"], ext["c"], ext["h"]) == ("CLIENT_INNER_PRODUCER", RETRY, "TBW102", "9")
    assert (ext["j"], ext["l"], ext["m"]) == ("3", "5", "false")
    mapping = props.decode(ext["i"].encode())
    assert mapping == {"UNIQ_KEY": "ID", "ORIGIN_MESSAGE_ID": "first", "RETRY_TOPIC": "T", "DELAY": "5"}
    assert asked.command.body == b"bad"
    asked.answer(0, SENT)
    peers.advance(5000)
    assert group.commits() == {"0": "1"}
    assert not group.batches, "it comes again from the retry topic"


def test_a_message_that_no_broker_takes_back_stays_with_the_consumer(peers):
    group = running(peers)
    failed(peers, group)
    answer_sends(peers)
    pass_time(peers, group, 5500)
    assert group.batches[0].messages[0].reconsume_times == 1


def test_with_its_broker_gone_another_one_takes_it():
    both = route(("broker-a", {0: A}), ("broker-b", {0: B}), queues=1)
    peers = Peers(routes={"T": ONE_QUEUE, RETRY: both})
    group = running(peers)
    found(group.pull(), record(0, b"bad"), next_offset=1)
    peers.states[A] = "down"
    peers.cut(A)
    group.finish(False)
    peers.advance(200)
    asked = peers.take(SEND)
    assert (asked.address, asked.ext["b"]) == (B, RETRY)
    asked.answer(0, SENT)
    peers.advance(10_000)
    assert not group.batches


def test_dead_letters_of_an_orderly_group_go_that_way_too(peers):
    group = Group(peers, orderly=True, max_reconsume_times=0)
    for _ in range(3):
        for asked in peers.take_all(RequestCode.LOCK_BATCH_MQ):
            body = asked.command.json
            asked.answer(0, body=json.dumps({"lockOKMQSet": body["mqSet"]}).encode())
        group.join()
    failed(peers, group)
    asked = peers.take(SEND)
    assert (asked.ext["b"], asked.ext["j"], asked.ext["l"]) == (RETRY, "1", "0"), "past the limit: dead"


def test_a_compressed_body_is_copied_as_it_is():
    (wire,) = iter_records(record(0, b"squeezed", sys_flag=0x1 | 0x300 | 0x8))
    copy = copy_for_retry(MessageExt(wire, "broker-a"), "CG", 16)
    assert (copy.body, copy.sys_flag) == (b"squeezed", 0x301), "no bit of a transaction"
    assert copy.msg_id == props.decode(copy.properties.encode())["ORIGIN_MESSAGE_ID"]


def test_a_redelivered_message_knows_its_first_id(peers):
    (wire,) = iter_records(record(0, properties=b"ORIGIN_MESSAGE_ID\x01ABC\x02"))
    assert MessageExt(wire, "broker-a").origin_msg_id == "ABC"
    (plain,) = iter_records(record(0))
    assert MessageExt(plain, "broker-a").origin_msg_id is None


# --- listeners that take too long


def at_work(peers, count=1, **settings) -> Group:
    """Begin the listener with the first pulled message."""
    group = running(peers, **settings)
    found(group.pull(), *[record(number, b"%d" % number) for number in range(count)], next_offset=count)
    peers.do(lambda: group.consumer.began(group.batches[0]))
    return group


def test_after_15_minutes_a_message_is_sent_back_and_let_go(peers):
    group = at_work(peers)
    pass_time(peers, group, 15 * MINUTE - 100)
    assert not peers.times(SEND_BACK)
    pass_time(peers, group, 100)
    asked = peers.take(SEND_BACK)
    assert asked.ext["delayLevel"] == "3"
    asked.answer()
    assert pass_time(peers, group, 10_000) == {"0": "1"}
    group.finish(False)
    assert pass_time(peers, group, 10_000) == {}
    assert peers.times(SEND_BACK) == 1, "its failure is known"


def test_only_what_its_listener_has_begun_with_can_take_too_long(peers):
    group = at_work(peers, 2, consume_timeout_ms=MINUTE)
    pass_time(peers, group, 30_000)
    peers.do(lambda: group.consumer.began(group.batches[1]))
    pass_time(peers, group, 30_000)
    peers.take(SEND_BACK).answer()
    pass_time(peers, group, 29_900)
    assert peers.times(SEND_BACK) == 1
    pass_time(peers, group, 100)
    assert peers.take(SEND_BACK).ext["offset"] == "1001"


def refuse(peers) -> None:
    """Refuse to take any message back."""
    peers.take(SEND_BACK).answer(1)
    answer_sends(peers)


def test_one_that_nobody_takes_back_is_left_to_its_listener(peers):
    group = at_work(peers, consume_timeout_ms=MINUTE)
    for _ in range(2):
        pass_time(peers, group, MINUTE)
        refuse(peers)
    group.finish(True)
    assert pass_time(peers, group, 10_000) == {"0": "1"}


def test_one_that_failed_while_it_was_sent_back_in_vain_comes_again(peers):
    group = at_work(peers, consume_timeout_ms=MINUTE)
    pass_time(peers, group, MINUTE)
    group.finish(False)
    refuse(peers)
    pass_time(peers, group, 5500)
    assert group.batches[0].messages[0].reconsume_times == 1


def test_one_that_is_done_in_time_is_done(peers):
    group = at_work(peers, consume_timeout_ms=MINUTE)
    pass_time(peers, group, MINUTE - 100)
    group.finish(True)
    pass_time(peers, group, 2 * MINUTE)
    assert not peers.times(SEND_BACK)


def test_broadcasting_knows_no_such_limit(peers):
    group = at_work(peers, broadcasting=True, consume_timeout_ms=MINUTE)
    pass_time(peers, group, 3 * MINUTE)
    assert not peers.times(SEND_BACK)
