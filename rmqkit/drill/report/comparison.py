"""Comparing two sets of settings by drills: medians with intervals, and the difference of the
pairs.

Runs come in pairs, one of each side with the same seed, and the sides take turns in going first. So
other work on the machine affects both sides alike. An interval consists of the order statistics
around a median: it holds the median with at least 95 %, whatever the distribution. For fewer than
six runs it is the range, and `level` says how certain that is. A run without a figure (a stage that
it never reached) is left out of that figure; `runs` counts the others.
"""

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
    #: the probability that the interval holds the true median
    level: float

    def __str__(self) -> str:
        if self.runs < 2:
            return number(self.value)
        return f"{number(self.value)} [{number(self.low)} – {number(self.high)}]"


class FigureComparison(NamedTuple):
    """One figure. `difference` is second side minus first, pair by pair; None without such a
    pair."""

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


def compare(first: Sequence[Mapping[str, float]], second: Sequence[Mapping[str, float]]) -> list[FigureComparison]:
    """`first` and `second` have the figures of each run of a side, pair by pair."""
    names = dict.fromkeys(name for each in (*first, *second) for name in each)
    found = []
    for name in names:
        sides = tuple(median_of([each[name] for each in side if name in each]) for side in (first, second))
        pairs = [b[name] - a[name] for a, b in zip(first, second, strict=False) if name in a and name in b]
        found.append(FigureComparison(name, sides, median_of(pairs)))
    return found


def number(value: float) -> str:
    """Seconds to 10 ms, counts as they are."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"
