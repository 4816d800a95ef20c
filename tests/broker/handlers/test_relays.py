"""Requests that the broker relays to clients.

Source: `AdminBrokerProcessor.{callConsumer,consumeMessageDirectly,resetOffset}`,
`Broker2Client.{resetOffset,getConsumeStatus}`, `SubscriptionGroupManager`.
"""

import json

import pytest

from rmqkit.broker import client_calls
from rmqkit.wire.bodies import ConsumerStatus, MessageQueue, ResetOffsetBody
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.handlers.test_clients import heartbeat
from tests.broker.requests import create_group, pull, records, send, with_topic
from tests.helpers.script import write_command


def requests(client, code):
    """Remove and return the broker's unanswered requests to this client."""
    found = [each for each in client.received if each.code == code and not each.flag & 1]
    for each in found:
        client.received.remove(each)
    return found


def reply(client, request, code=0, ext=None, body=b"", remark=None):
    client.send(write_command(code, ext, body, opaque=request.opaque, flag=1, remark=remark))


def member(broker, client_id="c1", **more):
    client = broker.connect()
    heartbeat(client, client_id, "T", **more)
    return client


def ask_info(admin, client_id="c1", group="CG"):
    fields = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "true"}
    return admin.tell(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)


def test_running_info_comes_from_the_member(broker):
    admin, one, two = with_topic(broker), member(broker, "c1"), member(broker, "c2")
    opaque = ask_info(admin, "c2")
    assert requests(one, RequestCode.GET_CONSUMER_RUNNING_INFO) == []
    (asked,) = requests(two, RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert asked.ext == {"consumerGroup": "CG", "clientId": "c2", "jstackEnable": "true"}
    assert admin.answer_to(opaque) is None
    reply(two, asked, body=b'{"mqTable":{}}')
    answer = admin.answer_to(opaque)
    assert (answer.code, answer.body) == (0, b'{"mqTable":{}}')
    assert broker.node.view.client_calls.waiting == 0


def test_a_members_refusal_is_passed_on(broker):
    admin, one = with_topic(broker), member(broker)
    opaque = ask_info(admin)
    reply(one, requests(one, RequestCode.GET_CONSUMER_RUNNING_INFO)[0], 1, {"why": "so"}, remark="not now")
    answer = admin.answer_to(opaque)
    assert (answer.code, answer.remark, answer.ext) == (1, "not now", {"why": "so"})


@pytest.mark.parametrize(("code", "ext"), [(40_000, {}), (-7, {"n" * 40_000: "v"}), (2**31 - 1, {"a": "b"})])
def test_an_answer_that_does_not_fit_the_binary_form_is_relayed_as_json(broker, code, ext):
    """A response that does not fit the binary form is sent as JSON instead of being truncated.

    The binary form has 16 bits for a code, and Java reads names of at most 32,767 bytes.
    """
    admin, one = with_topic(broker), member(broker)
    fields = {"consumerGroup": "CG", "clientId": "c1", "jstackEnable": "true"}
    opaque = admin.tell(RequestCode.GET_CONSUMER_RUNNING_INFO, fields, codec=1)
    (asked,) = requests(one, RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert asked.codec == 0
    reply(one, asked, code, ext, remark="why")
    answer = admin.answer_to(opaque)
    assert (answer.codec, answer.code, answer.ext, answer.remark) == (0, code, ext, "why")
    assert not admin.closed


@pytest.mark.parametrize(("asks", "answers"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_each_side_of_a_relay_has_its_own_form(broker, asks, answers):
    admin, one = with_topic(broker), member(broker)
    fields = {"consumerGroup": "CG", "clientId": "c1", "jstackEnable": "true"}
    opaque = admin.tell(RequestCode.GET_CONSUMER_RUNNING_INFO, fields, codec=asks)
    (asked,) = requests(one, RequestCode.GET_CONSUMER_RUNNING_INFO)
    one.send(write_command(1, {"why": "so"}, b"body", opaque=asked.opaque, flag=1, remark="not now", codec=answers))
    answer = admin.answer_to(opaque)
    assert (answer.codec, answer.code, answer.ext, answer.remark, answer.body) == (
        asks,
        1,
        {"why": "so"},
        "not now",
        b"body",
    )


def test_a_relay_to_an_absent_client_is_an_error(broker):
    admin = with_topic(broker)
    member(broker, "c1")
    for client_id, group in (("c9", "CG"), ("c1", "Other")):
        answer = admin.answer_to(ask_info(admin, client_id, group))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"The Consumer <{group}> <{client_id}> not online"


def test_a_member_that_is_silent_is_given_up_after_ten_seconds(broker):
    admin, one = with_topic(broker), member(broker)
    opaque = ask_info(admin)
    broker.advance(9_999)
    assert admin.answer_to(opaque) is None
    broker.advance(1)
    answer = admin.answer_to(opaque)
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert answer.remark.startswith("consumer <CG> <c1> Timeout")
    assert not one.closed


def test_a_member_that_goes_meanwhile(broker):
    admin, one = with_topic(broker), member(broker)
    opaque = ask_info(admin)
    one.close()
    answer = admin.answer_to(opaque)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith("invoke consumer <CG> <c1> Exception")


def test_the_asking_admin_may_disconnect_before_the_answer(broker):
    admin, one = with_topic(broker), member(broker)
    ask_info(admin)
    (asked,) = requests(one, RequestCode.GET_CONSUMER_RUNNING_INFO)
    admin.close()
    reply(one, asked)
    assert broker.node.view.client_calls.waiting == 0


def test_too_many_questions_are_refused(broker):
    admin = with_topic(broker)
    member(broker)
    broker.node.view.client_calls = client_calls.ClientCalls(broker.node.context, broker.node.clients, calls_max=2)
    waiting = [ask_info(admin), ask_info(admin)]
    assert admin.answer_to(ask_info(admin)).code == ResponseCode.SYSTEM_BUSY
    broker.advance(10_000)
    assert all(admin.answer_to(opaque).code == ResponseCode.CONSUME_MSG_TIMEOUT for opaque in waiting)


def test_a_client_of_old_is_not_asked(broker):
    admin, one = with_topic(broker), broker.connect()
    body = {"clientID": "c1", "consumerDataSet": [{"groupName": "CG"}]}
    one.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode(), version=30)
    assert "too low" in admin.answer_to(ask_info(admin)).remark


def test_a_stored_message_is_handed_to_a_member(broker):
    """The broker adds topicSysFlag, groupSysFlag and brokerName; the body is the record."""
    admin, one = with_topic(broker), member(broker)
    message_id = send(admin, body=b"once more").ext["msgId"]
    fields = {"consumerGroup": "CG", "clientId": "c1", "msgId": message_id, "topic": "T"}
    opaque = admin.tell(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    (asked,) = requests(one, RequestCode.CONSUME_MESSAGE_DIRECTLY)
    assert asked.ext == fields | {"brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "0"}
    (record,) = records(asked)
    assert record.body == b"once more"
    reply(one, asked, body=b'{"consumeResult":"CR_SUCCESS"}')
    assert admin.answer_to(opaque).body == b'{"consumeResult":"CR_SUCCESS"}'


@pytest.mark.parametrize(
    "message_id",
    ["", "x", "7F00000100002A9F000000000BADC0DE", "7F00000100002A9FFFFFFFFFFFFFFFFF", "7F00000100002A9F0000000000000003"],
)
def test_a_message_that_is_not_there_is_said_at_once(broker, message_id):
    admin, one = with_topic(broker), member(broker)
    fields = {"consumerGroup": "CG", "clientId": "c1", "msgId": message_id}
    assert admin.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields).code == ResponseCode.SYSTEM_ERROR
    assert requests(one, RequestCode.CONSUME_MESSAGE_DIRECTLY) == []


def status(admin, **more):
    return admin.tell(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "CG", **more})


def queues(**offsets):
    return {MessageQueue("T", "broker-a", int(number[1:])): offset for number, offset in offsets.items()}


def test_how_far_a_group_is_by_its_members_account(broker):
    admin, one, two = with_topic(broker), member(broker, "c1"), member(broker, "c2")
    opaque = status(admin)
    for client, table in ((two, queues(q1=8)), (one, queues(q0=7))):
        (asked,) = requests(client, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
        assert asked.ext == {"topic": "T", "group": "CG"}
        assert admin.answer_to(opaque) is None
        reply(client, asked, body=ConsumerStatus(message_queue_table=table).encode())
    answer = ConsumerStatus.decode(admin.answer_to(opaque).body)
    assert answer.consumer_table == {"c1": queues(q0=7), "c2": queues(q1=8)}


def test_a_member_that_does_not_say_is_left_out(broker):
    admin, one, two, three = with_topic(broker), *(member(broker, name) for name in ("c1", "c2", "c3"))
    opaque = status(admin)
    reply(one, requests(one, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)[0], body=b'{"messageQueueTable":{}}')
    reply(two, requests(two, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)[0], body=b"nonsense")
    assert three.received
    broker.advance(5_000)
    assert ConsumerStatus.decode(admin.answer_to(opaque).body).consumer_table == {"c1": {}}


def test_one_members_account_only(broker):
    admin, one, two = with_topic(broker), member(broker, "c1"), member(broker, "c2")
    opaque = status(admin, clientAddr="c2")
    assert requests(one, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT) == []
    (asked,) = requests(two, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
    reply(two, asked, body=b'{"messageQueueTable":{}}')
    assert ConsumerStatus.decode(admin.answer_to(opaque).body).consumer_table == {"c2": {}}
    assert ConsumerStatus.decode(admin.answer_to(status(admin, clientAddr="c9")).body).consumer_table == {}


def test_the_status_of_a_group_that_is_not_there(broker):
    admin = with_topic(broker)
    assert admin.answer_to(status(admin)).code == ResponseCode.SYSTEM_ERROR


# --- resets by clients


def committed(broker, client, *offsets):
    create_group(client)
    for queue_id, offset in enumerate(offsets):
        fields = {"consumerGroup": "CG", "topic": "T", "queueId": str(queue_id), "commitOffset": str(offset)}
        assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == 0


def reset(client, timestamp=-1, force=True, **head):
    fields = {"topic": "T", "group": "CG", "timestamp": str(timestamp), "isForce": "true" if force else "false"}
    return client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields, **head)


@pytest.fixture
def by_clients(make):
    """A broker that lets clients reset offsets; its topic has three messages in queue 0 of two."""
    broker = make("useServerSideResetOffset=false")
    admin = with_topic(broker, queues=2)
    for _ in range(3):
        send(admin)
    return broker, admin


def test_members_get_the_reset_offsets_each_in_its_own_form(by_clients):
    broker, admin = by_clients
    java, cpp = member(broker, "java"), broker.connect()
    body = {"clientID": "cpp", "consumerDataSet": [{"groupName": "CG"}]}
    cpp.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode(), language="CPP")
    committed(broker, java, 1, 0)
    answer = reset(admin)
    assert ResetOffsetBody.decode(answer.body).offset_table == queues(q0=3, q1=0)
    (told,) = requests(java, RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    assert told.flag & 2, "nobody answers it"
    assert told.ext == {"topic": "T", "group": "CG", "timestamp": "-1", "isForce": "true"}
    assert ResetOffsetBody.decode(told.body).offset_table == queues(q0=3, q1=0)
    (told,) = requests(cpp, RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    assert told.json["offsetTable"][0] == {"brokerName": "broker-a", "offset": 3, "queueId": 0, "topic": "T"}
    answer = reset(admin, language="CPP")
    assert ResetOffsetBody.decode(answer.body).offset_table == queues(q0=3, q1=0), "the answer has one form"


def test_without_force_no_queue_goes_forward(by_clients):
    broker, admin = by_clients
    java = member(broker, "java")
    committed(broker, java, 1, 0)
    assert ResetOffsetBody.decode(reset(admin, force=False).body).offset_table == queues(q0=1, q1=0)
    assert ResetOffsetBody.decode(reset(admin, timestamp=0, force=False).body).offset_table == queues(q0=0, q1=0)


def test_somebody_must_be_online_and_have_consumed(by_clients):
    broker, admin = by_clients
    java = member(broker, "java")
    assert reset(admin).code == ResponseCode.SYSTEM_ERROR
    committed(broker, java, 1, 0)
    java.close()
    assert reset(admin).code == ResponseCode.CONSUMER_NOT_ONLINE


# --- producers, bans


def test_all_producers_are_listed(broker):
    client = with_topic(broker)
    heartbeat(client, "p1", producer="PG")
    heartbeat(client, "p1", producer="Other")
    answer = client.ask(RequestCode.GET_ALL_PRODUCER_INFO)
    assert list(answer.json["data"]) == ["PG", "Other"]
    (row,) = answer.json["data"]["PG"]
    assert row == {
        "clientId": "p1",
        "language": "JAVA",
        "lastUpdateTimestamp": broker.clock.wall_ms,
        "remoteIP": f"/{client.conn.peer}",
        "version": 479,
    }


def ban(client, topic="T", **more):
    return client.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "CG", "topic": topic, **more})


def test_a_group_may_be_kept_from_a_topic(broker):
    client = with_topic(broker)
    send(client)
    heartbeat(client, "c1", "T", "U", version=5)
    assert ban(client).json == {"group": "CG", "readable": True, "topic": "T"}
    assert ban(client, readable="false").json["readable"] is False
    answer = pull(client, sysFlag="0", subVersion="5")
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the consumer group[CG] is forbidden for topic[T]",
    )
    ban(client, topic="U", readable="false")
    assert broker.node.groups.snapshot().forbidden_table == {"CG": {"T": 4, "U": 4}}
    assert ban(client, readable="true").json["readable"] is True
    assert pull(client, sysFlag="0", subVersion="5").code == 0
    assert ban(client, topic="U").json["readable"] is False, "the ban of another topic stays"
    ban(client, topic="U", readable="true")
    assert broker.node.groups.forbidden == {}


def test_bans_outlive_a_restart_and_go_with_their_group(make):
    first = make()
    client = with_topic(first)
    heartbeat(client, "c1", "T")
    ban(client, readable="false")
    again = make(disk=first.disk.__class__(), start=True)
    again.disk.files.update(first.disk.files)
    again.node.groups.load()
    assert not again.node.groups.may_read("CG", "T")
    assert client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "CG"}).code == 0
    assert first.node.groups.forbidden == {}


def test_a_ban_needs_names(broker):
    client = with_topic(broker)
    assert ban(client, topic="../x", readable="false").code == ResponseCode.INVALID_PARAMETER
    assert broker.node.groups.forbidden == {}
