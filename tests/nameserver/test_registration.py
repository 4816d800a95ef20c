"""REGISTER_BROKER (103): the rules in upstream's order, and both forms of the body."""

import json
import struct
import zlib

import pytest

from rmqkit.wire.codes import RequestCode, Version
from tests.nameserver.conftest import Make, NameServerScript
from tests.nameserver.peers import Admin, Broker, register_body, topic, topic_table, version


def test_the_answer_to_a_master_names_no_master(ns: NameServerScript):
    """RouteInfoManager.registerBroker, DefaultRequestProcessor.registerBroker: only brokers with an
    id above 0 get addresses."""
    answer = Broker(ns).register("T1", "T2")
    assert (answer.code, answer.ext, answer.body, answer.remark) == (0, {}, b"", None)


def test_the_answer_to_a_slave_names_its_master(ns: NameServerScript):
    """RouteInfoManager.registerBroker, the last part: haServerAddr and masterAddr."""
    Broker(ns).register("T1", "T2")
    answer = Broker(ns, broker_id=1).register("T1", "T2")
    assert answer.ext == {"masterAddr": "127.0.0.1:10911", "haServerAddr": "127.0.0.1:10912"}


def test_the_answer_to_a_slave_without_master_is_empty(ns: NameServerScript):
    answer = Broker(ns, broker_id=1).register("T1", "T2")
    assert (answer.code, answer.ext) == (0, {})


def test_rule_1_a_broker_without_the_field_for_acting_masters_is_never_a_prime_slave(ns: NameServerScript):
    """RouteInfoManager.registerBroker: isOldVersionBroker."""
    Broker(ns, broker_id=1, acting=None).register("T1", "T2")
    assert Admin(ns).topics() == set()
    assert ns.node.routes.groups["broker-a"].enable_acting_master is False


def test_rule_2_the_same_address_under_another_id_has_changed_its_role(ns: NameServerScript):
    """RouteInfoManager.registerBroker: one address has one id.

    RouteInfoManagerNewTest.switchBrokerRole.
    """
    admin, master = Admin(ns), Broker(ns)
    slave = Broker(ns, broker_id=1)
    master.register("T1", "T2")
    slave.register("T1", "T2")
    master.unregister()
    assert admin.addresses("T1") == {"broker-a": {"1": "127.0.0.1:10921"}}
    slave.broker_id = 0
    slave.register("T1", "T2", data_version=version(2))
    assert admin.addresses("T1") == {"broker-a": {"0": "127.0.0.1:10921"}}
    master.broker_id = 1
    master.register("T1", "T2", data_version=version(2))
    assert admin.addresses("T1") == {"broker-a": {"0": "127.0.0.1:10921", "1": "127.0.0.1:10911"}}


def test_rule_3_an_id_goes_to_the_newcomer(ns: NameServerScript):
    """RouteInfoManager.registerBroker: with equal state versions the newest registration wins."""
    admin = Admin(ns)
    Broker(ns, address="10.0.0.1:10911").register("T1", "T2")
    answer = Broker(ns, address="10.0.0.2:10911").register("T1", "T2")
    assert (answer.code, answer.ext) == (0, {})
    assert admin.addresses("T1") == {"broker-a": {"0": "10.0.0.2:10911"}}


def test_rule_3_a_holder_with_newer_state_stays(ns: NameServerScript):
    """RouteInfoManager.registerBroker: oldStateVersion > newStateVersion.

    The newcomer gets success without addresses.
    """
    admin = Admin(ns)
    Broker(ns, address="10.0.0.1:10911").register("T1", "T2", data_version=version(state=7))
    late = Broker(ns, address="10.0.0.2:10911")
    answer = late.register("T1", "T3", data_version=version(state=6))
    assert (answer.code, answer.ext) == (0, {})
    assert admin.addresses("T1") == {"broker-a": {"0": "10.0.0.1:10911"}}
    assert admin.route("T3") is None
    assert late.query_version(version(state=6)).ext == {"changed": "true"}
    late.client.close()
    assert admin.addresses("T1") == {"broker-a": {"0": "10.0.0.1:10911"}}


def test_rule_3_an_ignored_newcomer_loses_the_id_it_had(ns: NameServerScript):
    """RouteInfoManager.registerBroker: rule 2 removes the address, rule 3 removes it from the live
    table."""
    admin = Admin(ns)
    Broker(ns).register("T1", "T2", data_version=version(state=7))
    other = Broker(ns, broker_id=1)
    other.register("T1", "T2", data_version=version(state=6))
    other.broker_id = 0
    other.register("T1", "T2", data_version=version(state=6))
    assert admin.addresses("T1") == {"broker-a": {"0": "127.0.0.1:10911"}}


