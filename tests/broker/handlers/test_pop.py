"""POP_MESSAGE: what a pop gets, when it waits, and what it is refused with."""

import errno
import json

import pytest

from rmqkit.wire import properties as props
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.handlers.pop_requests import (
    INVISIBLE_MS,
    ack,
    fill,
    messages,
    pop,
    pop_fields,
    popped,
)
from tests.broker.requests import pull, records, send, with_topic

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


def bodies(found):
    return sorted(each.body for each in found)


def revive_records(client):
    return [record for queue_id in range(8) for record in records(pull(client, REVIVE, queue_id))]


def test_a_pop_gets_the_messages_of_all_queues(broker):
    client = with_topic(broker)
    for queue_id in range(4):
        send(client, body=b"q%d" % queue_id, e=str(queue_id))
    answer = pop(broker, client)
    assert (answer.code, answer.remark) == (0, "FOUND")
    found = messages(answer)
    assert bodies(found) == [b"q0", b"q1", b"q2", b"q3"]
    ext = answer.ext
    assert ext["invisibleTime"] == str(INVISIBLE_MS)
    assert ext["restNum"] == "0"
    assert sorted(ext["startOffsetInfo"].split(";")) == ["0 0 0", "0 1 0", "0 2 0", "0 3 0"]
    assert sorted(ext["msgOffsetInfo"].split(";")) == ["0 0 0", "0 1 0", "0 2 0", "0 3 0"]


@pytest.mark.parametrize("field", ["pollTime", "bornTime", "initMode"])
def test_a_field_that_java_reads_as_zero_may_be_missing(broker, field):
    """They are primitives of `PopMessageRequestHeader`; a birth at 0 is replaced by the time."""
    client = with_topic(broker)
    fill(client, 1)
    answer = pop(broker, client, queueId="0", **{field: None})
    assert (answer.code, answer.remark) == (0, "FOUND")
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": "1", "pollTime": "0", "bornTime": "0"}
    del fields["bornTime" if field == "initMode" else field]
    assert client.ask(RequestCode.NOTIFICATION, fields).ext["hasMsg"] == "false"


def test_what_was_popped_is_hidden_for_its_invisible_time(broker):
    client = with_topic(broker)
    fill(client, 3)
    assert len(popped(broker, client)) == 3
    assert popped(broker, client) == []
    broker.advance(INVISIBLE_MS - 1)
    assert popped(broker, client) == []
    broker.advance(1_001)
    again = popped(broker, client)
    assert bodies(again) == [b"m0", b"m1", b"m2"]
    assert [each.topic for each in again] == ["T"] * 3
    assert [each.reconsume_times for each in again] == [1] * 3
    assert {each.handle.split(" ")[4] for each in again} == {"1"}
    assert "%RETRY%CG_T" in broker.node.topics.by_name
    assert again[0].properties["ORIGIN_GROUP"] == "CG"


def test_a_pop_takes_no_more_than_it_wants(broker):
    client = with_topic(broker)
    fill(client, 5)
    first = pop(broker, client, maxMsgNums=2, queueId=0)
    assert first.ext["restNum"] == "3"
    assert first.ext["msgOffsetInfo"] == "0 0 0,1"
    second = pop(broker, client, maxMsgNums=2, queueId=0)
    assert second.ext["startOffsetInfo"] == "0 0 2"


def test_the_checkpoint_is_what_apache_reads(broker):
    client = with_topic(broker)
    fill(client, 2)
    answer = pop(broker, client)
    (record,) = revive_records(client)
    pop_ms = int(answer.ext["popTime"])
    assert record.queue_id == int(answer.ext["reviveQid"])
    assert record.body.decode() == (
        f'{{"bm":0,"bn":"broker-a","c":"CG","d":[0,1],"it":60000,"n":2,"pt":{pop_ms},"q":0,'
        f'"reviveTime":{pop_ms + INVISIBLE_MS},"ro":0,"so":0,"sp":false,"t":"T"}}'
    )
    mapping = props.decode(record.properties)
    assert mapping["TAGS"] == "ck"
    assert mapping["TIMER_DELIVER_MS"] == str(pop_ms + INVISIBLE_MS - 1000)
    assert mapping["UNIQ_KEY"] == f"T@0@0@CG@{pop_ms}@broker-a@ck"


def test_the_offset_is_committed_when_the_checkpoint_is_durable(broker):
    client = with_topic(broker)
    fill(client, 3)
    pop(broker, client, queueId=0)
    assert broker.node.offsets.query("CG", "T", 0) == 0
    broker.advance(500)
    assert broker.node.offsets.query("CG", "T", 0) == 3


