"""The nodes of one process: what each is made of, and how one is added or removed while the others run.

A node has listeners, a folder with a disk of its own, a log and, when drills may cut it off, a drill socket; `NodeSpec`
says which. Nodes that are there from the start are made first and started together; what keeps one of them from starting
ends the process. `add` is for later ones: whatever goes wrong, now or later in its recovery, nothing of that node is left
and nobody else notices. `remove` stops a node cleanly and lets go of all it had.

What lives when the process has started is frozen for the garbage collector; it is thawed for a moment after a removal, so
that the node's memory comes back.
"""

import gc
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rmqkit.errors import CannotStart, RmqkitError
from rmqkit.runtime.node import Node
from rmqkit.runtime.ports import Ports
from rmqkit.shell.log import LogSink, NodeLog
from rmqkit.shell.loop import Loop

if TYPE_CHECKING:
    from rmqkit.shell.faults.drill_socket import DrillSocket


class Listen(NamedTuple):
    """A listener a node wants. `port` 0 lets the system choose."""

    tag: str
    host: str
    port: int


class NodeSpec(NamedTuple):
    """A node to run. `make` gets its ports and, by tag, the port numbers of its listeners; its files are under `folder`."""

    name: str
    folder: str
    make: Callable[[Ports, Mapping[str, int]], Node]
    listens: Sequence[Listen] = ()
    #: where the drill socket stands; None: drills cannot cut this node off
    drill_folder: str | None = None
    #: where its log lines go; None: to the process's log, under its name
    sink: LogSink | None = None


class ReadyNode(NamedTuple):
    """What `ready` is told of each node."""

    name: str
    ports: Mapping[str, int]


@dataclass(slots=True, eq=False)
class Resident:
    """A node of the process and what it has."""

    spec: NodeSpec
    log: NodeLog
    node: Node
    started: ReadyNode
    drill: "DrillSocket | None" = None


class NodeHost:
    """See the head of this module. `expected` nodes divide the descriptors for files."""

    def __init__(self, loop: Loop, sink: LogSink, expected: int = 1) -> None:
        self.loop = loop
        #: by name
        self.residents: dict[str, Resident] = {}
        self._sink = sink
        self._expected = expected

    # --- from the start

    def make(self, spec: NodeSpec) -> Resident:
        """Bind, make and take in a node that `Loop.start` will start. Raises RmqkitError, OSError."""
        loop = self.loop
        sockets = self._bind(spec)
        numbers = {tag: int(sock.getsockname()[1]) for tag, sock in sockets}
        log = NodeLog(spec.sink or self._sink, spec.name)
        ports = loop.ports(spec.folder, log, share=self._share())
        node = spec.make(ports, numbers)
        loop.add(node, ports.disk)
        for tag, sock in sockets:
            loop.accept(node, tag, sock)
        return self._settled(spec, log, node, numbers)

    def open_drill_sockets(self) -> None:
        """After the start: whoever holds a node's store is named before whoever holds its drill socket."""
        for resident in self.residents.values():
            self._open_drill_socket(resident)

    # --- while it runs

    def add(self, spec: NodeSpec, cannot_start: Callable[[CannotStart], None]) -> Resident:
        """Make and start a node; between turns. `cannot_start` is called when it finds out later, and is gone then.

        Raises RmqkitError, OSError; nothing of the node is left.
        """
        if spec.name in self.residents:
            raise RmqkitError(f"{spec.name} is in this process already")
        loop = self.loop
        sockets = self._bind(spec)
        numbers = {tag: int(sock.getsockname()[1]) for tag, sock in sockets}
        log = NodeLog(spec.sink or self._sink, spec.name)
        ports: Ports | None = None
        try:
            ports = loop.ports(spec.folder, log, share=self._share())
            node = spec.make(ports, numbers)
            node.start()
        except BaseException:
            for _tag, sock in sockets:
                sock.close()
            if ports is not None:
                loop.release(ports.disk)
            raise
        loop.add(node, ports.disk)
        for tag, sock in sockets:
            loop.accept(node, tag, sock)
        resident = self._settled(spec, log, node, numbers)

        def failed(error: CannotStart) -> None:
            self._forget(resident)
            cannot_start(error)

        loop.spared[node] = failed
        try:
            self._open_drill_socket(resident)
        except (RmqkitError, OSError):
            loop.let_go(node)
            self._forget(resident)
            raise
        return resident

    def remove(self, name: str, then: Callable[[], None]) -> None:
        """Stop a node cleanly; `then` is called when nothing of it is left."""
        resident = self.residents[name]

        def gone() -> None:
            self._forget(resident)
            then()

        self.loop.remove(resident.node, gone)

    def freeze(self) -> None:
        """What is alive now stays: later collections need not look at it again."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    def remove_drill_sockets(self) -> None:
        for resident in self.residents.values():
            self._remove_drill_socket(resident)

    # --- inside

    def _share(self) -> int:
        return max(self._expected, len(self.residents) + 1)

    def _bind(self, spec: NodeSpec) -> list[tuple[str, socket.socket]]:
        sockets: list[tuple[str, socket.socket]] = []
        try:
            for listen in spec.listens:
                sockets.append((listen.tag, self.loop.bind(listen.host, listen.port)))
        except BaseException:
            for _tag, sock in sockets:
                sock.close()
            raise
        return sockets

    def _settled(self, spec: NodeSpec, log: NodeLog, node: Node, numbers: Mapping[str, int]) -> Resident:
        resident = Resident(spec, log, node, ReadyNode(spec.name, numbers))
        self.residents[spec.name] = resident
        return resident

    def _open_drill_socket(self, resident: Resident) -> None:
        if resident.spec.drill_folder is None:
            return
        from rmqkit.shell.faults.drill_socket import DrillSocket

        resident.drill = DrillSocket(self.loop, resident.node, resident.spec.drill_folder)

    def _remove_drill_socket(self, resident: Resident) -> None:
        drill, resident.drill = resident.drill, None
        if drill is not None:
            drill.remove()

    def _forget(self, resident: Resident) -> None:
        """The loop has let go of the node."""
        drill, resident.drill = resident.drill, None
        if drill is not None:
            self.loop.drop_fixed(drill.sock.fileno(), drill.sock)
            drill.remove()
        del self.residents[resident.spec.name]
        if resident.spec.sink is not None:
            resident.spec.sink.close()
        # Not at once: whoever called still holds the node.
        self.loop.after(0, self.freeze)
