"""Duties: background work of a node, run by due time.

A duty is a name and a function `run(now_ms) -> due_ms | None`: it does a bounded piece of work and says when it wants to
run next (None: only when woken). Times are monotonic milliseconds. There is one heap per node; entries are
`(due_ms, sequence, name)`, so equal dues run in the order they were set and a run is repeatable.
"""

from collections.abc import Callable
from heapq import heappop, heappush

Run = Callable[[int], int | None]


class Duties:
    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._due_ms: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._sequence = 0
        #: called with the name before each run and with "" after the last one; set by drivers that measure slow duties
        self.watch: Callable[[str], None] = _unwatched

    def __contains__(self, name: str) -> bool:
        return name in self._runs

    @property
    def names(self) -> list[str]:
        return list(self._runs)

    def add(self, name: str, run: Run, due_ms: int | None) -> None:
        """Start a duty; `due_ms` None waits for `wake`. A name that runs already is a programming error."""
        if name in self._runs:
            raise ValueError(f"duty {name!r} runs already")
        self._runs[name] = run
        if due_ms is not None:
            self._set(name, due_ms)

    def remove(self, name: str) -> None:
        self._runs.pop(name, None)
        self._due_ms.pop(name, None)

    def wake(self, name: str, due_ms: int) -> None:
        """Run it at `due_ms` or when it is due anyway, whichever comes first."""
        current = self._due_ms.get(name)
        if name in self._runs and (current is None or due_ms < current):
            self._set(name, due_ms)

    def next_due_ms(self) -> int | None:
        heap = self._heap
        while heap and self._due_ms.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def run_due(self, now_ms: int) -> None:
        """Run each duty that is due once; one that asks for `now_ms` again waits for the next turn."""
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
