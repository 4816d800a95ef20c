"""Decides which pulls of a range to send ahead of their responses, and puts the results in order.

The offsets of a queue are dense. After a request for `count` messages from an offset, the offset of
the next pull is known without waiting for the response. A response may end early, because brokers
limit responses by messages and bytes. Then the missing part is requested, and the responses behind
it wait. `done` always yields the next part of the range, without a gap.

How many messages a response holds depends on the broker's settings, so it is learned. The first
pull requests COUNT_FIRST messages, and nothing else is sent until its response. The length of a
short response becomes the new count. After `PROBE_EVERY` full responses, one pull requests twice
the count. If the response is shorter, the rest is requested by a pull like any other.

With a filter a response may end anywhere. Then only one pull is in flight, and it ends where the
response says.

This module does no I/O. `topic_reader` sends, receives, and interprets the responses.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

#: Limit of pulls in flight. They are sent in groups of half this number: one system call per group
#: on both sides.
DEPTH = 32
#: Limit of the response bytes in flight; large responses reduce the number of pulls.
BYTES_AHEAD = 2 * 1024 * 1024
COUNT_FIRST = 1024
COUNT_MAX = 4096
PROBE_EVERY = 16

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Pull(Generic[T]):
    """A pull of offsets [begin, end). `brought` is its result once it is answered."""

    begin: int
    end: int
    count: int
    is_probe: bool = False
    opaque: int = 0
    brought: T | None = None


class Pulls(Generic[T]):
    """The pulls of offsets [begin, end). `position` is the end of what `done` has yielded."""

    def __init__(self, begin: int, end: int, *, is_filtered: bool = False, depth: int = DEPTH) -> None:
        self.position = begin
        self.end = end
        self.count = COUNT_FIRST
        self._is_filtered = is_filtered
        self._depth_max = self._depth = 1 if is_filtered else depth
        self._ahead = begin
        self._flying: deque[Pull[T]] = deque()
        self._unsent: list[Pull[T]] = []
        #: Only one pull may be in flight: the size of a response is still unknown.
        self._is_alone = True
        #: Nothing more is sent until the first pull in flight is answered.
        self._is_held = False
        self._whole = 0

    @property
    def is_whole(self) -> bool:
        """Whether no response waits for an earlier one."""
        return all(pull.brought is None for pull in self._flying)

    def is_first(self, pull: Pull[T]) -> bool:
        return bool(self._flying) and self._flying[0] is pull

    def due(self) -> list[Pull[T]]:
        """Return the pulls to send now."""
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
        """Return the pull of a response, or None if it is no longer wanted."""
        return next((pull for pull in self._flying if pull.opaque == opaque and pull.brought is None), None)

    def brought(self, pull: Pull[T], brought: T, end: int, *, size: int = 0, is_telling: bool = True) -> None:
        """Record that a pull was answered up to `end`, with `size` bytes.

        The rest of it becomes a pull of its own. `is_telling`: the length of the response shows how
        many messages the broker returns at once.
        """
        if is_telling and not self._is_filtered:
            self._learn(pull, end - pull.begin)
            self._depth = max(1, min(self._depth_max, BYTES_AHEAD // max(1, size)))
        if end < pull.end:
            rest: Pull[T] = Pull(end, pull.end, min(pull.count, pull.end - end))
            pull.end = end
            if self._flying[-1] is pull:
                # Nothing behind it was requested, so `due` will continue here.
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
        """Yield the results that are next in order, and advance `position`."""
        while self._flying and self._flying[0].brought is not None:
            pull = self._flying.popleft()
            self.position = pull.end
            self._is_held = False
            assert pull.brought is not None
            yield pull.brought

    def cut(self, pull: Pull[T]) -> None:
        """Drop a pull that returned nothing (not the first in flight) and all pulls behind it.

        They are sent again after the first pull in flight was answered.
        """
        while self._flying.pop() is not pull:
            pass
        self._unsent = [each for each in self._unsent if each.begin < pull.begin]
        self._ahead = pull.begin
        self._is_held = True

    def restart(self, position: int | None = None) -> None:
        """Drop all pulls in flight; continue at `position`, or behind what `done` has yielded."""
        if position is not None:
            self.position = min(position, self.end)
        self._flying.clear()
        self._unsent.clear()
        self._ahead = self.position
        self._is_held = False