@pytest.mark.parametrize(("mode", "offset"), [("0", "0"), ("1", "0")])
def test_a_new_group_starts_where_it_wants(broker, mode, offset):
    client = with_topic(broker)
    fill(client, 3)
    assert pop(broker, client, queueId=0, initMode=mode).ext["startOffsetInfo"] == f"0 0 {offset}"


def test_a_new_group_may_start_at_the_newest_message(make):
    broker = make("initPopOffsetByCheckMsgInMem=false")
    client = with_topic(broker)
    fill(client, 3)
    assert pop(broker, client, queueId=0, initMode=1).ext["startOffsetInfo"] == "0 0 2"


def test_tags_are_matched_and_the_others_are_passed(broker):
    client = with_topic(broker)
    for tag in ("A", "B", "A"):
        send(client, body=tag.encode(), i=f"UNIQ_KEY\x01k{tag}\x02TAGS\x01{tag}\x02")
    answer = pop(broker, client, queueId=0, exp="B")
    assert bodies(messages(answer)) == [b"B"]
    assert (answer.ext["startOffsetInfo"], answer.ext["msgOffsetInfo"]) == ("0 0 0", "0 0 1")
    broker.advance(INVISIBLE_MS + 1_001)
    assert bodies(popped(broker, client, exp="B")) == [b"B"]


def test_properties_are_matched(make):
    broker = make("enablePropertyFilter=true")
    client = with_topic(broker)
    for number in range(4):
        send(client, body=b"%d" % number, i=f"UNIQ_KEY\x01k{number}\x02n\x01{number}\x02")
    assert bodies(popped(broker, client, expType="SQL92", exp="n > 2")) == [b"3"]


def test_a_pop_waits_for_a_message(broker):
    client, producer = with_topic(broker), broker.connect()
    opaque = client.tell(RequestCode.POP_MESSAGE, pop_fields(broker, pollTime=15_000))
    assert client.answer_to(opaque) is None
    broker.advance(3_000)
    send(producer, body=b"late", e="2")
    broker.advance(0)
    answer = client.answer_to(opaque)
    assert bodies(messages(answer)) == [b"late"]


