"""Defects of controller mode, each in a group of brokers with a scripted controller."""

import pytest

from rmqkit.broker.election.election import MASTER
from rmqkit.broker.node import Broker
from rmqkit.drill.defects.elections import ELECTIONS
from rmqkit.drill.defects.table import plant
from rmqkit.drill.history import History
from rmqkit.drill.plan import Mode, Plan
from rmqkit.drill.promises import PROMISES, Judgement
from tests.broker import replica_group
from tests.broker.elected_group import ElectedGroup

PLAN = Plan(mode=Mode.parse("all-ack"), replicas=3)


@pytest.fixture(autouse=True)
def _planting(monkeypatch):
    """Plant the defects named in a broker's settings, as a node process does."""

    def make(name, ports, config, parts):
        broker = Broker(name, ports, config, parts)
        plant(broker, config.drills.defects)
        return broker

    monkeypatch.setattr(replica_group, "Broker", make)


def looks(group, history):
    """Add what each live broker reports, as the watcher of a drill does."""
    for name in group.hosts:
        if group.world.is_alive(name):
            facts = group.facts(name)
            role = "master" if facts["electionState"] == MASTER else "slave"
            common = {"client": name, "broker": "broker-a", "invoke_ms": group.world.now_ms}
            epoch = int(facts["electionEpoch"])
            history.add("role", key=role, value=f"{role}/{facts['roleOnline']}", epoch=epoch, boot="1", **common)
            history.add("node", role=role, epoch=epoch, confirm=int(facts["confirmOffset"]), **common)


def judged(defect):
    """Kill the master of a group with the defect ("" for none), and judge what the others say."""
    planted = {"drillFaultsEnable": True, "drillDefects": defect} if defect else {}
    group = ElectedGroup(brokers=3, **planted)
    old = group.settled(count=3)
    history = History()
    for number in range(60):
        assert group.send(b"%d" % number * 500, node=old).code == 0
    looks(group, history)
    group.world.kill(old)
    group.until(lambda: bool(group.master_names()))
    for _ in range(20):
        group.world.run_for(200)
        looks(group, history)
    return {name: PROMISES[name]().check(history, PLAN) for name in ("one-master-per-epoch", "confirm-forward")}


@pytest.mark.parametrize("defect", ELECTIONS, ids=lambda each: each.name)
def test_it_breaks_its_promise(defect):
    assert judged(defect.name)[defect.promise].judgement is Judgement.BROKEN


def test_without_a_defect_the_promises_hold():
    found = judged("")
    assert {each.judgement for each in found.values()} == {Judgement.VALID}
    assert found["one-master-per-epoch"].counts["epochs with a master"] == 2
