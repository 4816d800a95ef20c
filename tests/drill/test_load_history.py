"""How a drill's load records its messages, on real and on simulated clusters."""

from itertools import permutations
from types import SimpleNamespace

import pytest

from rmqkit.client.message import SendResult, SendStatus
from rmqkit.drill import workload
from rmqkit.drill.history import FAULT_BEGINS, FAULT_BITES, FAULT_ENDS, History
from rmqkit.drill.load_history import RecordedLoad
from rmqkit.drill.plan import Mode, Plan
from rmqkit.drill.real.driver import RealDriver
from rmqkit.drill.sim.driver import SimDriver
from rmqkit.drill.sim.load import SimLoad
from rmqkit.drill.workload import Order
from rmqkit.errors import ClientError
from rmqkit.wire.fastjson import MessageQueue

ORDER = Order("d-1", b"d-1", 0, 0.0, 1)
STORED = SendResult(SendStatus.FLUSH_SLAVE_TIMEOUT, "id", "offset id", MessageQueue("t", "broker-a", 0), 7)
MESSAGE = SimpleNamespace(keys="d-1", body=b"d-1", properties={}, broker_name="broker-a", queue_id=0, queue_offset=7)


@pytest.fixture
def load():
    return RecordedLoad(Plan(), History(), lambda: 2_000, name="t", broker="broker-a")


@pytest.mark.parametrize("order", [*permutations(("answered", "delivered", "delivered again"))], ids=", ".join)
def test_a_delayed_message_that_was_delivered_is_not_waited_for(load, order):
    """A send may wait two seconds for a slave. Its reply then comes after the delivery of its
    message, which was delayed by one second."""
    for step in order:
        if step == "answered":
            load.delay_sent(ORDER, 1_000, 0, STORED)
        else:
            load.due("delayed-0", MESSAGE, 1_000)
    assert load.waiting == {}
    assert [row.kind for row in load.history.rows] == ["delay" if step == "answered" else "due" for step in order]


def test_only_an_acknowledged_delayed_message_is_waited_for(load):
    load.delay_sent(ORDER._replace(key="d-2"), 1_000, 50, STORED)
    load.delay_sent(ORDER._replace(key="d-3"), 1_000, 50, ClientError("refused"))
    load.delay_sent(ORDER._replace(key="d-4"), 1_000, 50, None)
    assert load.waiting == {"d-2": 1_050}


@pytest.mark.parametrize(
    ("mode", "harm", "role", "waits"),
    [
        ("async+pool", "kill", "master", False),
        ("quorum+pool", "kill", "master", False),
        ("quorum+pool", "kill", "slave", True),
        ("async+pool", "pause", "master", True),
        ("async", "kill", "master", True),
        ("quorum+sync-flush", "isolate", "master", True),
        ("async+pool", "a plug-in's", "master", True),
    ],
)
def test_a_delayed_message_that_the_fault_may_take_is_not_waited_for(mode, harm, role, waits):
    load = RecordedLoad(Plan(mode=Mode.parse(mode)), History(), lambda: 2_000, name="t", broker="broker-a")
    load.history.on_row = load.seen
    load.delay_sent(ORDER, 1_000, 50, STORED)
    load.history.add("event", key=FAULT_BEGINS, invoke_ms=100, harm=harm, role=role)
    assert load.waiting, "nothing is broken yet"
    load.history.add("event", key=FAULT_BITES, invoke_ms=150)
    load.delay_sent(ORDER._replace(key="d-2"), 1_000, 200, STORED)
    assert set(load.waiting) == ({"d-1", "d-2"} if waits else {"d-2"})


class Frozen(RealDriver):
    """A real driver at 2,000 ms with a load, but without a cluster."""

    def __init__(self, plan):
        super().__init__(SimpleNamespace(targets=list), plan.changed(group="broker-a"), "t")
        self._load = RecordedLoad(plan, self.history, self.now_ms, name="t", broker="broker-a")
        self._watch = SimpleNamespace(last={}, route={}, seen=lambda row: None)
        self.history.on_row = self._seen

    def now_ms(self):
        return 2_000


class FrozenSimulation(SimDriver):
    """As `Frozen`, with the simulated load, whose cluster has not begun to run."""

    def __init__(self, plan):
        super().__init__(plan)
        self.history.on_row = self._load.seen

    def now_ms(self):
        return 2_000


@pytest.mark.parametrize("make", [Frozen, FrozenSimulation])
def test_only_what_was_acknowledged_after_the_fault_shows_a_recovery(make):
    """Else a drill may end in the middle of the election that the end of the fault causes."""
    driver = make(Plan(writers=1))
    writer, load = workload.writer_name(0), driver._load
    load.acked_ms[writer] = 1_900
    load.given_ms.update(dict.fromkeys((workload.PULL, workload.PUSH), 1_900))
    assert "acknowledged" not in driver.lacking()
    driver.history.add("event", key=FAULT_ENDS, invoke_ms=1_950)
    assert f"no send of {writer} was acknowledged" in driver.lacking()
    load.acked_ms[writer] = 1_960
    assert "received no message" in driver.lacking()
    load.given_ms.update(dict.fromkeys((workload.PULL, workload.PUSH), 1_960))
    assert "acknowledged" not in driver.lacking()
    assert "received" not in driver.lacking()


def test_a_simulated_listener_without_work_ends_with_all_batches_of_a_queue_in_one_turn():
    """An ordered consumer hands out the next batch when the listener is done with one."""
    timers, given, left = [], [], [3, 2, 1, 0]

    def done(batch):
        given.append(batch)
        if left:
            dispatch(left.pop())

    client = SimpleNamespace(timers=SimpleNamespace(after=lambda delay_ms, callback: timers.append((delay_ms, callback))))
    load = SimpleNamespace(work_ms=lambda batch: batch == 2)
    dispatch = SimLoad.listener(load, client, done)
    dispatch("first")
    ((delay_ms, end),) = timers
    assert (delay_ms, given) == (0, [])
    end()
    assert given == ["first", 0, 1]
    assert [delay_ms for delay_ms, _ in timers] == [0, 1]
    timers.pop()[1]()
    assert given == ["first", 0, 1, 2]
