"""PEEK, NOTIFICATION, POLLING_INFO, and the assignment of queues."""

import json

import pytest

from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.handlers.pop_requests import INVISIBLE_MS, fill, pop_fields, popped
from tests.broker.requests import create_group, records, send, with_topic


def notification(script, client, **changes):
    fields = {
        "consumerGroup": "CG",
        "topic": "T",
        "queueId": "-1",
        "pollTime": "0",
        "bornTime": str(script.clock.wall_ms),
        **changes,
    }
    return client.tell(RequestCode.NOTIFICATION, fields)


def peek(client, **changes):
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": "-1", "maxMsgNums": "32", **changes}
    return client.ask(RequestCode.PEEK_MESSAGE, fields)


def has_message(answer):
    return (answer.code, answer.ext) == (0, {"hasMsg": "true", "pollingFull": "false"})


def test_a_peek_hides_nothing(broker):
    client = with_topic(broker)
    fill(client, 3)
    for _ in range(2):
        answer = peek(client, maxMsgNums="2")
        # Apache's counts the answer's own messages too (`PeekMessageProcessor.peekMsgFromQueue`).
        assert (answer.code, answer.remark, answer.ext["restNum"]) == (0, "FOUND", "3")
        assert [record.body for record in records(answer)] == [b"m0", b"m1"]
    assert len(popped(broker, client)) == 3
    answer = peek(client)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")


def test_a_peek_sees_what_comes_again(broker):
    client = with_topic(broker)
    fill(client, 1)
    popped(broker, client)
    broker.advance(INVISIBLE_MS + 1_001)
    assert [record.body for record in records(peek(client))] == [b"m0"]


