"""The two interfaces of a drill: `Driver` (real processes, or a simulated cluster) and `Fault`.

The engine and the faults use only a `Driver`, so the same plan, faults and promises run on both. A
driver passes time, runs the workload, writes the history, and breaks nodes as the fault demands. A
fault has three steps:

    begin(driver, node)    break the node; raises DrillError if that is impossible
    proof(driver, node)    one line: the effect as seen from outside; "" before there is one
    end(driver, node)      repair the node; harmless if nothing is broken

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
    """The drill cannot continue. It is inconclusive, whatever the history shows."""

    exit_code = 4


class DrillNode(NamedTuple):
    """A node of the cluster, under the names that selectors use."""

    name: str
    #: "" for a name server or controller
    broker: str = ""
    broker_id: int = 0
    #: whether it was master when it was selected; None: its id says so
    is_master: bool | None = None
    address: str = ""

    @property
    def role(self) -> str:
        leads = self.broker_id == 0 if self.is_master is None else self.is_master
        return "master" if leads else "slave"


class Driver(Protocol):
    """Runs one drill on one cluster."""

    plan: "Plan"
    history: "History"

    # --- time

    def now_ms(self) -> int:
        """Return the milliseconds since the drill began."""

    def wait(self, most_ms: int, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass until `until` returns True, for at most `most_ms`.

        Return whether `until` returned True in that time. Without `until`, wait `most_ms` and
        return True.
        """

    # --- the course of a drill, in this order

    def nodes(self, selector: str) -> Sequence[DrillNode]:
        """Return the nodes that a selector names. Raises DrillError.

        `leader` is the controller that leads.
        """

    def facts(self) -> Mapping[str, Any]:
        """Return the present state of the cluster, to be stored with the run."""

    def begin_load(self) -> None:
        """Create topics, groups and clients, and start the load. Raises DrillError."""

    def lacking(self) -> str:
        """Return what is missing for a steady state, or "".

        A steady state has routes, replicas in sync, acknowledged sends and deliveries.
        """

    def stop_sending(self) -> None: ...

    def caught_up(self) -> bool:
        """Return whether every group has received all messages of the masters."""

    def read_all(self) -> None:
        """Record the last reading.

        It has every queue from every replica, the offsets of the groups, and checksums of the logs.
        """

    def close(self) -> None:
        """Close the clients and delete what the drill created. Safe at any time."""

    # --- operations for faults; each call returns when it is done

    def kill(self, node: DrillNode) -> None: ...
    def start(self, node: DrillNode) -> None:
        """Start the node and return once it answers. Raises DrillError."""

    def pause(self, node: DrillNode) -> None: ...
    def resume(self, node: DrillNode) -> None: ...

    def isolate(self, node: DrillNode, rules: Sequence[Mapping[str, Any]]) -> None:
        """Make the node's transport stop reading, writing or accepting, by rules.

        An empty sequence of rules ends all isolations of the node. Raises DrillError.
        """

    def seen(self, node: DrillNode) -> Mapping[str, Any]:
        """Return the node's state as seen from outside.

        Keys: `alive`, `paused`, `answers` (within half a second), `pid`, and `transport`, which
        counts what the node's transport held back while it was isolated.
        """


class Fault(Protocol):
    """Breaks one node and repairs it; see the head of this module.

    A fault of controllers also has `needs_controllers = True`: a drill without any refuses it.
    """

    #: its name in plans
    name: str
    #: its effect, in a few words
    text: str
    #: its column in the table of promises (`rmqkit.drill.promises.table`)
    harm: "Harm"

    def begin(self, driver: Driver, node: DrillNode) -> None: ...
    def proof(self, driver: Driver, node: DrillNode) -> str: ...
    def end(self, driver: Driver, node: DrillNode) -> None: ...
