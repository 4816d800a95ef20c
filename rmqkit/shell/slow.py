"""Logs slow turns of the loop with their slowest step.

A turn over `SLOW_TURN_NS` is logged with the node of its slowest step, the part of the turn, what
the node was doing (`Node.doing`) and, if it was a duty, the duty's name. Steps under `NOTED_NS` are
not remembered, so a normal turn costs one comparison per step.
"""

import time

from rmqkit.runtime.node import Node
from rmqkit.runtime.ports import Log

SLOW_TURN_NS = 200_000_000
NOTED_NS = 20_000_000


class SlowTurn:
    """The slowest step of the current turn. The loop sets `began_ns` at the start of each turn."""

    __slots__ = (
        "_doing",
        "_duty",
        "_duty_began_ns",
        "_log",
        "_node",
        "_part",
        "_slow_duty",
        "began_ns",
        "took_ns",
        "worst_ns",
    )

    def __init__(self, log: Log) -> None:
        self._log = log
        self.began_ns = time.monotonic_ns()
        #: ns that the last turn took
        self.took_ns = 0
        #: ns of the slowest step of this turn, at least `NOTED_NS`
        self.worst_ns = NOTED_NS
        self._node = ""
        self._part = ""
        self._doing = ""
        self._duty = ""
        self._duty_began_ns = 0
        self._slow_duty = ""

    def watch(self, node: Node) -> None:
        """Subscribe to changes of the duty that a node runs."""
        duties = getattr(node, "duties", None)
        if duties is not None:
            duties.watch = self._duty_changes

    def step(self, node: Node | None, part: str, since_ns: int) -> int:
        """Record a step that began at `since_ns` and has just ended. Return the time now, in ns."""
        now_ns = time.monotonic_ns()
        if now_ns - since_ns > self.worst_ns:
            self.note(node, part, now_ns - since_ns)
        return now_ns

    def note(self, node: Node | None, part: str, took_ns: int) -> None:
        """Record the slowest step so far. The caller has checked that it exceeds `worst_ns`."""
        self.worst_ns = took_ns
        self._node = "" if node is None else node.name
        self._doing = "" if node is None else node.doing
        self._part = part

    def end(self) -> None:
        """End the turn: log it if it was slow, and forget its steps."""
        took_ns = self.took_ns = time.monotonic_ns() - self.began_ns
        if took_ns > SLOW_TURN_NS:
            self._log.warning(
                "slow turn",
                took_ms=took_ns // 1_000_000,
                on=self._node,
                part=self._part,
                doing=self._doing,
                duty=self._slow_duty if self._part == "dues" else "",
            )
        if self.worst_ns != NOTED_NS:
            self.worst_ns = NOTED_NS
            self._node = self._part = self._doing = self._slow_duty = ""

    def _duty_changes(self, name: str) -> None:
        now_ns = time.monotonic_ns()
        if self._duty and now_ns - self._duty_began_ns > NOTED_NS:
            self._slow_duty = self._duty
        self._duty = name
        self._duty_began_ns = now_ns
