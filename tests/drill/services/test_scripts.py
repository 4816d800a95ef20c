"""The scripts of timers, transactions and pop: one plan yields the same ones, of every form."""

from itertools import islice

import pytest

from rmqkit.drill.plan import Plan, PlanError
from rmqkit.drill.services import scripts

STEPS = 300


def timers(seed):
    return list(islice(scripts.timer_script(Plan(seed=seed)), STEPS))


def transactions(seed, number=0):
    return list(islice(scripts.transaction_script(Plan(seed=seed), number), STEPS))


def pops(seed, number=0):
    return list(islice(scripts.pop_script(Plan(seed=seed), number), STEPS))


@pytest.mark.parametrize("script", [timers, transactions, pops])
def test_the_scripts_follow_from_the_seed(script):
    assert script(3) == script(3)
    assert script(3) != script(4)


def test_some_timers_are_recalled_well_before_they_are_due():
    recalled = [order for order in timers(1) if order.recall_after_ms]
    assert 0.1 < len(recalled) / STEPS < 0.3
    assert all(order.recall_after_ms + scripts.RECALL_MARGIN_MS <= order.delay_ms for order in recalled)
    assert {order.is_absolute for order in timers(1)} == {True, False}


def test_every_member_knows_the_decision_about_every_transaction():
    orders = [*transactions(5, 0), *transactions(5, 1)]
    assert len({order.key for order in orders}) == 2 * STEPS
    assert {order.local for order in orders} == set(scripts.LOCALS)
    assert all(scripts.decision_in(order.body) == order.decision for order in orders)
    assert all(order.decision == order.local for order in orders if order.local in (scripts.COMMIT, scripts.ROLLBACK))
    assert {order.decision for order in orders if order.local == scripts.DIES} == {scripts.COMMIT, scripts.ROLLBACK}


def test_members_die_now_and_then_and_forget_only_first_deliveries():
    assert 0 < sum(order.dies for order in pops(1)) < STEPS / 10
    assert all(order.invisible_ms > order.work_ms for order in pops(1))
    forgotten = [key for key in map(str, range(600)) if not scripts.is_acked(key, 0)]
    assert 20 < len(forgotten) < 100
    assert all(scripts.is_acked(key, 1) for key in forgotten)


def test_a_load_that_is_unknown_is_refused():
    with pytest.raises(PlanError, match="load 'pups' is unknown: use some of timers, transactions, pop"):
        Plan().changed(services=("pups",))
    plan = Plan(services=("pop",))
    assert Plan.from_json(plan.as_json()) == plan
