"""NOTIFY_MIN_BROKER_ID_CHANGE (905): which brokers get which one-way notice."""

from typing import Any

import pytest

from rmqkit.wire.codes import RequestCode
from tests.nameserver.conftest import Make, NameServerScript
from tests.nameserver.peers import Admin, Broker

MASTER, FIRST, SECOND = "127.0.0.1:10911", "127.0.0.1:10921", "127.0.0.1:10931"


@pytest.fixture
def ns(make_ns: Make) -> NameServerScript:
    return make_ns(notifyMinBrokerIdChanged=True)


def register(ns: NameServerScript, *ids: int, acting: bool | None = True, name: str = "broker-a") -> list[Broker]:
    brokers = [Broker(ns, name, each, acting=acting) for each in ids]
    for broker in brokers:
        broker.register("T1", "T2")
    return brokers


def notices(ns: NameServerScript) -> dict[str, dict[str, Any]]:
    """Return address -> fields of the notices since the last call; at most one per address."""
    for client in list(ns.dialled):
        ns.accept(client)
    found: dict[str, dict[str, Any]] = {}
    for client in ns.clients:
        for command in client.take() if client.conn.dialled else ():
            assert (command.code, command.flag & 3) == (RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, 2)
            assert found.setdefault(str(client.conn.peer), command.ext) is command.ext
    return found


def test_the_smallest_leaves(ns: NameServerScript):
    """RouteInfoManager.unRegisterBroker, chooseBrokerAddrsToNotify.

    The rest learn which broker left and which one is next.
    """
    master, first, _ = register(ns, 0, 1, 2)
    assert notices(ns) == {}
    master.client.close()
    notice = {"brokerName": "broker-a", "minBrokerId": "1", "minBrokerAddr": FIRST, "offlineBrokerAddr": MASTER}
    assert notices(ns) == {FIRST: notice, SECOND: notice}
    first.unregister()
    assert notices(ns) == {SECOND: notice | {"minBrokerId": "2", "minBrokerAddr": SECOND, "offlineBrokerAddr": FIRST}}


def test_a_smaller_id_comes(ns: NameServerScript):
    """RouteInfoManager.registerBroker: present members get the newcomer and its HA address."""
    register(ns, 2, 1)
    notice = {"brokerName": "broker-a", "minBrokerId": "1", "minBrokerAddr": FIRST, "haBrokerAddr": "127.0.0.1:10922"}
    assert notices(ns) == {SECOND: notice}
    register(ns, 0)
    notice |= {"minBrokerId": "0", "minBrokerAddr": MASTER, "haBrokerAddr": "127.0.0.1:10912"}
    assert notices(ns) == {FIRST: notice, SECOND: notice}


def test_the_master_is_somewhere_else(ns: NameServerScript):
    """Upstream sends nothing: its slaves learn of it when they register again."""
    register(ns, 0, 1)
    Broker(ns, address="10.0.0.9:10911", acting=True).register("T1", "T2")
    notice = {"brokerName": "broker-a", "minBrokerId": "0", "minBrokerAddr": "10.0.0.9:10911"}
    assert notices(ns) == {FIRST: notice | {"offlineBrokerAddr": MASTER, "haBrokerAddr": "10.0.0.9:10912"}}


def test_changes_that_cause_no_notice(ns: NameServerScript):
    master, first, second = register(ns, 0, 1, 2)
    register(ns, 0, 1, 2)
    second.unregister()
    first.heartbeat()
    first.unregister()
    master.unregister()
    assert notices(ns) == {}


def test_brokers_that_left_together_cause_one_notice_to_the_others(ns: NameServerScript):
    """Both registered on one connection: the second is not dialled with a notice of the first."""
    (master,) = register(ns, 0)
    Broker(ns, broker_id=1, acting=True, client=master.client).register("T1", "T2")
    register(ns, 2)
    master.client.close()
    assert list(notices(ns)) == [SECOND]


def test_a_broker_without_heartbeats_is_announced_to_the_rest_of_its_group(ns: NameServerScript):
    Broker(ns, acting=True, heartbeatTimeoutMillis="10000").register("T1", "T2")
    register(ns, 1)
    ns.advance(20_000)
    assert notices(ns)[FIRST]["offlineBrokerAddr"] == MASTER


@pytest.mark.parametrize("acting", [False, None])
def test_a_group_without_acting_master_gets_a_notice_of_a_new_broker(ns: NameServerScript, acting: bool | None):
    """RouteInfoManager.registerBroker always notifies; notifyMinBrokerIdChanged(Map) checks
    isEnableActingMaster."""
    master, _ = register(ns, 0, 1, acting=acting)
    master.client.close()
    assert notices(ns) == {}
    register(ns, 0, acting=acting)
    assert list(notices(ns)) == [FIRST]


def test_each_group_gets_its_own_notices(ns: NameServerScript):
    register(ns, 0, 1)
    other = Broker(ns, "broker-b", address="127.0.0.1:20911", acting=True)
    other.register("T1", "T2")
    Broker(ns, "broker-b", 1, "127.0.0.1:20921", acting=True).register("T1", "T2")
    other.client.close()
    assert {address: each["brokerName"] for address, each in notices(ns).items()} == {"127.0.0.1:20921": "broker-b"}


def test_off_until_it_is_asked_for(make_ns: Make):
    """NamesrvConfig.notifyMinBrokerIdChanged is false by default; earlier changes are not sent
    later."""
    ns = make_ns()
    master, _, _ = register(ns, 0, 1, 2)
    master.client.close()
    assert Admin(ns).ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"notifyMinBrokerIdChanged=true").code == 0
    assert notices(ns) == {}
    register(ns, 0)
    assert set(notices(ns)) == {FIRST, SECOND}


def test_one_connection_to_each_remaining_broker_and_none_to_one_that_left(ns: NameServerScript):
    register(ns, 2, 1)
    notices(ns)
    (master,) = register(ns, 0)
    notices(ns)
    dialled = [each for each in ns.clients if each.conn.dialled]
    assert sorted(str(each.conn.peer) for each in dialled) == [FIRST, SECOND]
    ns.node.routes.unregister_address("DefaultCluster", "broker-a", SECOND)
    master.client.close()
    assert list(notices(ns)) == [FIRST]
    assert [str(each.conn.peer) for each in ns.clients if each.conn.dialled] == [FIRST]


def test_a_broker_that_cannot_be_reached(ns: NameServerScript):
    master, _ = register(ns, 0, 1)
    master.client.close()
    ns.refuse(ns.dialled[0])
    register(ns, 0)
    assert notices(ns)[FIRST]["minBrokerId"] == "0"
