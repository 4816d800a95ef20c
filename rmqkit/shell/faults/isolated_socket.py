"""The socket and the poller of connections that a drill isolates.

Both are in use only while there are isolation rules (`rmqkit.shell.faults.isolation`).

`IsolatedSocket` replaces a stream's socket. It behaves as the kernel does when the network is gone:

- Bytes are accepted until a send buffer's worth of them is held. Then a send would block.
- Our FIN and close are recorded, but do not reach the peer. The peer's do not reach the stream.
- When the rules end, the held bytes are sent before any newer ones (`take`, `send_and_shut`).

`MaskingPoller` hides blocked events. It remembers which events each held descriptor wants, and asks
the real poller only for those that are not blocked. If none is left, the descriptor is
unregistered, because epoll would still report hang-ups.
"""

import array
import errno
import fcntl
import select
import socket
import termios
from dataclasses import dataclass, field

from rmqkit.runtime.connection import Buffer
from rmqkit.shell.poller import READ, WRITE, Poller

SEND_BUFFER_MIN = 65_536
#: errors that say the peer is gone; hidden, since the news could not have crossed the partition
_PEER_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT, errno.ENOTCONN)


@dataclass(slots=True, eq=False)
class IsolatedSocket:
    """A socket that holds back data while a drill isolates its connection.

    `blocked` is a mask: READ means nothing comes in, WRITE means nothing goes out. `rule_id` is the
    isolation that counts this connection.
    """

    sock: socket.socket
    blocked: int
    rule_id: str
    #: total of bytes held back since `rule_id` began to count this connection
    bytes_held: int = 0
    #: bytes held back now, at most `capacity`
    waiting: bytearray = field(default_factory=bytearray)
    capacity: int = field(init=False)
    is_ended: bool = False
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.capacity = max(SEND_BUFFER_MIN, self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))

    # --- the socket methods that streams and the loop use

    def fileno(self) -> int:
        return self.sock.fileno()

    def getsockopt(self, level: int, name: int) -> int:
        return 0 if self.blocked & READ else self.sock.getsockopt(level, name)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if self.blocked & READ:
            raise BlockingIOError
        return self.sock.recv(size, flags)

    def send(self, data: Buffer) -> int:
        if not self.blocked & WRITE:
            try:
                return self.sock.send(data)
            except OSError as error:
                if error.errno not in _PEER_GONE:
                    raise
        return self._hold(data)

    def sendmsg(self, buffers: list[Buffer]) -> int:
        return self.send(b"".join(buffers))

    def shutdown(self, how: int) -> None:
        self.is_ended = True
        if not self.blocked & WRITE:
            self.sock.shutdown(how)

    def close(self) -> None:
        """Close the socket. While anything is blocked, only record it: the peer must not notice.

        If only READ is blocked, send our FIN, which may go out.
        """
        self.is_closed = True
        if not self.blocked:
            self.sock.close()
        elif not self.blocked & WRITE and not self.is_ended:
            try:
                self.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the peer has reset it; hide that from the stream

    # --- for the isolation

    def unread(self) -> int:
        """Return the peer's bytes that wait in the kernel while READ is blocked.

        If only the peer's FIN or reset waits, return 1.
        """
        if not self.blocked & READ:
            return 0
        poll = select.poll()
        poll.register(self.sock.fileno(), select.POLLIN)
        if not poll.poll(0):
            return 0
        size = array.array("i", [0])
        try:
            fcntl.ioctl(self.sock.fileno(), termios.FIONREAD, size)
        except OSError:
            return 1
        return max(1, size[0])

    def take(self) -> bytes:
        """Remove and return the bytes held back. The caller must send them."""
        waiting, self.waiting = bytes(self.waiting), bytearray()
        return waiting

    def send_and_shut(self, waiting: bytes) -> None:
        """Send the held bytes that the kernel accepts, then the FIN. The stream has ended."""
        try:
            while waiting:
                waiting = waiting[self.sock.send(waiting) :]
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the peer is gone or does not read

    def _hold(self, data: Buffer) -> int:
        taken = min(len(data), self.capacity - len(self.waiting))
        if taken <= 0:
            raise BlockingIOError
        self.waiting += memoryview(data)[:taken]
        self.bytes_held += taken
        return taken


@dataclass(slots=True, eq=False)
class _Mask:
    #: events that the descriptor's item wants
    wanted: int
    blocked: int
    #: events the real poller was asked for; 0: the descriptor is not registered there
    told: int


class MaskingPoller:
    """Wraps the loop's poller. Calls for descriptors that are not held pass through."""

    def __init__(self, inner: Poller) -> None:
        self.inner = inner
        self._masks: dict[int, _Mask] = {}

    def hold(self, fd: int, wanted: int, blocked: int) -> None:
        """Hide the events in `blocked` from now on; 0 ends that.

        `wanted` is the mask that the descriptor's item wants now.
        """
        mask = self._masks.get(fd)
        if mask is None:
            mask = self._masks[fd] = _Mask(wanted, blocked, wanted)
            if not wanted:
                self.inner.remove(fd)
        mask.blocked = blocked
        self._apply(fd, mask)
        if not blocked:
            if not mask.told:
                self.inner.add(fd, 0)
            del self._masks[fd]

    def add(self, fd: int, mask: int) -> None:
        self.inner.add(fd, mask)

    def change(self, fd: int, mask: int) -> None:
        held = self._masks.get(fd)
        if held is None:
            self.inner.change(fd, mask)
        else:
            held.wanted = mask
            self._apply(fd, held)

    def remove(self, fd: int) -> None:
        held = self._masks.pop(fd, None)
        if held is None or held.told:
            self.inner.remove(fd)

    def poll(self, timeout_ms: int | None, turn_ns: int = 0, frame_count: int = 0) -> list[tuple[int, int]]:
        events = self.inner.poll(timeout_ms, turn_ns, frame_count)
        if not any(fd in self._masks for fd, _ in events):
            return events
        told = []
        for fd, mask in events:
            held = self._masks.get(fd)
            if held is not None and held.blocked & READ and mask & ~(READ | WRITE):
                # A hang-up, which epoll repeats until the descriptor is unregistered. So block
                # WRITE here too.
                held.blocked |= WRITE
                self._apply(fd, held)
            elif held is None:
                told.append((fd, mask))
            elif rest := mask & ~held.blocked:
                told.append((fd, rest))
        return told

    def close(self) -> None:
        self.inner.close()

    def _apply(self, fd: int, held: _Mask) -> None:
        wanted = held.wanted & ~held.blocked
        if wanted == held.told:
            return
        if not wanted:
            self.inner.remove(fd)
        elif not held.told:
            self.inner.add(fd, wanted)
        else:
            self.inner.change(fd, wanted)
        held.told = wanted
