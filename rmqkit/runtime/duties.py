"""Duties: background work of a node, ordered by due time.

A duty is a name and a function `run(now_ms) -> due_ms | None`. It does a bounded amount of work and
returns when it wants to run next (None: only when `wake` is called). Times are monotonic
milliseconds. Each node has one heap of entries `(due_ms, sequence, name)`: duties with the same due
time run in the order in which it was set, so that a run is repeatable.
"""

from collections.abc import Callable
from heapq import heappop, heappush

Run = Callable[[int], int | None]


class Duties:
    """The duties of one node."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._due_ms: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._sequence = 0
        #: called with the name before each run, and with "" after the last one. Set by drivers that
        #: measure slow duties
        self.watch: Callable[[str], None] = _unwatched

    def __contains__(self, name: str) -> bool:
        return name in self._runs

    @property
    def names(self) -> list[str]:
        return list(self._runs)

    def add(self, name: str, run: Run, due_ms: int | None) -> None:
        """Add a duty; with `due_ms` None it waits for `wake`.

        Raises ValueError if the name already exists.
        """
        if name in self._runs:
            raise ValueError(f"duty {name!r} already exists")
        self._runs[name] = run
        if due_ms is not None:
            self._set(name, due_ms)

    def remove(self, name: str) -> None:
        self._runs.pop(name, None)
        self._due_ms.pop(name, None)

    def wake(self, name: str, due_ms: int) -> None:
        """Run a duty at `due_ms`, unless it is due earlier. Ignores unknown names."""
        current = self._due_ms.get(name)
        if name in self._runs and (current is None or due_ms < current):
            self._set(name, due_ms)

    def next_due_ms(self) -> int | None:
        """Return the time of the next due duty, or None."""
        heap = self._heap
        while heap:
            due_ms, _, name = heap[0]
            if self._due_ms.get(name) == due_ms:
                return due_ms
            heappop(heap)
        return None

    def run_due(self, now_ms: int) -> None:
        """Run each due duty once.

        A duty that asks for `now_ms` again waits for the next turn.
        """
        due: list[str] = []
        while (first_ms := self.next_due_ms()) is not None and first_ms <= now_ms:
            name = heappop(self._heap)[2]
            del self._due_ms[name]
            due.append(name)
        for name in due:
            run = self._runs.get(name)
            if run is None:
                continue
            self.watch(name)
            again_ms = run(now_ms)
            if again_ms is not None and name in self._runs:
                self.wake(name, again_ms)
        if due:
            self.watch("")

    def _set(self, name: str, due_ms: int) -> None:
        self._due_ms[name] = due_ms
        self._sequence += 1
        heappush(self._heap, (due_ms, self._sequence, name))


def _unwatched(name: str) -> None:
    pass
