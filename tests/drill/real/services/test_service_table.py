"""Which loads a drill has, the settings of their clusters, and the limits of their last reading."""

import pytest

from rmqkit.drill.plan import POP, SERVICES, TIMERS, TRANSACTIONS, Plan, PlanError
from rmqkit.drill.real.driver import plan_as_recorded
from rmqkit.drill.real.runner import settings_of
from rmqkit.drill.real.services.killed_producer import HalfOrder, ProducerTask
from rmqkit.drill.real.services.producer_process import ProducerProcess
from rmqkit.drill.real.services.table import DRAIN_MS, default_load, drain_ms, make_loads, parse_load
from tests.drill.real.services.lab import nothing, rows_of


def test_loads_are_named_in_any_order():
    assert parse_load("pop, timers") == (TIMERS, POP)
    assert parse_load("none") == ()
    assert parse_load("transactions,transactions") == (TRANSACTIONS,)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("timer", "there is no load timer; there are timers, transactions, pop, or none"),
        ("none,pop", "none cannot be combined"),
        ("", "name some of timers"),
    ],
)
def test_a_wrong_load_is_one_line(text, error):
    with pytest.raises(PlanError, match=error):
        parse_load(text)


def test_transactions_are_left_out_where_they_take_too_long():
    assert default_load(Plan()) == (TIMERS, POP)
    assert default_load(Plan(seen={"transactionTimeOut": "2000", "transactionCheckInterval": "5000"})) == SERVICES


def test_services_that_brokers_refuse_are_left_out_or_an_error():
    soon = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
    assert default_load(Plan(seen={**soon, "timerWheelEnable": "false"})) == (TRANSACTIONS,)
    assert default_load(Plan(seen={**soon, "rejectTransactionMessage": "true"})) == (TIMERS, POP)
    with pytest.raises(
        PlanError, match="refuse the load pop, because timerWheelEnable is false: set timerWheelEnable=true"
    ):
        plan_as_recorded(Plan(services=(POP,)), {"timerWheelEnable": "false"})


def test_a_cluster_of_a_drill_checks_transactions_soon_by_default():
    settings = settings_of(Plan(services=SERVICES, replicas=2))
    assert (settings["transactionCheckInterval"], settings["recallMessageEnable"]) == ("1000", "true")
    assert settings_of(Plan(services=SERVICES, settings={"transactionTimeOut": "9"}))["transactionTimeOut"] == "9"
    assert "transactionTimeOut" not in settings_of(Plan(services=(POP,)))


def test_the_last_reading_waits_for_checks():
    assert drain_ms(Plan()) == 0
    assert drain_ms(Plan(services=(POP,))) == DRAIN_MS
    seen = {"transactionTimeOut": "2000", "transactionCheckInterval": "5000"}
    assert drain_ms(Plan(services=SERVICES, seen=seen)) == DRAIN_MS + 17_000
    recorded = plan_as_recorded(Plan(services=SERVICES), seen)
    assert recorded.drain_max_ms == DRAIN_MS + 17_000
    assert plan_as_recorded(recorded, seen) == recorded, "a replay has the same limits"
    assert plan_as_recorded(Plan(), seen).drain_max_ms == Plan().drain_max_ms


def test_each_service_has_a_load():
    rows = rows_of(*SERVICES)
    made = make_loads(rows, namesrv="127.0.0.1:1;127.0.0.1:2", read=nothing, nodes={}, brokers=["broker-a"])
    assert [type(each).__name__ for each in made] == ["TimerLoad", "TransactionLoad", "PopLoad"]


def test_a_producer_process_says_how_a_half_ended_until_it_is_killed():
    task = ProducerTask(namesrv="127.0.0.1:1", group="g", instance_name="i", topic="t", broker="broker-a", timeout_ms=300)
    process = ProducerProcess(task)
    try:
        answer = process.send(HalfOrder(key="x", body=b"x", queue=0), 20.0)
        assert (answer.key, answer.status, answer.maybe_stored) == ("x", "", False)
        assert "127.0.0.1:1" in answer.error
    finally:
        process.kill()
    process.kill()
    answer = process.send(HalfOrder(key="y", body=b"y", queue=0), 20.0)
    assert (answer.key, answer.maybe_stored) == ("y", True)
