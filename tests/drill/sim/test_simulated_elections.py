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
FOUND = {"acks-alone": 3, "set-shrinks-alone": 3, "takeover-never-ends": 1, "copy-differs-in-epoch": 1}


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


@pytest.mark.parametrize(("defect", "seed"), FOUND.items(), ids=str)
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
            assert len([step for step in steps if step.node.broker]) == 1
        several += len(hits) > 1
    assert alone > 5
    assert several > 10


def test_what_is_drawn_covers_what_a_group_can_meet():
    names, nodes, modes, counts, logs = set(), set(), set(), set(), set()
    for seed in range(300):
        plan, steps = steps_of(seed)
        names |= {step.fault.name for step in steps}
        nodes |= {step.node.name for step in steps}
        modes.add(plan.mode.replication)
        counts.add((plan.controllers, plan.replicas))
        logs.add(ElectionExtras.of(plan).log_type)
        assert plan.elected
    assert names >= {"kill", "stop", "pause", "power-cut", "isolate", "isolate-in", "isolate-out"}
    assert names >= {"isolate-members", "isolate-controllers", "isolate-cluster"}
    assert nodes >= {"the master", "a slave", "the leader", "broker-a-2", "ctl-2"}
    assert modes == {ReplicationMode.ALL_ACK, ReplicationMode.SOME_ACK}
    assert counts == {(1, 2), (1, 3), (3, 2), (3, 3)}
    assert logs == {"single", "raft"}


def test_without_all_acks_only_the_promises_of_elections_are_checked():
    promised = {fault_of_plan(plan_of_seed(seed))[0].promises for seed in range(100)}
    assert promised == {tuple(PROMISES), OF_SOME_ACK}
    assert isinstance(fault_of_plan(plan_of_seed(1))[1], ElectionSeries)
