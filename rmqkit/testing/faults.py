"""The contract of a drill's fault, as tests: it has an effect, proves it, and can be undone.

    from rmqkit.testing import FaultContract

    class TestMine(FaultContract):
        make = my_fault           # the factory that the plug-in registers

The tests run the fault on a `FaultLab`, a driver whose nodes exist only in memory. It does what a
fault asks for, and shows what would be visible from outside. If your fault needs more, subclass
`FaultLab` and set `lab`.
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
    """A driver without processes: its two nodes, a master and a slave, exist only in memory.

    It implements `rmqkit.drill.contract.Driver`. Time passes only in `wait`.

    Attributes:
        plan: The plan, with default values.
        history: The history, empty at the beginning.
        states: The state of each node by name; see `fresh`.
        broken: Whether `kill`, `start`, `pause`, `resume` and `isolate` fail with DrillError.

    Example:
        A lab whose nodes have a disk that a fault can fill:

            from rmqkit.testing import FaultContract, FaultLab

            class DiskLab(FaultLab):
                def fresh(self):
                    return {**super().fresh(), "disk_full": False}

                def fill_disk(self, node):
                    self.states[node.name]["disk_full"] = True

            class TestMine(FaultContract):
                make = my_fault
                lab = DiskLab
    """

    def __init__(self) -> None:
        self.plan = Plan()
        self.history = History()
        self.states: dict[str, dict[str, Any]] = {node.name: self.fresh() for node in (NODE, OTHER)}
        self.broken = False
        self._now_ms = 0
        self._pid = 100

    def fresh(self) -> dict[str, Any]:
        """Return the state of a healthy node: `alive`, `paused`, and the isolation `rules`."""
        return {"alive": True, "paused": False, "rules": ()}

    # --- time

    def now_ms(self) -> int:
        """Return the milliseconds since the drill began."""
        return self._now_ms

    def wait(self, most_ms: int, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass in steps of 50 ms until `until` returns True, for at most `most_ms`.

        Return whether `until` returned True in that time. Without `until`, wait `most_ms` and
        return True.

        Args:
            most_ms: The longest time to wait, in ms.
            until: The condition, checked before each step.
        """
        end_ms = self._now_ms + most_ms
        while until is None or not until():
            if self._now_ms >= end_ms:
                return until is None
            self._now_ms = min(end_ms, self._now_ms + 50)
        return True

    # --- the course of a drill

    def nodes(self, selector: str) -> Sequence[DrillNode]:
        """Return the nodes that a selector names.

        Args:
            selector: "master", "slave", "all" or the name of a node.

        Raises:
            DrillError: If the selector is unknown.
        """
        known = {"master": [NODE], "slave": [OTHER], "all": [NODE, OTHER], NODE.name: [NODE], OTHER.name: [OTHER]}
        if selector not in known:
            raise DrillError(f"no node matches {selector!r}")
        return known[selector]

    def facts(self) -> Mapping[str, Any]:
        """Return nothing: the lab has no cluster to describe."""
        return {}

    def begin_load(self) -> None:
        """Do nothing: the lab has no load."""

    def lacking(self) -> str:
        """Return what is missing for a steady state: "" if both nodes are healthy."""
        return "" if all(state == self.fresh() for state in self.states.values()) else "a node is broken"

    def stop_sending(self) -> None:
        """Do nothing: the lab has no load."""

    def caught_up(self) -> bool:
        """Return True: the lab has no consumers."""
        return True

    def read_all(self) -> None:
        """Do nothing: the lab has no messages."""

    def close(self) -> None:
        """Do nothing: the lab has no clients."""

    # --- operations for faults

    def kill(self, node: DrillNode) -> None:
        """End the node's process.

        Args:
            node: The node.

        Raises:
            DrillError: If `broken` is set.
        """
        self._state(node).update(alive=False, paused=False, rules=())

    def start(self, node: DrillNode) -> None:
        """Start the node. It is healthy afterwards.

        Args:
            node: The node.

        Raises:
            DrillError: If `broken` is set.
        """
        self._state(node).update(self.fresh())

    def pause(self, node: DrillNode) -> None:
        """Pause the node's process. Do nothing if the node is not alive.

        Args:
            node: The node.

        Raises:
            DrillError: If `broken` is set.
        """
        state = self._state(node)
        state["paused"] = state["alive"]

    def resume(self, node: DrillNode) -> None:
        """Resume the node's process.

        Args:
            node: The node.

        Raises:
            DrillError: If `broken` is set.
        """
        self._state(node)["paused"] = False

    def isolate(self, node: DrillNode, rules: Sequence[Mapping[str, Any]]) -> None:
        """Make the node's transport stop by rules.

        Args:
            node: The node.
            rules: The rules of the isolation. An empty sequence ends it.

        Raises:
            DrillError: If the node is not alive, or `broken` is set.
        """
        state = self._state(node)
        if not state["alive"]:
            raise DrillError(f"{node.name} is not running")
        state["rules"] = tuple(rules)

    def seen(self, node: DrillNode) -> Mapping[str, Any]:
        """Return the node's state as seen from outside: `alive`, `paused`, `answers` and `pid`.

        A paused node does not answer. Nor does one with a rule for all traffic. While a rule
        applies, the key `transport` has counts of what the node's transport held back.

        Args:
            node: The node.
        """
        state = self.states[node.name]
        cut = state["rules"]
        reaches_all = any(not rule.get("tag") and not rule.get("peer") and not rule.get("port") for rule in cut)
        seen = {
            "alive": state["alive"],
            "paused": state["paused"],
            "answers": state["alive"] and not state["paused"] and not reaches_all,
            "pid": self._pid if state["alive"] else 0,
        }
        return {**seen, "transport": {"bytes_held": 100, "not_accepted": 1}} if cut else seen

    def _state(self, node: DrillNode) -> dict[str, Any]:
        if self.broken:
            raise DrillError(f"{node.name} cannot be broken")
        return self.states[node.name]


