"""Heartbeats, membership and change notifications.

Source: `ClientManageProcessor.java`, `ConsumerManager.java`.
"""

import json

from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.requests import pull, send, with_topic


def heartbeat(client, client_id, *topics, group="CG", version=1, model="CLUSTERING", producer="PG"):
    subscriptions = [
        {
            "classFilterMode": False,
            "codeSet": [],
            "expressionType": "TAG",
            "subString": "*",
            "subVersion": version,
            "tagsSet": [],
            "topic": topic,
        }
        for topic in topics
    ]
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": model,
        "subscriptionDataSet": subscriptions,
        "unitMode": False,
    }
    body = {
        "clientID": client_id,
        "consumerDataSet": [consumer] if topics else [],
        "heartbeatFingerprint": 0,
        "producerDataSet": [{"groupName": producer}],
        "withoutSub": False,
    }
    return client.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())


def notices(client):
    return [each for each in client.take() if each.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]


def test_a_heartbeat_makes_the_group_and_its_retry_topic(broker):
    client = with_topic(broker)
    answer = heartbeat(client, "c1", "T")
    assert answer.code == 0
    assert answer.header["version"] >= 232, "Java refuses SQL92 pulls at an older broker"
    assert answer.ext["IS_SUPPORT_HEART_BEAT_V2"] == "true"
    assert broker.node.groups.by_name["CG"].retry_max_times == 16
    assert broker.node.topics.get("%RETRY%CG").read_queue_nums == 1


def beat(client, fingerprint, *tags, group="CG"):
    """Send a heartbeat of the second version; without `tags` it has no subscriptions."""
    subscriptions = [{"topic": "T", "subString": tag, "expressionType": "TAG", "subVersion": 1} for tag in tags]
    consumer = {"groupName": group, "subscriptionDataSet": subscriptions}
    body = {
        "clientID": "c1",
        "consumerDataSet": [consumer],
        "heartbeatFingerprint": fingerprint,
        "producerDataSet": [],
        "withoutSub": not tags,
    }
    answer = client.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
    assert answer.code == 0
    return answer.ext["IS_SUB_CHANGE"] == "true"


def test_a_heartbeat_without_subscriptions_keeps_them(broker):
    """Java's client sends such ones with `useHeartbeatV2`, 30 s after a complete one.

    The answers are those of Apache's 5.5.0 to the same heartbeats, in this order.
    """
    client = with_topic(broker)
    assert [beat(client, 111, "A"), beat(client, 111), beat(client, 222)] == [False, False, True]
    assert [beat(client, 222, "A"), beat(client, 222), beat(client, 333, "A")] == [False, False, True]
    assert broker.node.clients.consumers["CG"].subscriptions["T"].sub_string == "A"
    assert len(notices(client)) == 1, "only the first heartbeat changed the group"
    assert pull(client, sysFlag="0", subVersion="1").code == ResponseCode.PULL_NOT_FOUND
    assert heartbeat(client, "c1", "T").ext["IS_SUB_CHANGE"] == "true", "so does each one of the first version"


def test_a_broker_that_has_started_asks_for_the_subscriptions(broker):
    client = with_topic(broker)
    assert beat(client, 111)
    assert not beat(client, 111, "A")
    assert list(broker.node.clients.consumers["CG"].subscriptions) == ["T"]


def test_members_are_listed_and_notified_of_changes(broker):
    first = with_topic(broker)
    heartbeat(first, "c1", "T")
    assert len(notices(first)) == 1, "the newcomer is told as well"
    second = broker.connect()
    heartbeat(second, "c2", "T")
    assert [len(notices(each)) for each in (first, second)] == [1, 1]
    answer = first.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "CG"})
    assert answer.json == {"consumerIdList": ["c1", "c2"]}
    heartbeat(first, "c1", "T")
    assert notices(second) == [], "nothing changed"
    second.close()
    assert len(notices(first)) == 1
    answer = first.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "CG"})
    assert answer.json == {"consumerIdList": ["c1"]}


