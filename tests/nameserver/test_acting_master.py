"""supportActingMaster: routes, and only routes, show the smallest live slave as the master."""

import pytest

from rmqkit.wire.codes import RequestCode
from tests.nameserver.conftest import Make, NameServerScript
from tests.nameserver.peers import Admin, Broker, topic, version

MEMBERS = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
MASTER, FIRST, SECOND = "127.0.0.1:10911", "127.0.0.1:10921", "127.0.0.1:10931"


@pytest.fixture
def ns(make_ns: Make) -> NameServerScript:
    return make_ns(supportActingMaster=True)


def group_of(ns: NameServerScript, *ids: int, acting: bool | None = True, **ext: str) -> list[Broker]:
    brokers = [Broker(ns, broker_id=each, acting=acting, **ext) for each in ids]
    for broker in brokers:
        broker.register("T1", "T2", MEMBERS)
    return brokers


def test_the_smallest_slave_is_shown_as_the_master(ns: NameServerScript):
    """RouteInfoManager.pickupTopicRouteData.

    RouteInfoManagerNewTest.pickupTopicRouteDataWithSlave.
    """
    admin, (master, first, _) = Admin(ns), group_of(ns, 0, 2, 1)
    assert admin.addresses("T1") == {"broker-a": {"0": MASTER, "1": FIRST, "2": SECOND}}
    master.client.close()
    assert admin.addresses("T1") == {"broker-a": {"0": FIRST, "2": SECOND}}
    assert admin.perm("T1") == 4
    first.client.close()
    assert admin.addresses("T1") == {"broker-a": {"0": FIRST}}


@pytest.mark.parametrize("asker", [0, 317, 401, 513])
def test_clients_of_any_version_see_it(ns: NameServerScript, asker: int):
    group_of(ns, 1)
    answer = ns.connect().ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"}, version=asker)
    assert answer.json["brokerDatas"][0]["brokerAddrs"] == {"0": FIRST}


def test_requests_for_members_get_the_real_ids(ns: NameServerScript):
    """RouteInfoManager.pickupTopicRouteData (SYNC_BROKER_MEMBER_GROUP_PREFIX),
    getBrokerMemberGroup, getAllClusterInfo."""
    admin = Admin(ns)
    group_of(ns, 1, 2)
    ids = {"1": FIRST, "2": SECOND}
    assert admin.addresses(MEMBERS) == {"broker-a": ids}
    assert admin.cluster_info()["brokerAddrTable"]["broker-a"]["brokerAddrs"] == ids
    answer = admin.ask(RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="DefaultCluster", brokerName="broker-a")
    assert answer.json["brokerMemberGroup"]["brokerAddrs"] == ids


@pytest.mark.parametrize("acting", [False, None])
def test_a_group_that_has_no_acting_master(ns: NameServerScript, acting: bool | None):
    """RouteInfoManager.pickupTopicRouteData: isEnableActingMaster.

    RouteInfoManagerNewTest.pickupTopicRouteDataWithOldVersionBroker.
    """
    admin, (master, _) = Admin(ns), group_of(ns, 0, 1, acting=acting)
    master.client.close()
    assert admin.addresses("T1") == {"broker-a": {"1": FIRST}}
    assert admin.perm("T1") == 6


def test_off_and_on_while_it_runs(make_ns: Make):
    ns = make_ns()
    admin = Admin(ns)
    group_of(ns, 1)
    assert admin.addresses("T1") == {"broker-a": {"1": FIRST}}
    assert admin.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"supportActingMaster=true").code == 0
    assert admin.addresses("T1") == {"broker-a": {"0": FIRST}}


def test_only_the_group_without_master_is_changed(ns: NameServerScript):
    admin, (master, _) = Admin(ns), group_of(ns, 0, 1)
    Broker(ns, "broker-b", address="127.0.0.1:20911", acting=True).register("T1", "T2")
    master.client.close()
    assert admin.addresses("T1") == {"broker-a": {"0": FIRST}, "broker-b": {"0": "127.0.0.1:20911"}}
    assert (admin.perm("T1"), admin.perm("T1", "broker-b")) == (4, 6)


def test_the_master_is_back_at_once(ns: NameServerScript):
    """RouteInfoManager.registerBroker: registerFirst, so its topics get their own permissions."""
    admin, (master, _) = Admin(ns), group_of(ns, 0, 1)
    for _ in range(3):
        master.client.close()
        assert (admin.addresses("T1"), admin.perm("T1")) == ({"broker-a": {"0": FIRST}}, 4)
        (master,) = group_of(ns, 0)
        assert (admin.addresses("T1"), admin.perm("T1")) == ({"broker-a": {"0": MASTER, "1": FIRST}}, 6)


