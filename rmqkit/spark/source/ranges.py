"""Offsets and ranges of queues, without a cluster, a clock or Spark; and errors about lost ranges.

**Offsets** are what Spark stores in a checkpoint: nested dicts of topic, broker name, queue id (as
text) and the next offset to read. They are sorted at every level, because Spark compares their JSON
text. A key that begins with `@` is not a topic (topic names cannot begin so): `@clusters` holds the
names of the clusters that the offsets belong to.

A new queue enters the offsets at its begin, in a batch that reads nothing of it, and is read from
the next batch on. So two successive offsets alone say what a batch reads, also when it is planned
again after a restart. A queue never leaves the offsets. It goes back only if loss is allowed
(`failOnDataLoss=false`).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from rmqkit.errors import RmqkitError

Offsets = dict[str, dict[str, dict[str, int]]]

CLUSTERS = "@clusters"


class QueueKey(NamedTuple):
    topic: str
    broker: str
    queue: int

    @property
    def group(self) -> tuple[str, str]:
        """The topic and the broker."""
        return self.topic, self.broker

    @property
    def name(self) -> str:
        """The queue's name in errors and warnings."""
        return f"queue {self.queue} of topic {self.topic} on {self.broker}"

    def __str__(self) -> str:
        return f"{self.topic} {self.broker}:{self.queue}"


class OffsetRange(NamedTuple):
    """The messages of a queue with offsets in [begin, end)."""

    topic: str
    broker: str
    queue: int
    begin: int
    end: int

    @property
    def key(self) -> QueueKey:
        return QueueKey(self.topic, self.broker, self.queue)

    @property
    def size(self) -> int:
        return self.end - self.begin


class DataLoss(RmqkitError):
    """Messages that a query should read are gone, and `failOnDataLoss` is true.

    `wanted` is the requested offset, `smallest` the smallest offset that the queue still has, and
    `cause` the most likely reason. The error can be pickled: Spark sends errors from the workers to
    the driver.
    """

    TEXT = (
        "{key.name} no longer has the message at offset {wanted} (its smallest offset is {smallest}); likely cause: "
        "{cause}. To continue without the lost messages, set failOnDataLoss=false"
    )

    def __init__(self, key: QueueKey, wanted: int, smallest: int, cause: str) -> None:
        super().__init__(key, wanted, smallest, cause)
        self.key, self.wanted, self.smallest, self.cause = key, wanted, smallest, cause

    def __str__(self) -> str:
        return self.TEXT.format(**vars(self))


class OffsetBeyond(DataLoss):
    """A queue ends before the query's next offset. `smallest` is the end of the queue."""

    TEXT = (
        "{key.name} ends at offset {smallest}, but the query is at {wanted}; likely cause: {cause}. To continue with the "
        "messages that exist, set failOnDataLoss=false"
    )


class QueueClosed(DataLoss):
    """A queue is no longer readable but has unread messages. `smallest` is the end of the queue."""

    TEXT = (
        "{key.name} has messages from offset {wanted} to {smallest} that can no longer be read: {cause}. To continue "
        "without them, set failOnDataLoss=false"
    )


#: An offset per queue: the flat form of Offsets.
Ends = dict[QueueKey, int]


def flat(offsets: Mapping[str, Any], smallest: int = 0) -> Ends:
    """Return the offsets by queue, sorted.

    Raises ValueError if `offsets` is malformed, or has one below `smallest`.
    """
    ends: Ends = {}
    for topic, brokers in offsets.items():
        if topic.startswith("@"):
            continue
        for broker, queues in brokers.items():
            for queue, offset in queues.items():
                if not queue.isdecimal() or type(offset) is not int or offset < smallest:
                    raise ValueError(f"{topic} {broker}: queue {queue!r} with offset {offset!r} is not valid here")
                ends[QueueKey(topic, broker, int(queue))] = offset
    return dict(sorted(ends.items()))


