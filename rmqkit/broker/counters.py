"""Counters by key with what they grew by over the last minute, hour and day, as Apache's StatsItem has them.

A counter only ever grows; the hot path adds to it in place. `sample`, every 10 s, notes what each counter grew by since
the last time, in a mapping of the counters that moved: what stands still costs nothing. The minute is the last six
samples and what has come since; the hour is made of parts of ten minutes, the day of parts of an hour. A rate is over the
time that these really span, at least `SPAN_MS_MIN`.

Source: `common/.../stats/StatsItem.java`.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
C = TypeVar("C", bound="Count")

SAMPLE_MS = 10_000
#: of minute, hour and day: how many samples of 10 s make one of theirs, and how many of those are kept
SERIES = ((1, 6), (60, 6), (360, 24))
SPAN_MS_MIN = 1000
#: keys counted at most; what has others is counted in the totals alone
KEYS_MAX = 200_000


class Count:
    """What was counted for one key: messages, their bytes, and in how many times (a batch, a pull)."""

    __slots__ = ("messages", "seen_messages", "seen_size", "seen_times", "size", "times")

    def __init__(self) -> None:
        self.messages = self.size = self.times = 0
        self.seen_messages = self.seen_size = self.seen_times = 0


class Growth(NamedTuple):
    messages: int = 0
    size: int = 0
    times: int = 0

    def and_(self, other: "Growth") -> "Growth":
        return Growth(self.messages + other.messages, self.size + other.size, self.times + other.times)


class CounterSpan(NamedTuple):
    """What a counter grew by within the last `ms`."""

    growth: Growth
    ms: int

    def rate(self, amount: int) -> float:
        return amount * 1000 / self.ms


class _Series(Generic[K]):
    """Growth by key over the last `kept` parts of `joined_max` samples each, and over the part that is not whole yet."""

    def __init__(self, now_ms: int, joined_max: int, kept: int) -> None:
        self.parts: deque[tuple[int, dict[K, Growth]]] = deque(maxlen=kept)
        self._joined_max = joined_max
        self._joined = 0
        self._part: dict[K, Growth] = {}
        self._part_from_ms = now_ms

    @property
    def from_ms(self) -> int:
        return self.parts[0][0] if self.parts else self._part_from_ms

    def join(self, sample: dict[K, Growth], now_ms: int) -> None:
        part = self._part
        for key, growth in sample.items():
            known = part.get(key)
            part[key] = growth if known is None else known.and_(growth)
        self._joined += 1
        if self._joined == self._joined_max:
            self.parts.append((self._part_from_ms, part))
            self._part, self._part_from_ms, self._joined = {}, now_ms, 0

    def growth(self, key: K) -> Growth:
        total = self._part.get(key, Growth())
        for _, part in self.parts:
            found = part.get(key)
            if found is not None:
                total = total.and_(found)
        return total

    def forget(self, key: K) -> None:
        self._part.pop(key, None)
        for _, part in self.parts:
            part.pop(key, None)


class Counters(Generic[K, C]):
    """`table` is for the hot path: `count = table.get(key) or new(key)`, then add to its fields."""

    def __init__(self, make: Callable[[], C], now_ms: int) -> None:
        self.table: dict[K, C] = {}
        #: of keys that were forgotten, and of those beyond `KEYS_MAX`
        self.rest = make()
        self._make = make
        self._series: list[_Series[K]] = [_Series(now_ms, joined_max, kept) for joined_max, kept in SERIES]

    def new(self, key: K) -> C:
        if len(self.table) >= KEYS_MAX:
            return self.rest
        count = self.table[key] = self._make()
        return count

    def forget(self, hit: Callable[[K], bool]) -> None:
        """The keys that `hit`; what they counted stays in the totals."""
        for key in [key for key in self.table if hit(key)]:
            gone = self.table.pop(key)
            self.rest.messages += gone.messages
            self.rest.size += gone.size
            self.rest.times += gone.times
            for series in self._series:
                series.forget(key)

    @property
    def messages(self) -> int:
        return self.rest.messages + sum([count.messages for count in self.table.values()])

    @property
    def size(self) -> int:
        return self.rest.size + sum([count.size for count in self.table.values()])

    @property
    def times(self) -> int:
        return self.rest.times + sum([count.times for count in self.table.values()])

    def sample(self, now_ms: int) -> None:
        """Note what has grown; every `SAMPLE_MS`."""
        moved = {key: _taken(count) for key, count in self.table.items() if count.times != count.seen_times}
        for series in self._series:
            series.join(moved, now_ms)

    def spans(self, key: K, now_ms: int) -> tuple[CounterSpan, CounterSpan, CounterSpan] | None:
        """The last minute, hour and day, up to now; None for a key that was not counted."""
        count = self.table.get(key)
        if count is None:
            return None
        fresh = _grown(count)
        minute, hour, day = (
            CounterSpan(series.growth(key).and_(fresh), max(now_ms - series.from_ms, SPAN_MS_MIN))
            for series in self._series
        )
        return minute, hour, day


def _grown(count: Count) -> Growth:
    return Growth(count.messages - count.seen_messages, count.size - count.seen_size, count.times - count.seen_times)


def _taken(count: Count) -> Growth:
    grown = _grown(count)
    count.seen_messages, count.seen_size, count.seen_times = count.messages, count.size, count.times
    return grown
