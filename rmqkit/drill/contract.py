"""The seams of a drill: what a fault is, and what drives a drill (real processes, or a simulated cluster).

The engine and the faults know nothing but a `Driver`, so the same plan, faults and promises run on both. A driver passes
time, runs the workload, writes what happens into its history, and does to nodes what faults ask for. A fault is begun,
*shows that it bit*, and is taken back:

    begin(driver, node)    breaks; raises DrillError when it cannot
    proof(driver, node)    one line that shows the harm as seen from outside, "" while nothing shows
    end(driver, node)      takes it back, so that the cluster can be as it was; harmless when nothing is broken

A fault without proof makes the drill inconclusive: a promise that nobody tried to break was not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rmqkit.errors import RmqkitError

if TYPE_CHECKING:
    from rmqkit.drill.history import History
    from rmqkit.drill.plan import Plan
    from rmqkit.drill.promises.table import Harm


class DrillError(RmqkitError):
    """The drill cannot be done: inconclusive, whatever else was seen."""

    exit_code = 4


class DrillNode(NamedTuple):
    """A node of the cluster, as selectors know it."""

    name: str
    #: "" for a name server
    broker: str = ""
    broker_id: int = 0

    @property
    def role(self) -> str:
        return "master" if self.broker_id == 0 else "slave"


class Driver(Protocol):
    plan: Plan
    history: History

    # --- time

    def now_ms(self) -> int:
        """Milliseconds since the drill began."""

    def wait(self, most_ms: int, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass: until `until` holds (True), or for `most_ms` (then whether it holds; without one, True)."""

    # --- the course of a drill, in this order

    def nodes(self, selector: str) -> Sequence[DrillNode]:
        """The nodes a selector means. Raises DrillError."""

    def facts(self) -> Mapping[str, Any]:
        """The cluster as it is, for the record."""

    def begin_load(self) -> None:
        """Make topics, groups and clients, and begin. Raises DrillError."""

    def lacking(self) -> str:
        """What is missing for a steady state: routes, replicas in sync, sends, deliveries; "" when all is there."""

    def stop_sending(self) -> None: ...

    def caught_up(self) -> bool:
        """Whether every group was given all that the masters have."""

    def read_all(self) -> None:
        """The last reading: every queue from every replica, offsets of the groups, checksums of the logs."""

    def close(self) -> None:
        """End the clients, and remove what the drill has made. Safe at any time."""

    # --- what faults do to a node; each returns once it is done

    def kill(self, node: DrillNode) -> None: ...
    def start(self, node: DrillNode) -> None:
        """Start it and return when it answers. Raises DrillError."""

    def pause(self, node: DrillNode) -> None: ...
    def resume(self, node: DrillNode) -> None: ...

    def isolate(self, node: DrillNode, rules: Sequence[Mapping[str, Any]]) -> None:
        """Have its transport stop reading, writing or accepting, by rules; () ends it. Raises DrillError."""

    def seen(self, node: DrillNode) -> Mapping[str, Any]:
        """What shows from outside: `alive`, `paused`, `answers` (within half a second), `pid`, and what its transport
        counts while it is isolated."""


class Fault(Protocol):
    #: as a plan names it
    name: str
    #: what it does, in a few words
    text: str
    #: which column of the table of promises it belongs to
    harm: Harm

    def begin(self, driver: Driver, node: DrillNode) -> None: ...
    def proof(self, driver: Driver, node: DrillNode) -> str: ...
    def end(self, driver: Driver, node: DrillNode) -> None: ...