def nested(ends: Mapping[QueueKey, int], clusters: Iterable[str] = ()) -> Offsets:
    """Return the form that Spark stores. Equal offsets yield equal JSON, whatever their order."""
    offsets: Offsets = {}
    names = sorted(clusters)
    if names:
        offsets[CLUSTERS] = {name: {} for name in names}
    for key in sorted(ends):
        offsets.setdefault(key.topic, {}).setdefault(key.broker, {})[str(key.queue)] = ends[key]
    return offsets


def clusters(offsets: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the clusters that the offsets belong to; none if the offsets do not name any."""
    return tuple(offsets.get(CLUSTERS, {}))


def topics(offsets: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(topic for topic in offsets if not topic.startswith("@")))


def between(start: Mapping[str, Any], end: Mapping[str, Any], *, may_go_back: bool = False) -> list[OffsetRange]:
    """Return what a batch from `start` to `end` reads: each queue that is in both and has grown.

    A queue that went back is not read. Raises ValueError for a queue that is missing in `end`, or
    that went back unless `may_go_back`.
    """
    begins, ends = flat(start), flat(end)
    for key, begin in begins.items():
        if key not in ends:
            raise ValueError(f"queue {key} is in the offsets that a batch begins at, not in those that it ends at")
        if ends[key] < begin and not may_go_back:
            raise ValueError(f"queue {key} would go back from offset {begin} to {ends[key]}")
    return waiting(begins, ends)


def waiting(begins: Mapping[QueueKey, int], ends: Mapping[QueueKey, int]) -> list[OffsetRange]:
    """Return the ranges between `begins` and `ends`, sorted, for queues in both; not empty ones."""
    return [OffsetRange(*key, begins[key], end) for key, end in sorted(ends.items()) if end > begins.get(key, end)]


def count(ranges: Iterable[OffsetRange]) -> int:
    return sum(each.size for each in ranges)


def share(ranges: Sequence[OffsetRange], messages_max: int) -> list[OffsetRange]:
    """Return the first parts of the ranges, `messages_max` messages in all. No range is empty.

    They are divided in proportion to the sizes of the ranges. Every queue gets at least one
    message. With more queues than messages, the queues take turns from batch to batch. The sum of
    the begins of all queues says whose turn it is, because it grows by the size of each batch.
    """
    total, left = count(ranges), messages_max - len(ranges)
    if total <= messages_max:
        return list(ranges)
    if left < 0:
        turn = sum(each.begin for each in ranges)
        chosen = {(turn + step) % len(ranges) for step in range(messages_max)}
        return [each._replace(end=each.begin + 1) for place, each in enumerate(ranges) if place in chosen]
    # One each, and a share of `left`. Rounded sums, not rounded shares, so that all is given out.
    sums = accumulate((each.size - 1 for each in ranges), initial=0)
    rest = pairwise(each * left // (total - len(ranges)) for each in sums)
    return [each._replace(end=each.begin + 1 + high - low) for each, (low, high) in zip(ranges, rest, strict=True)]


def split(ranges: Sequence[OffsetRange], *, partitions_min: int = 0, messages_max: int = 0) -> list[OffsetRange]:
    """Split ranges into pieces of about equal size.

    No piece is above `messages_max` messages, and there are at least `partitions_min` pieces; 0
    means no limit. There are fewer pieces if there are fewer messages.
    """
    pieces = [1 if not messages_max else -(-each.size // messages_max) for each in ranges]
    # Split the range with the largest pieces once more. A piece has at least one message.
    while sum(pieces) < min(partitions_min, count(ranges)):
        pieces[max(range(len(ranges)), key=lambda place: ranges[place].size / pieces[place])] += 1
    found = []
    for each, parts in zip(ranges, pieces, strict=True):
        ends = [each.begin + each.size * place // parts for place in range(parts + 1)]
        found += [each._replace(begin=begin, end=end) for begin, end in pairwise(ends)]
    return found