def test_rule_4_one_topic_alone_is_refused_the_first_time(ns: NameServerScript):
    """RouteInfoManager.registerBroker returns null.

    DefaultRequestProcessor answers "register broker failed".
    """
    admin, broker = Admin(ns), Broker(ns)
    answer = broker.register("T1")
    assert (answer.code, answer.remark) == (1, "register broker failed")
    assert admin.cluster_info() == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    assert broker.register("T1", "T2").code == 0
    assert broker.register("T3", data_version=version(2)).code == 0
    assert admin.topics() == {"T1", "T2", "T3"}


def test_rule_4_holds_for_each_id(ns: NameServerScript):
    """RouteInfoManager.registerBroker: the check is by broker id, not by name."""
    Broker(ns).register("T1", "T2")
    slave = Broker(ns, broker_id=1)
    assert slave.register("T1").code == 1
    assert slave.register("T1", "T2").code == 0


def test_rule_4_lets_a_broker_without_topics_in(ns: NameServerScript):
    """RouteInfoManager.registerBroker: exactly one topic is refused, none is not."""
    answer = Broker(ns).send_register(b"")
    assert answer.code == 0
    assert Admin(ns).cluster_info()["clusterAddrTable"] == {"DefaultCluster": ["broker-a"]}


def test_rule_5_slaves_do_not_enter_topics(ns: NameServerScript):
    """RouteInfoManager.registerBroker: isMaster || isPrimeSlave."""
    Broker(ns).register("T1", "T2")
    Broker(ns, broker_id=1).register("T1", "T2", "T3", data_version=version(9))
    assert Admin(ns).topics() == {"T1", "T2"}


@pytest.mark.parametrize(("acting", "perm"), [(True, 4), (False, 6)])
def test_rule_5_the_prime_slave_enters_topics(ns: NameServerScript, acting: bool, perm: int):
    """RouteInfoManager.registerBroker: isPrimeSlave; the write bit is removed if the group may have
    an acting master (RouteInfoManagerNewTest.registerOnlySlaveBroker)."""
    admin = Admin(ns)
    Broker(ns, broker_id=2, acting=acting).register("T1", "T2")
    assert admin.perm("T1") == perm
    Broker(ns, broker_id=3, acting=acting).register("T1", "T2", "T3")
    assert admin.topics() == {"T1", "T2"}


def test_rule_5_a_returning_master_gets_its_write_bit_back(ns: NameServerScript):
    """RouteInfoManagerNewTest.registerOnlySlaveBroker, case 2: registerFirst enters all topics
    again."""
    admin, master = Admin(ns), Broker(ns, acting=True)
    master.register("T1", "T2")
    Broker(ns, broker_id=1, acting=True).register("T1", "T2")
    master.unregister()
    assert admin.perm("T1") == 4
    master.register("T1", "T2")
    assert admin.perm("T1") == 6


def test_rule_5_a_new_id_enters_its_topics_whatever_their_version(ns: NameServerScript):
    """RouteInfoManager.registerBroker: registerFirst.

    An acting master that becomes the master keeps its DataVersion.
    """
    admin, broker = Admin(ns), Broker(ns, broker_id=1, acting=True)
    broker.register("T1", "T2")
    assert admin.perm("T1") == 4
    broker.broker_id = 0
    broker.register("T1", "T2")
    assert admin.perm("T1") == 6


def test_rule_5_topics_change_with_the_data_version(ns: NameServerScript):
    """RouteInfoManager.isTopicConfigChanged: with the same version, topics stay the same; a topic
    that lacks the broker is entered."""
    admin, broker = Admin(ns), Broker(ns)
    broker.register(topic("T1", queues=4), "T2")
    broker.register(topic("T1", queues=8), "T2", "T3")
    queues = admin.route("T1")["queueDatas"][0]
    assert (queues["readQueueNums"], queues["writeQueueNums"]) == (4, 4)
    assert admin.route("T3") is not None
    broker.register(topic("T1", queues=8), "T2", data_version=version(2))
    assert admin.route("T1")["queueDatas"][0]["readQueueNums"] == 8


@pytest.mark.parametrize("changed", [version(2), version(state=1), version(at_ms=5)])
def test_rule_5_each_part_of_a_data_version_counts(ns: NameServerScript, changed: dict[str, int]):
    """DataVersion.equals."""
    broker = Broker(ns)
    broker.register("T1", "T2")
    broker.register(topic("T1", perm=4), "T2", data_version=changed)
    assert Admin(ns).perm("T1") == 4


