"""The threads of a load's clients, and when they act.

Writers run until `stop_sending`, readers until `close`. Each loop asks `sending` or `reading`
whether it may go on.
"""

import heapq
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ClientThreads:
    """Threads of writers and of readers, with the two flags that end them."""

    def __init__(self) -> None:
        self.sending = threading.Event()
        self.reading = threading.Event()
        self._writers: list[threading.Thread] = []
        self._readers: list[threading.Thread] = []

    def begin(self) -> None:
        """Allow both kinds of threads to work."""
        self.sending.set()
        self.reading.set()

    def write(self, name: str, work: Callable[[], None]) -> None:
        """Start a writer."""
        self._writers.append(_started(name, work))

    def read(self, name: str, work: Callable[[], None]) -> None:
        """Start a reader."""
        self._readers.append(_started(name, work))

    def stop_sending(self, join_s: float) -> None:
        """End the writers; wait for each at most `join_s` seconds."""
        self.sending.clear()
        for thread in self._writers:
            thread.join(join_s)

    def close(self, join_s: float) -> None:
        """End all threads; wait for each at most `join_s` seconds."""
        self.stop_sending(join_s)
        self.reading.clear()
        for thread in self._readers:
            thread.join(join_s)


class Pace:
    """The times at which a writer acts. A late writer catches up at most `BEHIND_S`."""

    BEHIND_S = 0.1

    def __init__(self) -> None:
        self._next_s = time.monotonic()

    def wait(self, pause_ms: float) -> None:
        """Sleep until `pause_ms` after the previous time."""
        self._next_s = max(self._next_s + pause_ms / 1000, time.monotonic() - self.BEHIND_S)
        time.sleep(max(0.0, self._next_s - time.monotonic()))


class DelayedItems(Generic[T]):
    """What one thread does later: items with the times from which on they are due."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, T]] = []
        self._count = 0

    def add(self, at_ms: float, item: T) -> None:
        """Make `item` due at that time."""
        self._count += 1
        heapq.heappush(self._waiting, (at_ms, self._count, item))

    def due(self, now_ms: float) -> Iterator[T]:
        """Yield and forget what is due, the earliest first."""
        while self._waiting and self._waiting[0][0] <= now_ms:
            yield heapq.heappop(self._waiting)[2]


def _started(name: str, work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name=f"drill-{name}", daemon=True)
    thread.start()
    return thread
