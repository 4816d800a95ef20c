"""What the load of timers, transactions and pop waits for, in every order of its rows."""

from itertools import permutations
from types import SimpleNamespace

import pytest

from rmqkit.client.message import SendResult, SendStatus
from rmqkit.drill.history import FAULT_BEGINS, FAULT_BITES, OK, UNKNOWN, History
from rmqkit.drill.load_history import RecordedLoad
from rmqkit.drill.plan import SERVICES, Mode, Plan
from rmqkit.drill.services.scripts import COMMIT, DIES, ROLLBACK, TimerOrder, TransactionOrder
from rmqkit.errors import ClientError
from rmqkit.wire.bodies.pop import ReceiptHandle
from rmqkit.wire.fastjson import MessageQueue

STORED = SendResult(SendStatus.SEND_OK, "id", "offset id", MessageQueue("t", "broker-a", 0), 7, "tx", recall_handle="h")
TIMER = TimerOrder("k", b"k", 0, 0.0, 1_000, is_absolute=False, recall_after_ms=300)
HALF = TransactionOrder("k", b"k commit", 0, 0.0, DIES, COMMIT)
MESSAGE = SimpleNamespace(
    keys="k", body=b"k", properties={}, broker_name="broker-a", queue_id=0, queue_offset=7, reconsume_times=0, topic="t"
)
HANDLE = ReceiptHandle(7, 100, 2_000, 0, "0", "broker-a", 0, 7)


@pytest.fixture
def load():
    load = RecordedLoad(Plan(services=SERVICES), History(), lambda: 2_000, name="t", broker="broker-a")
    load.history.on_row = load.seen
    return load


STEPS = {
    "timer": lambda rows: rows.timer_sent(TIMER, 0, STORED),
    "timer delivered": lambda rows: rows.timer_due("r", MESSAGE, 1_000),
    "recalled": lambda rows: rows.recalled(TIMER, 1_000, 400, None),
    "half": lambda rows: rows.half_sent("p", HALF, 0, STORED),
    "visible": lambda rows: rows.visible("r", MESSAGE, 1_000),
    "rolled back": lambda rows: rows.decided("p", "k", ROLLBACK, by="check", invoke_ms=1_000),
}


@pytest.mark.parametrize(
    "steps",
    [
        *permutations(("timer", "timer delivered", "timer delivered")),
        *permutations(("timer", "recalled")),
        *permutations(("half", "visible")),
        *permutations(("half", "rolled back")),
    ],
    ids=", ".join,
)
def test_ended_steps_are_not_waited_for_in_any_order(load, steps):
    for step in steps:
        STEPS[step](load.services)
    assert load.services.waits_for() == ""


def test_what_is_acknowledged_is_waited_for(load):
    load.services.timer_sent(TIMER, 0, STORED)
    load.services.half_sent("p", HALF, 0, STORED)
    load.history.add("send", key="k", invoke_ms=0, outcome=OK)
    assert load.services.waits_for() == "timers: 1 pending, transactions: 1 pending, pop: 1 pending"


@pytest.mark.parametrize("outcome", [ClientError("refused"), None])
def test_what_is_not_acknowledged_is_not_waited_for(load, outcome):
    load.services.timer_sent(TIMER, 0, outcome)
    load.services.half_sent("p", HALF, 0, outcome)
    load.history.add("send", key="k", invoke_ms=0, outcome=UNKNOWN)
    assert load.services.waits_for() == ""


def test_a_commit_is_waited_for_until_its_message_is_delivered(load):
    load.services.half_sent("p", HALF, 0, STORED)
    load.services.decided("p", "k", COMMIT, by="end", invoke_ms=500)
    assert load.services.waits_for() == "transactions: 1 pending"


def test_each_pop_is_waited_for_until_its_ack(load):
    rows = load.services
    rows.popped("m", MESSAGE, HANDLE, node="broker-a-0", pop_ms=1_900, invoke_ms=1_890)
    assert rows.waits_for() == "pop: 1 pending"
    rows.acked("m", "k", HANDLE, node="broker-a-0", invoke_ms=2_000, error="no answer")
    assert rows.waits_for() == ""
    rows.popped("m", MESSAGE, HANDLE, node="broker-a-1", pop_ms=3_900, invoke_ms=3_890)
    assert rows.waits_for() == "pop: 1 pending"
    rows.acked("m", "k", HANDLE, node="broker-a-1", invoke_ms=4_000)
    assert rows.waits_for() == ""
    assert [row.outcome for row in load.history.by_kind["acked"]] == [UNKNOWN, OK]


def test_a_service_that_does_not_work_is_named(load):
    rows = load.services
    assert rows.lacking(0) == "no timer was delivered"
    rows.timer_due("r", MESSAGE, 1_000)
    assert rows.lacking(0) == "no committed message was delivered"
    rows.visible("r", MESSAGE, 1_000)
    rows.acked("m", "k", HANDLE, node="broker-a-0", invoke_ms=2_000, error="no answer")
    assert rows.lacking(0) == "no popped message was acked"
    rows.acked("m", "k", HANDLE, node="broker-a-0", invoke_ms=2_000)
    assert rows.lacking(0) == ""
    assert rows.lacking(2_001) == "no timer was delivered"


@pytest.mark.parametrize(("mode", "waits"), [("async+pool", False), ("quorum", True)])
def test_what_the_fault_may_take_is_not_waited_for(mode, waits):
    plan = Plan(mode=Mode.parse(mode), services=SERVICES)
    load = RecordedLoad(plan, History(), lambda: 2_000, name="t", broker="broker-a")
    load.history.on_row = load.seen
    load.services.half_sent("p", HALF, 0, STORED)
    load.history.add("event", key=FAULT_BEGINS, invoke_ms=1_000, harm="kill", role="master")
    load.history.add("event", key=FAULT_BITES, invoke_ms=1_010)
    assert bool(load.services.waits_for()) is waits
