"""Comparing two sets of settings by drills: medians with their intervals, and the difference of the pairs.

Runs are done in pairs, one of each side with the same seed, and who begins takes turns; so what the machine does besides
hits both alike. An interval is that of the order statistics around a median: they hold it with at least 95 % whatever the
values are spread like (for fewer than six runs it is from the smallest to the largest, and says so by `level`). What one
side's run has not (a stage that was never reached) is left out and counted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.95


class Median(NamedTuple):
    value: float
    low: float
    high: float
    runs: int
    #: with which probability the interval holds the median of all drills there could be
    level: float

    def __str__(self) -> str:
        if self.runs < 2:
            return number(self.value)
        return f"{number(self.value)} [{number(self.low)} – {number(self.high)}]"


class Compared(NamedTuple):
    """One figure. `difference` is the second side less the first, pair by pair; None without a pair that has both."""

    name: str
    sides: tuple[Median | None, ...]
    difference: Median | None


def median_of(values: Sequence[float], level: float = LEVEL) -> Median | None:
    """None for no values."""
    if not values:
        return None
    ordered, count = sorted(values), len(values)
    for rank in range(count // 2, 0, -1):
        outside = 2 * sum(math.comb(count, each) for each in range(rank)) / 2**count
        if outside <= 1 - level or rank == 1:
            return Median(statistics.median(ordered), ordered[rank - 1], ordered[count - rank], count, 1 - outside)
    return Median(ordered[0], ordered[0], ordered[0], 1, 0.0)


def compare(first: Sequence[Mapping[str, float]], second: Sequence[Mapping[str, float]]) -> list[Compared]:
    """`first` and `second` are what each run of a side has measured, pair by pair."""
    names = dict.fromkeys(name for each in (*first, *second) for name in each)
    found = []
    for name in names:
        sides = tuple(median_of([each[name] for each in side if name in each]) for side in (first, second))
        pairs = [b[name] - a[name] for a, b in zip(first, second, strict=False) if name in a and name in b]
        found.append(Compared(name, sides, median_of(pairs)))
    return found


def number(value: float) -> str:
    """Seconds to 10 ms, counts as they are."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"
