"""Simulated drills of elections: a few fixed seeds, found defects, and the family's plans."""

import pytest

from rmqkit.drill import simulation
from rmqkit.drill.defects.table import DEFECTS
from rmqkit.drill.plan import Flush, ReplicationMode
from rmqkit.drill.promises import PROMISES
from rmqkit.drill.promises.contract import Judgement
from rmqkit.drill.promises.table import Harm
from rmqkit.drill.sim.elections.faults import ElectionSeries, draw_steps
from rmqkit.drill.sim.elections.plans import OF_SOME_ACK, ElectionExtras, controllers, fault_of_plan, members, plan_of_seed

FAMILY = "elections"
HANDFUL = (1, 4, 5)
#: defect -> a seed that finds it quickly; the docs list all
FOUND = {
    "acks-alone": 4,
    "set-shrinks-alone": 80,
    "takeover-never-ends": 1,
    "reports-unsynced": 32,
    "confirms-all-at-restart": 95,
    "epoch-moves": 10,
    "cut-by-length": 3,
    "half-record-kept": 208,
}
#: these take seconds, and `FOUND` has another defect of the same promise
FOUND_LATER = {"copy-differs-in-epoch": 1, "stale-epochs": 77}


def steps_of(seed):
    plan = plan_of_seed(seed)
    return plan, draw_steps(plan, members(plan), controllers(plan))


@pytest.mark.parametrize("seed", HANDFUL)
def test_a_seed_keeps_every_promise(seed):
    done = simulation.simulate(seed, family=FAMILY)
    assert done.judgement is Judgement.VALID, f"{done.plan}\n{done.why}\n{done.story}"
    assert done.sends > 0


def test_a_drill_has_elections_and_compares_epochs():
    run = simulation.drill(plan_of_seed(5), family=FAMILY)
    assert run.outcome is not None
    counts = {each.name: each.finding.counts for each in run.outcome.verdict.promises}
    assert counts["one-master-per-epoch"]["epochs with a master"] > 1
    assert counts["epochs-equal"]["compared"] > 1
    assert counts["acknowledged-survive"]["promised"] > 0
    assert run.driver.history.by_kind["epoch"]


def test_later_seeds_leave_out_no_promise():
    assert {DEFECTS[defect].promise for defect in FOUND_LATER} <= {DEFECTS[defect].promise for defect in FOUND}


@pytest.mark.parametrize(
    ("defect", "seed"),
    [*FOUND.items(), *(pytest.param(*each, marks=pytest.mark.long) for each in FOUND_LATER.items())],
    ids=str,
)
def test_a_planted_defect_is_found_by_its_promise(defect, seed):
    done = simulation.simulate(seed, breaks=(defect,), family=FAMILY)
    assert DEFECTS[defect].promise in done.broken, done.plan
    assert done.story


def test_power_is_cut_of_several_machines_only_where_everything_acknowledged_is_on_disk():
    alone = several = 0
    for seed in range(300):
        plan, steps = steps_of(seed)
        assert steps[0].at_ms == 0
        hits = [step for step in steps if step.fault.harm is Harm.POWER_CUT and step.node.broker]
        if hits and plan.mode.flush is Flush.ASYNC:
            alone += 1
            others = [step for step in steps if step.node.broker and step not in hits]
            assert len(hits) == 1
            # A killed master keeps all that it has written.
            assert not others or (hits[0].node.name, [step.fault.name for step in others]) == ("a slave", ["kill"])
        several += len(hits) > 1
    assert alone > 5
    assert several > 10


def test_what_is_drawn_covers_what_a_group_can_meet():
    names, nodes, modes, counts, logs, disks, clusters = set(), set(), set(), set(), set(), set(), set()
    for seed in range(300):
        plan, steps = steps_of(seed)
        names |= {step.fault.name for step in steps}
        nodes |= {step.node.name for step in steps}
        modes.add(plan.mode.replication)
        counts.add((plan.controllers, plan.replicas))
        extras = ElectionExtras.of(plan)
        logs.add(extras.log_type)
        disks.add(extras.sync_us)
        clusters.add((extras.keeps_epochs, extras.member_bytes_per_s > 0))
        assert plan.elected
    assert names >= {"kill", "stop", "pause", "power-cut", "isolate", "isolate-in", "isolate-out"}
    assert names >= {"isolate-members", "isolate-controllers", "isolate-cluster", "wipe"}
    assert nodes >= {"the master", "a slave", "the leader", "broker-a-2", "ctl-2"}
    assert modes == {ReplicationMode.ALL_ACK, ReplicationMode.SOME_ACK}
    assert counts == {(1, 2), (1, 3), (3, 2), (3, 3)}
    assert logs == {"single", "raft"}
    assert len(disks) == 3
    assert clusters == {(False, False), (False, True), (True, False), (True, True)}


def test_one_controller_of_three_is_wiped():
    wiped = [seed for seed in range(300) if any(step.fault.name == "wipe" for step in steps_of(seed)[1])]
    assert len(wiped) > 5
    for seed in wiped:
        plan, steps = steps_of(seed)
        assert plan.controllers == 3
        assert [step.node.broker for step in steps if step.fault.name == "wipe"] == [""]


def test_a_master_comes_back_in_its_epoch():
    """Only with Apache's answers: our controllers begin an epoch with each start of a master."""
    run = simulation.drill(plan_of_seed(10), family=FAMILY)
    brokers = [run.driver.cluster.broker(name) for name in run.driver.cluster.brokers]
    noted = [line for each in brokers for line in run.driver.world.log(each.name).events("epoch")]
    assert [line.fields["epoch"] for line in noted if line.fields.get("is_new") is False]


def test_without_all_acks_only_the_promises_of_elections_are_checked():
    promised = {fault_of_plan(plan_of_seed(seed))[0].promises for seed in range(100)}
    assert promised == {tuple(PROMISES), OF_SOME_ACK}
    assert isinstance(fault_of_plan(plan_of_seed(1))[1], ElectionSeries)
