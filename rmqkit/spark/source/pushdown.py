"""Turns the filters of a query into a smaller read: fewer queues, shorter ranges, tags for brokers.

`ScanBounds` may select more messages than the filters do, never fewer: Spark still applies the
filters. So filters that say nothing about the position of messages are ignored, and `>` on a time
may include the message at that time.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
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
#: Comparison -> the bounds [begin, end) of the whole numbers that satisfy it; None for no bound.
_INTERVALS: Mapping[type[Filter], Callable[[float], tuple[int | None, int | None]]] = {
    GreaterThan: lambda number: (math.floor(number) + 1, None),
    GreaterThanOrEqual: lambda number: (math.ceil(number), None),
    LessThan: lambda number: (None, math.ceil(number)),
    LessThanOrEqual: lambda number: (None, math.floor(number) + 1),
}
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
        wanted = [one for one in (value if isinstance(each, In) else [value]) if one is not None]
        begin, end = None, None
        if isinstance(each, (EqualTo, EqualNullSafe, In)):
            if column in _CHOICES:
                values[column] = values.get(column, frozenset(wanted)) & frozenset(wanted)
            elif column in _BOUNDS:
                numbers = [_number(one) for one in wanted]
                begin, end = math.ceil(min(numbers, default=1)), math.floor(max(numbers, default=0)) + 1
        elif column in _BOUNDS and wanted and type(each) in _INTERVALS:
            begin, end = _INTERVALS[type(each)](_number(value))
        if begin is not None:
            begins[column] = max(begin, begins.get(column, begin))
        if end is not None:
            ends[column] = min(end, ends.get(column, end))
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
    if any(value not in narrowing.values.get(column, (value,)) for column, value in key._asdict().items()):
        return False
    return narrowing.begins.get("queue", 0) <= key.queue < narrowing.ends.get("queue", key.queue + 1)


def _number(value: Any) -> float:
    """Return a number unchanged, and a time as Unix ms. Spark passes timestamps in UTC."""
    if isinstance(value, datetime):
        when = value if value.tzinfo else value.replace(tzinfo=UTC)
        # Divided as integers, so that whole milliseconds stay exact; float seconds would not.
        return (when - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1)
    return float(value) if isinstance(value, Decimal) else int(value)
