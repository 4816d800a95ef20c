"""Simulated drills of timers, transactions and pop: fixed seeds, found defects, the plans."""

import pytest

from rmqkit.drill import simulation
from rmqkit.drill.defects.table import DEFECTS
from rmqkit.drill.plan import POP, SERVICES, TIMERS, TRANSACTIONS
from rmqkit.drill.promises.contract import Judgement
from rmqkit.drill.sim.service_plans import PROMISE_OF, fault_of_plan, plan_of_seed

#: defect -> a seed that finds it quickly
FOUND = {"half-escapes-as-message": 1}
FOUND_LATER = {
    "timer-early": 1,
    "timer-recall-ignored": 1,
    "ack-not-stored": 1,
    "timer-lost-at-roll": 1,
    "timer-lost-at-restart": 4,
    "timer-progress-before-escape": 9,
    "op-never-written": 5,
    "op-without-commit": 2,
    "commit-twice": 1,
    "dead-producer-rolls-back": 6,
    "half-dropped-at-takeover": 3,
    "ack-lost-at-takeover": 3,
    "checkpoint-not-stored": 3,
    "invisible-time-ignored": 1,
    "revived-before-escape": 9,
}


@pytest.mark.parametrize("family", SERVICES)
def test_a_seed_keeps_every_promise(family):
    plan = plan_of_seed(2, service=family)
    done = simulation.drill(plan, family=family)
    assert done.outcome is not None, done.error
    verdict = done.outcome.verdict
    assert verdict.judgement is Judgement.VALID, [checked.finding for checked in verdict.broken]
    assert {checked.name for checked in verdict.promises} == set(plan.promises)
    own = next(checked.finding for checked in verdict.promises if checked.name == PROMISE_OF[family])
    assert own.facts > 20
    rows = done.driver.history.by_kind
    if family == TIMERS:
        assert any(row.extra.get("escaped_by") for row in rows["timer-due"])
    elif family == TRANSACTIONS:
        assert {row.extra["by"] for row in rows["decide"]} == {"end", "check"}
    else:
        assert any(row.extra["attempt"] for row in rows["popped"])


#: family and seed → what was wrong when it broke its promise
ONCE_BROKEN = {
    (TIMERS, 6): "late timers of a slot that the other member has not begun",
    (POP, 544): "copies of a message that two brokers popped",
    (POP, 643): "a pop without an answer",
    (POP, 1107): "a return in the moment of the isolation",
    (POP, 1304): "a topic that the acting slave did not know",
    (TRANSACTIONS, 390): "an answer of a producer that died",
}


@pytest.mark.long
@pytest.mark.parametrize(("family", "seed"), ONCE_BROKEN, ids=list(ONCE_BROKEN.values()))
def test_a_seed_that_was_broken_once_is_valid(family, seed):
    done = simulation.simulate(seed, family=family)
    assert done.judgement is Judgement.VALID, done.broken


@pytest.mark.parametrize(
    ("defect", "seed"),
    [*FOUND.items(), *(pytest.param(*each, marks=pytest.mark.long) for each in FOUND_LATER.items())],
    ids=str,
)
def test_a_planted_defect_is_found_by_its_promise(defect, seed):
    planted = DEFECTS[defect]
    done = simulation.simulate(seed, breaks=(defect,), family=planted.family)
    assert planted.promise in done.broken, done.plan
    assert done.story


def test_every_defect_of_these_families_has_a_seed():
    assert {*FOUND, *FOUND_LATER} == {name for name, planted in DEFECTS.items() if planted.family in SERVICES}


@pytest.mark.parametrize("family", SERVICES)
def test_what_is_drawn_covers_takeovers_of_both_sizes(family):
    faults, replicas, targets = set(), set(), set()
    for seed in range(100):
        plan, series = fault_of_plan(plan_of_seed(seed, service=family))
        faults |= {step.fault.name for step in series.steps}
        replicas.add(plan.replicas)
        targets.add(plan.target)
        assert plan.services == (family,)
        assert plan.acting
    assert faults >= {"kill", "pause", "isolate"}
    assert replicas == {2, 3}
    assert targets == {"broker-a:0", "broker-a:1"}


def test_pop_has_messages_in_both_groups():
    assert plan_of_seed(1, service=POP).writers == 2
