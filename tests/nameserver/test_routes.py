"""Answers from the tables: codes 105, 106, 901, 322."""

import json

import pytest

from rmqkit.wire.codes import RequestCode
from tests.nameserver.conftest import Make, NameServerScript
from tests.nameserver.peers import Admin, Broker, topic, version


@pytest.mark.parametrize("asker", [317, 401, 513])
@pytest.mark.parametrize("standard", [None, "true", "false"])
def test_route_bytes(ns: NameServerScript, asker: int, standard: str | None):
    """ClientRequestProcessor.getRouteInfoByTopic: standard JSON for every version, without white
    space."""
    Broker(ns).register(topic("T1", queues=8), "T2")
    Broker(ns, broker_id=1).register("T1", "T2")
    ext = {"topic": "T1"} | ({"acceptStandardJsonOnly": standard} if standard else {})
    answer = ns.connect().ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, version=asker)
    assert answer.code == 0
    assert answer.body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911","1":"127.0.0.1:10921"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":'
        b'"broker-a","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}'
    )


def test_no_route(ns: NameServerScript):
    """ClientRequestProcessor.getRouteInfoByTopic: code 17 and its remark; FAQUrl.suggestTodo."""
    answer = Admin(ns).ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="Nowhere")
    assert answer.code == 17
    assert answer.remark == (
        "No topic route info in name server for the topic: Nowhere\n"
        "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )


def test_a_group_without_master_is_shown_as_it_is(ns: NameServerScript):
    """RouteInfoManager.pickupTopicRouteData: supportActingMaster is false."""
    Broker(ns, broker_id=2, acting=True).register("T1", "T2")
    Broker(ns, broker_id=1, acting=True).register("T1", "T2")
    assert Admin(ns).addresses("T1") == {"broker-a": {"1": "127.0.0.1:10921", "2": "127.0.0.1:10931"}}


def test_name_server_that_waits_for_its_brokers(make_ns: Make):
    """ClientRequestProcessor.getRouteInfoByTopic: needWaitForService, waitSecondsForService."""
    ns = make_ns(needWaitForService=True, waitSecondsForService=45)
    Broker(ns).register("T1", "T2")
    answer = Admin(ns).ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1")
    assert (answer.code, answer.remark) == (1, "name server not ready")
    assert Admin(ns).ask(RequestCode.GET_BROKER_CLUSTER_INFO).code == 0
    ns.advance(44_999)
    assert Admin(ns).ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1").code == 1
    ns.advance(1)
    assert Admin(ns).addresses("T1") != {}


@pytest.mark.parametrize(("setting", "shown"), [(True, "broker-a:4"), (False, None)])
def test_order_configuration_in_the_route(make_ns: Make, setting: bool, shown: str | None):
    """ClientRequestProcessor.getRouteInfoByTopic: orderMessageEnable."""
    ns = make_ns(orderMessageEnable=setting)
    admin = Admin(ns)
    admin.ask(RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T1", value="broker-a:4")
    Broker(ns).register("T1", "T2")
    assert admin.route("T1").get("orderTopicConf") == shown
    assert "orderTopicConf" not in admin.route("T2")


class TestZones:
    """ZoneRouteRPCHook.filterByZoneName: the zone's brokers, ignoring case, and groups without
    id 0."""

    @pytest.fixture
    def admin(self, ns: NameServerScript) -> Admin:
        for name, broker_id, zone in (("a", 0, "East"), ("b", 0, "west"), ("c", 1, "west"), ("d", 0, None)):
            ext = {} if zone is None else {"__ZONE_NAME": zone}
            broker = Broker(ns, name, broker_id, f"10.0.0.{ord(name)}:10911", **ext)
            broker.register("T1", "T2", filter_servers=(f"10.0.1.{ord(name)}:9000",))
        return Admin(ns)

    def test_filter(self, admin: Admin):
        route = admin.route("T1", __ZONE_MODE="true", __ZONE_NAME="EAST")
        assert {each["brokerName"] for each in route["brokerDatas"]} == {"a", "c"}
        assert {each["brokerName"] for each in route["queueDatas"]} == {"a", "c"}
        assert set(route["filterServerTable"]) == {"10.0.0.97:10911", "10.0.0.99:10911"}
        assert route["brokerDatas"][0]["zoneName"] == "East"

    @pytest.mark.parametrize(
        "ext",
        [
            {"__ZONE_NAME": "East"},
            {"__ZONE_MODE": "false", "__ZONE_NAME": "East"},
            {"__ZONE_MODE": "true"},
            {"__ZONE_MODE": "true", "__ZONE_NAME": "  "},
        ],
    )
    def test_no_filter(self, admin: Admin, ext: dict[str, str]):
        assert len(admin.route("T1", **ext)["brokerDatas"]) == 4

    def test_a_zone_of_nobody(self, admin: Admin):
        route = admin.route("T1", __ZONE_MODE="true", __ZONE_NAME="north")
        assert [each["brokerName"] for each in route["brokerDatas"]] == ["c"]


def test_cluster_info(ns: NameServerScript):
    """RouteInfoManager.getAllClusterInfo (RouteInfoManagerNewTest.getAllClusterInfo)."""
    Broker(ns).register()
    Broker(ns, broker_id=1).register()
    Broker(ns, "AnotherBroker", address="127.0.0.1:30911", cluster="AnotherCluster", acting=True).register()
    info = Admin(ns).cluster_info()
    assert info["clusterAddrTable"] == {"AnotherCluster": ["AnotherBroker"], "DefaultCluster": ["broker-a"]}
    assert info["brokerAddrTable"]["broker-a"] == {
        "brokerAddrs": {"0": "127.0.0.1:10911", "1": "127.0.0.1:10921"},
        "brokerName": "broker-a",
        "cluster": "DefaultCluster",
        "enableActingMaster": False,
    }
    assert info["brokerAddrTable"]["AnotherBroker"]["enableActingMaster"] is True


def test_member_group(ns: NameServerScript):
    """RouteInfoManager.getBrokerMemberGroup: empty if the name is unknown."""
    Broker(ns, broker_id=1).register()
    for name, addresses in (("broker-a", {"1": "127.0.0.1:10921"}), ("nobody", {})):
        answer = Admin(ns).ask(RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="DefaultCluster", brokerName=name)
        group = {"brokerAddrs": addresses, "brokerName": name, "cluster": "DefaultCluster"}
        assert answer.json == {"brokerMemberGroup": group}


def test_query_data_version(ns: NameServerScript):
    """DefaultRequestProcessor.queryBrokerTopicConfig: the body is the stored version, if any."""
    broker = Broker(ns)
    stranger = broker.query_version(version())
    assert (stranger.code, stranger.ext, stranger.body) == (0, {"changed": "true"}, b"")
    broker.register(data_version=version(3, 2, 1))
    for asked, changed in ((version(3, 2, 1), "false"), (version(4, 2, 1), "true")):
        answer = broker.query_version(asked)
        assert answer.ext == {"changed": changed}
        assert answer.body == b'{"counter":3,"stateVersion":2,"timestamp":1}'
    bare = broker.client.ask(RequestCode.QUERY_DATA_VERSION, broker.identity)
    assert bare.ext == {"changed": "true"}


def test_data_version_of_the_last_registration_counts(ns: NameServerScript):
    broker = Broker(ns)
    broker.register(data_version=version(1))
    broker.register("T1", data_version=version(2))
    assert json.loads(broker.query_version(version(2)).body)["counter"] == 2


def test_oneway_requests_are_not_answered(ns: NameServerScript):
    """NettyRemotingAbstract.processRequestCommand: the 5.x heartbeat is a one-way 322."""
    broker = Broker(ns)
    broker.register("T1", "T2")
    ns.advance(100_000)
    for code, body in (
        (RequestCode.QUERY_DATA_VERSION, json.dumps(version()).encode()),
        (RequestCode.BROKER_HEARTBEAT, b""),
    ):
        opaque = broker.client.tell(code, broker.identity, body, flag=2)
        assert broker.client.answer_to(opaque) is None
    ns.advance(100_000)
    assert Admin(ns).addresses("T1") != {}


def test_unknown_codes(ns: NameServerScript):
    """DefaultRequestProcessor.processRequest, default branch."""
    answer = Admin(ns).ask(99_999)
    assert (answer.code, answer.remark) == (3, " request type 99999 not supported")


def test_name_servers_share_nothing(make_ns: Make):
    one, other = make_ns(), make_ns()
    Broker(one).register("T1", "T2")
    assert Admin(other).addresses("T1") == {}
    assert Admin(one).addresses("T1") != {}
