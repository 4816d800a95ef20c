"""Three processes of three brokers, one master each: if one dies, slaves in the others act."""

import json
import time

import pytest

from rmqkit import Message, Producer
from rmqkit.cluster import Cluster
from tests.cli.conftest import free_base, lifeline, make_shell, purge  # noqa: F401

QUICK = {
    "scanNotActiveBrokerInterval": 100,
    "brokerHeartbeatInterval": 100,
    "brokerNotActiveTimeoutMillis": 1000,
    "syncBrokerMemberGroupPeriod": 100,
    "messageDelayLevel": "2s 1m",
    "mappedFileSizeCommitLog": 16_777_216,
}
DEADLINE_S = 20


def until(reached, what):
    """Poll `reached` until its value is true; return the value."""
    end_s = time.monotonic() + DEADLINE_S
    while not (found := reached()):
        assert time.monotonic() < end_s, what
        time.sleep(0.02)
    return found


@pytest.fixture
def crosswise(tmp_path, lifeline):  # noqa: F811
    made = make_shell(tmp_path / "home", lifeline)
    words = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    made.run("cluster", "up", "--preset", "crosswise", "--any-port", "--base-port", free_base(), *words)
    yield made
    purge(made)


@pytest.mark.long
def test_a_process_dies_and_the_others_take_over_what_it_had(crosswise):
    nodes = {each["node"]: each for each in crosswise.json("cluster", "status")["nodes"]}
    lives = {name: each["container"] for name, each in nodes.items() if each.get("container")}
    assert [lives[f"broker-{group}-0"] for group in "abc"] == ["container-0", "container-1", "container-2"]
    assert lives["broker-c-1"] == "container-0"
    assert len({each["pid"] for each in nodes.values()}) == 4

    crosswise.run("topic", "create", "shop", "--queues", 1)
    with Producer("p", namesrv=crosswise.json("cluster", "env")["NAMESRV_ADDR"]) as producer:
        queue = next(each for each in producer.queues("shop") if each.broker_name == "broker-c")
        producer.send(Message("shop", b"later", delay_level=1), queue=queue)

    done = crosswise.run("cluster", "kill", "broker-c:0")
    assert done.stdout == "killed: broker-a-2, broker-b-1, broker-c-0\n"
    assert "broker-c-0 shares process container-2 with broker-a-2, broker-b-1" in done.stderr

    def escaped():
        facts = crosswise.json("broker", "status", "broker-c:1").get("broker-c:1", {})
        return json.loads(facts.get("escapedTo", "{}"))

    assert until(escaped, "nothing has escaped") == {"broker-a": 1}
    (got,) = crosswise.lines("consume", "shop")
    assert (got["body"], got["broker_name"]) == ("later", "broker-a")

    crosswise.run("cluster", "start", "container-2")
    crosswise.run("cluster", "wait", "--for", "master-back")
    crosswise.run("cluster", "wait", "--for", "in-sync")
    back = crosswise.json("cluster", "status")["nodes"][1:]
    assert [each["state"] for each in back] == ["up"] * 9
    assert not [each for each in back if each["acting"]]
    assert Cluster(home=crosswise.home).is_running
