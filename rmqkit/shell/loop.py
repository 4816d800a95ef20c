"""The shell's driver: one thread, one poller, any number of nodes.

A turn runs these steps, in the order of the node contract:

    wait for events or the next due time
    set the clock
    run functions posted by other threads, deliver completions of the disks
    deliver `closed` and `drained` calls of the last flush, then socket events (one read each),
        then driver timers
    for each node: run what is due, settle, flush the outbox

The clock is constant within a turn, unless a step takes `STALL_NS` or more. The process may have
been stopped in the middle of that step (a busy process nearly always is), and the next data may
have arrived since. The clock is then read again, so that the node sees the pause before it gets
the next event.

The loop sleeps in the poller and nowhere else. Other threads reach it by `call_soon_threadsafe`: a
deque and a wake-up (`wakeup.py`). The disk thread and signal handlers wake it in the same way.

`items` maps a descriptor to its `Stream`, `Dial`, `Listener` and so on. A dropped socket is closed
only at the end of the turn, so an event already fetched for it can never reach a new socket with
the same descriptor.

`run` returns when every node has stopped; `stop` asks them to stop. An exception from a node
propagates out of `run`, and `failed` names the node. The caller of `run` then reports it and ends
the process.

Nodes may be added and removed while the loop runs (`add`, `remove`), between turns or in a posted
function. If a node in `spared` cannot start, the loop drops it and the other nodes continue.
"""

import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol

from rmqkit.errors import CannotStart
from rmqkit.runtime.connection import Connection
from rmqkit.runtime.node import Node
from rmqkit.runtime.ports import Clock, Disk, Log, Ports
from rmqkit.settings.node_sections import NetworkLimits
from rmqkit.shell.disk import OsDisk
from rmqkit.shell.listener import Listener, bind
from rmqkit.shell.log import stderr_log
from rmqkit.shell.names import Resolver
from rmqkit.shell.poller import READ, Poller, make_poller
from rmqkit.shell.slow import SlowTurn
from rmqkit.shell.streams import Dial, Stream
from rmqkit.shell.wakeup import Wakeup

if TYPE_CHECKING:
    from rmqkit.shell.faults.isolated_socket import IsolatedSocket
    from rmqkit.tls.node_tls import NodeTls

IDLE_SCAN_MS = 5000
#: how long pending bytes may still be sent after all nodes have stopped
SEND_PENDING_MS = 1000
#: interval of the checks whether a node being removed has stopped
STOPPED_POLL_MS = 5
#: interval of the checks for changed certificate files
TLS_POLL_MS = 1000
REMOVED = "the node was removed"
#: a step of a turn that takes this long may mean that the process was stopped meanwhile
STALL_NS = 200_000_000


class Item(Protocol):
    """The owner of a descriptor. `ready` handles its events, `scan` its idle check."""

    def ready(self, mask: int) -> None: ...
    def scan(self, now_ms: int) -> None: ...


class IsolationRules(Protocol):
    """The part of a drill's isolation that the loop and its sockets use.

    `faults/isolation.py` implements it. It imports this module, so it cannot be imported here.
    """

    def ids(self, node: Node) -> list[str]: ...
    def heal(self, id: str) -> None: ...
    def close(self) -> None: ...
    def sets_aside(self, listener: Listener, sock: socket.socket, name: tuple[Any, ...]) -> bool: ...
    def holds(self, dial: Dial) -> bool: ...


@dataclass(slots=True, eq=False)
class NodeSlot:
    """A node in the loop, and the disk whose completions the loop delivers to it."""

    node: Node
    disk: OsDisk | None


