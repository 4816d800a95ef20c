"""Timers of a client: callbacks at a due time, run by one duty.

Timers with equal due times run in the order in which they were set.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from rmqkit.client.flow import Deferred
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Clock

_DUTY = "client-timers"


class Timer:
    """A callback that runs once, unless `cancel` is called first."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Prevent the callback. Does nothing after it has run."""
        self.callback = None


class Timers:
    """The pending timers of one client, in a heap. Times are monotonic ms."""

    def __init__(self, clock: Clock, duties: Duties) -> None:
        self._clock = clock
        self._duties = duties
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0
        duties.add(_DUTY, self._run, None)

    def after(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, `delay_ms` from now."""
        timer = Timer(callback)
        due_ms = self._clock.mono_ms + delay_ms
        self._sequence += 1
        heappush(self._heap, (due_ms, self._sequence, timer))
        self._duties.wake(_DUTY, due_ms)
        return timer

    def sleep(self, delay_ms: int) -> Deferred[None]:
        """Return a promise that is resolved `delay_ms` from now."""
        promise: Deferred[None] = Deferred()
        self.after(delay_ms, lambda: promise.resolve(None))
        return promise

    def _run(self, now_ms: int) -> int | None:
        heap = self._heap
        # Timers set by these callbacks wait for the next turn, even if they are due now.
        last = self._sequence
        while heap and heap[0][0] <= now_ms and heap[0][1] <= last:
            callback = heappop(heap)[2].callback
            if callback is not None:
                callback()
        while heap and heap[0][2].callback is None:
            heappop(heap)
        return heap[0][0] if heap else None
