"""The contract of a drill's promise, as tests: a pure function of the history finds violations.

    from rmqkit.testing import PromiseContract

    class TestMine(PromiseContract):
        make = MyPromise             # the factory that the plug-in registers
        kept = my_good_history       # () -> History that keeps the promise
        broken = my_bad_history      # () -> History that breaks the promise
        plan = Plan(replicas=2)      # plan of both drills

A checker that has seen no facts must say so: its finding is inconclusive. Write the histories by
hand with `rmqkit.drill.history.History.add`, as a few rows with known results.
"""

from collections.abc import Callable
from typing import ClassVar

import pytest

from rmqkit.drill.history import FAULT_BEGINS, FAULT_ENDS, UNKNOWN, History
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import TOLD_MAX, Finding, Judgement, Promise


class PromiseContract:
    """Tests for a promise and its checker. Subclass it, and set `make` and two histories.

    Attributes:
        make: The factory under test. Each test calls it.
        kept: A function that returns a history that keeps the promise.
        broken: A function that returns a history that breaks the promise.
        plan: The plan of both drills.
        promise: The promise of the current test.

    Example:
        Test a promise about the time of sends (`history` is a function of the test module):

            from rmqkit.testing import PromiseContract

            class TestMine(PromiseContract):
                make = MyPromise
                kept = staticmethod(lambda: history(send_ms=5))
                broken = staticmethod(lambda: history(send_ms=2_000))
    """

    make: ClassVar[Callable[[], Promise]]
    kept: ClassVar[Callable[[], History]]
    broken: ClassVar[Callable[[], History]]
    plan: ClassVar[Plan] = Plan(replicas=2)

    @pytest.fixture(autouse=True)
    def _set_up(self) -> None:
        self.promise = type(self).make()

    def find(self, history: History) -> Finding:
        """Check the promise and return the finding.

        Args:
            history: The history of a drill with `plan`.
        """
        return self.promise.check(history, type(self).plan)

    def test_it_says_what_it_is(self) -> None:
        assert self.promise.name
        assert " " not in self.promise.name
        assert self.promise.text
        assert "\n" not in self.promise.text

    def test_it_applies_to_the_plan_it_is_tried_with(self) -> None:
        assert self.promise.applies(type(self).plan) is True

    def test_a_history_that_keeps_it_is_valid_with_facts(self) -> None:
        found = self.find(type(self).kept())
        assert found.judgement is Judgement.VALID, found
        assert found.facts > 0
        assert not found.broken

    def test_a_history_that_breaks_it_is_found_and_told(self) -> None:
        found = self.find(type(self).broken())
        assert found.judgement is Judgement.BROKEN, found
        assert 0 < len(found.broken) <= TOLD_MAX
        assert all(each.what for each in found.broken)

    def test_nothing_seen_is_inconclusive_and_says_why(self) -> None:
        found = self.find(History())
        assert found.judgement is Judgement.INCONCLUSIVE
        assert found.why

    def test_a_send_without_an_answer_breaks_nothing(self) -> None:
        """Its outcome is unknown: the message is neither lost nor a duplicate."""
        history = History()
        history.add("event", key=FAULT_BEGINS, invoke_ms=0, harm="kill", role="master")
        history.add("event", key=FAULT_ENDS, invoke_ms=10_000)
        for number in range(3):
            history.add("send", client="w", key=f"u{number}", invoke_ms=number, outcome=UNKNOWN, timeout_ms=3000)
        assert self.find(history).judgement is not Judgement.BROKEN

    def test_it_is_a_function_of_the_history(self) -> None:
        for history in (type(self).kept(), type(self).broken()):
            before = list(history.rows)
            assert self.find(history) == self.find(history)
            assert type(self).make().check(history, type(self).plan) == self.find(history)
            assert history.rows == before

    def test_it_counts_what_it_has_seen(self) -> None:
        for history in (type(self).kept(), type(self).broken()):
            counts = self.find(history).counts
            assert all(isinstance(count, int) for count in counts.values())
