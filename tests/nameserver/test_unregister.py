"""How brokers leave: UNREGISTER_BROKER (104), a closed connection, or an expired heartbeat."""

import pytest

from rmqkit.wire.codes import RequestCode
from tests.nameserver.conftest import Make, NameServerScript
from tests.nameserver.peers import Admin, Broker, version


def test_a_name_without_brokers_takes_its_topics_with_it(ns: NameServerScript):
    """RouteInfoManager.unRegisterBroker, cleanTopicByUnRegisterRequests: removedBroker."""
    admin, one, other = Admin(ns), Broker(ns), Broker(ns, "broker-b", address="127.0.0.1:20911")
    one.register("T1", "T2")
    other.register("T1", "T3")
    assert one.unregister().code == 0
    assert set(admin.addresses("T1")) == {"broker-b"}
    assert admin.topics() == {"T1", "T3"}
    assert admin.cluster_info()["clusterAddrTable"] == {"DefaultCluster": ["broker-b"]}
    other.unregister()
    assert admin.cluster_info() == {"brokerAddrTable": {}, "clusterAddrTable": {}}


@pytest.mark.parametrize(("acting", "perm"), [(True, 4), (False, 6)])
def test_a_name_that_shrinks_keeps_its_topics(ns: NameServerScript, acting: bool, perm: int):
    """RouteInfoManager.cleanTopicByUnRegisterRequests: reducedBroker.

    Its topics lose the write bit if enableActingMaster is set and no id 0 is left
    (RouteInfoManagerNewTest.unRegisterMasterBroker, unRegisterMasterBrokerOldVersion).
    """
    admin, master = Admin(ns), Broker(ns, acting=acting)
    master.register("T1", "T2")
    Broker(ns, broker_id=1, acting=acting).register("T1", "T2")
    master.unregister()
    assert admin.addresses("T1") == {"broker-a": {"1": "127.0.0.1:10921"}}
    assert admin.perm("T1") == perm


def test_a_slave_leaves_the_write_bit_alone(ns: NameServerScript):
    """RouteInfoManager.isNoMasterExists."""
    slave = Broker(ns, broker_id=1, acting=True)
    Broker(ns, acting=True).register("T1", "T2")
    slave.register("T1", "T2")
    slave.unregister()
    assert Admin(ns).perm("T1") == 6


def test_a_broker_is_unregistered_by_its_address(ns: NameServerScript):
    """RouteInfoManager.unRegisterBroker removes the entries with this address, whatever id the
    request has."""
    admin, broker = Admin(ns), Broker(ns)
    broker.register("T1", "T2")
    for wrong in ({"brokerAddr": "127.0.0.1:9"}, {"brokerName": "broker-b"}, {"clusterName": "Other"}):
        assert admin.ask(RequestCode.UNREGISTER_BROKER, **(broker.identity | wrong)).code == 0
    assert admin.addresses("T1") != {}
    assert admin.ask(RequestCode.UNREGISTER_BROKER, **(broker.identity | {"brokerId": "3"})).code == 0
    assert admin.addresses("T1") == {}


def test_late_requests_of_an_abandoned_connection_remove_no_broker(ns: NameServerScript):
    """A one-way partition delays a registration and the end of its connection; a new registration
    arrives first."""
    admin, old, new = Admin(ns), Broker(ns), Broker(ns)
    old.register("T1", "T2")
    new.register("T1", "T2")
    old.register("T1", "T2")
    old.client.close()
    assert admin.addresses("T1") == {"broker-a": {"0": "127.0.0.1:10911"}}
    new.client.close()
    assert admin.addresses("T1") == {}


def test_a_closed_connection_unregisters_at_once(ns: NameServerScript):
    """RouteInfoManager.onChannelDestroy (RouteInfoManagerNewTest.onChannelDestroy)."""
    admin, master, slave = Admin(ns), Broker(ns), Broker(ns, broker_id=1)
    master.register("T1", "T2")
    slave.register("T1", "T2")
    master.client.close()
    assert admin.addresses("T1") == {"broker-a": {"1": "127.0.0.1:10921"}}
    slave.client.close()
    assert admin.route("T1") is None


def test_a_connection_that_was_left_takes_nobody(ns: NameServerScript):
    """RouteInfoManager.onChannelDestroy: only the connection of the last registration counts."""
    admin, broker = Admin(ns), Broker(ns)
    broker.register("T1", "T2")
    before, broker.client = broker.client, ns.connect()
    broker.register("T1", "T2")
    before.close()
    assert admin.addresses("T1") != {}
    broker.client.close()
    assert admin.addresses("T1") == {}


