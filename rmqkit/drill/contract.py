"""The seams of a drill: the fault, and the driver of a drill (real processes, or a simulated
cluster).

The engine and the faults use only a `Driver`, so the same plan, faults and promises run on both. A
driver passes time, runs the workload, writes the history, and breaks nodes as the fault demands. A
fault has three steps:

    begin(driver, node)    break the node; raises DrillError when that is impossible
    proof(driver, node)    one line with the effect as seen from outside, "" while there is none
    end(driver, node)      repair the node; harmless when nothing is broken

A fault without proof makes the drill inconclusive, because it has not put any promise to the test.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rmqkit.errors import RmqkitError

if TYPE_CHECKING:
    from rmqkit.drill.history import History
    from rmqkit.drill.plan import Plan
    from rmqkit.drill.promises.table import Harm


class DrillError(RmqkitError):
    """The drill cannot continue: it is inconclusive, whatever the history shows."""

    exit_code = 4


class DrillNode(NamedTuple):
    """A node of the cluster, under the names that selectors use."""

    name: str
    #: "" for a name server
    broker: str = ""
    broker_id: int = 0

    @property
    def role(self) -> str:
        return "master" if self.broker_id == 0 else "slave"


class Driver(Protocol):
    plan: "Plan"
    history: "History"

    # --- time

    def now_ms(self) -> int:
        """Milliseconds since the drill began."""

    def wait(self, most_ms: int, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass: until `until` holds (True), or for `most_ms` (then whether it holds;
        without one, True)."""

    # --- the course of a drill, in this order

    def nodes(self, selector: str) -> Sequence[DrillNode]:
        """The nodes that a selector names. Raises DrillError."""

    def facts(self) -> Mapping[str, Any]:
        """The present state of the cluster, for the record."""

    def begin_load(self) -> None:
        """Create topics, groups and clients, and start the load. Raises DrillError."""

    def lacking(self) -> str:
        """What is missing for a steady state: routes, replicas in sync, sends, deliveries; "" for
        nothing."""

    def stop_sending(self) -> None: ...

    def caught_up(self) -> bool:
        """Whether every group has received all messages of the masters."""

    def read_all(self) -> None:
        """The last reading: every queue from every replica, offsets of the groups, checksums of the
        logs."""

    def close(self) -> None:
        """Close the clients and delete what the drill created. Safe at any time."""

    # --- what faults do to a node; each call returns when it is done

    def kill(self, node: DrillNode) -> None: ...
    def start(self, node: DrillNode) -> None:
        """Start it and return when it answers. Raises DrillError."""

    def pause(self, node: DrillNode) -> None: ...
    def resume(self, node: DrillNode) -> None: ...

    def isolate(self, node: DrillNode, rules: Sequence[Mapping[str, Any]]) -> None:
        """Have its transport stop reading, writing or accepting, by rules; () ends it.

        Raises DrillError.
        """

    def seen(self, node: DrillNode) -> Mapping[str, Any]:
        """What shows from outside: `alive`, `paused`, `answers` (within half a second), `pid`, and
        what its transport counts while it is isolated."""


class Fault(Protocol):
    #: as a plan names it
    name: str
    #: what it does, in a few words
    text: str
    #: which column of the table of promises it belongs to
    harm: "Harm"

    def begin(self, driver: Driver, node: DrillNode) -> None: ...
    def proof(self, driver: Driver, node: DrillNode) -> str: ...
    def end(self, driver: Driver, node: DrillNode) -> None: ...
