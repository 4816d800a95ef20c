"""Requests for several topics or groups, attributes, system topics, subscriptions.

Source: `AdminBrokerProcessor.{updateAndCreateTopicList,updateAndCreateSubscriptionGroupList}`,
`AdminBrokerProcessor.{deleteTopic,getSystemTopicListFromBroker,querySubscriptionByConsumer}`,
`AttributeUtil.java`, `TopicAttributes.java`.
"""

import json

import pytest

from rmqkit.broker.tables.attributes import TOPIC_ATTRIBUTES, altered, parse
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.handlers.test_stats import commit, counter, subscribe
from tests.broker.requests import send, with_topic


def put_topics(client, *configs):
    body = json.dumps({"topicConfigList": list(configs)}).encode()
    return client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)


def put_groups(client, *configs):
    body = json.dumps({"groupConfigList": list(configs)}).encode()
    return client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body)


def groups_in_pages(client):
    """Yield the bodies of all pages of 2 groups."""
    first, version, total = 0, "", 1
    while first < total:
        fields = {"groupSeq": str(first), "maxGroupNum": "2", "dataVersion": version}
        page = client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, fields)
        yield page.json
        version, total = json.dumps(page.json["dataVersion"]), int(page.ext["totalGroupNum"])
        first += len(page.json["subscriptionGroupTable"])


class TestLists:
    def test_topics_are_made_together(self, broker):
        client = broker.connect()
        version = broker.node.topics.version.counter
        answer = put_topics(
            client,
            {"topicName": "A", "readQueueNums": 2, "writeQueueNums": 3},
            {"topicName": "B", "attributes": {"+message.type": "FIFO"}},
        )
        assert answer.code == 0
        assert broker.node.topics.get("A").write_queue_nums == 3
        assert broker.node.topics.get("B").attributes == {"message.type": "FIFO"}
        assert broker.node.topics.version.counter == version + 1
        # A configuration that was read can be written back unchanged.
        read = client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "B"}).json
        assert put_topics(client, read).code == 0
        assert broker.node.topics.version.counter == version + 1

    @pytest.mark.parametrize("bad", [{"topicName": "a b"}, {"topicName": "TBW102"}, {"topicName": "X", "perm": 99}])
    def test_one_bad_topic_refuses_all(self, broker, bad):
        answer = put_topics(broker.connect(), {"topicName": "GOOD"}, bad)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert broker.node.topics.get("GOOD") is None

    def test_groups_are_made_together(self, broker):
        client = broker.connect()
        answer = put_groups(client, {"groupName": "G1", "retryMaxTimes": 3}, {"groupName": "G2", "consumeEnable": False})
        assert answer.code == 0
        assert client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G1"}).json["retryMaxTimes"] == 3
        assert client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G2"}).json["consumeEnable"] is False

    @pytest.mark.parametrize(
        ("bad", "code"),
        [
            ({"groupName": "a b"}, ResponseCode.INVALID_PARAMETER),
            ({"groupName": "G" * 121}, ResponseCode.INVALID_PARAMETER),
            ({"groupName": "G", "retryQueueNums": -1}, ResponseCode.INVALID_PARAMETER),
            ({"groupName": "G", "retryMaxTimes": -2}, ResponseCode.INVALID_PARAMETER),
            ({"groupName": "G", "attributes": {"+priority.factor": "1"}}, ResponseCode.SYSTEM_ERROR),
        ],
    )
    def test_one_bad_group_refuses_all(self, broker, bad, code):
        assert put_groups(broker.connect(), {"groupName": "GOOD"}, bad).code == code
        assert "GOOD" not in broker.node.groups.by_name

    def test_groups_come_in_pages_with_their_version(self, broker):
        client = broker.connect()
        put_groups(client, {"groupName": "G1"}, {"groupName": "G2"})
        whole = client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        names = sorted(whole.json["subscriptionGroupTable"])
        fields = {"groupSeq": "2", "maxGroupNum": "3", "dataVersion": json.dumps(whole.json["dataVersion"])}
        page = client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, fields)
        assert sorted(page.json["subscriptionGroupTable"]) == names[2:5]
        assert page.ext["totalGroupNum"] == str(len(names))

    def test_a_ban_of_an_unknown_group_is_listed(self, broker):
        """`AdminBrokerProcessor.getAllSubscriptionGroup` lists the whole `forbiddenTable`."""
        client = broker.connect()
        put_groups(client, {"groupName": "G1"})
        for group in ("G1", "later"):
            fields = {"group": group, "topic": "T", "readable": "false"}
            assert client.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, fields).code == 0
        whole = client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).json
        assert whole["forbiddenTable"] == {"G1": {"T": 4}, "later": {"T": 4}}
        # Slaves copy pages. Unlike Apache's, they get the ban of a group that nobody knows yet.
        first, *_ = pages = list(groups_in_pages(client))
        assert first["forbiddenTable"]["later"] == {"T": 4}
        bans = [(group, topic) for page in pages for group, topics in page["forbiddenTable"].items() for topic in topics]
        assert sorted(bans) == [("G1", "T"), ("later", "T")]
        assert client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "later"}).code == 0
        assert broker.node.groups.forbidden == {"G1": {"T": 4}}

    def test_pages_can_be_switched_off(self, make):
        client = make("enableSplitMetadata=false").connect()
        page = client.ask(RequestCode.GET_ALL_TOPIC_CONFIG, {"topicSeq": "0", "maxTopicNum": "1"})
        assert len(page.json["topicConfigTable"]) == int(page.ext["totalTopicNum"])


