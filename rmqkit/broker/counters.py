"""Counters by key, with their growth over the last minute, hour and day, like Apache's StatsItem.

A counter only grows; the hot path adds to it in place. Every 10 s, `sample` records how much each
counter grew since the last sample. Counters that did not grow take no space in a sample.

- The minute is the last six samples and the growth since then.
- The hour is the last six parts of ten minutes, the day the last 24 parts of an hour, both with the
  growth since then.

A rate is computed over the time that these parts really span, at least `SPAN_MS_MIN`.

Source: `common/.../stats/StatsItem.java`.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
C = TypeVar("C", bound="Count")

SAMPLE_MS = 10_000
#: for minute, hour and day: number of 10 s samples in a part, and number of complete parts kept
SERIES = ((1, 6), (60, 6), (360, 24))
SPAN_MS_MIN = 1000
#: limit of keys with a counter of their own; further keys count only in the totals
KEYS_MAX = 200_000


class Count:
    """Totals of one key: messages, their bytes (`size`), and number of additions (`times`).

    A batch or a pull adds several messages but counts once in `times`. The `seen_` fields are the
    totals at the last sample.
    """

    __slots__ = ("messages", "seen_messages", "seen_size", "seen_times", "size", "times")

    def __init__(self) -> None:
        self.messages = self.size = self.times = 0
        self.seen_messages = self.seen_size = self.seen_times = 0


class Growth(NamedTuple):
    """Increase of a counter's totals over an interval."""

    messages: int = 0
    size: int = 0
    times: int = 0

    def and_(self, other: "Growth") -> "Growth":
        return Growth(self.messages + other.messages, self.size + other.size, self.times + other.times)


class CounterSpan(NamedTuple):
    """Growth of a counter over the last `ms` milliseconds."""

    growth: Growth
    ms: int

    def rate(self, amount: int) -> float:
        """Return `amount` per second."""
        return amount * 1000 / self.ms


class _Series(Generic[K]):
    """Growth by key: the last `kept` whole parts of `joined_max` samples, and the current part."""

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
    """Counters of at most `KEYS_MAX` keys, with their totals.

    The hot path uses `table`: `count = table.get(key) or new(key)`, then it adds to the fields.
    """

    def __init__(self, make: Callable[[], C], now_ms: int) -> None:
        self.table: dict[K, C] = {}
        #: totals of forgotten keys and of keys beyond `KEYS_MAX`
        self.rest = make()
        self._make = make
        self._series: list[_Series[K]] = [_Series(now_ms, joined_max, kept) for joined_max, kept in SERIES]

    def new(self, key: K) -> C:
        """Add a counter for a key; return `rest` instead if `KEYS_MAX` keys have one."""
        if len(self.table) >= KEYS_MAX:
            return self.rest
        count = self.table[key] = self._make()
        return count

    def forget(self, hit: Callable[[K], bool]) -> None:
        """Remove the keys for which `hit` returns true. Their counts stay in the totals."""
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
        """Record the growth since the last sample. Call it every `SAMPLE_MS`."""
        moved = {key: _take_growth(count) for key, count in self.table.items() if count.times != count.seen_times}
        for series in self._series:
            series.join(moved, now_ms)

    def spans(self, key: K, now_ms: int) -> tuple[CounterSpan, CounterSpan, CounterSpan] | None:
        """Return the growth over the last minute, hour and day up to now; None if unknown."""
        count = self.table.get(key)
        if count is None:
            return None
        fresh = _growth_since_sample(count)
        minute, hour, day = (
            CounterSpan(series.growth(key).and_(fresh), max(now_ms - series.from_ms, SPAN_MS_MIN))
            for series in self._series
        )
        return minute, hour, day


def _growth_since_sample(count: Count) -> Growth:
    return Growth(count.messages - count.seen_messages, count.size - count.seen_size, count.times - count.seen_times)


def _take_growth(count: Count) -> Growth:
    grown = _growth_since_sample(count)
    count.seen_messages, count.seen_size, count.seen_times = count.messages, count.size, count.times
    return grown