def memory_size() -> int:
    """Return the size of the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Loop:
    """Drives nodes. Create their ports with `ports`, `add` them, `listen`, `start`, then `run`."""

    def __init__(self, *, limits: NetworkLimits | None = None, log: Log | None = None) -> None:
        self.limits = limits or NetworkLimits()
        self.log: Log = log or stderr_log("driver")
        self.clock = Clock()
        self.wakeup = Wakeup()
        self.poller: Poller = make_poller(self.wakeup, self.limits.spin_polls)
        #: isolations of drills (`faults/isolation.py`); None while there are none
        self.isolation: IsolationRules | None = None
        #: by descriptor: what handles its events
        self.items: dict[int, Item] = {}
        #: the node whose exception left `run` or `start`; None if the driver raised it
        self.failed: Node | None = None
        #: count of accepted connections by source (see `listener.source_of`)
        self.by_source: dict[str, int] = {}
        #: the TLS of the nodes that use it
        self.tls: dict[Node, NodeTls] = {}
        #: bytes pending in all connections, because their peers read more slowly than they request
        self.unsent_bytes = 0
        #: the number of descriptors with events in this turn, at least 1
        self.ready_count = 1
        #: the number of frames that connections have completed in this turn
        self.frame_count = 0
        #: items that are not connections
        self._fixed_count = 1
        #: nodes that may fail to start: the function is called with the error, and `run` continues
        self.spared: dict[Node, Callable[[CannotStart], None]] = {}
        self.resolver = Resolver(self.call_soon_threadsafe)
        self._hosted: list[NodeSlot] = []
        self._disks: list[OsDisk] = []
        self._posted: deque[Callable[[], None]] = deque()
        #: calls of nodes for the next reading phase: node, method, arguments
        self._node_calls: deque[tuple[Node, Callable[..., None], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._last_id = 0
        self._dropped: list[socket.socket | IsolatedSocket] = []
        self._stop_until_ms: int | None = None
        self._slow = SlowTurn(self.log)
        #: makes the loop take a turn; may be called from any thread
        self.wake = self.wakeup.set
        self.items[self.wakeup.fd] = self.wakeup
        self.poller.add(self.wakeup.fd, READ)
        self._read_clock()
        self.after(self._scan_every_ms(), self._scan)

    # --- setting up -------------------------------------------------------------------------------

    def ports(self, folder: str, log: Log | None = None, *, share: int = 1) -> Ports:
        """Create the ports of one node, with its files under `folder` (created if missing).

        `share` is the number of nodes that divide the process's descriptors.
        """
        disk = OsDisk(folder, wake=self.wake, share=share)
        self._disks.append(disk)
        entropy = random.Random(os.urandom(32))
        return Ports(self.clock, disk, entropy, log or self.log, memory_size())

    def add(self, node: Node, disk: Disk | None = None, tls: "NodeTls | None" = None) -> None:
        """Add a node. `disk` is the disk of its ports, by default `node.ports.disk` if present.

        With `tls` its listeners and dials use TLS as it says.
        """
        if disk is None:
            disk = getattr(getattr(node, "ports", None), "disk", None)
        self._hosted.append(NodeSlot(node, disk if isinstance(disk, OsDisk) else None))
        self._slow.watch(node)
        if tls is not None:
            self.tls[node] = tls
            self._poll_tls(node, tls)

    def listen(self, node: Node, tag: str, host: str, port: int) -> int:
        """Accept connections for a node. Return the port; the system chooses one if `port` is 0.

        Raises PortTaken, CannotListen.
        """
        sock = self.bind(host, port)
        self.accept(node, tag, sock)
        return int(sock.getsockname()[1])

    def bind(self, host: str, port: int) -> socket.socket:
        """Bind a listening socket, for a node that must know its port before it is created.

        This is the first half of `listen`. Raises PortTaken, CannotListen.
        """
        return bind(host, port, self.limits.socket_backlog)

    def accept(self, node: Node, tag: str, sock: socket.socket) -> None:
        """Accept a node's connections from a bound socket. This is the second half of `listen`."""
        self._fixed_count += 1
        Listener(self, node, tag, sock)

    def start(self) -> None:
        """Start every node, in a separate turn. Raises what a node that cannot start raises."""
        self._read_clock()
        self._slow.began_ns = time.monotonic_ns()
        for hosted in list(self._hosted):
            self.failed = hosted.node
            hosted.node.start()
        self._end_turn()

    def hosts(self, node: Node) -> bool:
        """Whether the node was added and not released since."""
        return any(hosted.node is node for hosted in self._hosted)

    def remove(self, node: Node, then: Callable[[], None]) -> None:
        """Stop one node, release its resources, and call `then`. The other nodes continue."""
        node.stop()

        def poll_stopped() -> None:
            if node.stopped:
                self.let_go(node)
                then()
            else:
                self.after(STOPPED_POLL_MS, poll_stopped)

        self.after(0, poll_stopped)

    def let_go(self, node: Node) -> None:
        """Release the resources of a node that has stopped or could not start.

        Pending bytes are still sent.
        """
        if self.isolation is not None:
            for id in self.isolation.ids(node):
                self.isolation.heal(id)
        self._flush(node)
        for item in list(self.items.values()):
            if getattr(item, "node", None) is not node:
                continue
            if isinstance(item, Listener):
                self.drop_fixed(item.fd, item.sock)
            elif isinstance(item, (Stream, Dial)):
                item.conn.closing = item.conn.closing or REMOVED
                if isinstance(item, Stream):
                    item.finish()
                else:
                    item.abort()
        self.spared.pop(node, None)
        self.tls.pop(node, None)
        for hosted in [hosted for hosted in self._hosted if hosted.node is node]:
            self._hosted.remove(hosted)
            if hosted.disk is not None:
                self.release(hosted.disk)

    def release(self, disk: Disk) -> None:
        """Close the disk of ports that are no longer needed."""
        disk.close()
        self._disks = [each for each in self._disks if each is not disk]

    # --- from anywhere ----------------------------------------------------------------------------

    def call_soon_threadsafe(self, function: Callable[[], None]) -> None:
        """Run a function at the start of the next turn.

        May be called from any thread and from signal handlers.
        """
        self._posted.append(function)
        self.wake()

    # --- running ----------------------------------------------------------------------------------

    def run(self) -> bool:
        """Take turns until every node has stopped.

        Return False if some nodes are still running after the grace period of `stop`.
        """
        hosted_nodes = self._hosted
        while True:
            try:
                self.turn(self._timeout_ms())
            except CannotStart as error:
                self._spare(error)
            for hosted in hosted_nodes:
                if not hosted.node.stopped:
                    break
            else:
                self._send_pending()
                return True
            if self._stop_until_ms is not None and self.clock.mono_ms >= self._stop_until_ms:
                return False

    def stop(self, grace_ms: int = 30_000) -> None:
        """Ask every node to stop. `run` returns when all have stopped, or after `grace_ms`.

        Nodes are asked in reverse order of `add`, so that slaves unregister before their masters.
        Call this on the loop's thread.
        """
        if self._stop_until_ms is None:
            self._stop_until_ms = self.clock.mono_ms + grace_ms
            self.after(grace_ms, lambda: None)
            for hosted in reversed(self._hosted):
                hosted.node.stop()

    def turn(self, timeout_ms: int | None = 0) -> None:
        """Take one turn. Wait up to `timeout_ms` for an event (None: without a timeout)."""
        events = self.poller.poll(timeout_ms, self._slow.took_ns, self.frame_count)
        self.frame_count = 0
        started_ns = time.monotonic_ns()
        clock = self.clock
        clock.mono_ms = started_ns // 1_000_000
        clock.wall_ms = time.time_ns() // 1_000_000
        slow = self._slow
        slow.began_ns = step_ns = started_ns
        self.wakeup.is_set = False
        if self._posted:
            self._run_posted()
        for hosted in self._hosted:
            if hosted.disk is not None and hosted.disk.completed:
                self._deliver(hosted)
                before_ns, step_ns = step_ns, slow.step(hosted.node, "done", step_ns)
                if step_ns - before_ns >= STALL_NS:
                    self._read_clock()
        if self._node_calls:
            self._run_node_calls()
        items = self.items
        self.ready_count = len(events) or 1
        item: Item | None = None
        try:
            for fd, mask in events:
                item = items.get(fd)
                if item is not None:
                    item.ready(mask)
                    now_ns = time.monotonic_ns()
                    if now_ns - step_ns > slow.worst_ns:
                        slow.note(getattr(item, "node", None), "network", now_ns - step_ns)
                        if now_ns - step_ns >= STALL_NS:
                            self._read_clock()
                    step_ns = now_ns
        except BaseException:
            self.failed = getattr(item, "node", None)
            raise
        if self._timers and self._timers[0][0] <= clock.mono_ms:
            self._run_timers()
        if self._node_calls:
            self._run_node_calls()
        self._end_turn()

    def close(self) -> None:
        """Close every socket and disk, after waiting for the jobs of the disks."""
        for item in list(self.items.values()):
            if isinstance(item, (Stream, Dial)):
                item.conn.is_open = False
                item.conn.driver = None
            sock = getattr(item, "sock", None)
            if sock is not None:
                sock.close()
        self.items.clear()
        if self.isolation is not None:
            self.isolation.close()
        for disk in self._disks:
            disk.close()
        self.resolver.close()
        self._close_dropped()
        self.poller.close()
        self.wakeup.close()

    # --- for the items ----------------------------------------------------------------------------

    @property
    def stream_count(self) -> int:
        """The number of descriptors of connections, including lingering ones and dials."""
        return len(self.items) - self._fixed_count

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def left(self, source: str) -> None:
        """Uncount an accepted connection from `source` that has ended."""
        count = self.by_source[source] - 1
        if count:
            self.by_source[source] = count
        else:
            del self.by_source[source]

    def unsent_changed(self, growth: int) -> None:
        """Count `growth` more pending bytes. Above the limit, end the connection with the most."""
        self.unsent_bytes += growth
        if growth > 0 and self.unsent_bytes > self.limits.unsent_bytes_max:
            streams = [item for item in self.items.values() if isinstance(item, Stream)]
            largest = max(streams, key=lambda each: (each.unsent, each.conn.id))
            largest.give_up(f"all connections together hold more than {self.limits.unsent_bytes_max} unsent bytes")

    def call_node(self, node: Node, method: Callable[..., None], *args: Any) -> None:
        """Call a method of a node in the next reading phase."""
        self._node_calls.append((node, method, args))

    def after(self, delay_ms: int, function: Callable[[], None]) -> None:
        """Call a function of the driver once, in the first reading phase after `delay_ms`."""
        self._sequence += 1
        heappush(self._timers, (self.clock.mono_ms + delay_ms, self._sequence, function))

    def drop(self, fd: int, sock: "socket.socket | IsolatedSocket") -> None:
        """Stop watching a socket now. Close it at the end of the turn."""
        del self.items[fd]
        self.poller.remove(fd)
        self._dropped.append(sock)

    def watch_lifeline(self, fd: int) -> None:
        """End the process at once when `fd` reaches its end.

        That happens when the process with the other end of the pipe is gone.
        """
        os.set_blocking(fd, False)
        self.watch_fixed(fd, _Lifeline(fd))

    def watch_fixed(self, fd: int, item: Item) -> None:
        """Watch a descriptor for reading, for an item that is not a connection of a node."""
        self._fixed_count += 1
        self.items[fd] = item
        self.poller.add(fd, READ)

    def drop_fixed(self, fd: int, sock: socket.socket) -> None:
        """Stop watching a descriptor of `watch_fixed`, and close its socket."""
        self._fixed_count -= 1
        self.drop(fd, sock)

    def _spare(self, error: CannotStart) -> None:
        """Release a node that cannot start. Raises the error if the node is not in `spared`."""
        node = self.failed
        cannot_start = None if node is None else self.spared.get(node)
        if node is None or cannot_start is None:
            raise error
        self.failed = None
        self.let_go(node)
        cannot_start(error)
        # The exception cut the turn short. The other nodes must still settle its events.
        self.wake()

    # --- parts of a turn --------------------------------------------------------------------------

    def _read_clock(self) -> None:
        self.clock.mono_ms = time.monotonic_ns() // 1_000_000
        self.clock.wall_ms = time.time_ns() // 1_000_000

    def _timeout_ms(self) -> int | None:
        if self._node_calls:
            return 0
        due_ms = self._timers[0][0] if self._timers else None
        for hosted in self._hosted:
            node_due_ms = hosted.node.due_ms()
            if node_due_ms is not None and (due_ms is None or node_due_ms < due_ms):
                due_ms = node_due_ms
        if due_ms is None:
            return None
        # Use the real clock, because the turn that has just ended took time.
        return max(0, due_ms - time.monotonic_ns() // 1_000_000)

    def _run_posted(self) -> None:
        posted = self._posted
        for _ in range(len(posted)):
            posted.popleft()()

    def _deliver(self, hosted: NodeSlot) -> None:
        assert hosted.disk is not None
        self.failed = hosted.node
        for completion, error in hosted.disk.take_completed():
            hosted.node.done(completion, error)
        self.failed = None

    def _run_node_calls(self) -> None:
        calls = self._node_calls
        while calls:
            self.failed, method, args = calls.popleft()
            method(*args)
        self.failed = None

    def _run_timers(self) -> None:
        timers, now_ms = self._timers, self.clock.mono_ms
        while timers and timers[0][0] <= now_ms:
            heappop(timers)[2]()

    def _end_turn(self) -> None:
        now_ms = self.clock.mono_ms
        slow = self._slow
        for hosted in self._hosted:
            node = self.failed = hosted.node
            due_ms = node.due_ms()
            if due_ms is not None and due_ms <= now_ms:
                step_ns = time.monotonic_ns()
                node.run_due()
                slow.step(node, "dues", step_ns)
            step_ns = time.monotonic_ns()
            node.settle()
            slow.step(node, "settle", step_ns)
            self._flush(node)
        self.failed = None
        if self._dropped:
            self._close_dropped()
        slow.end()

    def _flush(self, node: Node) -> None:
        outbox = node.outbox
        if outbox.dials:
            for conn in outbox.dials:
                Dial(self, node, conn)
            outbox.dials.clear()
        if outbox.dirty:
            for conn in outbox.dirty:
                driver = conn.driver
                if driver is not None:
                    driver.flush()
            outbox.dirty.clear()
        if outbox.reads_changed:
            for conn in outbox.reads_changed:
                if conn.driver is not None:
                    conn.driver.watch()
            outbox.reads_changed.clear()
        if outbox.closes:
            self._close_connections(outbox.closes)
            outbox.closes.clear()

    def _close_connections(self, closes: list[tuple[Connection, bool]]) -> None:
        for conn, keep in closes:
            driver = conn.driver
            if driver is None:
                continue
            if keep:
                driver.finish()
            else:
                driver.abort()

    def _close_dropped(self) -> None:
        for sock in self._dropped:
            sock.close()
        self._dropped.clear()

    def _scan_every_ms(self) -> int:
        return max(20, min(IDLE_SCAN_MS, self.limits.idle_close_ms // 4))

    def _scan(self) -> None:
        now_ms = self.clock.mono_ms
        for item in list(self.items.values()):
            item.scan(now_ms)
        self.after(self._scan_every_ms(), self._scan)

    def _poll_tls(self, node: Node, tls: "NodeTls") -> None:
        """Reload changed certificates, once per `TLS_POLL_MS`, until the node is removed."""
        if self.tls.get(node) is tls:
            tls.poll(self.log)
            self.after(TLS_POLL_MS, lambda: self._poll_tls(node, tls))

    def _send_pending(self) -> None:
        """Send the pending bytes of the stopped nodes, for at most `SEND_PENDING_MS`."""
        until_ms = self.clock.mono_ms + SEND_PENDING_MS
        while self.clock.mono_ms < until_ms and any(
            isinstance(item, Stream) and item.pending for item in self.items.values()
        ):
            self.turn(50)


@dataclass(slots=True, eq=False)
class _Lifeline:
    fd: int

    def ready(self, mask: int) -> None:
        try:
            if os.read(self.fd, 64):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        os._exit(1)

    def scan(self, now_ms: int) -> None:
        pass
