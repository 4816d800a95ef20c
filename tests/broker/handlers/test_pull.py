"""Pulls and long polling.

Source: `PullMessageProcessor.java`, `PullRequestHoldService.java`,
`DefaultMessageStore.getMessage`.
"""

import pytest

from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.requests import UNIQ, pull, pull_fields, records, send, with_topic

OFFSETS = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
SUSPEND = "6"  # bit 2 may wait, bit 4 carries a subscription


def tagged(client, tag, **changes):
    assert send(client, i=UNIQ + f"TAGS\x01{tag}\x02", **changes).code == 0


@pytest.mark.parametrize(
    ("stored", "offset", "code", "next_offset"),
    [
        (3, 0, ResponseCode.SUCCESS, 3),
        (3, 2, ResponseCode.SUCCESS, 3),
        (3, 3, ResponseCode.PULL_NOT_FOUND, 3),
        (3, 4, ResponseCode.PULL_OFFSET_MOVED, 3),
        (3, -1, ResponseCode.PULL_OFFSET_MOVED, 0),
        (0, 0, ResponseCode.PULL_NOT_FOUND, 0),
        (0, 7, ResponseCode.PULL_OFFSET_MOVED, 0),
    ],
)
def test_every_outcome_carries_the_offsets(broker, stored, offset, code, next_offset):
    """Java unboxes the four offsets for the codes 0, 19, 20 and 21.

    Source: `MQClientAPIImpl.processPullResponse`.
    """
    client = with_topic(broker)
    for _ in range(stored):
        send(client)
    answer = pull(client, offset=offset)
    assert answer.code == code
    assert answer.remark
    assert int(answer.ext["nextBeginOffset"]) == next_offset
    assert all(name in answer.ext for name in OFFSETS)
    assert answer.ext["suggestWhichBrokerId"] == "0"


def test_count_and_size_bound_an_answer(broker):
    client = with_topic(broker)
    for _ in range(40):
        send(client, body=b"x" * 1000)
    assert len(records(pull(client, maxMsgNums="10"))) == 10
    assert len(records(pull(client, maxMsgNums="1000"))) == 32
    few = records(pull(client, maxMsgBytes="5000"))
    assert 1 <= len(few) <= 5
    assert len(records(pull(client, maxMsgBytes="1"))) == 1, "the first message always fits"


def test_tags_filter_by_hash_and_the_offset_moves_past_the_rest(broker):
    client = with_topic(broker)
    for tag in ("TagA", "TagB", "TagC", "TagA"):
        tagged(client, tag)
    answer = pull(client, subscription="TagA || TagC")
    assert [each.queue_offset for each in records(answer)] == [0, 2, 3]
    answer = pull(client, subscription="TagX")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext["nextBeginOffset"] == "4"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": "9"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "-1"}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": "../g"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"sysFlag": "0"}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"expressionType": "SQL92", "subscription": "a > 1"}, ResponseCode.SYSTEM_ERROR),
        ({"queueOffset": "x"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_each_kind_of_bad_pull_has_its_own_code(broker, changes, code):
    client = with_topic(broker)
    answer = client.ask(RequestCode.PULL_MESSAGE, pull_fields() | changes)
    assert answer.code == code
    assert answer.remark


def test_a_disabled_group_and_a_write_only_topic_are_refused(broker):
    client = with_topic(broker, perm="2")
    assert pull(client).code == ResponseCode.NO_PERMISSION
    body = b'{"groupName":"Off","consumeEnable":false}'
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == 0
    assert pull(client, consumerGroup="Off").code == ResponseCode.NO_PERMISSION


def test_a_pull_at_the_end_waits_for_the_next_record(broker):
    client = with_topic(broker)
    opaque = client.tell(RequestCode.PULL_MESSAGE, pull_fields(sysFlag=SUSPEND, suspendTimeoutMillis="15000"))
    assert client.answer_to(opaque) is None
    sender = broker.connect()
    send(sender, body=b"woken")
    assert [each.body for each in records(client.answer_to(opaque))] == [b"woken"]
    broker.advance(20_000)
    assert client.take() == [], "answered once"


def test_a_waiting_pull_ends_at_its_time(broker):
    client = with_topic(broker)
    opaque = client.tell(RequestCode.PULL_MESSAGE, pull_fields(sysFlag=SUSPEND, suspendTimeoutMillis="15000"))
    broker.advance(14_999)
    assert client.answer_to(opaque) is None
    broker.advance(1)
    assert client.answer_to(opaque).code == ResponseCode.PULL_NOT_FOUND


def test_only_a_matching_record_wakes_and_the_scan_moves_on(broker):
    client = with_topic(broker)
    fields = pull_fields(sysFlag=SUSPEND, suspendTimeoutMillis="30000", subscription="TagA")
    opaque = client.tell(RequestCode.PULL_MESSAGE, fields)
    tagged(broker.connect(), "TagB")
    assert client.answer_to(opaque) is None
    broker.advance(5_000)
    answer = client.answer_to(opaque)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "1")


def test_a_lost_connection_takes_its_waiting_pulls_along(broker):
    client = with_topic(broker)
    client.tell(RequestCode.PULL_MESSAGE, pull_fields(sysFlag=SUSPEND, suspendTimeoutMillis="15000"))
    assert broker.node.view.arrivals.count == 1
    client.close()
    assert broker.node.view.arrivals.count == 0


def test_short_polling(make):
    broker = make("longPollingEnable=false")
    client = with_topic(broker)
    opaque = client.tell(RequestCode.PULL_MESSAGE, pull_fields(sysFlag=SUSPEND, suspendTimeoutMillis="15000"))
    broker.advance(1000)
    assert client.answer_to(opaque).code == ResponseCode.PULL_NOT_FOUND


def test_too_many_waiting_pulls_are_answered_at_once(make):
    broker = make("waitersMax=2")
    client = with_topic(broker)
    fields = pull_fields(sysFlag=SUSPEND, suspendTimeoutMillis="15000")
    for _ in range(2):
        client.tell(RequestCode.PULL_MESSAGE, fields)
    assert client.ask(RequestCode.PULL_MESSAGE, fields).code == ResponseCode.PULL_NOT_FOUND


def test_a_deleted_topic_ends_the_wait(broker):
    client = with_topic(broker)
    opaque = client.tell(RequestCode.PULL_MESSAGE, pull_fields(sysFlag=SUSPEND, suspendTimeoutMillis="15000"))
    assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    assert client.answer_to(opaque).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_waiting_pull_does_not_make_its_deleted_group_again(broker):
    client = with_topic(broker)
    fields = pull_fields(sysFlag=SUSPEND, suspendTimeoutMillis="15000")
    opaque = client.tell(RequestCode.PULL_MESSAGE, fields)
    group = fields["consumerGroup"]
    assert client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": group}).code == 0
    broker.advance(15_000)
    assert client.answer_to(opaque).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert group not in broker.node.groups.by_name


def test_the_commit_offset_rides_on_the_pull(broker):
    client = with_topic(broker)
    for _ in range(3):
        send(client)
    pull(client, offset=3, sysFlag="5", commitOffset="2")
    answer = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "CG", "topic": "T", "queueId": "0"})
    assert answer.ext["offset"] == "2"


def test_pulls_are_not_answered_on_the_vip_port(broker):
    """The VIP table lacks pull and pop (`BrokerController.registerProcessor`)."""
    with_topic(broker)
    vip = broker.connect("vip")
    assert send(vip).code == 0
    assert pull(vip).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