def test_all_brokers_of_a_connection_go_with_it(ns: NameServerScript):
    """A broker container registers several brokers on one connection; upstream's onChannelDestroy
    removes only the first."""
    admin, one = Admin(ns), Broker(ns)
    other = Broker(ns, "broker-b", address="127.0.0.1:20911", client=one.client)
    one.register("T1", "T2")
    other.register("T1", "T2")
    one.client.close()
    assert admin.cluster_info()["brokerAddrTable"] == {}


def test_silence_of_120_s_ends_a_registration(ns: NameServerScript):
    """RouteInfoManager.scanNotActiveBroker: lastUpdate + timeout < now; the connection closes."""
    admin, broker = Admin(ns), Broker(ns)
    broker.register("T1", "T2")
    ns.advance(120_000)
    assert admin.addresses("T1") != {}
    ns.advance(1)
    assert admin.addresses("T1") == {}
    assert "was silent for 120000 ms" in broker.client.closed
    assert "broker-silent" in ns.log.events("warning")


def test_a_broker_says_how_long_it_may_be_silent(ns: NameServerScript):
    """RegisterBrokerRequestHeader.heartbeatTimeoutMillis."""
    admin = Admin(ns)
    Broker(ns, heartbeatTimeoutMillis="10000").register("T1", "T2")
    ns.advance(10_000)
    assert admin.addresses("T1") != {}
    ns.advance(1)
    assert admin.addresses("T1") == {}


@pytest.mark.long
def test_each_silent_broker_is_found_when_its_own_time_is_over(ns: NameServerScript):
    """Independent of the other brokers' timeouts and of their heartbeats."""
    admin = Admin(ns)
    brokers = {
        name: Broker(ns, name, address=f"127.0.0.1:{port}", heartbeatTimeoutMillis=timeout)
        for name, port, timeout in (("broker-a", 10911, "10000"), ("broker-b", 10921, "700"), ("broker-c", 10931, "9000"))
    }
    for broker in brokers.values():
        broker.register("T1", "T2")
    for _ in range(16):
        ns.advance(500)
        brokers["broker-b"].heartbeat()
    brokers["broker-a"].heartbeat()
    gone_ms = {}
    for now_ms in range(8000, 20_000):
        gone_ms.update({name: now_ms for name in brokers if name not in gone_ms and name not in admin.addresses("T1")})
        if len(gone_ms) == 3:
            break
        ns.advance(1)
    assert gone_ms == {"broker-b": 8701, "broker-c": 9001, "broker-a": 18_001}


@pytest.mark.parametrize("sign", ["register", "heartbeat", "query"])
def test_signs_of_life(ns: NameServerScript, sign: str):
    """RouteInfoManager.updateBrokerInfoUpdateTimestamp: 103, 904 and 322 renew the last update."""
    broker = Broker(ns)
    broker.register("T1", "T2")
    signs = {
        "register": lambda: broker.register("T1", "T2"),
        "heartbeat": broker.heartbeat,
        "query": lambda: broker.query_version(version()),
    }
    for _ in range(3):
        ns.advance(100_000)
        assert signs[sign]().code == 0
    assert Admin(ns).addresses("T1") != {}


def test_a_heartbeat_of_an_unregistered_broker_is_answered_and_changes_nothing(ns: NameServerScript):
    """DefaultRequestProcessor.brokerHeartbeat."""
    assert Broker(ns).heartbeat().code == 0
    assert Admin(ns).cluster_info()["brokerAddrTable"] == {}


def test_silence_of_one_broker_leaves_the_others_of_its_connection(ns: NameServerScript):
    admin = Admin(ns)
    quiet = Broker(ns, heartbeatTimeoutMillis="10000")
    other = Broker(ns, "broker-b", address="127.0.0.1:20911", client=quiet.client)
    quiet.register("T1", "T2")
    other.register("T1", "T2")
    ns.advance(20_000)
    assert set(admin.addresses("T1")) == {"broker-b"}
    assert quiet.client.closed == ""


def test_a_long_scan_interval_delays_nothing(make_ns: Make):
    ns = make_ns(scanNotActiveBrokerInterval=3_600_000)
    admin = Admin(ns)
    Broker(ns, heartbeatTimeoutMillis="1000").register("T1", "T2")
    ns.advance(1001)
    assert admin.addresses("T1") == {}


def test_unregister_of_two_brokers_of_one_name(ns: NameServerScript):
    """RouteInfoManagerNewTest.submitMultiUnRegisterRequests; the last broker takes the topics."""
    admin = Admin(ns)
    brokers = [Broker(ns, broker_id=each, acting=True) for each in range(3)]
    for broker in brokers:
        broker.register("T1", "T2")
    for broker in brokers:
        assert admin.addresses("T1") != {}
        broker.unregister()
    assert admin.topics() == set()
