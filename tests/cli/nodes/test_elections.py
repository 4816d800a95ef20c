"""`cluster up --preset controller` as users see it: an election, who is master and why."""

import json
import signal
import subprocess
import threading
import time

import pytest

from rmqkit import Message, Producer
from rmqkit.cluster import Cluster, ClusterError
from rmqkit.errors import ClientError
from tests.cli.conftest import free_base, make_shell, purge

SMALL = ("--set", "mappedFileSizeCommitLog=16777216")
LIMIT_S = 40
BROKERS = ["broker-a-1", "broker-a-2", "broker-a-3"]


@pytest.fixture(scope="module")
def trio(tmp_path_factory, lifeline):
    """Three controllers and a group of three, all running; tests leave them like this."""
    made = make_shell(tmp_path_factory.mktemp("trio") / "home", lifeline)
    made.run("cluster", "up", "--preset", "controller", "--any-port", "--base-port", free_base(), *SMALL)
    yield made
    purge(made)


def nodes(shell):
    return {node["node"]: node for node in shell.json("cluster", "status")["nodes"]}


def election(shell, node):
    return nodes(shell)[node]["election"]


def group(shell):
    """Return what the controllers know of the group; on a busy machine a poll may lack it."""
    return eventually(shell, lambda status: "broker-a" in status["groups"])["groups"]["broker-a"]


def master_of(shell):
    return f"broker-a-{group(shell)['master']}"


def send(producer, body):
    """Send until it is acknowledged, as an application does; return the result."""
    until_s = time.monotonic() + LIMIT_S
    while True:
        try:
            return producer.send(Message("elected", body))
        except ClientError:
            assert time.monotonic() < until_s
            time.sleep(0.1)


def eventually(shell, holds):
    """Poll the status document until it fulfils `holds`; return it."""
    until_s = time.monotonic() + LIMIT_S
    while not holds(status := shell.json("cluster", "status")):
        assert time.monotonic() < until_s, json.dumps(status, indent=1)
        time.sleep(0.1)
    return status


def test_up_returns_with_a_master_and_everyone_in_sync(trio):
    found = nodes(trio)
    assert list(found) == ["ns-0", "controller-0", "controller-1", "controller-2", *BROKERS]
    assert [found[node]["election"]["broker_id"] for node in BROKERS] == [1, 2, 3]
    assert all(found[node]["election"]["in_set"] and not found[node]["election"]["fenced"] for node in BROKERS)
    leaders = [node for node in found.values() if node.get("leads")]
    assert len(leaders) == 1
    assert {found[f"controller-{number}"]["leader"] for number in range(3)} == {leaders[0]["address"]}
    assert group(trio)["in_sync"] == [1, 2, 3]
    text = trio.run("cluster", "status").stdout
    assert "leader, term" in text
    assert "master, epoch" in text
    assert "3/3" in text
    assert trio.json("config", "get", "broker-a-2", "allAckInSyncStateSet")


@pytest.mark.long
def test_a_master_dies_sends_go_on_and_it_returns_as_a_slave(trio, heeds_ctrl_c):
    old, epoch = master_of(trio), group(trio)["epoch"]
    namesrv = trio.json("cluster", "status")["namesrv"]
    watch = trio.outside.start("cluster", "status", "--watch", stdout=subprocess.PIPE)
    try:
        assert watch.stdout.readline().startswith("node")  # it has seen the old master
        with Producer("election", namesrv=namesrv) as producer:
            before = send(producer, b"before")
            assert trio.run("cluster", "kill", "master").stdout == f"killed: {old}\n"
            eventually(trio, lambda status: status["groups"].get("broker-a", {}).get("master") not in (None, int(old[-1])))
            after = send(producer, b"after")
        new = master_of(trio)
        assert new != old
        assert group(trio)["epoch"] > epoch
        said = [each["what"] for each in trio.json("explain", new)["node"]["election"]["says"]]
        assert f"the controllers elected it in epoch {group(trio)['epoch']}" in said[0]
        trio.run("cluster", "start", old)
        returned = election(trio, old)
        assert (returned["state"], returned["epoch"], returned["in_set"]) == ("slave", group(trio)["epoch"], True)
        (first, second) = trio.lines("consume", "elected", "--from", "earliest", "--max", "2")
        assert {first["body"], second["body"]} == {"before", "after"}
        assert {first["msg_id"], second["msg_id"]} == {before.msg_id, after.msg_id}
        limit = threading.Timer(LIMIT_S, watch.kill)
        limit.start()
        text = f"{new} is master, epoch {group(trio)['epoch']}"
        seen = []
        assert any(seen.append(line) or text in line for line in watch.stdout), "".join(seen)
        limit.cancel()
    finally:
        watch.send_signal(signal.SIGINT)
        watch.communicate(timeout=LIMIT_S)


def test_a_slave_and_the_leader_are_explained(trio):
    slave = next(node for node in BROKERS if node != master_of(trio))
    text = trio.run("explain", slave).stdout
    assert f"It is no master: member {group(trio)['master']} at" in text
    assert "It is in sync, so it can be elected." in text
    leader = next(node["node"] for node in nodes(trio).values() if node.get("leads"))
    assert "It leads the controllers in term" in trio.run("explain", leader).stdout
    follower = next(node["node"] for node in nodes(trio).values() if node.get("leads") is False)
    assert "It follows the leader at" in trio.run("explain", follower).stdout


@pytest.mark.long
def test_controller_commands_find_the_controllers_of_the_cluster(trio):
    told = trio.json("controller", "status")
    assert sorted(each["state"] for each in told["controllers"]) == ["follower", "follower", "leader"]
    assert len({each["term"] for each in told["controllers"]}) == 1
    other = next(each for each in (1, 2, 3) if each != group(trio)["master"])
    trio.run("controller", "elect", "broker-a", str(other))
    eventually(trio, lambda status: {node.get("in_sync") for node in status["nodes"]} == {None, 3})
    assert group(trio)["master"] == other
    assert trio.run("cluster", "wait", "--for", "master-back").stdout == "cluster default has its masters back\n"


def test_changes_that_a_cluster_with_controllers_refuses(trio):
    assert "with controllers: must be apart" in trio.error("cluster", "up", "--layout", "all", code=2)
    with pytest.raises(ClusterError, match="has 3 controllers, and their number cannot change"):
        Cluster(home=trio.home).up(controllers=5)
    assert "no slave acts" in trio.error("cluster", "wait", "--for", "acting", "--timeout", "0.1", code=1)