def test_rule_5_topics_that_are_not_named_stay(ns: NameServerScript):
    """RouteInfoManagerNewTest.keepTopicWithBrokerRegistration."""
    broker = Broker(ns)
    broker.register("T1", "T2")
    broker.register("T2", "T3", data_version=version(2))
    assert Admin(ns).topics() == {"T1", "T2", "T3"}


def test_rule_5_topics_that_are_not_named_go_by_setting(make_ns: Make):
    """RouteInfoManagerNewTest.deleteTopicWithBrokerRegistration2.

    Only the broker's own share of a topic is deleted.
    """
    ns = make_ns(deleteTopicWithBrokerRegistration=True)
    admin, one, other = Admin(ns), Broker(ns), Broker(ns, "broker-b", address="127.0.0.1:20911")
    one.register("T1", "T2")
    other.register("T1", "T2")
    one.register("T2", data_version=version(2))
    assert set(admin.addresses("T1")) == {"broker-b"}
    assert set(admin.addresses("T2")) == {"broker-a", "broker-b"}
    other.register("T2", data_version=version(2))
    assert admin.topics() == {"T2"}


def test_rule_6_the_live_entry(ns: NameServerScript):
    """RouteInfoManager.BrokerLiveInfo: the broker's timeout or 120 s, DataVersion, HA address."""
    Broker(ns).register()
    Broker(ns, broker_id=1, heartbeatTimeoutMillis="10000").register(data_version=version(3))
    members = ns.node.routes.groups["broker-a"].members
    assert (members[0].timeout_ms, members[1].timeout_ms) == (120_000, 10_000)
    assert members[1].data_version.counter == 3
    assert members[1].ha_address == "127.0.0.1:10922"
    assert members[1].heard_ms == ns.clock.mono_ms


def test_cluster_and_broker_names_have_routes_because_brokers_register_them(ns: NameServerScript):
    Broker(ns).register("DefaultCluster", "broker-a")
    assert Admin(ns).addresses("DefaultCluster") == Admin(ns).addresses("broker-a") != {}


def test_two_groups_may_name_one_address(ns: NameServerScript):
    """Like RouteInfoManagerNewTest.deleteTopic; the end of one group does not harm the other."""
    admin = Admin(ns)
    one, other = Broker(ns, "broker-a"), Broker(ns, "broker-b", cluster="AnotherCluster")
    one.register("T1", "T2")
    other.register("T1", "T2")
    assert set(admin.addresses("T1")) == {"broker-a", "broker-b"}
    one.client.close()
    assert set(admin.addresses("T1")) == {"broker-b"}


def test_a_broker_name_belongs_to_one_cluster(ns: NameServerScript):
    """Upstream mixes brokers of both clusters in one group; then some can never be unregistered."""
    admin = Admin(ns)
    Broker(ns).register("T1", "T2")
    answer = Broker(ns, broker_id=1, cluster="Other").register("T1", "T2")
    assert answer.code == 1
    assert "belongs to cluster 'DefaultCluster'" in str(answer.remark)
    assert admin.cluster_info()["clusterAddrTable"] == {"DefaultCluster": ["broker-a"]}


def test_a_broker_that_is_alone_may_change_its_cluster(ns: NameServerScript):
    admin = Admin(ns)
    Broker(ns).register("T1", "T2")
    assert Broker(ns, cluster="Other").register("T1", "T2").code == 0
    assert admin.cluster_info()["clusterAddrTable"] == {"Other": ["broker-a"]}
    assert admin.route("T1")["brokerDatas"][0]["cluster"] == "Other"


