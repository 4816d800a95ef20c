"""Waiting tables: where parked calls wait. Each entry ends exactly once.

It ends by success, by its deadline or with its connection.

`OffsetWaiters` waits until the log reaches an offset (flush or replication). Entries are parked in
offset order, and their deadlines increase in the same order, so a deque serves both. If the timeout
setting is reduced, the shorter one also applies to the entries that already wait.

`ArrivalWaiters` waits for a record to arrive in a queue (long polling). Entries are found by
(topic, queue id); each has the offset that it wants, its deadline and a filter on the tags code.
The third waiting table, by opaque, is in `remoting.py`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from rmqkit.runtime.connection import Connection


class OffsetWaiter(NamedTuple):
    offset: int
    deadline_ms: int
    finish: Callable[[bool], None]


class OffsetWaiters:
    """Calls `finish(True)` once the offset is reached, `finish(False)` at the deadline."""

    def __init__(self) -> None:
        self._waiting: deque[OffsetWaiter] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def park(self, offset: int, deadline_ms: int, finish: Callable[[bool], None]) -> None:
        """Add an entry. `offset` must not be smaller than that of the last entry."""
        waiting = self._waiting
        if waiting and waiting[-1].deadline_ms > deadline_ms:
            # The timeout was reduced: keep the deadlines in order.
            earlier = [each._replace(deadline_ms=min(each.deadline_ms, deadline_ms)) for each in waiting]
            waiting.clear()
            waiting.extend(earlier)
        waiting.append(OffsetWaiter(offset, deadline_ms, finish))

    def reached(self, offset: int) -> None:
        """Finish all entries whose offset is at most `offset`."""
        waiting = self._waiting
        while waiting and waiting[0].offset <= offset:
            waiting.popleft().finish(True)

    def expire(self, now_ms: int) -> int | None:
        """Finish the entries whose deadline has passed; return the next deadline, or None."""
        waiting = self._waiting
        while waiting and waiting[0].deadline_ms <= now_ms:
            waiting.popleft().finish(False)
        return waiting[0].deadline_ms if waiting else None

    def fail_all(self) -> None:
        """Finish all entries with False."""
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            each.finish(False)


@dataclass(slots=True, eq=False)
class ArrivalWaiter:
    """One parked pull. `wake(arrived)` is called once, unless the connection is lost first.

    `match` checks the tags code of an arrived record. `accepts` is for filters that have to read
    the record; it gets the record's queue offset.
    """

    key: tuple[str, int]
    offset: int
    deadline_ms: int
    conn: Connection
    match: Callable[[int], bool] | None
    wake: Callable[[bool], None]
    accepts: Callable[[int], bool] | None = None
    number: int = 0


class ArrivalWaiters:
    """Parked pulls, at most `waiters_max` of them."""

    def __init__(self, waiters_max: int) -> None:
        self.waiters_max = waiters_max
        self.count = 0
        #: only keys with at least one waiter; the broker looks up arrivals here
        self.by_key: dict[tuple[str, int], list[ArrivalWaiter]] = {}
        #: by deadline and number; a heap has the deadlines. Finished waiters are removed at once:
        #: their deadlines are seconds away, but on a busy queue each ends within a millisecond
        self._by_deadline: dict[int, dict[int, ArrivalWaiter]] = {}
        self._deadlines: list[int] = []
        self._sequence = 0

    def park(self, waiter: ArrivalWaiter) -> bool:
        """Add a waiter. Returns False if the table is full; the caller then answers immediately."""
        if self.count >= self.waiters_max:
            return False
        self.by_key.setdefault(waiter.key, []).append(waiter)
        waiter.number = self._sequence = self._sequence + 1
        due = self._by_deadline.get(waiter.deadline_ms)
        if due is None:
            due = self._by_deadline[waiter.deadline_ms] = {}
            heappush(self._deadlines, waiter.deadline_ms)
        due[waiter.number] = waiter
        self.count += 1
        return True

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline, or None."""
        heap = self._deadlines
        while heap and heap[0] not in self._by_deadline:
            heappop(heap)
        return heap[0] if heap else None

    def arrived(self, key: tuple[str, int], offset: int, tags_code: int, record_count: int = 1) -> None:
        """Wake the waiters of a queue that want one of these records, the first at `offset`."""
        waiting = self.by_key.get(key)
        if not waiting:
            return
        for waiter in list(waiting):
            if waiter.offset > offset or (waiter.match is not None and not waiter.match(tags_code)):
                continue
            if waiter.accepts is None or waiter.accepts(offset):
                self.end(waiter, True)
        if record_count > 1:
            for each in range(offset + 1, offset + record_count):
                self.arrived(key, each, tags_code)

    def expire(self, now_ms: int) -> int | None:
        """Wake the waiters whose deadline has passed; return the next deadline, or None."""
        while (due_ms := self.next_deadline_ms()) is not None and due_ms <= now_ms:
            self.end(next(iter(self._by_deadline[due_ms].values())), False)
        return self.next_deadline_ms()

    def drop(self, conn: Connection) -> None:
        """Remove the waiters of a lost connection without waking them."""
        for waiting in list(self.by_key.values()):
            for waiter in [each for each in waiting if each.conn is conn]:
                self._end(waiter)

    def wake_all(self, key: tuple[str, int]) -> None:
        """Wake all waiters of a queue (it was deleted, or its group was reset)."""
        for waiter in list(self.by_key.get(key, ())):
            self.end(waiter, True)

    def end(self, waiter: ArrivalWaiter, arrived: bool) -> None:
        """Remove a waiter and wake it."""
        self._end(waiter)
        waiter.wake(arrived)

    def _end(self, waiter: ArrivalWaiter) -> None:
        self.count -= 1
        due = self._by_deadline[waiter.deadline_ms]
        del due[waiter.number]
        if not due:
            del self._by_deadline[waiter.deadline_ms]
        waiting = self.by_key[waiter.key]
        waiting.remove(waiter)
        if not waiting:
            del self.by_key[waiter.key]
