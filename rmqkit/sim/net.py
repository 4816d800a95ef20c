"""The simulated network: listeners, new connections, and faults on the links between nodes.

Any two nodes have an `Edge` for each direction. Faults apply to edges, connections or processes:

    cut / partition / isolate    a black hole: data is held, dials time out; `heal` lets the data
                                 arrive late (`mend`: for one edge only)
    stall                        everything on an edge is delayed
    edge(a, b).bytes_per_s       a slow link
    reset                        resets the connections between two nodes, dropping data in flight
    Process.refuses              a machine that runs but refuses connections, as with a dead process

Nothing happens that TCP rules out: no loss and no reordering within a connection. A machine without
power does not reply, which leaves half-open connections on the other side. Once it is back, old
connections are reset as soon as data reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from rmqkit.config import NetworkLimits
from rmqkit.runtime.connection import Address, Connection
from rmqkit.sim.ends import End, Pipe

if TYPE_CHECKING:
    from rmqkit.sim.process import Process
    from rmqkit.sim.world import World

REFUSED = "Connection refused"
UNKNOWN_NAME = "Name or service not known"
EPHEMERAL_FIRST = 40_000
_ANY_HOST = ("", "0.0.0.0", "::")


class NetProfile(NamedTuple):
    """The behaviour of the network without faults.

    A spike is a rare long delay. `cut_chance` is the probability that data sent at once arrives in
    several pieces.
    """

    latency_us: int = 60
    jitter_us: int = 300
    spike_chance: float = 0.002
    spike_us: int = 20_000
    cut_chance: float = 0.2
    retransmit_us: int = 400_000


class Edge:
    """The link from one node to another, in one direction."""

    __slots__ = ("_random", "_spike_chance", "bytes_per_s", "is_cut", "profile", "stalled_us", "world")

    def __init__(self, world: World, profile: NetProfile, random: Random) -> None:
        self.world = world
        self.profile = profile
        self._random = random.random
        self._spike_chance = profile.spike_chance
        self.is_cut = False
        #: data sent before this time arrives after it
        self.stalled_us = 0
        #: speed of each connection over a slow link; 0 for no limit
        self.bytes_per_s = 0

    def delay_us(self) -> int:
        """Draw the delay of a packet."""
        profile, random = self.profile, self._random
        delay_us = profile.latency_us + int(random() * profile.jitter_us)
        if random() < self._spike_chance:
            delay_us += int(random() * profile.spike_us)
        if self.stalled_us:
            delay_us += max(0, self.stalled_us - self.world.now_us)
        return delay_us


class SimDial:
    """A connection attempt."""

    __slots__ = ("conn", "error", "is_over", "net", "process", "tries")

    def __init__(self, net: SimNet, process: Process, conn: Connection) -> None:
        self.net = net
        self.process = process
        self.conn = conn
        self.error = ""
        self.is_over = False
        self.tries = 0
        conn.driver = self
        net.dials[self] = None
        now_us = net.clock_us()
        net.at_us(now_us + net.limits.connect_timeout_ms * 1000, self._late)
        self._send_first_packet()

    def take(self) -> None:
        """Notify the node that the attempt has failed."""
        if not self.is_over:
            self._over(self.error)

    def flush(self) -> None:
        """Do nothing: bytes wait until the connection is open."""

    def watch(self) -> None:
        """Do nothing: reading starts when the connection is open."""

    def finish(self) -> None:
        if not self.conn.out:
            self._over(self.conn.closing)

    def abort(self) -> None:
        self._over(self.conn.closing)

    def done(self) -> None:
        """End the attempt: the connection is open, or the process is gone."""
        self.is_over = True
        self.net.dials.pop(self, None)

    def fail(self, reason: str) -> None:
        if not self.is_over:
            self.error = reason
            self.process.ready(self)

    def _late(self) -> None:
        self.fail(f"no connection within {self.net.limits.connect_timeout_ms} ms")

    def _send_first_packet(self) -> None:
        net = self.net
        far = net.find(self.conn.peer) or net.host(self.conn.peer.host)
        if far is None:
            net.at_us(net.clock_us() + 1000, lambda: self.fail(UNKNOWN_NAME))
            return
        net.at_us(net.clock_us() + net.edge(self.process.name, far.name).delay_us(), lambda: self._arrive(far))

    def _arrive(self, far: Process) -> None:
        """Handle the first packet's arrival at the other machine."""
        net = self.net
        if self.is_over:
            return
        out, back = net.edge(self.process.name, far.name), net.edge(far.name, self.process.name)
        if out.is_cut or back.is_cut or far.is_off:
            self.tries += 1
            net.at_us(net.clock_us() + 1_000_000 * self.tries, self._send_first_packet)
            return
        tag = net.listening(far, self.conn.peer)
        delay_us = back.delay_us()
        if tag is None or far.refuses:
            net.at_us(net.clock_us() + delay_us, lambda: self.fail(REFUSED))
            return
        net.connect(self, far, tag, delay_us)

    def _over(self, reason: str) -> None:
        self.done()
        conn = self.conn
        conn.closing = conn.closing or reason
        conn.driver = None
        conn.out.clear()
        conn.out_size = 0
        self.process.tell_closed(conn)


