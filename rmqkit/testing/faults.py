"""The contract of a drill's fault, as tests: it bites, shows that it does, and leaves nothing behind.

    from rmqkit.testing import FaultContract

    class TestMine(FaultContract):
        make = my_fault           # the factory that the plug-in registers

A fault is begun on a `FaultLab`, a driver whose nodes exist in memory alone: it does what faults ask for and shows what
would be seen from outside. What a fault needs beyond that, a subclass of it (`lab`) has to have.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from rmqkit.drill.contract import DrillError, DrillNode, Fault
from rmqkit.drill.history import History
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.table import Harm

NODE = DrillNode("broker-a-0", "broker-a", 0)
OTHER = DrillNode("broker-a-1", "broker-a", 1)


class FaultLab:
    """A driver without processes. `broken` makes whatever a fault asks for fail."""

    def __init__(self) -> None:
        self.plan = Plan()
        self.history = History()
        self.states: dict[str, dict[str, Any]] = {node.name: self.fresh() for node in (NODE, OTHER)}
        self.broken = False
        self._now_ms = 0
        self._pid = 100

    def fresh(self) -> dict[str, Any]:
        return {"alive": True, "paused": False, "rules": ()}

    # --- time

    def now_ms(self) -> int:
        return self._now_ms

    def wait(self, most_ms: int, until: Callable[[], bool] | None = None) -> bool:
        end_ms = self._now_ms + most_ms
        while until is None or not until():
            if self._now_ms >= end_ms:
                return until is None
            self._now_ms = min(end_ms, self._now_ms + 50)
        return True

    # --- the course

    def nodes(self, selector: str) -> Sequence[DrillNode]:
        known = {"master": [NODE], "slave": [OTHER], "all": [NODE, OTHER], NODE.name: [NODE], OTHER.name: [OTHER]}
        if selector not in known:
            raise DrillError(f"no node is a {selector}")
        return known[selector]

    def facts(self) -> Mapping[str, Any]:
        return {}

    def begin_load(self) -> None:
        """There is none."""

    def lacking(self) -> str:
        return "" if all(state == self.fresh() for state in self.states.values()) else "a node is broken"

    def stop_sending(self) -> None:
        """There is nothing to stop."""

    def caught_up(self) -> bool:
        return True

    def read_all(self) -> None:
        """There is nothing to read."""

    def close(self) -> None:
        """There is nothing to close."""

    # --- what faults do

    def kill(self, node: DrillNode) -> None:
        self._asked(node).update(alive=False, paused=False, rules=())

    def start(self, node: DrillNode) -> None:
        self._asked(node).update(self.fresh())

    def pause(self, node: DrillNode) -> None:
        state = self._asked(node)
        state["paused"] = state["alive"]

    def resume(self, node: DrillNode) -> None:
        self._asked(node)["paused"] = False

    def isolate(self, node: DrillNode, rules: Sequence[Mapping[str, Any]]) -> None:
        state = self._asked(node)
        if not state["alive"]:
            raise DrillError(f"{node.name} does not run")
        state["rules"] = tuple(rules)

    def seen(self, node: DrillNode) -> Mapping[str, Any]:
        state = self.states[node.name]
        cut = state["rules"]
        reaches_all = any(not rule.get("tag") and not rule.get("peer") and not rule.get("port") for rule in cut)
        told = {
            "alive": state["alive"],
            "paused": state["paused"],
            "answers": state["alive"] and not state["paused"] and not reaches_all,
            "pid": self._pid if state["alive"] else 0,
        }
        return {**told, "transport": {"bytes_held": 100, "not_accepted": 1}} if cut else told

    def _asked(self, node: DrillNode) -> dict[str, Any]:
        if self.broken:
            raise DrillError(f"{node.name} cannot be broken")
        return self.states[node.name]


class FaultContract:
    #: the factory under test; called anew for every test
    make: ClassVar[Callable[[], Fault]]
    #: the driver it is tried on
    lab: ClassVar[Callable[[], FaultLab]] = FaultLab

    @pytest.fixture(autouse=True)
    def _made(self) -> None:
        self.driver = type(self).lab()
        self.fault = type(self).make()

    def bitten(self) -> str:
        """The proof, waited for as the engine does."""
        found: list[str] = []

        def shows() -> bool:
            found.append(self.fault.proof(self.driver, NODE))
            return bool(found[-1])

        self.driver.wait(self.driver.plan.bite_max_ms, shows)
        return found[-1]

    def is_whole(self) -> bool:
        return not self.driver.lacking()

    # --- the contract

    def test_it_says_what_it_is(self) -> None:
        assert self.fault.name
        assert self.fault.text
        assert isinstance(self.fault.harm, Harm)

    def test_it_shows_nothing_before_it_begins(self) -> None:
        assert self.fault.proof(self.driver, NODE) == ""

    def test_it_bites_and_shows_it(self) -> None:
        self.fault.begin(self.driver, NODE)
        assert not self.is_whole(), "nothing was broken"
        proof = self.bitten()
        assert proof, "it does not show"
        assert "\n" not in proof, "a proof is one line"

    def test_it_breaks_no_other_node(self) -> None:
        self.fault.begin(self.driver, NODE)
        self.bitten()
        assert self.driver.states[OTHER.name] == self.driver.fresh()

    def test_it_is_taken_back_and_shows_no_more(self) -> None:
        self.fault.begin(self.driver, NODE)
        self.bitten()
        self.fault.end(self.driver, NODE)
        assert self.is_whole(), "something stays broken"
        assert self.fault.proof(self.driver, NODE) == ""

    def test_taking_it_back_twice_or_without_a_begin_is_harmless(self) -> None:
        self.fault.end(self.driver, NODE)
        assert self.is_whole()
        self.fault.begin(self.driver, NODE)
        self.fault.end(self.driver, NODE)
        self.fault.end(self.driver, NODE)
        assert self.is_whole()

    def test_one_that_cannot_begin_says_so_and_leaves_nothing(self) -> None:
        self.driver.broken = True
        with pytest.raises(DrillError):
            self.fault.begin(self.driver, NODE)
        self.driver.broken = False
        self.fault.end(self.driver, NODE)
        assert self.is_whole()

    def test_it_can_begin_again(self) -> None:
        for _ in range(3):
            self.fault.begin(self.driver, NODE)
            assert self.bitten()
            self.fault.end(self.driver, NODE)
            assert self.is_whole()
