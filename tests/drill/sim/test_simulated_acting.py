"""Simulated drills of acting masters: a few fixed seeds, found defects, and the family's plans."""

import pytest

from rmqkit.drill import simulation, workload
from rmqkit.drill.contract import DrillNode
from rmqkit.drill.defects.table import DEFECTS
from rmqkit.drill.plan import Flush
from rmqkit.drill.promises.contract import Judgement
from rmqkit.drill.promises.table import Harm
from rmqkit.drill.sim.acting_faults import draw_steps
from rmqkit.drill.sim.acting_plans import ActingExtras, fault_of_plan, members, plan_of_seed

FAMILY = "acting"
HANDFUL = (12, 111)
#: defect -> a seed that finds it quickly; the docs list all
FOUND = {
    "no-self-isolation": 111,
    "escaped-unnoticed": 8,
    "releases-out-of-contact": 82,
    "skips-reverse-sync": 4,
    "strict-lock-forgets": 101,
    "delay-progress-not-saved-at-stop": 194,
}


def steps_of(seed):
    plan = plan_of_seed(seed)
    nameservers = [DrillNode(f"ns-{number}") for number in range(ActingExtras.of(plan).nameservers)]
    return plan, draw_steps(plan, members(plan), nameservers)


@pytest.mark.parametrize("seed", HANDFUL)
def test_a_seed_keeps_every_promise(seed):
    done = simulation.simulate(seed, family=FAMILY)
    assert done.judgement is Judgement.VALID, f"{done.plan}\n{done.why}\n{done.story}"
    assert done.sends > 0


def test_every_group_of_the_load_receives_messages():
    history = simulation.drill(plan_of_seed(12), family=FAMILY).driver.history
    groups = {str(row.extra["group"]).rpartition("-")[2] for kind in ("deliver", "due") for row in history.by_kind[kind]}
    assert groups >= {workload.PULL, workload.PUSH, workload.LATE, workload.ORDERED, workload.DELAYED}


@pytest.mark.parametrize(("defect", "seed"), FOUND.items(), ids=str)
def test_a_planted_defect_is_found_by_its_promise(defect, seed):
    done = simulation.simulate(seed, breaks=(defect,), family=FAMILY)
    assert DEFECTS[defect].promise in done.broken, done.plan
    assert done.story


def test_every_step_begins_on_a_node_that_is_whole():
    for seed in range(200):
        _, steps = steps_of(seed)
        free_ms = {}
        assert steps[0].at_ms == 0
        for step in steps:
            assert step.at_ms >= free_ms.get(step.node.name, 0)
            free_ms[step.node.name] = step.at_ms + step.lasts_ms
        assert any(step.node.broker for step in steps)


def test_a_master_loses_its_power_alone_and_only_where_nothing_is_lost():
    seen = 0
    for seed in range(300):
        plan, steps = steps_of(seed)
        hit = [step for step in steps if step.fault.harm is Harm.POWER_CUT]
        assert len(hit) <= 1
        if hit and not hit[0].node.broker_id:
            seen += 1
            assert plan.mode.flush is Flush.SYNC
            others = [step.node for step in steps if step.node.broker not in ("", hit[0].node.broker)]
            assert all(node.broker_id for node in others)
    assert seen > 5


def test_what_is_drawn_covers_what_a_group_can_meet():
    names, servers, locks, of_nameservers = set(), set(), set(), 0
    for seed in range(300):
        plan, steps = steps_of(seed)
        names |= {step.fault.name for step in steps}
        of_nameservers += any(not step.node.broker for step in steps)
        servers.add(ActingExtras.of(plan).nameservers)
        locks.add(plan.strict_locks)
        assert plan.acting
    assert names >= {"kill", "stop", "pause", "isolate", "isolate-out", "isolate-in", "isolate-peer", "isolate-ha"}
    assert names >= {"isolate-names", "clock-jump", "power-cut"}
    assert servers == {1, 2}
    assert locks == {True, False}
    assert of_nameservers > 20


def test_a_plan_of_three_groups_of_three_breaks_what_it_has():
    plan, series = fault_of_plan(plan_of_seed(1, groups=3, replicas=3))
    known = {node.name for node in members(plan)}
    assert len(known) == 9
    assert {step.node.name for step in series.steps if step.node.broker} <= known


def test_the_families_are_told_apart():
    assert simulation.FAMILIES[simulation.REPLICAS].plan_of_seed(3).groups == 1
    assert simulation.FAMILIES["acting-3x3"].plan_of_seed(3).replicas == 3
    with pytest.raises(KeyError):
        simulation.simulate(1, family="none")