class SimNet:
    """The network of a world. Methods take the names of nodes as given to `World.add_node`."""

    def __init__(self, world: World, profile: NetProfile, limits: NetworkLimits, random: Random) -> None:
        self.world = world
        self.profile = profile
        self.limits = limits
        self.random = random
        self.cut_chance = profile.cut_chance
        #: live ends and dials, oldest first
        self.ends: dict[End, None] = {}
        self.dials: dict[SimDial, None] = {}
        self.held: dict[Pipe, None] = {}
        #: host name -> the host that it resolves to
        self.names: dict[str, str] = {}
        self._edges: dict[tuple[str, str], Edge] = {}
        self._listeners: dict[tuple[str, int], tuple[str, str]] = {}
        self._ephemeral: dict[str, int] = {}

    # --- faults -----------------------------------------------------------------------------------

    def edge(self, source: str, target: str) -> Edge:
        key = (source, target)
        edge = self._edges.get(key)
        if edge is None:
            edge = self._edges[key] = Edge(self.world, self.profile, self.random)
        return edge

    def cut(self, source: str, target: str) -> None:
        """Make one direction a black hole."""
        self.edge(source, target).is_cut = True

    def partition(self, one: Sequence[str], other: Sequence[str]) -> None:
        """Block all traffic between the two sides, in both directions."""
        for left in one:
            for right in other:
                self.cut(left, right)
                self.cut(right, left)

    def isolate(self, name: str) -> None:
        """Block all traffic between a node and all other nodes."""
        self.partition([name], [other for other in self.world.names if other != name])

    def heal(self) -> None:
        """End all cuts and stalls."""
        for edge in self._edges.values():
            edge.is_cut = False
            edge.stalled_us = 0
        for end in list(self.ends):
            self._acknowledge(end)
        self.release_held()

    def mend(self, source: str, target: str) -> None:
        """End the cut of one direction; held data arrives late."""
        self.edge(source, target).is_cut = False
        for end in list(self.ends):
            self._acknowledge(end)
        self.release_held()

    def stall(self, source: str, target: str, delay_ms: int) -> None:
        """Hold bytes sent in one direction within the next `delay_ms`; deliver them later."""
        self.edge(source, target).stalled_us = self.world.now_us + delay_ms * 1000

    def reset(self, one: str, other: str) -> None:
        """Reset every connection between two nodes, even in the middle of a frame."""
        for end in list(self.ends):
            peer = end.peer
            if end.process.name == one and peer is not None and peer.process.name == other:
                for side in (end, peer):
                    side.out.segments.clear()
                    if not side.is_over:
                        side.arrived(None)

    # --- setup ------------------------------------------------------------------------------------

    def listen(self, process: Process, tag: str, address: Address) -> None:
        host = process.host if address.host in _ANY_HOST else address.host
        taken = self._listeners.get((host, address.port))
        if taken is not None and taken[0] != process.name:
            raise ValueError(f"{address} is taken by {taken[0]}")
        self._listeners[host, address.port] = (process.name, tag)

    def listening(self, process: Process, address: Address) -> str | None:
        """Return the tag of the process's listener; None without one, or if the process is dead."""
        host = self.names.get(address.host, address.host)
        entry = self._listeners.get((host, address.port))
        return entry[1] if entry is not None and entry[0] == process.name and process.is_alive else None

    def find(self, address: Address) -> Process | None:
        """Return the process that listens on an address, dead or alive."""
        entry = self._listeners.get((self.names.get(address.host, address.host), address.port))
        return None if entry is None else self.world.process(entry[0])

    def host(self, name: str) -> Process | None:
        """Return any process of a host, by the host's address or name."""
        name = self.names.get(name, name)
        return next((process for process in self.world.processes if process.host == name), None)

    def connect(self, dial: SimDial, far: Process, tag: str, delay_us: int) -> None:
        """Open the connection: at the far side now, at the dialling side `delay_us` later."""
        near = dial.process
        number = self._ephemeral.get(near.host, EPHEMERAL_FIRST)
        self._ephemeral[near.host] = number + 1
        address = Address(near.host, number)
        conn = Connection(far.next_id(), tag, address, local=dial.conn.peer)
        conn.is_open = True
        out, back = Pipe(self, self.edge(near.name, far.name)), Pipe(self, self.edge(far.name, near.name))
        far_end = self._make_end(far, conn, back)
        out.to = far_end
        far.ready(far_end)
        incarnation = near.incarnation

        def answered() -> None:
            if dial.is_over or near.incarnation != incarnation or not near.is_alive:
                if not near.is_off:
                    out.end(None)
                return
            dial.done()
            dial.conn.local = address
            near_end = self._make_end(near, dial.conn, out)
            near_end.peer, far_end.peer = far_end, near_end
            back.to = near_end
            near.ready(near_end)

        back.last_us = self.clock_us() + delay_us
        self.at_us(back.last_us, answered)

    def dial(self, process: Process, conn: Connection) -> None:
        SimDial(self, process, conn)

    # --- end of processes -------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """Close the sockets of a killed process, as the kernel does.

        Data that the kernel has accepted is sent; data that still waited in the process is lost.
        """
        for end in self._ends_of(process):
            end.out.end(None if end.inbox or self.random.random() < 0.5 else b"")
            end.vanish()
        self._drop_dials(process)

    def end(self, process: Process) -> None:
        """Close the sockets of a process that has stopped cleanly: send waiting data first."""
        for end in self._ends_of(process):
            if not end.is_over and end.pending:
                end.out.send(b"".join(end.pending))
            end.out.end(b"")
            end.vanish()
        self._drop_dials(process)

    def power_off(self, process: Process) -> None:
        """Drop the connections of a machine without power, without notifying their peers."""
        for end in self._ends_of(process):
            end.out.lose_tail()
            end.vanish()
        self._drop_dials(process)

    def release_held(self) -> None:
        """Let all pipes retry the segments that they hold."""
        held, self.held = self.held, {}
        for pipe in held:
            pipe.release()

    # --- for the ends -----------------------------------------------------------------------------

    def clock_us(self) -> int:
        return self.world.now_us

    def at_us(self, due_us: int, function: Callable[[], None]) -> None:
        self.world.at_us(due_us, function)

    def retransmit_us(self) -> int:
        return int(self.random.random() * self.profile.retransmit_us)

    def read(self, end: End, size: int) -> None:
        """Account for `size` bytes that an end has read: its peer gets as much room to send."""
        peer = end.peer
        if peer is not None:
            peer.out.unacked += size
            self._acknowledge(end)

    def watch_idle(self, end: End) -> None:
        self.at_us(end.active_us + self.limits.idle_close_ms * 1000, lambda: self._check_idle(end))

    def is_idle(self, end: End) -> bool:
        return self.world.now_us - end.active_us >= self.limits.idle_close_ms * 1000

    def _make_end(self, process: Process, conn: Connection, out: Pipe) -> End:
        tls = process.tls
        if tls is None or not (tls.dials(conn.tag) if conn.dialled else tls.accepts(conn.tag)):
            return End(self, process, conn, out)
        from rmqkit.sim.tls_ends import TlsEnd  # loads `ssl`

        return TlsEnd(self, process, conn, out, tls)

    def _check_idle(self, end: End) -> None:
        if end.is_over:
            return
        if self.is_idle(end):
            end.process.ready(end)
        else:
            self.watch_idle(end)

    def _acknowledge(self, end: End) -> None:
        peer = end.peer
        if peer is None or not peer.out.unacked or end.out.edge.is_cut:
            return
        peer.out.in_flight -= peer.out.unacked
        peer.out.unacked = 0
        if peer.pending and not peer.writable:
            peer.writable = True
            self.at_us(self.world.now_us + end.out.edge.delay_us(), lambda: peer.process.ready(peer))

    def _ends_of(self, process: Process) -> list[End]:
        return [end for end in self.ends if end.process is process]

    def _drop_dials(self, process: Process) -> None:
        for dial in [dial for dial in self.dials if dial.process is process]:
            dial.done()
