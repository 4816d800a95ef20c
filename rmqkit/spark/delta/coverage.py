"""Tracks which offsets a lake covers: a list of intervals per queue, merged where they touch.

Coverage says which offsets were read, the files say which rows exist. An offset may be covered
without a row: a tag filter left the message out, or the broker has no message at that offset. Gaps
are offsets that no ingest has read.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from rmqkit.spark.source import ranges
from rmqkit.spark.source.ranges import Ends, OffsetRange, QueueKey

#: half-open intervals [begin, end) of one queue, ascending, neither overlapping nor touching
Intervals = list[list[int]]
Covered = dict[QueueKey, Intervals]


def added(covered: Mapping[QueueKey, Intervals], parts: Iterable[OffsetRange]) -> Covered:
    """Return the coverage extended by these ranges."""
    result = dict(covered)
    for each in parts:
        if each.size:
            result[each.key] = _joined([*result.get(each.key, []), [each.begin, each.end]])
    return dict(sorted(result.items()))


def _joined(intervals: Intervals) -> Intervals:
    joined: Intervals = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = [joined[-1][0], max(joined[-1][1], end)]
        else:
            joined.append([begin, end])
    return joined


def common(covered: Mapping[QueueKey, Intervals], parts: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the parts of the ranges that are covered."""
    return [
        each._replace(begin=max(begin, each.begin), end=min(end, each.end))
        for each in parts
        for begin, end in covered.get(each.key, [])
        if begin < each.end and each.begin < end
    ]


def ends(covered: Mapping[QueueKey, Intervals], topics: Iterable[str] | None = None) -> Ends:
    """Return one past the last covered offset of each queue, for these topics or all."""
    wanted = None if topics is None else set(topics)
    return {key: intervals[-1][1] for key, intervals in covered.items() if wanted is None or key.topic in wanted}


def gaps(covered: Mapping[QueueKey, Intervals]) -> list[OffsetRange]:
    """Return the ranges between covered intervals."""
    return [
        OffsetRange(*key, before[1], after[0])
        for key, intervals in covered.items()
        for before, after in pairwise(intervals)
    ]


def nested(covered: Mapping[QueueKey, Intervals]) -> dict[str, Any]:
    """Return JSON data: topic -> broker -> queue number as text -> intervals."""
    return dict(ranges.nested(covered))  # type: ignore[arg-type]  # the same form, with intervals for offsets


def flat(covered: Mapping[str, Any]) -> Covered:
    """Return the coverage of the JSON data that `nested` made."""
    return {
        QueueKey(topic, broker, int(queue)): [[int(begin), int(end)] for begin, end in intervals]
        for topic, brokers in sorted(covered.items())
        for broker, queues in sorted(brokers.items())
        for queue, intervals in sorted(queues.items(), key=lambda item: int(item[0]))
    }
