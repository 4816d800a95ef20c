"""The node contract: what a driver may call on a node, and in which order.

One **turn** is the same in the shell and in the simulator:

    clock set -> done(...)* -> opened/received/drained/closed* -> run_due -> settle -> outbox flushed

- `done` brings completions of the disk; the default calls the completion that was passed in.
- `received` gets at most 64 KiB of one connection per turn.
- `settle` ends the turn: appends of the whole turn become one write, queues are extended, answers that depended on the
  write are finished. Nothing may be answered as stored before `settle` did its write.
- `due_ms` tells the driver when to come back when nothing else happens.
- `stop` asks for a clean stop; the node goes on taking turns until `stopped` is true (files synced, peers told).
- An exception that leaves any of these is a broken invariant: the driver logs the story and ends the node.

A node never looks at a clock, makes a socket, starts a thread or draws random numbers by itself: see `ports.py`.
"""

from typing import Protocol

from rmqkit.runtime.connection import Connection, Outbox
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Completion, Ports


class Node(Protocol):
    name: str
    outbox: Outbox
    stopped: bool
    #: what the node was doing last, for the log line about a slow turn
    doing: str

    def start(self) -> None:
        """Called once, in a turn of its own. Raises a RmqkitError when the node cannot start."""

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
    """The parts of the contract that are the same in every node. Nodes inherit this one step and nothing deeper."""

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
