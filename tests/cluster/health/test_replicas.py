"""The brokers' reports on replication, and the reasons that `cluster status` shows."""

import json

import pytest

from rmqkit.cluster.health.replicas import reasons, replication_of


def facts(role, state, **more):
    said = {"replicationRole": role, "replicationState": state, "replicationWhy": "", "replicationGap": "0"}
    return {**said, **{f"replication{key[0].upper()}{key[1:]}": value for key, value in more.items()}}


def member(broker_id, *, in_sync=True, acked=100, why="", **more):
    return {"broker_id": broker_id, "address": "127.0.0.1:10921", "acked": acked, "in_sync": in_sync, "why": why, **more}


def test_facts_become_values():
    said = replication_of(facts("master", "serving", inSync="2", wanted="2", gap="7", members=json.dumps([member(1)])))
    assert (said.is_slave, said.state, said.in_sync, said.wanted, said.gap) == (False, "serving", 2, 2, 7)
    assert said.member(1)["acked"] == 100
    assert said.member(2) is None
    assert said.hears(1)
    assert not said.hears(2)


def test_a_slave_that_has_not_reported_is_not_heard():
    said = replication_of(facts("master", "serving", members=json.dumps([member(1, in_sync=False, acked=-1)])))
    assert not said.hears(1)


def test_a_broker_of_apaches_says_nothing():
    assert replication_of({"brokerVersionDesc": "V5_5_0"}) is None


@pytest.mark.parametrize("members", ["", "[1, 2", "{}", "7", '["x"]'])
def test_members_that_cannot_be_read_are_none(members):
    said = replication_of(facts("master", "serving", members=members, inSync="x"))
    assert (said.members, said.in_sync) == ((), None)


@pytest.mark.parametrize(
    ("state", "stuck"),
    [
        ("following", False),
        ("connecting", False),
        ("no-master", False),
        ("ahead", True),
        ("foreign", True),
        ("refused", False),
    ],
)
def test_some_states_are_not_left_without_help(state, stuck):
    said = replication_of(facts("slave", state))
    assert said.is_stuck is stuck
    assert said.follows is (state == "following")


def node(broker_id, now="up", **replication):
    own = {"state": "following" if broker_id else "serving", "why": "", "gap": 0, "members": [], **replication}
    return {
        "node": f"broker-a-{broker_id}",
        "kind": "broker",
        "broker_name": "broker-a",
        "broker_id": broker_id,
        "state": now,
        "replication": own if now == "up" else None,
    }


NAMESERVER = {"node": "ns-0", "kind": "nameserver", "state": "up"}


def test_a_slave_that_truncates_its_log_is_not_stuck():
    assert not replication_of(
        {**facts("slave", "ahead"), "replicationWhy": "7 bytes; they are copied and cut off now"}
    ).is_stuck


def test_an_acting_master_is_in_sync():
    assert reasons([NAMESERVER, node(0, now="down"), {**node(1, state="connecting", why="refused"), "acting": True}]) == {}


def test_a_group_in_sync_has_no_reasons():
    assert reasons([NAMESERVER, node(0, members=[member(1)]), node(1)]) == {}


@pytest.mark.parametrize(
    ("master", "slave", "says"),
    [
        (node(0), node(1, state="ahead", why="has 4 bytes more"), {"broker-a-1": "ahead: has 4 bytes more"}),
        (node(0), node(1), {"broker-a-1": "not in sync: its master has no HA connection from it"}),
        (
            node(0, members=[member(1, in_sync=False, why="is 300.0 MiB behind")]),
            node(1),
            {"broker-a-1": "not in sync: is 300.0 MiB behind"},
        ),
        (node(0, now="down"), node(1), {"broker-a-1": "its master does not answer"}),
        (
            node(0, why="waiting for 2 of 3", members=[member(-1, why="did not say who it is")]),
            node(1, now="down"),
            {"broker-a-0": "waiting for 2 of 3"},
        ),
        (
            node(0, members=[member(-1, why="did not say who it is"), member(1)]),
            node(1),
            {"broker-a-0": "127.0.0.1:10921 did not say who it is"},
        ),
        (
            node(0, why="slave 1: no HA connection", members=[member(1, in_sync=False, acked=-1, why="no HA connection")]),
            node(1, state="connecting", why="connection refused"),
            {"broker-a-1": "connecting: connection refused"},
        ),
        (
            node(0, why="slave 1: no HA connection", members=[member(1, in_sync=False, acked=-1, why="no HA connection")]),
            node(1, now="died"),
            {"broker-a-0": "slave 1: no HA connection"},
        ),
    ],
)
def test_a_reason_belongs_to_the_broker_that_lacks_something(master, slave, says):
    assert reasons([NAMESERVER, master, slave]) == says
