"""The nodes of one process: creates them from `NodeSpec`s, and adds or removes them at runtime.

A node has listeners, a folder with its own disk, and a log. If drills may isolate it, it also has a
drill socket.

- `make` creates the nodes that the process starts with; `Loop.start` starts them together. If one
  of them cannot start, the process ends.
- `add` is for later nodes. If such a node fails, at once or later in its recovery, all of its
  resources are released, and the other nodes are not affected.
- `remove` stops a node cleanly and releases its resources.

Objects that live when the process has started are frozen (`gc.freeze`), so that collections do not
scan them. They are unfrozen for one collection after a node is removed, to free its memory.
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
    from rmqkit.tls.node_tls import NodeTls


class Listen(NamedTuple):
    """A listener that a node needs. With `port` 0 the system chooses one."""

    tag: str
    host: str
    port: int


class NodeSpec(NamedTuple):
    """A node to run, with its files under `folder`.

    `make` creates it from its ports (clock, disk, …) and the port number of each listener, by tag.
    """

    name: str
    folder: str
    make: Callable[[Ports, Mapping[str, int]], Node]
    listens: Sequence[Listen] = ()
    #: the folder of its drill socket; None: drills cannot isolate this node
    drill_folder: str | None = None
    #: the sink of its log lines; None: the process's log, under the node's name
    sink: LogSink | None = None
    #: the TLS of its connections; None: plain text
    tls: "NodeTls | None" = None


class ReadyNode(NamedTuple):
    """A node that has started, with the port number of each listener by tag."""

    name: str
    ports: Mapping[str, int]


@dataclass(slots=True, eq=False)
class HostedNode:
    """A node of this process, with its log and its drill socket."""

    spec: NodeSpec
    log: NodeLog
    node: Node
    started: ReadyNode
    drill: "DrillSocket | None" = None


class NodeHost:
    """The nodes of one process; see the head of this module.

    `expected` is the number of nodes that divide the process's descriptors.
    """

    def __init__(self, loop: Loop, sink: LogSink, expected: int = 1) -> None:
        self.loop = loop
        #: by name
        self.residents: dict[str, HostedNode] = {}
        self._sink = sink
        self._expected = expected

    # --- from the start

    def make(self, spec: NodeSpec) -> HostedNode:
        """Bind the ports of a node, create it, and add it to the loop. `Loop.start` starts it.

        Raises RmqkitError, OSError.
        """
        loop = self.loop
        sockets = self._bind(spec)
        numbers = {tag: int(sock.getsockname()[1]) for tag, sock in sockets}
        log = NodeLog(spec.sink or self._sink, spec.name)
        ports = loop.ports(spec.folder, log, share=self._share())
        node = spec.make(ports, numbers)
        loop.add(node, ports.disk, spec.tls)
        for tag, sock in sockets:
            loop.accept(node, tag, sock)
        return self._settled(spec, log, node, numbers)

    def open_drill_sockets(self) -> None:
        """Open the drill socket of every node. Call this after the start.

        If another process uses the node's folder, the start then fails first: its error names the
        process that holds the store, which says more than a busy drill socket.
        """
        for resident in self.residents.values():
            self._open_drill_socket(resident)

    # --- while it runs

    def add(self, spec: NodeSpec, cannot_start: Callable[[CannotStart], None]) -> HostedNode:
        """Create and start a node. Call this between turns.

        A node may find out later, in its recovery, that it cannot start. It is then removed, and
        `cannot_start` is called.

        Raises RmqkitError, OSError; the node's resources are released then.
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
        loop.add(node, ports.disk, spec.tls)
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
        """Stop a node cleanly. `then` is called once its resources are released."""
        resident = self.residents[name]

        def gone() -> None:
            self._forget(resident)
            then()

        self.loop.remove(resident.node, gone)

    def freeze(self) -> None:
        """Collect garbage, then exempt every object that is still alive from later collections."""
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

    def _settled(self, spec: NodeSpec, log: NodeLog, node: Node, numbers: Mapping[str, int]) -> HostedNode:
        resident = HostedNode(spec, log, node, ReadyNode(spec.name, numbers))
        self.residents[spec.name] = resident
        return resident

    def _open_drill_socket(self, resident: HostedNode) -> None:
        if resident.spec.drill_folder is None:
            return
        from rmqkit.shell.faults.drill_socket import DrillSocket

        resident.drill = DrillSocket(self.loop, resident.node, resident.spec.drill_folder)

    def _remove_drill_socket(self, resident: HostedNode) -> None:
        drill, resident.drill = resident.drill, None
        if drill is not None:
            drill.remove()

    def _forget(self, resident: HostedNode) -> None:
        """Drop a node that the loop has released, with its drill socket and its log."""
        drill, resident.drill = resident.drill, None
        if drill is not None:
            self.loop.drop_fixed(drill.sock.fileno(), drill.sock)
            drill.remove()
        del self.residents[resident.spec.name]
        if resident.spec.sink is not None:
            resident.spec.sink.close()
        # In a later turn: the caller still holds a reference to the node.
        self.loop.after(0, self.freeze)