def test_a_waiting_pop_is_answered_before_its_poll_time_ends(broker):
    client = with_topic(broker)
    opaque = client.tell(RequestCode.POP_MESSAGE, pop_fields(broker, pollTime=15_000))
    broker.advance(14_949)
    assert client.answer_to(opaque) is None
    broker.advance(1)
    answer = client.answer_to(opaque)
    assert (answer.code, answer.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    assert answer.ext["restNum"] == "0"


def test_one_arrival_wakes_one_waiter_of_each_group(broker):
    client, producer = with_topic(broker), broker.connect()
    waiting = [
        client.tell(RequestCode.POP_MESSAGE, pop_fields(broker, pollTime=15_000, consumerGroup=group))
        for group in ("CG", "CG", "G2")
    ]
    send(producer)
    broker.advance(0)
    answered = [client.answer_to(opaque) is not None for opaque in waiting]
    assert answered == [True, False, True]


def test_a_redelivery_wakes_a_waiter_of_its_group(broker):
    client = with_topic(broker)
    fill(client, 1)
    popped(broker, client, invisibleTime=5_000)
    opaque = client.tell(RequestCode.POP_MESSAGE, pop_fields(broker, pollTime=20_000))
    broker.advance(6_001)
    assert bodies(messages(client.answer_to(opaque))) == [b"m0"]


def test_a_message_of_another_tag_wakes_nobody(broker):
    client, producer = with_topic(broker), broker.connect()
    opaque = client.tell(RequestCode.POP_MESSAGE, pop_fields(broker, pollTime=15_000, exp="A"))
    send(producer, i="UNIQ_KEY\x01k\x02TAGS\x01B\x02")
    broker.advance(0)
    assert client.answer_to(opaque) is None
    send(producer, i="UNIQ_KEY\x01k\x02TAGS\x01A\x02")
    broker.advance(0)
    assert client.answer_to(opaque) is not None


@pytest.mark.parametrize("limit", ["popPollingSize=2", "maxPopPollingSize=2"])
def test_too_many_waiting_pops_are_refused(make, limit):
    broker = make(limit)
    client = with_topic(broker)
    waiting = [client.tell(RequestCode.POP_MESSAGE, pop_fields(broker, pollTime=15_000)) for _ in range(3)]
    codes = [found.code for opaque in waiting if (found := client.answer_to(opaque)) is not None]
    assert codes == [ResponseCode.POLLING_FULL]


def test_a_closed_connection_waits_no_more(broker):
    client = with_topic(broker)
    client.tell(RequestCode.POP_MESSAGE, pop_fields(broker, pollTime=15_000))
    assert broker.node.view.pop_waiters.count == 1
    client.close()
    assert broker.node.view.pop_waiters.count == 0


def test_a_waiting_pop_of_a_deleted_topic_is_answered(broker):
    client, admin = with_topic(broker), broker.connect()
    opaque = client.tell(RequestCode.POP_MESSAGE, pop_fields(broker, pollTime=15_000))
    admin.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert client.answer_to(opaque).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "NONE"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": -1}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 10 * 365 * 86_400_000}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": "a b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"expType": "SQL92", "exp": "a >"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"bornTime": 1}, ResponseCode.POLLING_TIMEOUT),
        ({"invisibleTime": None}, ResponseCode.SYSTEM_ERROR),
        ({"invisibleTime": "soon"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_what_a_pop_is_refused_with(make, changes, code):
    broker = make("enablePropertyFilter=true")
    client = with_topic(broker)
    fill(client, 1)
    topic = changes.pop("topic", "T")
    assert pop(broker, client, topic, **changes).code == code


@pytest.mark.parametrize("count", [0, -5])
def test_a_pop_of_no_messages_gets_none(broker, count):
    client = with_topic(broker)
    fill(client, 1)
    answer = pop(broker, client, maxMsgNums=count)
    assert (answer.code, answer.ext["restNum"]) == (ResponseCode.POLLING_TIMEOUT, "1")


def test_a_group_that_may_not_consume_is_refused(broker):
    client = with_topic(broker)
    fields = {"groupName": "CG", "consumeEnable": False}
    client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(fields).encode())
    assert pop(broker, client).code == ResponseCode.NO_PERMISSION


def test_a_slave_serves_no_pops(make):
    broker = make("brokerRole=SLAVE", "brokerId=1")
    client = broker.connect()
    assert pop(broker, client).code == ResponseCode.SERVICE_NOT_AVAILABLE
    answer = client.ask(RequestCode.BATCH_ACK_MESSAGE, None, b'{"acks":[{"c":"CG"}]}')
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_queue_with_too_many_messages_in_flight_gives_no_more(make):
    broker = make("enablePopMessageThreshold=true", "popInflightMessageThreshold=2")
    client = with_topic(broker)
    fill(client, 6)
    first = popped(broker, client, maxMsgNums=3)
    assert pop(broker, client).ext["restNum"] == "3"
    assert ack(client, first[0]).code == 0
    assert len(popped(broker, client)) == 3


def test_a_reset_by_the_server_beats_what_was_popped(broker):
    client = with_topic(broker)
    fill(client, 3)
    popped(broker, client)
    broker.node.offsets.reset("CG", "T", 0, 1)
    assert [each.offset for each in popped(broker, client, queueId=0)] == [1, 2]


def test_an_offset_behind_the_queue_is_corrected(broker):
    client = with_topic(broker)
    fill(client, 2)
    broker.node.offsets.commit("CG", "T", 0, 99)
    popped(broker, client, queueId=0)
    fill(client, 1)
    assert len(popped(broker, client, queueId=0)) == 1


def test_without_room_for_checkpoints_no_messages_are_given(broker, monkeypatch):
    monkeypatch.setattr("rmqkit.broker.special.pop.revive.CHECKPOINTS_MAX", 1)
    client = with_topic(broker)
    fill(client, 2)
    (first,) = popped(broker, client, maxMsgNums=1)
    assert popped(broker, client) == []
    ack(client, first)
    assert len(popped(broker, client)) == 1


def test_a_checkpoint_that_is_not_stored_gives_its_messages_back(broker):
    client = with_topic(broker)
    fill(client, 2)
    broker.disk.write_error = OSError(errno.ENOSPC, "No space left on device")
    answer = pop(broker, client)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.disk.write_error = None
    assert len(popped(broker, client)) == 2


@pytest.mark.parametrize(("setting", "name"), [("true", "%RETRY%CG+T"), ("false", "%RETRY%CG_T")])
def test_the_retry_topic_has_either_form_of_name(make, setting, name):
    broker = make(f"enableRetryTopicV2={setting}", "retrieveMessageFromPopRetryTopicV1=false")
    client = with_topic(broker)
    fill(client, 1)
    popped(broker, client)
    broker.advance(INVISIBLE_MS + 1_001)
    (again,) = popped(broker, client)
    assert again.real_topic == name
    assert ack(client, again).code == 0
    broker.advance(INVISIBLE_MS + 1_001)
    assert popped(broker, client) == []


def test_redelivered_messages_may_come_under_their_retry_topic(make):
    broker = make("popResponseReturnActualRetryTopic=true")
    client = with_topic(broker)
    fill(client, 1)
    popped(broker, client)
    broker.advance(INVISIBLE_MS + 1_001)
    answer = pop(broker, client)
    (record,) = records(answer)
    assert record.topic == "%RETRY%CG_T"
    assert answer.ext["startOffsetInfo"] == "1 0 0"
