"""The brokers' reports on their roles, and the lines that `cluster status` makes of them."""

import pytest

from rmqkit.cluster.health.roles import remarks, role_of, shown

NOW_MS = 1_800_000_000_000
FACTS = {
    "role": "acting",
    "roleOnline": "online",
    "roleSince": str(NOW_MS - 4000),
    "roleWhy": "broker 0 is gone",
    "roleStage": "",
    "roleMembers": '{"1":"127.0.0.1:10921"}',
    "roleHead": "1",
}


def test_facts_become_values():
    seen = role_of(FACTS)
    assert (seen.role, seen.online, seen.since_ms, seen.why) == ("acting", "online", NOW_MS - 4000, "broker 0 is gone")
    assert (seen.members, seen.head, seen.is_acting, seen.is_master) == ({"1": "127.0.0.1:10921"}, 1, True, False)
    isolated = role_of({**FACTS, "role": "master", "roleOnline": "isolated"})
    assert (isolated.is_acting, isolated.is_master, isolated.is_online) == (False, False, False)
    assert role_of({**FACTS, "role": "master"}).is_master


def test_a_broker_of_apaches_says_nothing():
    assert role_of({"brokerVersionDesc": "V5_5_0"}) is None


@pytest.mark.parametrize("members", ["", "[1, 2", "[]", "7"])
def test_facts_that_cannot_be_read_count_as_absent(members):
    seen = role_of({**FACTS, "roleMembers": members, "roleHead": "", "roleSince": "x"})
    assert (seen.members, seen.head, seen.since_ms) == ({}, None, 0)


def broker(broker_id, *, enabled=True, **standing):
    said = {"role": "slave" if broker_id else "master", "online": "online", "since_ms": 0, "why": "", "stage": ""}
    return {
        "node": f"broker-a-{broker_id}",
        "kind": "broker",
        "broker_name": "broker-a",
        "broker_id": broker_id,
        "role": "SLAVE" if broker_id else "SYNC_MASTER",
        "acting": standing.get("role") == "acting",
        "acting_enabled": enabled,
        "standing": {**said, **standing},
    }


def nameserver(supported=True):
    return {"node": "ns-0", "kind": "nameserver", "acting_supported": supported}


def test_a_group_as_it_should_be_needs_no_words():
    nodes = [nameserver(), broker(0), broker(1)]
    assert remarks(nodes, NOW_MS) == []
    assert [shown(node) for node in nodes] == [None, "SYNC_MASTER", "SLAVE"]


@pytest.mark.parametrize(
    ("node", "cell", "line"),
    [
        (
            broker(1, role="acting", since_ms=NOW_MS - 4000, why="broker 0 is gone"),
            "SLAVE, acting",
            "acts for the master of broker-a for 4 s: broker 0 is gone",
        ),
        (
            broker(0, online="pre-online", since_ms=NOW_MS - 180_000, why="it was away", stage="asks broker 1 for offsets"),
            "SYNC_MASTER, pre-online",
            "pre-online for 3 min: it was away; asks broker 1 for offsets",
        ),
        (broker(1, why="the master is back; does not act yet: x"), "SLAVE", "does not act yet: x"),
        (broker(0, online="isolated", why="it was away"), "SYNC_MASTER, isolated", "isolated: it was away"),
    ],
)
def test_acting_and_offline_brokers_are_shown(node, cell, line):
    assert shown(node) == cell
    assert remarks([nameserver(), node], NOW_MS) == [(node["node"], line)]


def test_a_node_that_does_not_answer_has_the_role_it_was_given():
    node = {**broker(1), "standing": None}
    assert (shown(node), remarks([node], NOW_MS)) == ("SLAVE", [])


def test_a_name_server_that_shows_no_acting_masters():
    nodes = [nameserver(False), broker(0), broker(1)]
    ((node, line),) = remarks(nodes, NOW_MS)
    assert node == "ns-0"
    assert line.startswith("supportActingMaster is off: ")
    assert remarks([nameserver(None), broker(0)], NOW_MS) == []
    assert remarks([nameserver(False), broker(0, enabled=False)], NOW_MS) == []


def test_a_group_of_two_minds():
    ((node, line),) = remarks([nameserver(), broker(0), broker(1, enabled=False)], NOW_MS)
    assert node == "broker-a-1"
    assert line.startswith("enableSlaveActingMaster is off here")
