"""HistogramTable: counts of values by bucket, one row for each key."""

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class HistogramTable(Generic[K]):
    """Histograms with the same bounds, by key."""

    def __init__(self, bounds: Sequence[int]) -> None:
        """`bounds` are the upper bounds of the buckets; values above the last one count, too."""
        self.bounds = tuple(bounds)
        #: a count per bucket, then the sum of all values
        self._rows: dict[K, list[int]] = {}

    def add(self, key: K, value: int, times: int = 1) -> None:
        """Count a value, `times` times."""
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = [0] * (len(self.bounds) + 2)
        row[bisect_left(self.bounds, value)] += times
        row[-1] += value * times

    def items(self) -> Iterator[tuple[K, tuple[list[int], float]]]:
        """Yield each key with its histogram, as `Family` takes it."""
        for key, row in list(self._rows.items()):
            yield key, (row[:-1], row[-1])
