"""Administration of topics: 205, 327, 206, 224, 304, 311-313, 216, 217."""

import json

import pytest

from rmqkit.wire.codes import RequestCode
from tests.helpers.script import Command
from tests.nameserver.conftest import Make, NameServerScript
from tests.nameserver.peers import Admin, Broker, topic, version


def test_wipe_and_add_write_permission(ns: NameServerScript):
    """RouteInfoManager.operateWritePermOfBroker: perm &= ~2, then perm = 6; memory only."""
    admin, broker = Admin(ns), Broker(ns)
    broker.register(topic("T1", perm=7), "T2")
    Broker(ns, "broker-b", address="127.0.0.1:20911").register("T1", "T2")
    answer = admin.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert answer.ext == {"wipeTopicCount": "2"}
    assert [admin.perm("T1"), admin.perm("T2"), admin.perm("T1", "broker-b")] == [5, 4, 6]
    broker.register(topic("T1", perm=7), "T2")
    assert admin.perm("T1") == 5
    assert ("write-perm-wiped", "broker-a") in [
        (event, fields.get("broker_name")) for _level, event, fields in ns.log.lines
    ]
    answer = admin.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert answer.ext == {"addTopicCount": "2"}
    assert admin.perm("T1") == 6
    broker.register(topic("T1", perm=7), "T2", data_version=version(2))
    assert admin.perm("T1") == 7


@pytest.mark.parametrize("code", [RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER])
def test_permission_of_an_unknown_broker(ns: NameServerScript, code: int):
    answer = Admin(ns).ask(code, brokerName="nobody")
    assert (answer.code, list(answer.ext.values())) == (0, ["0"])


def listed(answer: Command) -> set[str]:
    names: list[str] = answer.json["topicList"]
    assert len(names) == len(set(names))
    return set(names)


def test_topic_lists(ns: NameServerScript):
    """RouteInfoManager.getAllTopicList, getTopicsByCluster, getSystemTopicList."""
    admin = Admin(ns)
    Broker(ns).register("T1", "T2")
    Broker(ns, "broker-c", address="127.0.0.1:20911").register("T1", "T2")
    Broker(ns, "broker-b", address="127.0.0.1:30911", cluster="Other").register("T2", "T3")
    assert admin.topics() == {"T1", "T2", "T3"}
    assert listed(admin.ask(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="DefaultCluster")) == {"T1", "T2"}
    assert listed(admin.ask(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="Other")) == {"T2", "T3"}
    assert listed(admin.ask(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="nobody")) == set()
    system = admin.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert listed(system) == {"DefaultCluster", "broker-a", "broker-b", "broker-c", "Other"}
    assert system.json["brokerAddr"] == "127.0.0.1:10911"


def test_lists_of_an_empty_name_server(ns: NameServerScript):
    assert Admin(ns).ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body == b'{"topicList":[]}'
    assert Admin(ns).ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body == b'{"topicList":[]}'


def test_unit_lists(ns: NameServerScript):
    """RouteInfoManager.getUnitTopics, getHasUnitSubTopicList, getHasUnitSubUnUnitTopicList."""
    Broker(ns).register(topic("unit", sys_flag=1), topic("sub", sys_flag=2), topic("both", sys_flag=3), "none")
    admin = Admin(ns)
    assert listed(admin.ask(RequestCode.GET_UNIT_TOPIC_LIST)) == {"unit", "both"}
    assert listed(admin.ask(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST)) == {"sub", "both"}
    assert listed(admin.ask(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)) == {"sub"}


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("enableAllTopicList", RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
        ("enableTopicList", RequestCode.GET_TOPICS_BY_CLUSTER),
        ("enableTopicList", RequestCode.GET_UNIT_TOPIC_LIST),
        ("enableTopicList", RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST),
        ("enableTopicList", RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
    ],
)
def test_lists_can_be_switched_off(make_ns: Make, setting: str, code: int):
    """DefaultRequestProcessor.getAllTopicListFromNameserver and its neighbours."""
    answer = Admin(make_ns(**{setting: False})).ask(code, cluster="DefaultCluster")
    assert (answer.code, answer.remark) == (1, "disable")
    assert Admin(make_ns()).ask(code, cluster="DefaultCluster").code == 0


def test_delete_topic(ns: NameServerScript):
    """RouteInfoManager.deleteTopic, with and without a cluster.

    RouteInfoManagerNewTest.deleteTopic.
    """
    admin = Admin(ns)
    Broker(ns).register("T1", "T2")
    Broker(ns, "broker-b", address="127.0.0.1:20911", cluster="Other").register("T1", "T2")
    assert admin.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T1", clusterName="DefaultCluster").code == 0
    assert set(admin.addresses("T1")) == {"broker-b"}
    assert admin.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T1", clusterName="nobody").code == 0
    assert set(admin.addresses("T1")) == {"broker-b"}
    assert admin.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T1", clusterName="").code == 0
    assert admin.topics() == {"T2"}
    assert admin.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T1").code == 0


def test_a_deleted_topic_comes_back_with_the_next_registration(ns: NameServerScript):
    """RouteInfoManager.isTopicConfigChanged: true if the topic lacks the broker."""
    admin, broker = Admin(ns), Broker(ns)
    broker.register("T1", "T2")
    admin.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T1")
    broker.register("T1", "T2")
    assert admin.topics() == {"T1", "T2"}


def queue_data(*names: str) -> bytes:
    queues = [{"brokerName": name, "perm": 6, "readQueueNums": 2, "topicSysFlag": 0, "writeQueueNums": 2} for name in names]
    return json.dumps({"queueDatas": queues, "brokerDatas": []}).encode()


class TestRegisterTopic:
    """RouteInfoManager.registerTopic, DefaultRequestProcessor.registerTopicToNamesrv."""

    @pytest.fixture
    def admin(self, ns: NameServerScript) -> Admin:
        Broker(ns).register("T1", "T2")
        Broker(ns, "broker-b", address="127.0.0.1:20911").register("T2", "T3")
        return Admin(ns)

    def test_new_topic(self, admin: Admin):
        assert admin.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, queue_data("broker-a", "broker-b"), topic="New").code == 0
        assert set(admin.addresses("New")) == {"broker-a", "broker-b"}
        assert admin.route("New")["queueDatas"][0]["readQueueNums"] == 2

    def test_new_topic_with_an_unknown_broker_is_not_made(self, admin: Admin):
        assert admin.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, queue_data("broker-a", "nobody"), topic="New").code == 0
        assert admin.route("New") is None

    def test_known_topic_is_changed_up_to_the_first_unknown_broker(self, admin: Admin):
        body = queue_data("broker-a", "nobody", "broker-b")
        assert admin.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, body, topic="T1").code == 0
        assert set(admin.addresses("T1")) == {"broker-a"}
        assert admin.route("T1")["queueDatas"][0]["readQueueNums"] == 2

    @pytest.mark.parametrize("body", [b"", b"{}", queue_data()])
    def test_nothing_to_register(self, admin: Admin, body: bytes):
        assert admin.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, body, topic="New").code == 0
        assert admin.topics() == {"T1", "T2", "T3"}