def test_a_slave_that_registers_again_takes_no_write_bit_from_its_master(ns: NameServerScript):
    admin, (_, slave) = Admin(ns), group_of(ns, 0, 1)
    slave.register("T1", "T2", data_version=version(9))
    assert admin.perm("T1") == 6


def test_a_prime_slave_brings_the_topics_of_a_lost_group(ns: NameServerScript):
    """RouteInfoManager.registerBroker: isPrimeSlave.

    Name server and master were lost, and only slaves register.
    """
    admin = Admin(ns)
    Broker(ns, broker_id=2, acting=True).register("T1", topic("T2", perm=2))
    assert (admin.addresses("T1"), admin.perm("T1"), admin.perm("T2")) == ({"broker-a": {"0": SECOND}}, 4, 0)
    first = Broker(ns, broker_id=1, acting=True)
    assert first.register("T3").code == 1
    first.register("T1", "T2", "T3")
    assert admin.addresses("T3") == {"broker-a": {"0": FIRST, "2": SECOND}}
    Broker(ns, acting=True).register("T1", "T2")
    assert admin.addresses("T1") == {"broker-a": {"0": MASTER, "1": FIRST, "2": SECOND}}
    assert admin.perm("T1") == 6


def test_nobody_gives_an_acting_master_the_write_bit(ns: NameServerScript):
    """Upstream then stops substituting in this group: clients find no id 0 to write to."""
    admin = Admin(ns)
    group_of(ns, 1)
    assert admin.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a").ext == {"addTopicCount": "3"}
    assert (admin.addresses("T1"), admin.perm("T1")) == ({"broker-a": {"0": FIRST}}, 4)


def test_a_zone_does_not_hide_a_group_without_its_master(ns: NameServerScript):
    """ZoneRouteRPCHook.filterByZoneName: "master down, consume from slave. break nearby route
    rule"."""
    admin, (master, _) = Admin(ns), group_of(ns, 0, 1, __ZONE_NAME="west")
    east = {"__ZONE_MODE": "true", "__ZONE_NAME": "east"}
    assert admin.route("T1", **east)["brokerDatas"] == []
    master.client.close()
    assert admin.route("T1", **east)["brokerDatas"][0]["brokerAddrs"] == {"0": FIRST}


def test_heartbeats_keep_it_silence_ends_it(ns: NameServerScript):
    """RouteInfoManager.scanNotActiveBroker, with the timeout given in the registration."""
    admin, (master, slave) = Admin(ns), group_of(ns, 0, 1, heartbeatTimeoutMillis="10000")
    for _ in range(30):
        ns.advance(1000)
        for broker in (master, slave):
            broker.client.tell(RequestCode.BROKER_HEARTBEAT, broker.identity, flag=2)
    for _ in range(11):
        ns.advance(1000)
        slave.heartbeat()
    assert admin.addresses("T1") == {"broker-a": {"0": FIRST}}
    assert "was silent for 10000 ms" in master.client.closed


def test_masters_of_one_connection_go_at_once(ns: NameServerScript):
    """A process with several brokers ends: both groups get acting masters in the same turn."""
    admin, (master, _) = Admin(ns), group_of(ns, 0, 1)
    other = Broker(ns, "broker-b", address="127.0.0.1:20911", acting=True, client=master.client)
    slave = Broker(ns, "broker-b", 1, "127.0.0.1:20921", acting=True)
    other.register("T1", "T2")
    slave.register("T1", "T2")
    master.client.close()
    assert admin.addresses("T1") == {"broker-a": {"0": FIRST}, "broker-b": {"0": "127.0.0.1:20921"}}


def test_two_brokers_with_one_id_are_told(ns: NameServerScript):
    """RouteInfoManager.registerBroker only logs an ignored registration, and does not report that
    a broker is replaced."""
    one, other = Broker(ns, broker_id=1), Broker(ns, broker_id=1, address="10.0.0.9:10911")
    assert one.register("T1", "T2").remark is None
    remark = f"broker id 1 was taken over from {FIRST}, which is no longer in the routes"
    assert other.register("T1", "T2").remark == remark
    assert "broker-id-taken-over" in ns.log.events("warning")
    assert other.register("T1", "T2", data_version=version(state=7)).remark is None
    answer = one.register("T1", "T2")
    assert answer.remark == "broker id 1 stays with 10.0.0.9:10911, which has the newer state version"
    assert answer.code == 0
    assert "registration-ignored" in ns.log.events("warning")
