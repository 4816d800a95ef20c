"""Readiness of file descriptors: epoll where there is one, `selectors` elsewhere, behind the same four calls.

A mask is READ | WRITE. `poll` gives `(fd, mask)` pairs; anything that is not WRITE (hang-up, error, urgent) counts as
readable, and a descriptor with interest 0 is still told of hang-ups by epoll. `selectors.EpollSelector` would do the same
with an object and two dict look-ups more per event.
"""

import os
import select
import selectors
from math import ceil
from typing import Protocol

READ = 1
WRITE = 4
#: events that one look takes; the others are told by the next
EVENTS_MAX = 512


class Poller(Protocol):
    def add(self, fd: int, mask: int) -> None: ...
    def change(self, fd: int, mask: int) -> None: ...
    def remove(self, fd: int) -> None: ...
    def poll(self, timeout_ms: int | None) -> list[tuple[int, int]]: ...
    def close(self) -> None: ...


class EpollPoller:
    """After a turn that had events, looks again up to `spin_polls` times before it sleeps.

    Waking a thread that sleeps costs more than many looks, and a peer that waits for its answer asks again at once: one
    sender gets 1.5 times as many messages through. A node that has nothing to do sleeps, and so does one that would take
    the only processor from its peers.
    """

    def __init__(self, spin_polls: int = 0) -> None:
        self._epoll = select.epoll()
        self._spin_polls = spin_polls if len(os.sched_getaffinity(0)) > 1 else 0
        self._spins = 0
        self.add = self._epoll.register
        self.change = self._epoll.modify
        self.remove = self._epoll.unregister
        self.close = self._epoll.close

    def poll(self, timeout_ms: int | None) -> list[tuple[int, int]]:
        poll = self._epoll.poll
        if timeout_ms != 0:
            for _ in range(self._spins):
                events = poll(0, EVENTS_MAX)
                if events:
                    return events
        events = poll(-1 if timeout_ms is None else timeout_ms / 1000, EVENTS_MAX)
        self._spins = self._spin_polls if events else 0
        return events


class SelectorPoller:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._masks: dict[int, int] = {}

    def add(self, fd: int, mask: int) -> None:
        self._masks[fd] = 0
        self.change(fd, mask)

    def change(self, fd: int, mask: int) -> None:
        before = self._masks[fd]
        self._masks[fd] = mask
        events = (selectors.EVENT_READ if mask & READ else 0) | (selectors.EVENT_WRITE if mask & WRITE else 0)
        if not events:
            if before:
                self._selector.unregister(fd)
        elif before:
            self._selector.modify(fd, events)
        else:
            self._selector.register(fd, events)

    def remove(self, fd: int) -> None:
        if self._masks.pop(fd):
            self._selector.unregister(fd)

    def poll(self, timeout_ms: int | None) -> list[tuple[int, int]]:
        # Rounded up: waking just before a due time would turn into a busy loop.
        timeout_s = None if timeout_ms is None else ceil(timeout_ms) / 1000
        return [
            (key.fd, (READ if events & selectors.EVENT_READ else 0) | (WRITE if events & selectors.EVENT_WRITE else 0))
            for key, events in self._selector.select(timeout_s)
        ]

    def close(self) -> None:
        self._selector.close()


def make_poller(spin_polls: int = 0) -> Poller:
    return EpollPoller(spin_polls) if hasattr(select, "epoll") else SelectorPoller()
