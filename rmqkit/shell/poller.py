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
#: looks in vain after which a node sleeps at once: that many more failed than helped
CREDIT_MAX = 16
#: a node without credit tries again after as many turns
TRY_AGAIN = 16


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

    It must pay: looks that mostly end in sleep take a processor from those it waits for. A slave is such a node; what it
    reports goes to its master, from there to a client and comes back as the next message, later than it looks. So each
    time something comes while a node looks it gains credit, each time nothing does it loses some, and a node without
    credit sleeps at once, but for every `TRY_AGAIN`th turn.
    """

    def __init__(self, spin_polls: int = 0) -> None:
        self._epoll = select.epoll()
        self._spin_polls = spin_polls if len(os.sched_getaffinity(0)) > 1 else 0
        self._spins = 0
        self._credit = CREDIT_MAX
        self._slept = 0
        self.add = self._epoll.register
        self.change = self._epoll.modify
        self.remove = self._epoll.unregister
        self.close = self._epoll.close

    def poll(self, timeout_ms: int | None) -> list[tuple[int, int]]:
        poll = self._epoll.poll
        if timeout_ms != 0 and self._spins:
            for _ in range(self._spins):
                events = poll(0, EVENTS_MAX)
                if events:
                    if self._credit < CREDIT_MAX:
                        self._credit += 1
                    return events
            if self._credit:
                self._credit -= 1
        events = poll(-1 if timeout_ms is None else timeout_ms / 1000, EVENTS_MAX)
        self._spins = self._next_spins() if events and self._spin_polls else 0
        return events

    def _next_spins(self) -> int:
        if self._credit:
            return self._spin_polls
        self._slept = (self._slept + 1) % TRY_AGAIN
        return 0 if self._slept else self._spin_polls


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
