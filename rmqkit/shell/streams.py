"""One TCP connection in the shell.

It has three stages: a `Dial` connects, a `Stream` is open, and a `LingeringSocket` is closed on our
side. With TLS a `TlsStream` (`tls_stream.py`) stands in for the `Stream`. Each is an item of the
loop, found by its descriptor. `ready(mask)` handles its events, and `scan(now_ms)` is the idle
check.

- A stream reads once per turn: `READ_SIZE` bytes, or more if a backlog waits. Larger reads make
  fewer turns, whose fixed part the messages share.
- A stream writes at the end of the turn. It asks for write events only while bytes are `pending`.
  The connection's own list is always empty between turns, so data that a node sends later marks
  the connection dirty again and is counted.
- Pending bytes are counted per connection, and over all connections (`unsentBytesMax`).
- Above `outbox_high_water` pending bytes, a stream stops reading from a peer that dialled us. At
  `outbox_low_water` it resumes and the node gets `drained`.
- A clean close writes the pending bytes and ends our direction. It then discards the peer's data
  for up to `LINGER_MS`: closing with unread bytes would reset the connection and could destroy a
  reply in transit.
- When the peer ends its stream, the connection is closed, as in Apache. Pending bytes are dropped.

Nothing here calls `closed` or `drained` directly. The loop makes these calls in the first part of
the next reading phase.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any

from rmqkit.runtime.connection import Address, Buffer, Connection
from rmqkit.shell.names import Targets, numeric_targets
from rmqkit.shell.osfile import IOV_MAX
from rmqkit.shell.poller import READ, WRITE

if TYPE_CHECKING:
    from rmqkit.runtime.node import Node
    from rmqkit.shell.faults.isolated_socket import IsolatedSocket
    from rmqkit.shell.loop import Loop
    from rmqkit.tls.node_tls import NodeTls

#: bytes of one read
READ_SIZE = 65_536
#: bytes of one read while the peer sends faster than the node reads; the connections of a turn
#: share it
READ_SIZE_MAX = 262_144
#: bytes up to which joining buffers is cheaper than a vectored call
JOIN_SIZE_MAX = 16_384
#: bytes; smaller buffers of a vectored call are joined with their neighbours
SMALL_BUFFER = 512
LINGER_MS = 1000
HAS_SENDMSG = hasattr(socket.socket, "sendmsg")


class Stream:
    """An open connection. Takes over the socket, which must be non-blocking.

    `known` means that the poller already has the descriptor, from a dial.
    """

    __slots__ = (
        "_recv",
        "_send",
        "active_ms",
        "conn",
        "fd",
        "has_backlog",
        "interest",
        "loop",
        "node",
        "paused",
        "pending",
        "sock",
        "source",
        "unsent",
    )

    def __init__(self, loop: Loop, node: Node, sock: socket.socket, conn: Connection, *, known: bool = False) -> None:
        self.loop = loop
        self.node = node
        self.fd = sock.fileno()
        self.conn = conn
        self.pending: list[Buffer] = []
        #: True from the high-water mark of pending bytes until the low-water mark is reached
        self.paused = False
        self.interest = READ
        #: whether the last read was full; not if its answers are larger than the requests
        self.has_backlog = False
        self.active_ms = loop.clock.mono_ms
        #: bytes of `pending` that `Loop.unsent_bytes` includes
        self.unsent = 0
        #: source of an accepted connection (`listener.source_of`); "" for a dialled one
        self.source = ""
        self.use(sock)
        conn.driver = self
        conn.is_open = True
        loop.items[self.fd] = self
        if known:
            loop.poller.change(self.fd, READ)
        else:
            loop.poller.add(self.fd, READ)

    # --- events -----------------------------------------------------------------------------------

    def ready(self, mask: int) -> None:
        if mask != WRITE:
            if not self.interest & READ:
                if mask & ~(READ | WRITE):
                    self.lost(_error_text(self.sock))
                    return
            else:
                try:
                    data = self._recv(self._read_size() if self.has_backlog else READ_SIZE)
                except (BlockingIOError, InterruptedError):
                    pass
                except OSError as error:
                    self.lost(error.strerror or str(error))
                    return
                else:
                    if not data:
                        self.lost("closed by peer")
                        return
                    self.active_ms = self.loop.clock.mono_ms
                    self.node.received(self.conn, data)
                    self.loop.frame_count += self.conn.frame_count
                    self.has_backlog = len(data) >= READ_SIZE and self.conn.out_size <= len(data)
        if mask & WRITE and self.pending:
            self._write(self.pending)

    def scan(self, now_ms: int) -> None:
        if now_ms - self.active_ms >= self.loop.limits.idle_close_ms:
            self.lost("idle")

    # --- effects ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the data that the node has sent in this turn."""
        conn = self.conn
        out = conn.out
        if not out:
            return
        if self.pending:
            self.pending += out
            out.clear()
            self._check_size()
        else:
            self._write(out)

    def finish(self) -> None:
        """Close the connection once the pending bytes are sent. The node has closed it.

        Call `flush` before.
        """
        if self.pending:
            self.watch()
        else:
            self._end()

    def abort(self) -> None:
        self.lost(self.conn.closing)

    def watch(self) -> None:
        """Tell the poller which events are wanted now."""
        conn = self.conn
        self.want(conn.reading and not conn.closing and (conn.dialled or not self.paused))

    def want(self, reads: bool) -> None:
        """Ask the poller for write events while bytes are pending, and for read events if asked."""
        wanted = (WRITE if self.pending else 0) | (READ if reads else 0)
        if wanted != self.interest:
            self.interest = wanted
            self.loop.poller.change(self.fd, wanted)

    def lost(self, reason: str) -> None:
        """End the connection at once: the socket is dropped with the pending bytes."""
        self.loop.drop(self.fd, self.sock)
        self._over(reason)

    def give_up(self, reason: str) -> None:
        """Log that the connection exceeds a limit, and end it."""
        self.loop.log.warning("connection-limit", peer=str(self.conn.peer), reason=reason)
        self.lost(reason)

    # --- for a drill that isolates the node (`faults/isolation.py`) -------------------------------

    def use(self, sock: socket.socket | IsolatedSocket) -> None:
        """Use `sock` for all reads and writes from now on."""
        self.sock = sock
        self._recv = sock.recv
        self._send = sock.send

    def put_first(self, data: bytes) -> None:
        """Send bytes that the stream counted as sent, before the pending ones."""
        if data:
            self.pending.insert(0, data)
            self.conn.out_size += len(data)
        if self.pending:
            self._write(self.pending)

    # --- inside -----------------------------------------------------------------------------------

    def _read_size(self) -> int:
        return max(READ_SIZE, READ_SIZE_MAX // self.loop.ready_count)

    def _write(self, out: list[Buffer]) -> None:
        """Make one send call. `out` is the connection's list or `pending`.

        Data that the kernel does not take is left in `pending`.
        """
        conn = self.conn
        size = conn.out_size
        try:
            if len(out) == 1:
                sent = self._send(out[0])
            elif size <= JOIN_SIZE_MAX or not HAS_SENDMSG:
                out[:] = (b"".join(out),)
                sent = self._send(out[0])
            else:
                if len(out) > 16:
                    _join_small(out)
                sent = self.sock.sendmsg(out[:IOV_MAX])
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.lost(error.strerror or str(error))
            return
        if sent:
            self.active_ms = self.loop.clock.mono_ms
        if sent == size:
            conn.out_size = 0
            out.clear()
            if self.interest != READ:
                self._emptied()
            return
        _drop(out, sent)
        conn.out_size = size - sent
        if out is not self.pending:
            self.pending += out
            out.clear()
        self._check_size()

    def _emptied(self) -> None:
        if self.conn.closing:
            self._end()
            return
        if self.paused:
            self._resume()
        self._count(0)
        self.watch()

    def _count(self, size: int) -> None:
        growth, self.unsent = size - self.unsent, size
        if growth:
            self.loop.unsent_changed(growth)

    def _check_size(self) -> None:
        limits = self.loop.limits
        size = self.conn.out_size
        if size > limits.outbox_max:
            self.give_up(f"the peer does not read: {size} bytes wait")
            return
        self._count(size)
        if self.conn.driver is not self:  # it was the largest of all, and `_count` has closed it
            return
        if size > limits.outbox_high_water:
            self.paused = True
        elif self.paused and size <= limits.outbox_low_water:
            self._resume()
        self.watch()

    def _resume(self) -> None:
        self.paused = False
        if not self.conn.closing:
            self.loop.call_node(self.node, self.node.drained, self.conn)

    def _end(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.lost(self.conn.closing)
            return
        # It counts towards the limit of its source as long as it uses a descriptor.
        LingeringSocket(self.loop, self.sock, self.fd, self.source)
        self.source = ""
        self._over(self.conn.closing)

    def _over(self, reason: str) -> None:
        conn = self.conn
        conn.closing = conn.closing or reason
        conn.is_open = False
        conn.driver = None
        conn.out.clear()
        conn.out_size = 0
        self.pending.clear()
        self._count(0)
        if self.source:
            self.loop.left(self.source)
        self.loop.call_node(self.node, self.node.closed, conn, conn.closing)


class LingeringSocket:
    """A socket whose connection is closed for the node.

    The peer has `LINGER_MS` to end its side.
    """

    __slots__ = ("fd", "loop", "sock", "source", "until_ms")

    def __init__(self, loop: Loop, sock: socket.socket | IsolatedSocket, fd: int, source: str) -> None:
        self.loop = loop
        self.source = source
        self.sock = sock
        self.fd = fd
        self.until_ms = loop.clock.mono_ms + LINGER_MS
        loop.items[fd] = self
        loop.poller.change(fd, READ)
        loop.after(LINGER_MS, self._late)

    def ready(self, mask: int) -> None:
        try:
            if self.sock.recv(READ_SIZE):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self._end()

    def scan(self, now_ms: int) -> None:
        if now_ms >= self.until_ms:
            self._end()

    def _late(self) -> None:
        if self.loop.items.get(self.fd) is self:
            self._end()

    def _end(self) -> None:
        self.loop.drop(self.fd, self.sock)
        if self.source:
            self.loop.left(self.source)


class Dial:
    """A connection attempt: resolves the peer's name, then tries its addresses in order."""

    __slots__ = ("conn", "error", "fd", "is_over", "loop", "node", "sock", "targets")

    def __init__(self, loop: Loop, node: Node, conn: Connection) -> None:
        self.loop = loop
        self.node = node
        self.conn = conn
        self.sock: socket.socket | None = None
        self.fd = -1
        self.targets: Targets = []
        self.error = ""
        self.is_over = False
        conn.driver = self
        loop.after(loop.limits.connect_timeout_ms, self._late)
        targets = numeric_targets(conn.peer.host, conn.peer.port)
        if targets is None:
            loop.resolver.resolve(conn.peer.host, conn.peer.port, self._resolved)
        else:
            self._resolved(targets, None)

    def ready(self, mask: int) -> None:
        sock = self.sock
        assert sock is not None
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0 and _is_to_itself(sock):
            code = errno.ECONNREFUSED
        if code:
            self._failed_one(os.strerror(code))
            return
        self.is_over = True
        conn = self.conn
        conn.local = address_of(sock.getsockname())
        tls = self.loop.tls.get(self.node)
        if tls is not None and tls.dials(conn.tag):
            self._continue_with_tls(tls, sock)
            return
        stream = Stream(self.loop, self.node, sock, conn, known=True)
        if conn.out:
            self.node.outbox.dirty.append(conn)
        if conn.closing:
            stream.flush()
            if conn.driver is stream:
                stream.finish()
        else:
            stream.watch()
            self.node.opened(conn)

    def _continue_with_tls(self, tls: NodeTls, sock: socket.socket) -> None:
        from rmqkit.shell.tls_stream import TlsStream  # loads `ssl`
        from rmqkit.tls.transport import TlsError

        try:
            TlsStream(self.loop, self.node, sock, self.conn, tls)
        except TlsError as error:
            self._failed(str(error))

    def scan(self, now_ms: int) -> None:
        """Do nothing: the timeout is a timer of the loop."""

    def flush(self) -> None:
        """Do nothing: bytes wait until the connection is open."""

    def watch(self) -> None:
        """Do nothing: reading begins when the connection is open."""

    def finish(self) -> None:
        """Close for the node while connecting.

        If the node has already sent data, continue: the data goes out once the connection is open.
        """
        if not self.conn.out:
            self._failed(self.conn.closing)

    def abort(self) -> None:
        self._failed(self.conn.closing)

    def _resolved(self, targets: Targets, error: OSError | None) -> None:
        if self.is_over:
            return
        self.targets = targets
        self.error = "" if error is None else error.strerror or str(error)
        self.try_next()

    def try_next(self) -> None:
        """Connect to the next address. Fail the dial if none is left or the node was removed."""
        if not self.loop.hosts(self.node):
            self._failed("the node was removed")
            return
        if self.loop.isolation is not None and self.loop.isolation.holds(self):
            return
        while self.targets:
            family, address = self.targets.pop(0)
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                self.error = error.strerror or str(error)
                continue
            sock.setblocking(False)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                code = sock.connect_ex(address)
            except (OSError, OverflowError) as failure:
                self.error = str(failure)
                sock.close()
                continue
            if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
                self.error = os.strerror(code)
                sock.close()
                continue
            self.sock = sock
            self.fd = sock.fileno()
            self.loop.items[self.fd] = self
            self.loop.poller.add(self.fd, WRITE)
            return
        self._failed(self.error or "no address")

    def _failed_one(self, reason: str) -> None:
        self.error = reason
        self._drop()
        self.try_next()

    def _late(self) -> None:
        if not self.is_over:
            self._failed(f"no connection within {self.loop.limits.connect_timeout_ms} ms")

    def _failed(self, reason: str) -> None:
        self.is_over = True
        self._drop()
        conn = self.conn
        conn.closing = conn.closing or reason
        conn.driver = None
        conn.out.clear()
        conn.out_size = 0
        self.loop.call_node(self.node, self.node.closed, conn, conn.closing)

    def _drop(self) -> None:
        if self.sock is not None:
            self.loop.drop(self.fd, self.sock)
            self.sock = None


def address_of(name: tuple[Any, ...]) -> Address:
    """Convert a socket name to an address. An IPv4-mapped IPv6 address becomes IPv4."""
    host = name[0]
    if host.startswith("::ffff:") and "." in host:
        host = host[7:]
    return Address(host, name[1])


def _is_to_itself(sock: socket.socket) -> bool:
    """Whether a socket is connected to itself.

    That can happen when it dials a free ephemeral port of this machine.
    """
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False


def _error_text(sock: socket.socket | IsolatedSocket) -> str:
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return os.strerror(code) if code else "closed by peer"


def _drop(out: list[Buffer], size: int) -> None:
    """Remove the first `size` bytes, which were sent."""
    done = 0
    for buffer in out:
        if len(buffer) > size:
            break
        size -= len(buffer)
        done += 1
    del out[:done]
    if size:
        out[0] = memoryview(out[0])[size:]


def _join_small(out: list[Buffer]) -> None:
    """Join runs of buffers smaller than `SMALL_BUFFER`, in place."""
    joined: list[Buffer] = []
    run: list[Buffer] = []
    for buffer in out:
        if len(buffer) < SMALL_BUFFER:
            run.append(buffer)
            continue
        if run:
            joined.append(b"".join(run))
            run.clear()
        joined.append(buffer)
    if run:
        joined.append(b"".join(run))
    out[:] = joined
