"""Which offsets of which queues a lake has: intervals by queue, joined where they meet.

A lake's rows are those of its files; its coverage says which offsets were asked for, so it also holds offsets without
a row (a message that a tag left out, a place where the broker has none). Gaps are what nobody ingested.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from rmqkit.spark.source.ranges import Ends, OffsetRange, QueueKey

#: half-open intervals [begin, end) of a queue, ascending, apart from each other
Intervals = list[list[int]]
Covered = dict[QueueKey, Intervals]


def added(covered: Mapping[QueueKey, Intervals], ranges: Iterable[OffsetRange]) -> Covered:
    """With these ranges too."""
    result = dict(covered)
    for each in ranges:
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


def common(covered: Mapping[QueueKey, Intervals], ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The parts of the ranges that are covered."""
    return [
        each._replace(begin=max(begin, each.begin), end=min(end, each.end))
        for each in ranges
        for begin, end in covered.get(each.key, [])
        if begin < each.end and each.begin < end
    ]


def ends(covered: Mapping[QueueKey, Intervals], topics: Iterable[str] | None = None) -> Ends:
    """One past the last covered offset of each queue."""
    wanted = None if topics is None else set(topics)
    return {key: intervals[-1][1] for key, intervals in covered.items() if wanted is None or key.topic in wanted}


def gaps(covered: Mapping[QueueKey, Intervals]) -> list[OffsetRange]:
    """What lies between covered intervals."""
    return [
        OffsetRange(*key, before[1], after[0])
        for key, intervals in covered.items()
        for before, after in pairwise(intervals)
    ]


def nested(covered: Mapping[QueueKey, Intervals]) -> dict[str, dict[str, dict[str, Intervals]]]:
    """As JSON: topic, broker, queue as text, intervals."""
    result: dict[str, dict[str, dict[str, Intervals]]] = {}
    for key in sorted(covered):
        result.setdefault(key.topic, {}).setdefault(key.broker, {})[str(key.queue)] = covered[key]
    return result


def flat(covered: Mapping[str, Any]) -> Covered:
    """Back from JSON."""
    return {
        QueueKey(topic, broker, int(queue)): [[int(begin), int(end)] for begin, end in intervals]
        for topic, brokers in sorted(covered.items())
        for broker, queues in sorted(brokers.items())
        for queue, intervals in sorted(queues.items(), key=lambda item: int(item[0]))
    }
