"""Which pulls of a range are asked for, ahead of their answers, and in which order what they bring counts.

Offsets of a queue are dense: who has asked for `count` messages from an offset on knows where the next pull begins, and
need not wait for the answer. Should an answer end early (a broker bounds answers by messages and by bytes) the hole is
asked for and what lies behind it waits: what is taken out (`done`) is always the next part of the range, without a gap.

How many messages an answer holds is the broker's secret; it is learned. The first pull asks for many and is alone. When
an answer is short that is the new count; after `PROBE_EVERY` whole answers twice as many are asked for once: when they
do not come, the rest is a pull like any other.

With a filter an answer may end anywhere, so there one pull is in flight, and it ends where the answer says.

Pure: what is sent and received, and what an answer means, is `reading`'s.
"""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

#: pulls in flight; half as many are asked for at a time, which costs both sides one system call
DEPTH = 32
#: answers that are larger than usual are fewer
BYTES_AHEAD = 2 * 1024 * 1024
COUNT_FIRST = 1024
COUNT_MAX = 4096
PROBE_EVERY = 16

T = TypeVar("T")


class Pull(Generic[T]):
    """A pull of [begin, end); `brought` is set once it is answered."""

    __slots__ = ("begin", "brought", "count", "end", "is_probe", "opaque")

    def __init__(self, begin: int, end: int, count: int, is_probe: bool = False) -> None:
        self.begin = begin
        self.end = end
        self.count = count
        self.is_probe = is_probe
        self.opaque = 0
        self.brought: T | None = None


class Pulls(Generic[T]):
    """The pulls of [begin, end). `position` is the end of what was taken out."""

    def __init__(self, begin: int, end: int, *, is_filtered: bool = False, depth: int = DEPTH) -> None:
        self.position = begin
        self.end = end
        self.count = COUNT_FIRST
        self._is_filtered = is_filtered
        self._depth_max = self._depth = 1 if is_filtered else depth
        self._ahead = begin
        self._flying: deque[Pull[T]] = deque()
        self._unsent: list[Pull[T]] = []
        #: the first answer tells how many messages one holds
        self._is_alone = True
        #: nothing more is sent before the first one in flight is answered
        self._is_held = False
        self._whole = 0

    @property
    def is_whole(self) -> bool:
        """Whether no answer waits for a hole before it."""
        return all(pull.brought is None for pull in self._flying)

    def is_first(self, pull: Pull[T]) -> bool:
        return bool(self._flying) and self._flying[0] is pull

    def due(self) -> list[Pull[T]]:
        """The pulls to send now."""
        due, self._unsent = self._unsent, []
        depth = 1 if self._is_alone else self._depth
        if self._is_held or not self.is_whole or len(self._flying) > depth // 2:
            return due
        while len(self._flying) < depth and self._ahead < self.end:
            is_probe = not self._is_filtered and self._whole >= PROBE_EVERY and self.count < COUNT_MAX
            if is_probe:
                self._whole = 0
            count = min(2 * self.count if is_probe else self.count, self.end - self._ahead, COUNT_MAX)
            end = self.end if self._is_filtered else self._ahead + count
            pull: Pull[T] = Pull(self._ahead, end, count, is_probe)
            self._flying.append(pull)
            due.append(pull)
            self._ahead = end
        return due

    def answering(self, opaque: int) -> Pull[T] | None:
        """The pull that an answer belongs to; None for one that is not wanted any more."""
        return next((pull for pull in self._flying if pull.opaque == opaque and pull.brought is None), None)

    def brought(self, pull: Pull[T], brought: T, end: int, *, size: int = 0, is_telling: bool = True) -> None:
        """The pull was answered up to `end` with `size` bytes: what is left of it becomes a pull of its own.

        `is_telling`: the answer tells how many messages the broker gives at once.
        """
        if is_telling and not self._is_filtered:
            self._learn(pull, end - pull.begin)
            self._depth = max(1, min(self._depth_max, BYTES_AHEAD // max(1, size)))
        if end < pull.end:
            rest: Pull[T] = Pull(end, pull.end, min(pull.count, pull.end - end))
            pull.end = end
            if self._flying[-1] is pull:
                # Nothing was asked for behind it.
                self._ahead = end
            else:
                self._flying.insert(self._flying.index(pull) + 1, rest)
                self._unsent.append(rest)
        pull.brought = brought
        self._is_alone = False

    def _learn(self, pull: Pull[T], got: int) -> None:
        if got >= pull.count:
            if pull.is_probe:
                self.count = pull.count
            elif pull.count == self.count:
                self._whole += 1
        elif pull.is_probe:
            self.count = max(self.count, got)
        elif got < self.count:
            self.count = max(1, got)
            self._whole = 0

    def done(self) -> Iterator[T]:
        """What was brought and is next, in order; `position` goes along."""
        while self._flying and self._flying[0].brought is not None:
            pull = self._flying.popleft()
            self.position = pull.end
            self._is_held = False
            assert pull.brought is not None
            yield pull.brought

    def cut(self, pull: Pull[T]) -> None:
        """That pull, not the first, has brought nothing: it and what is behind it are asked for again in their turn."""
        while self._flying and self._flying[-1] is not pull:
            self._drop(self._flying.pop())
        if self._flying:
            self._drop(self._flying.pop())
        self._ahead = pull.begin
        self._is_held = bool(self._flying)

    def _drop(self, pull: Pull[T]) -> None:
        if pull in self._unsent:
            self._unsent.remove(pull)

    def restart(self, position: int | None = None) -> None:
        """Nothing is in flight any more; go on at `position`, or where what was taken out ends."""
        if position is not None:
            self.position = min(position, self.end)
        self._flying.clear()
        self._unsent.clear()
        self._ahead = self.position
        self._is_held = False
