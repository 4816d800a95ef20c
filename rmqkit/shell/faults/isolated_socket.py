"""What a stream is given while a drill cuts it off: a socket that stands between it and its own, and a poller that does not
tell of it. Both exist only while there are rules (`rmqkit.shell.faults.isolation`).

`HeldSocket` behaves as the kernel does when the network is gone: bytes are taken until a send buffer's worth waits, then it
would block; an end (FIN) and a close are noted and do not reach the peer; the peer's own do not reach the stream. What
waited is taken from it when the rules end (`take`, `last_words`), before anything newer.

`MaskingPoller` keeps what each held descriptor wants and asks the real poller for the rest of it only. A descriptor of
which nothing may be told is not registered at all: epoll would go on to tell hang-ups.
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
#: the peer is gone, as the kernel may know; over a cut it could not have been told
_PEER_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT, errno.ENOTCONN)


@dataclass(slots=True, eq=False)
class HeldSocket:
    """`blocked` is a mask: READ, nothing comes in; WRITE, nothing goes out. `rule_id` is the rule that counts it."""

    sock: socket.socket
    blocked: int
    rule_id: str
    #: bytes that were to go out since it is held
    bytes_held: int = 0
    waiting: bytearray = field(default_factory=bytearray)
    capacity: int = field(init=False)
    is_ended: bool = False
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.capacity = max(SEND_BUFFER_MIN, self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))

    # --- as a stream and the loop use a socket

    def fileno(self) -> int:
        return self.sock.fileno()

    def getsockopt(self, level: int, name: int) -> int:
        return 0 if self.blocked & READ else self.sock.getsockopt(level, name)

    def recv(self, size: int) -> bytes:
        if self.blocked & READ:
            raise BlockingIOError
        return self.sock.recv(size)

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
        """While anything is blocked the peer is not told, but for an end of ours that may go out."""
        self.is_closed = True
        if not self.blocked:
            self.sock.close()
        elif not self.blocked & WRITE and not self.is_ended:
            try:
                self.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the peer has reset it, which is not told

    # --- for the isolation

    def unread(self) -> int:
        """Bytes of the peer that wait in the kernel, and 1 for its end."""
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
        """What was held back, which is the caller's to send now."""
        waiting, self.waiting = bytes(self.waiting), bytearray()
        return waiting

    def last_words(self, waiting: bytes) -> None:
        """The stream is gone: send as much as the kernel takes, and the end that was held."""
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
    wanted: int
    blocked: int
    #: what the real poller was asked for; 0: it does not know the descriptor
    told: int


class MaskingPoller:
    """A poller around the loop's own. Descriptors that are not held pass through."""

    def __init__(self, inner: Poller) -> None:
        self.inner = inner
        self._masks: dict[int, _Mask] = {}

    def hold(self, fd: int, wanted: int, blocked: int) -> None:
        """Tell nothing of `blocked` any more; 0 ends it. `wanted` is what the descriptor's item asks for now."""
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

    def poll(self, timeout_ms: int | None) -> list[tuple[int, int]]:
        events = self.inner.poll(timeout_ms)
        if not any(fd in self._masks for fd, _ in events):
            return events
        told = []
        for fd, mask in events:
            held = self._masks.get(fd)
            if held is not None and held.blocked & READ and mask & ~(READ | WRITE):
                # A hang-up, told with the right to write: it comes again and again until nothing is asked.
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
