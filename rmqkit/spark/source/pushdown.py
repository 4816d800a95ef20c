"""Turns the filters of a query into a smaller read: fewer queues, shorter ranges, tags for brokers.

`ScanBounds` may select more messages than the filters do, never fewer: Spark still applies the
filters. So filters that say nothing about the position of messages are ignored, and `>` on a time
may include the message at that time.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from rmqkit.spark.source.ranges import Ends, QueueKey

_CHOICES = ("topic", "broker", "queue", "tags")
_BOUNDS = ("queue", "offset", "store_time")
#: Texts with a special meaning in a tag expression: the separator and "all tags".
_NO_TAG = ("", "*", "|")


class ScanBounds(NamedTuple):
    """Necessary conditions on messages.

    `values` maps a column to its allowed values. `begins` and `ends` map a column to its bounds
    [begin, end), as whole numbers (times in Unix ms).
    """

    values: Mapping[str, frozenset[Any]] = {}
    begins: Mapping[str, int] = {}
    ends: Mapping[str, int] = {}

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that brokers can filter by; empty if a tag cannot be in an expression."""
        tags = self.values.get("tags", frozenset())
        if any(not isinstance(tag, str) or tag.strip() != tag or tag in _NO_TAG or "|" in tag for tag in tags):
            return ()
        return tuple(sorted(tags))


EVERYTHING = ScanBounds()


def narrowing_of(filters: Iterable[Filter]) -> ScanBounds:
    """Return the conditions of all filters together: a row satisfies every filter."""
    values: dict[str, frozenset[Any]] = {}
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    for each in filters:
        # Filters on nested fields and negations are ignored.
        path: tuple[str, ...] = getattr(each, "attribute", ())
        column = path[0] if len(path) == 1 else ""
        value: Any = getattr(each, "value", None)
        if isinstance(each, (EqualTo, EqualNullSafe, In)):
            wanted = value if isinstance(each, In) else [value]
            if column in _CHOICES:
                allowed = frozenset(one for one in wanted if one is not None)
                values[column] = values.get(column, allowed) & allowed
            elif column in _BOUNDS:
                numbers = [_number(one) for one in wanted if one is not None]
                _raise(begins, column, math.ceil(min(numbers, default=1)))
                _lower(ends, column, math.floor(max(numbers, default=0)) + 1)
        elif column in _BOUNDS and value is not None:
            number = _number(value)
            if isinstance(each, GreaterThan):
                _raise(begins, column, math.floor(number) + 1)
            elif isinstance(each, GreaterThanOrEqual):
                _raise(begins, column, math.ceil(number))
            elif isinstance(each, LessThan):
                _lower(ends, column, math.ceil(number))
            elif isinstance(each, LessThanOrEqual):
                _lower(ends, column, math.floor(number) + 1)
    return ScanBounds(values, begins, ends)


def narrowed(
    narrowing: ScanBounds,
    begins: Mapping[QueueKey, int],
    ends: Mapping[QueueKey, int],
    at_time: Callable[[int], Ends],
) -> tuple[Ends, Ends]:
    """Return begins and ends, narrowed by the conditions.

    `at_time` returns the first offsets that were stored at a time (Unix ms) or later.
    """
    keys = [key for key in begins if key in ends and _meets(narrowing, key)]
    first = {key: max(begins[key], narrowing.begins.get("offset", 0)) for key in keys}
    last = {key: min(ends[key], narrowing.ends.get("offset", ends[key])) for key in keys}
    if "store_time" in narrowing.begins:
        found = at_time(narrowing.begins["store_time"])
        first = {key: max(offset, found.get(key, offset)) for key, offset in first.items()}
    if "store_time" in narrowing.ends:
        found = at_time(narrowing.ends["store_time"])
        last = {key: min(offset, found.get(key, offset)) for key, offset in last.items()}
    return first, last


def _meets(narrowing: ScanBounds, key: QueueKey) -> bool:
    for column, value in zip(("topic", "broker", "queue"), key, strict=True):
        if column in narrowing.values and value not in narrowing.values[column]:
            return False
    return narrowing.begins.get("queue", 0) <= key.queue < narrowing.ends.get("queue", key.queue + 1)


def _raise(bounds: dict[str, int], column: str, value: int) -> None:
    bounds[column] = max(value, bounds.get(column, value))


def _lower(bounds: dict[str, int], column: str, value: int) -> None:
    bounds[column] = min(value, bounds.get(column, value))


def _number(value: Any) -> float:
    """Return a number unchanged, and a time as Unix ms. Spark passes timestamps in UTC."""
    if isinstance(value, datetime):
        when = value if value.tzinfo else value.replace(tzinfo=UTC)
        passed = when - datetime(1970, 1, 1, tzinfo=UTC)
        # Computed from integers, so that whole milliseconds stay exact; float seconds would not.
        return (passed.days * 86_400_000 + passed.seconds * 1000) + passed.microseconds / 1000
    return float(value) if isinstance(value, Decimal) else int(value)
