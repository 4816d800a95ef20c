"""Readiness of file descriptors behind one interface: epoll if available, else `selectors`.

A mask is READ | WRITE. `poll` returns `(fd, mask)` pairs. Everything other than WRITE (hang-up,
error, urgent data) counts as readable. Even for a descriptor with interest 0, epoll reports a
hang-up.

`selectors.EpollSelector` would cost one more object and two more dict lookups per event.
"""

import os
import select
import selectors
from math import ceil
from typing import Protocol

from rmqkit.shell.wakeup import Wakeup

READ = 1
WRITE = 4
#: most events that one poll returns; the next poll returns the rest
EVENTS_MAX = 512
#: initial and largest credit; a node stops spinning once its spins failed this much more often
CREDIT_MAX = 16
#: a node without credit spins again in every 16th turn
TRY_AGAIN = 16
#: ns; after a longer turn a node does not spin, because many messages share the next wake-up
SPIN_TURN_NS_MAX = 100_000
#: a node that receives this many frames per turn on average does not spin
SPIN_FRAMES_MAX = 2
#: the number of turns whose frames count for that average
FRAMES_WINDOW = 32


class Poller(Protocol):
    """Waits for events on descriptors. `poll(None)` waits without a timeout.

    A wake-up ends the wait or prevents it. `turn_ns` is the time that the last turn took, and
    `frame_count` the number of frames that it received.
    """

    def add(self, fd: int, mask: int) -> None: ...
    def change(self, fd: int, mask: int) -> None: ...
    def remove(self, fd: int) -> None: ...
    def poll(self, timeout_ms: int | None, turn_ns: int = 0, frame_count: int = 0) -> list[tuple[int, int]]: ...
    def close(self) -> None: ...


class EpollPoller:
    """Polls with epoll. After a turn with events it spins: it polls again before it sleeps.

    A spin makes up to `spin_polls` polls that do not wait, and ends with the first that has events.

    Waking a sleeping thread costs more than many polls, and a peer that has received its reply
    sends its next request at once. Spinning gives a single sender 1.5 times the throughput. An idle
    node sleeps, and so does every node of a machine with one processor, where spinning would starve
    its peers.

    Spinning must pay off, because spins that end in sleep take a processor from the peers. A slave
    is such a node: its report goes to the master, the reply to a client, and the next message comes
    back only after the spin has ended. So a spin that finds an event earns one credit, and one that
    finds none costs one. A node without credit sleeps at once, except in every `TRY_AGAIN`th turn.

    Several senders keep a node busy without spins. While it sleeps, more of their requests arrive,
    and they share the fixed cost of a turn. So a node sleeps at once if its last turns had several
    frames each.
    """

    def __init__(self, wakeup: Wakeup, spin_polls: int = 0) -> None:
        self._wakeup = wakeup
        self._epoll = select.epoll()
        self._spin_polls = spin_polls if len(os.sched_getaffinity(0)) > 1 else 0
        self._spins = 0
        self._credit = CREDIT_MAX
        self._slept = 0
        self._frames_per_turn = 1.0
        self.add = self._epoll.register
        self.change = self._epoll.modify
        self.remove = self._epoll.unregister
        self.close = self._epoll.close

    def poll(self, timeout_ms: int | None, turn_ns: int = 0, frame_count: int = 0) -> list[tuple[int, int]]:
        poll = self._epoll.poll
        wakeup = self._wakeup
        if frame_count:
            self._frames_per_turn += (frame_count - self._frames_per_turn) / FRAMES_WINDOW
        if timeout_ms == 0 or wakeup.is_set:
            return poll(0, EVENTS_MAX)
        if self._spins and turn_ns <= SPIN_TURN_NS_MAX and self._frames_per_turn < SPIN_FRAMES_MAX:
            for _ in range(self._spins):
                events = poll(0, EVENTS_MAX)
                if events or wakeup.is_set:
                    if self._credit < CREDIT_MAX:
                        self._credit += 1
                    return events
            if self._credit:
                self._credit -= 1
        wakeup.is_asleep = True
        if wakeup.is_set:
            timeout_ms = 0
        events = poll(-1 if timeout_ms is None else timeout_ms / 1000, EVENTS_MAX)
        wakeup.is_asleep = False
        self._spins = self._next_spins() if events and self._spin_polls else 0
        return events

    def _next_spins(self) -> int:
        if self._credit:
            return self._spin_polls
        self._slept = (self._slept + 1) % TRY_AGAIN
        return 0 if self._slept else self._spin_polls


class SelectorPoller:
    """Polls with `selectors`, which cannot register a descriptor with interest 0."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
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

    def poll(self, timeout_ms: int | None, turn_ns: int = 0, frame_count: int = 0) -> list[tuple[int, int]]:
        self._wakeup.is_asleep = True
        if self._wakeup.is_set:
            timeout_ms = 0
        # Round up: waking just before the due time would cause a busy loop.
        selected = self._selector.select(None if timeout_ms is None else ceil(timeout_ms) / 1000)
        self._wakeup.is_asleep = False
        return [
            (key.fd, (READ if events & selectors.EVENT_READ else 0) | (WRITE if events & selectors.EVENT_WRITE else 0))
            for key, events in selected
        ]

    def close(self) -> None:
        self._selector.close()


def make_poller(wakeup: Wakeup, spin_polls: int = 0) -> Poller:
    return EpollPoller(wakeup, spin_polls) if hasattr(select, "epoll") else SelectorPoller(wakeup)
