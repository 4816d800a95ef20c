"""One TCP connection in the simulator: two `End`s, each with a `Pipe` to the other.

A pipe keeps bytes in order and loses none. It cuts some of the sent data at random positions into
segments, at most `CUTS_MAX` times: each segment may cost its receiver a turn.
Each segment arrives after a random delay, but never before its predecessor. While the edge between
the two nodes is cut, or the machine at the far side is off, segments are held, as TCP would
retransmit them. A pipe has room for `WINDOW` bytes that were sent and not yet read. The rest stays
in the sender's `pending`, to which the high-water marks apply.

An `End` is to a simulated process what a stream of `rmqkit.shell.streams` is to a socket. It is put
on the process's ready list and acts in the reading phase of a turn (`take`). It follows the same
rules for high-water marks, closing, end of stream and idle connections.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rmqkit.runtime.connection import Buffer, Connection

if TYPE_CHECKING:
    from rmqkit.sim.net import Edge, SimNet
    from rmqkit.sim.process import Process

READ_SIZE_MAX = 65_536
SEGMENT_SIZE_MAX = 32_768
#: over a slow link, where a peer waits for each segment
SLOW_SEGMENT_SIZE_MAX = 1_448
#: most random cuts of the bytes that are sent at once
CUTS_MAX = 2
WINDOW = 262_144
LINGER_US = 1_000_000

RESET = "Connection reset by peer"
CLOSED = "closed by peer"


class Pipe:
    """One direction of a connection.

    A segment is bytes. b"" is the end of the stream, None a reset.
    """

    __slots__ = ("edge", "held", "in_flight", "is_encrypted", "last_us", "net", "segments", "to", "unacked")

    def __init__(self, net: "SimNet", edge: "Edge") -> None:
        self.net = net
        self.edge = edge
        self.to: End | None = None
        self.segments: deque[tuple[int, bytes | None]] = deque()
        self.in_flight = 0
        #: bytes that the far side has read, but whose acknowledgements have not arrived here
        self.unacked = 0
        self.last_us = 0
        self.held = False
        #: whether the bytes are TLS records, of which the trace has the size only
        self.is_encrypted = False

    def send(self, data: bytes) -> None:
        size = len(data)
        self.in_flight += size
        net = self.net
        net.world.trace(b"%d encrypted" % size if self.is_encrypted else data)
        random = net.random.random
        part_max = SLOW_SEGMENT_SIZE_MAX if self.edge.bytes_per_s else SEGMENT_SIZE_MAX
        if size <= part_max and (size < 2 or random() >= net.cut_chance):
            self._push(data)
            return
        position, cuts = 0, 0
        while position < size:
            part = size - position
            if cuts < CUTS_MAX:
                part = 1 + int(random() * random() * part)
                cuts += 1
            part = min(part_max, part)
            self._push(data[position : position + part])
            position += part

    def end(self, segment: bytes | None) -> None:
        self._push(segment)

    def arrive(self) -> None:
        """Deliver all due segments."""
        if self.to is None:  # the dialling side has given up
            self.segments.clear()
            return
        if self.edge.is_cut or self.to.process.is_off:
            self.held = True
            self.net.held[self] = None
            return
        now_us, segments, to = self.net.world.now_us, self.segments, self.to
        is_fresh = False
        while segments and segments[0][0] <= now_us:
            _, segment = segments.popleft()
            if segment and not to.is_over:
                to.inbox.append(segment)
                to.inbox_size += len(segment)
                is_fresh = True
            else:
                to.arrived(segment)
        if is_fresh:
            to.process.ready(to)
        if segments:
            self.net.world.at_us(segments[0][0], self.arrive)

    def release(self) -> None:
        """Deliver held segments after a retransmission delay, because the edge works again."""
        if self.held:
            self.held = False
            self.net.at_us(self.net.world.now_us + self.net.retransmit_us(), self.arrive)

    def lose_tail(self) -> None:
        """Drop a random number of the last segments, which a machine without power never sent."""
        keep = int(self.net.random.random() * (len(self.segments) + 1))
        while len(self.segments) > keep:
            self.segments.pop()

    def _push(self, segment: bytes | None) -> None:
        world = self.net.world
        due_us = world.now_us + self.edge.delay_us()
        if self.edge.bytes_per_s and segment:
            # Bytes of a connection that has ended do not hold up the next one, as in TCP.
            due_us = max(due_us, self.last_us + len(segment) * 1_000_000 // self.edge.bytes_per_s)
        if due_us < self.last_us:
            due_us = self.last_us
        else:
            self.last_us = due_us
        segments = self.segments
        segments.append((due_us, segment))
        if len(segments) == 1 and not self.held:
            world.at_us(due_us, self.arrive)


@dataclass(slots=True, eq=False, repr=False)
class End:
    """One side of a connection, and the driver of its `Connection`."""

    net: "SimNet"
    process: "Process"
    conn: Connection
    out: Pipe
    peer: "End | None" = None
    inbox: deque[bytes] = field(default_factory=deque)
    inbox_size: int = 0
    pending: list[Buffer] = field(default_factory=list)
    paused: bool = False
    #: whether the node must still be notified of this new connection
    news: bool = True
    #: whether the pipe has room again for pending bytes
    writable: bool = False
    is_ended: bool = False
    is_reset: bool = False
    #: whether the node knows the connection, so that it must get `closed`
    is_known: bool = True
    #: whether this side is closed
    is_over: bool = False
    linger_until_us: int = 0
    active_us: int = field(init=False)

    def __post_init__(self) -> None:
        self.active_us = self.net.world.now_us
        self.net.ends[self] = None
        self.net.watch_idle(self)

    # --- input from the pipe ----------------------------------------------------------------------

    def arrived(self, segment: bytes | None) -> None:
        """Take a segment; `Pipe.arrive` handles the common case, data of an open connection."""
        if self.is_over:
            if segment:
                if self.net.world.now_us > self.linger_until_us:
                    self.out.end(None)
                else:
                    self.net.read(self, len(segment))
            return
        if segment is None:
            self.is_reset = True
            if self.net.random.random() < 0.5:
                self.inbox.clear()
                self.inbox_size = 0
        elif segment:
            self.inbox.append(segment)
            self.inbox_size += len(segment)
        else:
            self.is_ended = True
        self.process.ready(self)

    # --- reading phase of the process's turn ------------------------------------------------------

    def take(self) -> None:
        """Deliver at most one event to the node, and write pending bytes if there is room."""
        if self.is_over:
            return
        if self.news:
            self.news = False
            self._opened()
        elif self.inbox and self._reads():
            self.active_us = self.net.world.now_us
            if data := self._read():
                self.process.received(self.conn, data)
        elif self.is_reset:
            self.lost(RESET)
        elif self.is_ended and self._reads():
            self.lost(CLOSED)
        elif self.net.is_idle(self):
            self.lost("idle")
        if self.writable and not self.is_over:
            self.writable = False
            if self.pending:
                self._write(self.pending)
        if not self.is_over and (
            self.is_reset or ((self.inbox or self.is_ended) and self._reads()) or (self.writable and self.pending)
        ):
            self.process.ready(self)

    # --- effects of the node ----------------------------------------------------------------------

    def flush(self) -> None:
        conn = self.conn
        if not conn.out or not conn.is_open:
            return
        if self.pending:
            self.pending += conn.out
            conn.out.clear()
            self._check_size()
        else:
            self._write(conn.out)

    def finish(self) -> None:
        if not self.pending:
            self._end()

    def abort(self) -> None:
        self.lost(self.conn.closing)

    def watch(self) -> None:
        if self._reads() and (self.inbox or self.is_ended):
            self.process.ready(self)

    def lost(self, reason: str) -> None:
        """Close this side. The peer gets the end of stream or the reset behind the data sent."""
        if self.is_over:
            return
        if not self.is_reset:
            self.out.end(None if self.inbox else b"")
        self._over(reason)

    def vanish(self) -> None:
        """Drop this side together with its process, without notifying the node."""
        self.is_over = True
        self.net.ends.pop(self, None)
        self.inbox.clear()
        self.pending.clear()

    # --- internals --------------------------------------------------------------------------------

    def _reads(self) -> bool:
        conn = self.conn
        return conn.reading and not conn.closing and (conn.dialled or not self.paused)

    def _opened(self) -> None:
        conn = self.conn
        conn.driver = self
        conn.is_open = True
        if conn.out:
            self.process.node.outbox.dirty.append(conn)
        if conn.closing:
            self.flush()
            if not self.is_over:
                self.finish()
        else:
            self.process.opened(conn)

    def _read(self, room: int = READ_SIZE_MAX) -> bytes:
        """Take at most `room` bytes from the inbox; this gives the sender as much room."""
        if len(self.inbox) == 1 and self.inbox_size <= room:
            data = self.inbox.popleft()
        else:
            parts: list[bytes] = []
            while self.inbox and room:
                part = self.inbox.popleft()
                if len(part) > room:
                    self.inbox.appendleft(part[room:])
                    part = part[:room]
                parts.append(part)
                room -= len(part)
            data = b"".join(parts)
        self.inbox_size -= len(data)
        self.net.read(self, len(data))
        return data

    def _write(self, waiting: list[Buffer]) -> None:
        """Send as much as the pipe has room for; the rest stays in `pending`."""
        conn = self.conn
        size = conn.out_size
        room = WINDOW - self.out.in_flight
        if size <= room:
            data = b"".join(waiting)
            waiting.clear()
        else:
            data = _take_front(waiting, room)
        if data:
            self.active_us = self.net.world.now_us
            self.out.send(data)
            conn.out_size = size - len(data)
        if not waiting:
            self._emptied()
            return
        if waiting is not self.pending:
            self.pending += waiting
            waiting.clear()
        self._check_size()

    def _emptied(self) -> None:
        if self.conn.closing:
            self._end()
        elif self.paused:
            self._resume()

    def _check_size(self) -> None:
        limits = self.net.limits
        size = self.conn.out_size
        if size > limits.outbox_max:
            self.lost(f"the peer does not read: {size} bytes wait")
        elif size > limits.outbox_high_water:
            self.paused = True
        elif self.paused and size <= limits.outbox_low_water:
            self._resume()

    def _resume(self) -> None:
        self.paused = False
        if not self.conn.closing:
            self.process.tell_drained(self.conn)
            self.watch()

    def _end(self) -> None:
        self.out.end(b"")
        self.linger_until_us = self.net.world.now_us + LINGER_US
        self._over(self.conn.closing)

    def _over(self, reason: str) -> None:
        conn = self.conn
        self.is_over = True
        self.net.ends.pop(self, None)
        conn.closing = conn.closing or reason
        conn.is_open = False
        conn.driver = None
        conn.out.clear()
        conn.out_size = 0
        self.inbox.clear()
        self.inbox_size = 0
        self.pending.clear()
        if self.is_known:
            self.process.tell_closed(conn)


def _take_front(waiting: list[Buffer], room: int) -> bytes:
    """Remove up to `room` bytes from the front of the list and return them."""
    parts: list[Buffer] = []
    done = 0
    for buffer in waiting:
        if room <= 0:
            break
        if len(buffer) > room:
            parts.append(memoryview(buffer)[:room])
            waiting[done] = memoryview(buffer)[room:]
            break
        parts.append(buffer)
        room -= len(buffer)
        done += 1
    del waiting[:done]
    return b"".join(parts)
