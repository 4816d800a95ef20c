"""The engine on a driver without processes: what makes a drill inconclusive; faults always end."""

import pytest

from rmqkit.drill import history as names
from rmqkit.drill.contract import DrillError
from rmqkit.drill.engine import Engine
from rmqkit.drill.faults import Kill
from rmqkit.drill.promises import Judgement, judged
from rmqkit.testing import FaultLab


class Seen:
    """A promise that returns given results."""

    name, text = "seen", "something is seen"

    def __init__(self, facts=1, broken=()):
        self._facts, self._broken = facts, broken

    def applies(self, plan):
        return True

    def check(self, history, plan):
        return judged(self._facts, self._broken)


class Lab(FaultLab):
    """`refuse`: name of the step that raises. `lacks`: what the steady state lacks."""

    def __init__(self, refuse="", lacks=""):
        super().__init__()
        self.refuse, self.lacks, self.closed = refuse, lacks, 0

    def step(self, name):
        if self.refuse == name:
            raise DrillError(f"{name} is refused")

    def begin_load(self):
        self.step("begin_load")

    def read_all(self):
        self.step("read_all")

    def lacking(self):
        return self.lacks or super().lacking()

    def start(self, node):
        self.step("start")
        super().start(node)

    def close(self):
        self.closed += 1


class Toothless(Kill):
    def proof(self, driver, node):
        return ""


def drill(driver, fault=None, promise=None):
    outcome = Engine(driver, fault or Kill(), [promise or Seen()]).run()
    assert driver.closed == 1
    return outcome.verdict


def whole(driver):
    return all(state == driver.fresh() for state in driver.states.values())


def test_a_drill_that_works_has_its_time_line_in_order():
    driver = Lab()
    verdict = drill(driver)
    assert (verdict.judgement, verdict.exit_code, verdict.why) == (Judgement.VALID, 0, "")
    assert [event.what for event in verdict.timeline] == [
        names.LOAD_BEGINS,
        names.STEADY,
        names.FAULT_BEGINS,
        names.FAULT_BITES,
        names.FAULT_ENDS,
        names.NODE_BACK,
        names.IN_SYNC_AGAIN,
        names.LOAD_ENDS,
    ]
    assert verdict.proof == "the process of broker-a-0 is gone, and its port does not answer"
    assert whole(driver)


@pytest.mark.parametrize(
    ("driver", "fault", "why"),
    [
        (Lab(refuse="begin_load"), None, "begin_load is refused"),
        (Lab(lacks="one replica"), None, "no steady state within 15000 ms: one replica"),
        (Lab(), Toothless(), "had no visible effect"),
        (Lab(refuse="read_all"), None, "read_all is refused"),
    ],
)
def test_what_keeps_a_drill_from_proving_anything_is_said(driver, fault, why):
    verdict = drill(driver, fault)
    assert (verdict.judgement, verdict.exit_code) == (Judgement.INCONCLUSIVE, 4)
    assert why in verdict.why
    assert not verdict.promises
    assert whole(driver), "the fault was taken back"


def test_sends_that_fail_before_the_fault_are_no_steady_state():
    driver = Lab()
    wait = driver.wait

    def failing(most_ms, until=None):
        if until is None:
            driver.history.add("send", key="a", invoke_ms=driver.now_ms(), outcome="fail", error="no room")
        return wait(most_ms, until)

    driver.wait = failing
    verdict = drill(driver)
    assert "1 sends failed before the fault (no room)" in verdict.why
    assert names.FAULT_BEGINS not in [event.what for event in verdict.timeline]


def test_a_node_that_does_not_come_back_is_read_and_judged_all_the_same():
    verdict = drill(Lab(refuse="start"), promise=Seen(1, judged(1, [("", "gone")]).broken))
    assert verdict.judgement is Judgement.BROKEN
    assert names.NODE_BACK not in [event.what for event in verdict.timeline]


def test_a_broken_promise_outweighs_one_without_facts():
    engine = Engine(Lab(), Kill(), [Seen(0), Seen(1, judged(1, [("", "gone")]).broken)])
    assert engine.run().verdict.exit_code == 1
    assert Engine(Lab(), Kill(), [Seen(0), Seen()]).run().verdict.exit_code == 4
    assert Engine(Lab(), Kill(), []).run().verdict.exit_code == 4


@pytest.mark.parametrize("after_ms", [9_000, None])
def test_a_fault_lasts_until_others_have_taken_over_but_not_for_ever(after_ms):
    driver = Lab()
    driver.plan = driver.plan.changed(fault_ms=6_000, hold_ms=10_000)
    wait, done, told = driver.wait, [], []

    def waiting(most_ms, until=None):
        def then():
            begun = driver.history.event_ms(names.FAULT_BEGINS)
            if after_ms and begun is not None and driver.now_ms() >= begun + after_ms and not done:
                done.append(True)
                driver.history.add("lock", invoke_ms=driver.now_ms(), outcome="ok", node="broker-a-1")
                driver.history.add("due", invoke_ms=driver.now_ms(), outcome="ok", escaped_by="broker-a:1")
            return until is not None and until()

        return wait(most_ms, then)

    driver.wait = waiting
    Engine(driver, Kill(), [Seen()], told.append).run()
    lasted_ms = driver.history.event_ms(names.FAULT_ENDS) - driver.history.event_ms(names.FAULT_BEGINS)
    assert 6_000 < lasted_ms <= (after_ms or 16_000) + 100
    assert ("after 10000 ms more, no slave has granted a lock and released a delayed message" in told) == (after_ms is None)


def test_whatever_is_raised_the_fault_is_taken_back():
    driver = Lab()

    class Bug(Seen):
        pass

    def broken_wait(most_ms, until=None):
        if driver.history.event_ms(names.FAULT_BITES) is not None:
            raise KeyboardInterrupt
        return FaultLab.wait(driver, most_ms, until)

    driver.wait = broken_wait
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        Engine(driver, Kill(), [Bug()], told.append).run()
    assert "interrupted: the cluster is restored" in told
    assert whole(driver)
    assert driver.closed == 1
