"""Two groups of a master and a slave: where a topic is created, and restarts in turn under load."""

import pytest

from tests.cli.conftest import free_base, make_shell, purge

SMALL = ("--set", "mappedFileSizeCommitLog=16777216")


@pytest.fixture(scope="module")
def own(tmp_path_factory, lifeline):
    made = make_shell(tmp_path_factory.mktemp("two") / "home", lifeline)
    made.run("cluster", "up", "--any-port", "--base-port", free_base(), "--groups", "2", *SMALL)
    yield made
    purge(made)


def groups_of(shell, topic):
    return [row["broker_name"] for row in shell.json("topic", "route", topic)["brokers"]]


def test_the_first_send_creates_a_topic_on_every_group(own):
    done = own.run("send", "everywhere", "x")
    assert done.stderr == "topic everywhere is new: created on broker-a, broker-b\n"
    assert groups_of(own, "everywhere") == ["broker-a", "broker-b"]
    assert own.run("send", "everywhere", "x").stderr == ""
    assert [each["body"] for each in own.lines("consume", "everywhere")] == ["x", "x"]


def test_a_topic_without_a_master_is_advised_to_another_group(own):
    own.run("topic", "create", "lonely", "--broker", "broker-a")
    own.run("cluster", "kill", "broker-a:0")
    try:
        own.run("send", "everywhere", "x")
        told = own.error("send", "lonely", "x", code=1)
        assert "has no queue to write to" in told
        assert told.endswith("; `rmqkit topic create lonely --broker broker-b` creates it there as well")
        own.run("topic", "create", "lonely", "--broker", "broker-b")
        own.run("send", "lonely", "x")
        own.run("topic", "create", "closed", "--broker", "broker-b", "--perm", "r")
        assert "topic create" not in own.error("send", "closed", "x", code=1)
    finally:
        own.run("cluster", "start")