class FaultContract:
    """Tests for a fault of a drill. Subclass it and set `make`.

    Attributes:
        make: The factory under test. Each test calls it.
        lab: The class of the driver that the fault runs on.
        driver: The lab of the current test.
        fault: The fault of the current test.

    Example:
        Test a fault that needs only the operations of `FaultLab`:

            from rmqkit.testing import FaultContract

            class TestMine(FaultContract):
                make = my_fault
    """

    make: ClassVar[Callable[[], Fault]]
    lab: ClassVar[Callable[[], FaultLab]] = FaultLab

    @pytest.fixture(autouse=True)
    def _set_up(self) -> None:
        self.driver = type(self).lab()
        self.fault = type(self).make()

    def bitten(self) -> str:
        """Wait for the proof as the engine does, at most the plan's `bite_max_ms`, and return it.

        The proof is "" if the fault had no visible effect in that time.
        """
        found: list[str] = []

        def shows() -> bool:
            found.append(self.fault.proof(self.driver, NODE))
            return bool(found[-1])

        self.driver.wait(self.driver.plan.bite_max_ms, shows)
        return found[-1]

    def is_whole(self) -> bool:
        """Return whether all nodes of the lab are healthy."""
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
        assert not self.is_whole(), "begin() broke nothing"
        proof = self.bitten()
        assert proof, "no proof within bite_max_ms"
        assert "\n" not in proof, "a proof is one line"

    def test_it_breaks_no_other_node(self) -> None:
        self.fault.begin(self.driver, NODE)
        self.bitten()
        assert self.driver.states[OTHER.name] == self.driver.fresh()

    def test_it_is_taken_back_and_shows_no_more(self) -> None:
        self.fault.begin(self.driver, NODE)
        self.bitten()
        self.fault.end(self.driver, NODE)
        assert self.is_whole(), "a node is still broken after end()"
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
