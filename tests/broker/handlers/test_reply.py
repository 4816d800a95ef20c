"""Replies to requests (RPC).

Source: `ReplyMessageProcessor.java`, `MessageUtil.createReplyMessage`.
"""

import pytest

from rmqkit.broker import client_calls
from rmqkit.wire import properties as props
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.handlers.test_clients import heartbeat
from tests.broker.handlers.test_relays import reply as answer_request
from tests.broker.handlers.test_relays import requests
from tests.broker.requests import UNIQ, pull, records, send_fields

TOPIC = "DefaultCluster_REPLY_TOPIC"
REPLY = f"{UNIQ}MSG_TYPE\x01reply\x02CORRELATION_ID\x01abc\x02REPLY_TO_CLIENT\x01asker\x02TTL\x013000\x02"


def asker(broker, client_id="asker"):
    client = broker.connect()
    heartbeat(client, client_id)
    return client


def tell(replier, properties=REPLY, body=b"the answer", **changes):
    """Send a reply as Java does; return its opaque."""
    return replier.tell(RequestCode.SEND_REPLY_MESSAGE_V2, send_fields(TOPIC, i=properties, **changes), body)


def pushed(client):
    return requests(client, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)


def stored(broker):
    return records(pull(broker.connect(), TOPIC))


def test_the_reply_topic_is_there_from_the_start(make):
    broker = make("brokerClusterName=Blue")
    assert broker.node.topics.get("Blue_REPLY_TOPIC").write_queue_nums == 1


def test_a_reply_is_pushed_to_the_requester_and_then_stored(broker):
    client, replier = asker(broker), broker.connect()
    opaque = tell(replier)
    (push,) = pushed(client)
    assert push.body == b"the answer"
    assert push.ext["bornHost"] == str(replier.conn.peer)
    assert push.ext["storeHost"] == "127.0.0.1:10911"
    assert push.ext["storeTimestamp"] == str(broker.clock.wall_ms)
    assert (push.ext["topic"], push.ext["queueId"], push.ext["producerGroup"]) == (TOPIC, "0", "PG")
    properties = props.decode(push.ext["properties"].encode())
    assert properties["CORRELATION_ID"] == "abc"
    assert properties["PUSH_REPLY_TIME"] == str(broker.clock.wall_ms)
    assert replier.answer_to(opaque) is None, "who asked has not taken it yet"
    assert broker.node.store.queue_range(TOPIC, 0).offset_max == 0
    answer_request(client, push)
    answer = replier.answer_to(opaque)
    assert answer.code == 0
    assert answer.ext["queueOffset"] == "0"
    assert len(answer.ext["msgId"]) == 32
    (record,) = stored(broker)
    assert record.body == b"the answer"
    assert props.decode(record.properties)["CORRELATION_ID"] == "abc"


def test_the_older_form_is_the_same(broker):
    client, replier = asker(broker), broker.connect()
    fields = {
        "producerGroup": "PG",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1760000000000",
        "flag": "7",
        "properties": REPLY,
    }
    opaque = replier.tell(RequestCode.SEND_REPLY_MESSAGE, fields, b"x")
    (push,) = pushed(client)
    assert push.ext["flag"] == "7"
    answer_request(client, push)
    assert replier.answer_to(opaque).code == 0


def test_a_reply_to_an_absent_requester_is_stored_and_refused(broker):
    """The reply is stored although it is refused: the requester may still read the topic."""
    answer = broker.connect()
    answer = answer.answer_to(tell(answer))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "push reply message fail, channel of <asker> not found."
    assert len(stored(broker)) == 1


def test_a_reply_to_nobody(broker):
    replier = broker.connect()
    answer = replier.answer_to(tell(replier, UNIQ))
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "reply message properties[REPLY_TO_CLIENT] is null",
    )


@pytest.mark.parametrize("how", ["refuses", "is silent", "goes"])
def test_a_reply_that_the_requester_does_not_take_is_stored(broker, how):
    client, replier = asker(broker), broker.connect()
    opaque = tell(replier)
    (push,) = pushed(client)
    if how == "refuses":
        answer_request(client, push, 1, remark="unknown")
    elif how == "goes":
        client.close()
    else:
        broker.advance(10_000)
    answer = replier.answer_to(opaque)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "push reply message to asker fail.")
    assert len(stored(broker)) == 1
    assert broker.node.view.client_calls.waiting == 0