@pytest.mark.parametrize("code", [RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION, RequestCode.POLLING_INFO])
@pytest.mark.parametrize(
    ("changes", "refused_with"),
    [
        ({"topic": "NONE"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": "4"}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": "a b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
def test_invalid_lookups_are_refused_with_their_codes(broker, code, changes, refused_with):
    client = with_topic(broker)
    fields = {**pop_fields(broker), **changes}
    assert client.ask(code, fields).code == refused_with


@pytest.mark.parametrize("code", [RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION])
def test_a_broker_that_may_not_be_read_refuses_them(make, code):
    broker = make("brokerPermission=2")
    client = with_topic(broker)
    assert client.ask(code, pop_fields(broker)).code == ResponseCode.NO_PERMISSION


def test_a_notification_shows_whether_there_are_messages(broker):
    client = with_topic(broker)
    answer = client.answer_to(notification(broker, client))
    assert answer.ext == {"hasMsg": "false", "pollingFull": "false"}
    fill(client, 1)
    assert has_message(client.answer_to(notification(broker, client)))
    popped(broker, client)
    assert not has_message(client.answer_to(notification(broker, client)))
    broker.advance(INVISIBLE_MS + 1_001)
    assert has_message(client.answer_to(notification(broker, client)))


def test_a_notification_waits(broker):
    client, producer = with_topic(broker), broker.connect()
    opaque = notification(broker, client, pollTime="10000")
    late = notification(broker, client, pollTime="10000", queueId="1")
    assert client.answer_to(opaque) is None
    send(producer)
    broker.advance(0)
    assert has_message(client.answer_to(opaque))
    broker.advance(10_000)
    assert client.answer_to(late).ext["hasMsg"] == "false"


def test_a_notification_considers_only_the_tags_that_it_names(broker):
    client, producer = with_topic(broker), broker.connect()
    fill(client, 3, tags="A")
    assert has_message(client.answer_to(notification(broker, client, exp="A")))
    assert not has_message(client.answer_to(notification(broker, client, exp="B")))
    opaque = notification(broker, client, exp="B", pollTime="10000")
    send(producer, i="UNIQ_KEY\x01k1\x02TAGS\x01A\x02")
    broker.advance(0)
    assert client.answer_to(opaque) is None
    send(producer, i="UNIQ_KEY\x01k2\x02TAGS\x01B\x02")
    broker.advance(0)
    assert has_message(client.answer_to(opaque))


@pytest.mark.parametrize(
    "settings", [("useMessageFilterForNotification=false",), ("maxMessageFilterNumForNotification=3",)]
)
def test_a_notification_ignores_tags(make, settings):
    broker = make(*settings)
    client = with_topic(broker)
    fill(client, 3, tags="A")
    assert has_message(client.answer_to(notification(broker, client, exp="B")))


def test_a_redelivery_is_notified_whatever_its_tag(broker):
    client = with_topic(broker)
    fill(client, 1, tags="A")
    popped(broker, client)
    broker.advance(INVISIBLE_MS + 1_001)
    assert has_message(client.answer_to(notification(broker, client, exp="B")))


def test_a_notification_with_a_broken_filter_is_refused(make):
    broker = make("enablePropertyFilter=true")
    client = with_topic(broker)
    answer = client.answer_to(notification(broker, client, expType="SQL92", exp="a >"))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_too_many_notifications_are_refused(make):
    broker = make("popPollingSize=1")
    client = with_topic(broker)
    opaques = [notification(broker, client, pollTime="10000") for _ in range(2)]
    answers = [client.answer_to(opaque) for opaque in opaques]
    assert answers[0] is None
    assert answers[1].ext == {"hasMsg": "false", "pollingFull": "true"}


def test_polling_info_counts_waiting_pops(broker):
    client = with_topic(broker)
    for _ in range(2):
        client.tell(RequestCode.POP_MESSAGE, pop_fields(broker, pollTime=15_000))
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": "-1"}
    assert client.ask(RequestCode.POLLING_INFO, fields).ext == {"pollingNum": "2"}
    assert client.ask(RequestCode.POLLING_INFO, {**fields, "queueId": "1"}).ext == {"pollingNum": "0"}


# --- assignment


def heartbeat(client, *client_ids, group="CG"):
    script = client.script
    for client_id in client_ids:
        member = script.connect()
        body = {
            "clientID": client_id,
            "consumerDataSet": [
                {
                    "groupName": group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                    "subscriptionDataSet": [],
                }
            ],
        }
        assert member.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode()).code == 0


def set_mode(client, **changes):
    body = {"topic": "T", "consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 0, **changes}
    return client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, None, json.dumps(body).encode())


def assigned(client, client_id="c1", **changes):
    """Return the queue ids of a member and its mode; None if it keeps what it has."""
    body = {
        "topic": "T",
        "consumerGroup": "CG",
        "clientId": client_id,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
        **changes,
    }
    answer = client.ask(RequestCode.QUERY_ASSIGNMENT, None, json.dumps(body).encode())
    assert answer.code == 0, answer
    rows = answer.json.get("messageQueueAssignments")
    if rows is None:
        return None
    assert all(row["messageQueue"]["brokerName"] == "broker-a" for row in rows)
    return [row["messageQueue"]["queueId"] for row in rows], {row["mode"] for row in rows}


def test_the_broker_divides_queues_to_pull(broker):
    client = with_topic(broker, queues=5)
    heartbeat(client, "c1", "c2", "c3")
    shares = [assigned(client, each)[0] for each in ("c1", "c2", "c3")]
    assert shares == [[0, 1], [2, 3], [4]]
    assert assigned(client)[1] == {"PULL"}
    circle = [assigned(client, each, strategyName="AVG_BY_CIRCLE")[0] for each in ("c1", "c2", "c3")]
    assert circle == [[0, 3], [1, 4], [2]]
    assert assigned(client, "stranger") == ([], set())


@pytest.mark.parametrize(
    "changes", [{"strategyName": "BEST"}, {"consumerGroup": "NONE"}, {"topic": "NONE"}, {"clientId": " "}]
)
def test_without_a_division_a_member_keeps_what_it_has(broker, changes):
    client = with_topic(broker)
    heartbeat(client, "c1")
    assert assigned(client, client_id=changes.pop("clientId", "c1"), **changes) is None


def test_in_pop_mode_everyone_gets_all_queues(broker):
    client = with_topic(broker)
    heartbeat(client, "c1", "c2")
    assert set_mode(client).code == 0
    assert assigned(client) == ([-1], {"POP"})
    create_retry = {"topic": "%RETRY%CG", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
    client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**create_retry, "perm": "6", "order": "false"})
    assert assigned(client, topic="%RETRY%CG")[1] == {"PULL"}


def test_members_share_the_queues_of_the_next_ones(broker):
    client = with_topic(broker)
    heartbeat(client, "c1", "c2", "c3", "c4")
    set_mode(client, popShareQueueNum=1)
    assert [assigned(client, each)[0] for each in ("c1", "c2", "c3", "c4")] == [[0, 1], [1, 2], [2, 3], [3, 0]]
    set_mode(client, popShareQueueNum=3)
    assert assigned(client)[0] == [-1]


def test_more_members_than_queues_get_one_each(broker):
    client = with_topic(broker, queues=2)
    heartbeat(client, "c1", "c2", "c3", "c4")
    set_mode(client, popShareQueueNum=1)
    assert [assigned(client, each)[0] for each in ("c1", "c2", "c3", "c4")] == [[0], [1], [0], [1]]


def test_broadcasting_and_a_broker_that_divides_nothing_give_all(make):
    broker = make("serverLoadBalancerEnable=false")
    client = with_topic(broker)
    heartbeat(client, "c1")
    assert assigned(client)[0] == [0, 1, 2, 3]
    assert assigned(client, "c9", messageModel="BROADCASTING")[0] == [0, 1, 2, 3]


def test_the_default_mode_is_a_setting(make):
    broker = make("defaultMessageRequestMode=POP")
    client = with_topic(broker)
    heartbeat(client, "c1")
    assert assigned(client) == ([-1], {"POP"})
    set_mode(client, mode="PULL")
    assert assigned(client)[1] == {"PULL"}


def test_the_queues_are_those_of_the_route(make):
    broker = make("namesrvAddr=10.9.9.9:9876")
    client = with_topic(broker)
    heartbeat(client, "c1")
    set_mode(client)
    body = {"topic": "T", "consumerGroup": "CG", "clientId": "c1", "strategyName": "AVG", "messageModel": "CLUSTERING"}
    opaque = client.tell(RequestCode.QUERY_ASSIGNMENT, None, json.dumps(body).encode())
    assert client.answer_to(opaque) is None
    for nameserver in list(broker.dialled):
        broker.refuse(nameserver)
    broker.advance(3_001)
    assert client.answer_to(opaque).json.get("messageQueueAssignments") is None


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "%RETRY%CG"}, ResponseCode.NO_PERMISSION),
        ({"topic": "NONE"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "a b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"mode": "PUSH"}, ResponseCode.INVALID_PARAMETER),
        ({"popShareQueueNum": "many"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_modes_that_cannot_be_set(broker, changes, code):
    client = with_topic(broker)
    assert set_mode(client, **changes).code == code


def test_a_mode_is_saved_as_apache_does(broker):
    client = with_topic(broker)
    create_group(client)
    set_mode(client, popShareQueueNum=2)
    saved = json.loads(broker.disk.files["config/messageRequestMode.json"])
    row = {"consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 2, "topic": "T"}
    assert saved == {"messageRequestModeMap": {"T": {"CG": row}}}
    assert client.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE).json == saved


def test_a_slave_sets_no_mode(make):
    broker = make("brokerRole=SLAVE", "brokerId=1")
    assert set_mode(broker.connect()).code == ResponseCode.SYSTEM_ERROR