class TestAttributes:
    @pytest.mark.parametrize(
        ("known", "changes", "after"),
        [
            (None, "+message.type=FIFO,+reserve.time=5", {"message.type": "FIFO", "reserve.time": "5"}),
            ({"message.type": "FIFO"}, "+message.type=DELAY", {"message.type": "DELAY"}),
            ({"message.type": "FIFO"}, "-message.type", {}),
            ({"queue.type": "SimpleCQ"}, "+queue.type=SimpleCQ", {"queue.type": "SimpleCQ"}),
            ({"a": "b"}, "", {"a": "b"}),
        ],
    )
    def test_changes_that_are_taken(self, known, changes, after):
        assert altered(known, parse(changes), TOPIC_ATTRIBUTES) == after

    @pytest.mark.parametrize(
        ("known", "changes", "why"),
        [
            (None, "message.type=FIFO", "format is wrong"),
            (None, "+message.type", "format is wrong"),
            (None, "-message.type", "only add attribute"),
            (None, "+message.type=OTHER", "not one of"),
            (None, "+message.type=LITE", "not supported by this broker yet"),
            (None, "+cleanup.policy=COMPACTION", "not supported by this broker yet"),
            (None, "+reserve.time=x", "not a whole number"),
            (None, "+reserve.time=-2", "not between"),
            (None, "+unknown=1", "unsupported key: unknown"),
            (None, "+message.type=FIFO,+message.type=DELAY", "duplication"),
            ({}, "-message.type", "nonexistent"),
            ({"queue.type": "SimpleCQ"}, "-queue.type", "unchangeable"),
            ({}, "+queue.type=SimpleCQ", "unchangeable"),
            (None, "+=1", "neither"),
        ],
    )
    def test_changes_that_are_refused(self, known, changes, why):
        with pytest.raises(ValueError, match=why):
            altered(known, parse(changes), TOPIC_ATTRIBUTES)

    def test_mixed_types_need_the_setting(self, make):
        for setting, code in (("false", ResponseCode.INVALID_PARAMETER), ("true", 0)):
            client = make(f"enableMixedMessageType={setting}").connect()
            assert put_topics(client, {"topicName": "M", "attributes": {"+message.type": "MIXED"}}).code == code


class TestTopicsAndWhoConsumesThem:
    def test_pop_s_retry_topics_go_with_their_topic(self, broker):
        client = with_topic(broker)
        commit(client, 0)
        for name in ("%RETRY%CG_T", "%RETRY%CG"):
            broker.node.topics.create_system(name, 1)
        assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
        assert broker.node.topics.get("%RETRY%CG_T") is None
        assert broker.node.topics.get("%RETRY%CG") is not None

    def test_counters_go_with_their_topic(self, broker):
        client = with_topic(broker)
        send(client)
        client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert counter(client, "TOPIC_PUT_NUMS", "T").code == ResponseCode.SYSTEM_ERROR
        assert broker.node.statistics.put_count == 1

    def test_system_topics(self, broker):
        topics = broker.connect().ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).json["topicList"]
        assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "DefaultCluster"} <= set(topics)

    def test_the_subscription_of_a_group_that_is_online(self, broker):
        client = with_topic(broker)
        fields = {"group": "CG", "topic": "T"}
        found = client.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, fields).json
        assert found == {"group": "CG", "topic": "T"}
        subscribe(broker.connect(), "T")
        found = client.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, fields).json
        assert found["subscriptionData"]["subString"] == "*"

    def test_topics_of_a_consumer_name_the_broker(self, broker):
        client = with_topic(broker)
        commit(client, 0)
        found = client.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "CG"}).json
        assert found == {"brokerAddr": "127.0.0.1:10911", "topicList": ["T"]}
