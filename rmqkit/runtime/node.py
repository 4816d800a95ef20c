"""The node contract: what a driver may call on a node, and in which order.

One **turn** is the same in the shell and in the simulator:

    clock set -> done(...)* -> opened/received/drained/closed* -> run_due -> settle
              -> outbox flushed

- `done` delivers completions of the disk; the default calls the completion that was passed in.
- `received` gets at most 256 KiB of one connection per turn.
- `settle` ends the turn. It writes all appends of the turn in one write, extends the queues, and
  finishes the calls that depend on that write. No message may be acknowledged as stored before.
- `due_ms` tells the driver when the next turn is needed if nothing else happens.
- `stop` requests a clean stop. The node continues to take turns until `stopped` is true (files
  synced, peers notified).
- An exception from any of these is a broken invariant: the driver logs it and ends the node.

A node never reads a clock, opens a socket, starts a thread or draws random numbers itself;
`ports.py` has what the driver provides instead.
"""

from typing import Protocol

from rmqkit.runtime.connection import Connection, Outbox
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Completion, Ports


class Node(Protocol):
    """What a driver uses of a node; the module describes the order of the calls."""

    name: str
    outbox: Outbox
    stopped: bool
    #: the node's last activity, for the log line about a slow turn
    doing: str

    def start(self) -> None:
        """Called once, in a turn of its own. Raises RmqkitError if the node cannot start."""

    def stop(self) -> None: ...
    def opened(self, conn: Connection) -> None: ...
    def received(self, conn: Connection, data: bytes) -> None: ...
    def drained(self, conn: Connection) -> None: ...
    def closed(self, conn: Connection, reason: str) -> None: ...
    def done(self, completion: Completion, error: OSError | None) -> None: ...
    def due_ms(self) -> int | None: ...
    def run_due(self) -> None: ...
    def settle(self) -> None: ...


class BaseNode:
    """Default implementation of the contract. A node inherits from it, or from `RemotingNode`."""

    def __init__(self, name: str, ports: Ports) -> None:
        self.name = name
        self.ports = ports
        self.clock = ports.clock
        self.outbox = Outbox()
        self.duties = Duties()
        self.stopped = False
        self.doing = ""

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True

    def opened(self, conn: Connection) -> None:
        pass

    def received(self, conn: Connection, data: bytes) -> None:
        pass

    def drained(self, conn: Connection) -> None:
        pass

    def closed(self, conn: Connection, reason: str) -> None:
        pass

    def done(self, completion: Completion, error: OSError | None) -> None:
        completion(error)

    def due_ms(self) -> int | None:
        return self.duties.next_due_ms()

    def run_due(self) -> None:
        self.duties.run_due(self.clock.mono_ms)

    def settle(self) -> None:
        pass
