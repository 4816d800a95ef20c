"""Waiting tables: where parked calls wait. Each entry ends exactly once, by success, deadline or lost connection.

`OffsetWaiters` waits for a log offset to be reached (flush, later replication). Entries are parked in offset order and
their deadlines grow the same way, so both ends are a deque's; a shorter timeout counts for those who wait already.

`ArrivalWaiters` waits for a record to arrive in a queue (long polling): by (topic, queue id), each entry with the offset
it wants, its deadline and a match on the tag code. The third table, by opaque, is in `remoting.py`.
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
    """`finish(True)` once the offset is reached, `finish(False)` at the deadline."""

    def __init__(self) -> None:
        self._waiting: deque[OffsetWaiter] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def park(self, offset: int, deadline_ms: int, finish: Callable[[bool], None]) -> None:
        waiting = self._waiting
        if waiting and waiting[-1].deadline_ms > deadline_ms:
            # The timeout was made shorter: it counts for those who wait already.
            earlier = [each._replace(deadline_ms=min(each.deadline_ms, deadline_ms)) for each in waiting]
            waiting.clear()
            waiting.extend(earlier)
        waiting.append(OffsetWaiter(offset, deadline_ms, finish))

    def reached(self, offset: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0].offset <= offset:
            waiting.popleft().finish(True)

    def expire(self, now_ms: int) -> int | None:
        """Ends what is late; the next deadline."""
        waiting = self._waiting
        while waiting and waiting[0].deadline_ms <= now_ms:
            waiting.popleft().finish(False)
        return waiting[0].deadline_ms if waiting else None

    def fail_all(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            each.finish(False)


@dataclass(slots=True, eq=False)
class ArrivalWaiter:
    """`wake(arrived)` is called once, unless the connection goes first.

    `match` is asked about the tags code of a record that has come, then `accepts`, for those who need to read it, about its
    number.
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
    def __init__(self, waiters_max: int) -> None:
        self.waiters_max = waiters_max
        self.count = 0
        #: keys with somebody waiting; the broker looks arrivals up here
        self.by_key: dict[tuple[str, int], list[ArrivalWaiter]] = {}
        #: by deadline and number; a heap has the deadlines. Who has ended is gone from here at once: pulls wait for
        #: seconds, and on a busy queue each ends within a millisecond
        self._by_deadline: dict[int, dict[int, ArrivalWaiter]] = {}
        self._deadlines: list[int] = []
        self._sequence = 0

    def park(self, waiter: ArrivalWaiter) -> bool:
        """False when the room is full: the caller answers at once."""
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
        heap = self._deadlines
        while heap and heap[0] not in self._by_deadline:
            heappop(heap)
        return heap[0] if heap else None

    def arrived(self, key: tuple[str, int], offset: int, tags_code: int) -> None:
        """Wakes who waits for this queue at `offset` or before and wants such a record."""
        waiting = self.by_key.get(key)
        if not waiting:
            return
        for waiter in list(waiting):
            if waiter.offset > offset or (waiter.match is not None and not waiter.match(tags_code)):
                continue
            if waiter.accepts is None or waiter.accepts(offset):
                self.end(waiter, True)

    def expire(self, now_ms: int) -> int | None:
        while (due_ms := self.next_deadline_ms()) is not None and due_ms <= now_ms:
            self.end(next(iter(self._by_deadline[due_ms].values())), False)
        return self.next_deadline_ms()

    def drop(self, conn: Connection) -> None:
        """Forget what a lost connection waited for."""
        for waiting in list(self.by_key.values()):
            for waiter in [each for each in waiting if each.conn is conn]:
                self._end(waiter)

    def wake_all(self, key: tuple[str, int]) -> None:
        """Answer everybody who waits for a queue (it was deleted, or its group was reset)."""
        for waiter in list(self.by_key.get(key, ())):
            self.end(waiter, True)

    def end(self, waiter: ArrivalWaiter, arrived: bool) -> None:
        """Take a waiter out and wake it."""
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