def test_the_answer_to_a_registration_has_the_ordered_topics(make_ns: Make):
    """DefaultRequestProcessor.registerBroker: returnOrderTopicConfigToBroker.

    The topics come from the KV namespace ORDER_TOPIC_CONFIG.
    """
    for setting, body in ((True, {"table": {"T1": "broker-a:4"}}), (False, None)):
        ns = make_ns(returnOrderTopicConfigToBroker=setting)
        Admin(ns).ask(RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T1", value="broker-a:4")
        answer = Broker(ns).register()
        assert (json.loads(answer.body) if answer.body else None) == body


def test_filter_servers_are_shown_until_taken_back(ns: NameServerScript):
    """RouteInfoManager.registerBroker: an empty list removes them.

    RouteInfoManager.pickupTopicRouteData: they are shown by broker address.
    """
    admin, broker = Admin(ns), Broker(ns)
    broker.register("T1", "T2", filter_servers=("10.0.0.9:9000",))
    assert admin.route("T1")["filterServerTable"] == {"127.0.0.1:10911": ["10.0.0.9:9000"]}
    broker.register("T1", "T2")
    assert admin.route("T1")["filterServerTable"] == {}


def test_static_topic_mappings_reach_the_route(ns: NameServerScript):
    """RouteInfoManager.registerBroker: topicQueueMappingInfoTable by mapping.bname.

    Integer keys come unquoted.
    """
    body = register_body(("T1", "T2"), topicQueueMappingInfoMap={"T1": "@"}).replace(
        b'"@"', b'{"bname":"broker-a","currIdMap":{0:0},"dirty":false,"epoch":7,"topic":"T1","totalQueues":1}'
    )
    assert Broker(ns).send_register(body).code == 0
    mapping = Admin(ns).route("T1")["topicQueueMappingByBroker"]["broker-a"]
    assert (mapping["currIdMap"], mapping["epoch"]) == ({"0": 0}, 7)
    Admin(ns).ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T1")
    assert ns.node.routes.mappings == {}


# --- the body


def test_wrong_crc_is_refused(ns: NameServerScript):
    """DefaultRequestProcessor.checksum: crc32 of the body & 0x7FFFFFFF; 0 means unchecked."""
    broker, body = Broker(ns), register_body(("T1", "T2"))
    right = zlib.crc32(body) & 0x7FFFFFFF
    answer = broker.send_register(body, {"bodyCrc32": str(right ^ 1)})
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    assert broker.send_register(b"", {"bodyCrc32": "5"}).code == 1
    assert Admin(ns).topics() == set()
    assert broker.send_register(body, {"bodyCrc32": "0"}).code == 0


def test_crc_has_31_bits(ns: NameServerScript):
    """UtilAll.crc32: about half of all bodies have a crc32 that exceeds Java's int."""
    counter = next(n for n in range(100) if zlib.crc32(register_body(("T1", "T2"), version(n))) >> 31)
    assert Broker(ns).register("T1", "T2", data_version=version(counter)).code == 0


def deflated(*texts: bytes, filter_servers: bytes = b"[]", mappings: tuple[bytes, ...] | None = ()) -> bytes:
    def sized(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    parts = [
        sized(json.dumps(version()).encode()),
        struct.pack(">i", len(texts)),
        *map(sized, texts),
        sized(filter_servers),
    ]
    if mappings is not None:
        parts += [struct.pack(">i", len(mappings)), *map(sized, mappings)]
    return zlib.compress(b"".join(parts), 9)


@pytest.mark.parametrize("said", ["true", "false"])
def test_compressed_body(ns: NameServerScript, said: str):
    """RegisterBrokerBody.decode; 5.x brokers send compressed bodies with compressed=false."""
    body = deflated(b"T1 4 8 6 SINGLE_TAG {}", b'T2 1 1 4 SINGLE_TAG {"+message.type":"FIFO"}')
    assert Broker(ns).send_register(body, {"compressed": said}).code == 0
    queues = Admin(ns).route("T1")["queueDatas"][0]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (4, 8, 6)
    assert Admin(ns).perm("T2") == 4


def test_compressed_body_of_a_4_x_broker_has_no_mappings(ns: NameServerScript):
    """RegisterBrokerBody.decode: the mapping section exists since V5_0_0."""
    body = deflated(b"T1 4 4 6 SINGLE_TAG", b"T2 4 4 6 SINGLE_TAG", mappings=None)
    broker = Broker(ns)
    assert broker.send_register(body, {"compressed": "true"}, version=int(Version.V5_0_0)).code == 1
    assert broker.send_register(body, {"compressed": "true"}, version=int(Version.V4_9_4)).code == 0


def test_body_of_a_broker_before_3_0_11_is_the_bare_table(ns: NameServerScript):
    """DefaultRequestProcessor.extractRegisterTopicConfigFromRequest.

    Filter servers stay as they were.
    """
    broker = Broker(ns)
    broker.register("T1", "T2", filter_servers=("10.0.0.9:9000",))
    body = json.dumps(topic_table(("T1", "T2", "T3"), version(2))).encode()
    assert broker.send_register(body, version=int(Version.V3_0_11) - 1).code == 0
    assert Admin(ns).topics() == {"T1", "T2", "T3"}
    assert Admin(ns).route("T3")["filterServerTable"] == {"127.0.0.1:10911": ["10.0.0.9:9000"]}


def test_a_broken_body_is_named(ns: NameServerScript):
    """DefaultRequestProcessor.extractRegisterBrokerBodyFromRequest."""
    answer = Broker(ns).send_register(b"{broken")
    assert answer.code == 1
    assert "Failed to decode RegisterBrokerBody" in str(answer.remark)