def test_replies_are_not_stored_where_the_operator_says_so(make):
    broker = make("storeReplyMessageEnable=false")
    client, replier = asker(broker), broker.connect()
    opaque = tell(replier)
    answer_request(client, pushed(client)[0])
    answer = replier.answer_to(opaque)
    assert answer.code == 0
    assert (answer.ext["msgId"], answer.ext["queueOffset"]) == ("0", "0"), "upstream's answer: clients want an id"
    assert stored(broker) == []


def test_the_newest_connection_of_a_client_gets_it(broker):
    old, new = asker(broker), asker(broker)
    replier = broker.connect()
    tell(replier)
    assert pushed(old) == []
    assert len(pushed(new)) == 1
    old.close()
    tell(replier)
    assert len(pushed(new)) == 1, "the end of the old one is not the end of the client"
    new.close()
    assert "not found" in replier.answer_to(tell(replier)).remark


def test_properties_that_would_change_the_kind_of_a_reply_are_not_stored(broker):
    client, replier = asker(broker), broker.connect()
    tell(replier, f"{REPLY}DELAY\x013\x02TRAN_MSG\x01true\x02TAGS\x01TagA\x02", f="4")
    answer_request(client, pushed(client)[0])
    (record,) = stored(broker)
    assert record.sys_flag & 0xC == 0
    properties = props.decode(record.properties)
    assert "DELAY" not in properties
    assert "TRAN_MSG" not in properties
    assert records(pull(broker.connect(), TOPIC, subscription="TagA"))
    assert not records(pull(broker.connect(), TOPIC, subscription="TagB"))


def test_what_is_no_reply_is_refused(broker):
    client, replier = asker(broker), broker.connect()
    for changes, code in (
        ({"b": "Unknown_REPLY_TOPIC"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"b": "../x"}, ResponseCode.INVALID_PARAMETER),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"e": "5"}, ResponseCode.INVALID_PARAMETER),
        ({"body": b""}, ResponseCode.MESSAGE_ILLEGAL),
    ):
        assert replier.answer_to(tell(replier, **changes)).code == code
    assert pushed(client) == []
    assert "Unknown_REPLY_TOPIC" not in broker.node.topics.by_name


def test_too_many_that_wait_are_refused(broker):
    client, replier = asker(broker), broker.connect()
    broker.node.view.client_calls = client_calls.ClientCalls(broker.node.context, broker.node.clients, calls_max=1)
    tell(replier)
    assert replier.answer_to(tell(replier)).code == ResponseCode.SYSTEM_BUSY
    assert len(pushed(client)) == 1


def test_replies_that_wait_hold_no_more_memory_than_they_may(broker):
    client, replier = asker(broker), broker.connect()
    calls = broker.node.view.client_calls = client_calls.ClientCalls(
        broker.node.context, broker.node.clients, bytes_max=1000
    )
    opaque = tell(replier, body=b"x" * 900)
    assert calls.waiting_bytes == 900
    assert replier.answer_to(tell(replier, body=b"x" * 101)).code == ResponseCode.SYSTEM_BUSY
    tell(replier, body=b"x" * 100)
    for push in pushed(client):
        answer_request(client, push)
    assert (calls.waiting, calls.waiting_bytes) == (0, 0)
    assert replier.answer_to(opaque).code == 0
    tell(replier, body=b"x" * 2000)
    assert len(pushed(client)) == 1, "one is taken in any case"


def test_a_replier_that_goes_meanwhile(broker):
    client, replier = asker(broker), broker.connect()
    tell(replier)
    (push,) = pushed(client)
    replier.close()
    answer_request(client, push)
    assert len(stored(broker)) == 1


def test_a_disk_that_fails_is_said(broker):
    client, replier = asker(broker), broker.connect()
    opaque = tell(replier)
    (push,) = pushed(client)
    broker.disk.write_error = OSError(28, "no space left on device")
    answer_request(client, push)
    assert replier.answer_to(opaque).code == ResponseCode.SERVICE_NOT_AVAILABLE
