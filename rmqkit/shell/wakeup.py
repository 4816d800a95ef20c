"""Wakes a loop that sleeps in its poller, from any thread and from signal handlers.

A byte through a socket pair ends the sleep. Sending and reading it takes two system calls, so
`set` sends one only if the loop sleeps. Otherwise the flag `is_set` is enough. The loop reads it
before it sleeps, and the poller reads it after each poll that does not wait.

No wake-up is lost. The loop sets `is_asleep` and then looks at `is_set`. The other thread sets
`is_set` and then looks at `is_asleep`. Whichever comes second sees the first.
"""

import socket


class Wakeup:
    """The flag and the socket pair of one loop. It is an item of the loop, found by `fd`."""

    __slots__ = ("_receiver", "_sender", "fd", "is_asleep", "is_set")

    def __init__(self) -> None:
        #: whether the loop must take a turn; the loop clears it at the start of each turn
        self.is_set = False
        #: whether the loop sleeps in its poller, or is about to
        self.is_asleep = False
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self.fd = self._receiver.fileno()

    def set(self) -> None:
        """Make the loop take a turn. May be called from any thread."""
        if self.is_set:
            return
        self.is_set = True
        if not self.is_asleep:
            return
        try:
            self._sender.send(b"\0")
        except OSError:
            pass  # full: the loop is awake anyway; closed: the loop has ended

    def ready(self, mask: int) -> None:
        try:
            self._receiver.recv(4096)
        except (BlockingIOError, InterruptedError):
            pass

    def scan(self, now_ms: int) -> None:
        """Do nothing: this item is never idle."""

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()
