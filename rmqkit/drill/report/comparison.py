"""Compares drills with two sets of settings: medians with intervals, and the difference of pairs.

Runs come in pairs, one of each side with the same seed, and the sides take turns in going first. So
other work on the machine affects both sides equally. An interval consists of the order statistics
around a median: it contains the median with a probability of at least 95 %, whatever the
distribution. With fewer than six runs it is the whole range, and `level` has its probability. A run
without a figure (a stage that it never reached) is left out of that figure; `runs` counts the
remaining ones.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.95


class Median(NamedTuple):
    """A median with the interval [low, high] around it."""

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
    """One figure of both sides.

    `difference` is the second side minus the first, pair by pair; None if no pair has the figure.
    """

    name: str
    sides: tuple[Median | None, ...]
    difference: Median | None


def median_of(values: Sequence[float]) -> Median | None:
    """Return the median with its interval; None for no values."""
    if not values:
        return None
    ordered, count = sorted(values), len(values)
    for rank in range(count // 2, 0, -1):
        outside = 2 * sum(math.comb(count, each) for each in range(rank)) / 2**count
        if outside <= 1 - LEVEL or rank == 1:
            return Median(statistics.median(ordered), ordered[rank - 1], ordered[count - rank], count, 1 - outside)
    return Median(ordered[0], ordered[0], ordered[0], 1, 0.0)


def compare(first: Sequence[Mapping[str, float]], second: Sequence[Mapping[str, float]]) -> list[FigureComparison]:
    """Compare the figures of two sides. `first[i]` and `second[i]` are one pair of runs."""
    names = dict.fromkeys(name for each in (*first, *second) for name in each)
    found = []
    for name in names:
        sides = tuple(median_of([each[name] for each in side if name in each]) for side in (first, second))
        pairs = [b[name] - a[name] for a, b in zip(first, second, strict=False) if name in a and name in b]
        found.append(FigureComparison(name, sides, median_of(pairs)))
    return found


def number(value: float) -> str:
    """Return a number as text: two decimals at most, without trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"