def test_a_group_without_members_is_an_error_not_an_empty_list(broker):
    answer = with_topic(broker).ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "CG"})
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_unregistering_leaves_the_group(broker):
    client = with_topic(broker)
    heartbeat(client, "c1", "T")
    fields = {"clientID": "c1", "producerGroup": "PG", "consumerGroup": "CG"}
    assert client.ask(RequestCode.UNREGISTER_CLIENT, fields).code == 0
    assert broker.node.clients.consumers == {}
    assert broker.node.clients.producers == {}


def test_broadcasting_groups_are_not_told(broker):
    client = with_topic(broker)
    heartbeat(client, "c1", "T", model="BROADCASTING")
    assert notices(client) == []


def test_a_broker_told_not_to_notifies_nobody(make):
    broker = make("notifyConsumerIdsChangedEnable=false")
    first, second = with_topic(broker), broker.connect()
    heartbeat(first, "c1", "T")
    heartbeat(second, "c2", "T")
    second.close()
    assert notices(first) == []


def test_a_silent_client_is_closed(broker):
    client = with_topic(broker)
    heartbeat(client, "c1", "T")
    broker.advance(140_000)
    assert client.closed == "no heartbeat"
    assert broker.node.clients.count == 0


def test_subscriptions_follow_newer_versions_only(broker):
    client = with_topic(broker)
    heartbeat(client, "c1", "T", "U", version=5)
    heartbeat(client, "c1", "T", "U", version=4)
    group = broker.node.clients.consumers["CG"]
    assert group.subscriptions["T"].sub_version == 5
    heartbeat(client, "c1", "T", version=6)
    assert list(group.subscriptions) == ["T"]


def test_a_pull_without_subscription_uses_the_heartbeats(broker):
    client = with_topic(broker)
    send(client)
    heartbeat(client, "c1", "T", version=5)
    assert pull(client, sysFlag="0", subVersion="5").code == 0
    assert pull(client, sysFlag="0", subVersion="6").code == ResponseCode.SUBSCRIPTION_NOT_LATEST


def test_connections_are_listed(broker):
    client = with_topic(broker)
    heartbeat(client, "c1", "T")
    answer = client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "CG"})
    (row,) = answer.json["connectionSet"]
    assert row == {"clientAddr": str(client.conn.peer), "clientId": "c1", "language": "JAVA", "version": 479}
    assert answer.json["subscriptionTable"]["T"]["subString"] == "*"
    assert client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "No"}).code == 206
    answer = client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "PG"})
    assert [row["clientId"] for row in answer.json["connectionSet"]] == ["c1"]


def test_cpp_heartbeats_are_understood(broker):
    """C++ sends enums as numbers, subVersion as text, and omits sets (C++'s `HeartbeatData.h`)."""
    client = with_topic(broker)
    body = {
        "clientID": "cpp",
        "consumerDataSet": [
            {
                "consumeFromWhere": 4,
                "consumeType": 1,
                "groupName": "CG",
                "messageModel": 1,
                "subscriptionDataSet": [
                    {"classFilterMode": False, "codeSet": ["0"], "subString": "TagA", "subVersion": "17", "topic": "T"}
                ],
            }
        ],
    }
    assert client.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode()).code == 0
    group = broker.node.clients.consumers["CG"]
    assert (group.message_model, group.consume_from_where) == ("CLUSTERING", "CONSUME_FROM_FIRST_OFFSET")
    assert group.subscriptions["T"].code_set == [2598919]


def test_a_connection_is_known_as_a_producer_by_one_client_id(broker):
    """A connection may send several client ids in turn; all its entries go when it closes."""
    client = with_topic(broker)
    for number in range(5):
        heartbeat(client, f"c{number}")
        fields = {"clientID": f"c{number}", "producerGroup": "PG"}
        assert client.ask(RequestCode.UNREGISTER_CLIENT, fields).code == 0
    heartbeat(client, "last")
    clients = broker.node.clients
    assert clients.producer("c0") is None
    assert clients.producer("last") is not None
    client.close()
    broker.turn()
    assert (clients._producing, clients._producer_ids) == ({}, {})
