"""Offsets and ranges of queues: the arithmetic behind every batch, without a cluster, a clock or Spark.

Offsets are what Spark keeps in a checkpoint: plain dicts of topic, broker name, queue id (as text) and the offset that is
read next, sorted at every level, as Spark compares their JSON as text. A key that begins with `@` is no topic (a topic's
name cannot begin so): `@clusters` holds the names of the clusters that the offsets belong to.

A queue enters the offsets with the offset it begins at, in a batch that reads nothing of it, and is read from the next
batch on. So two neighbouring offsets alone say what a batch reads, also when it is planned again after a restart. A queue
never leaves the offsets, and goes back only where loss is allowed (`failOnDataLoss=false`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Offsets = dict[str, dict[str, dict[str, int]]]

CLUSTERS = "@clusters"


class QueueKey(NamedTuple):
    topic: str
    broker: str
    queue: int

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


#: the same as Offsets, flat
Ends = dict[QueueKey, int]


def flat(offsets: Mapping[str, Any]) -> Ends:
    """Offsets by queue, sorted. Raises ValueError for what is not an Offsets dict."""
    ends: Ends = {}
    for topic, brokers in offsets.items():
        if topic.startswith("@"):
            continue
        for broker, queues in brokers.items():
            for queue, offset in queues.items():
                if isinstance(offset, bool) or not isinstance(offset, int):
                    raise ValueError(f"offset {offset!r} of {topic} {broker}:{queue} is no number")
                ends[QueueKey(topic, broker, int(queue))] = offset
    return dict(sorted(ends.items()))


def nested(ends: Mapping[QueueKey, int], clusters: Iterable[str] = ()) -> Offsets:
    """What Spark keeps. The same queues give the same text, whatever the order they come in."""
    offsets: Offsets = {}
    names = sorted(clusters)
    if names:
        offsets[CLUSTERS] = {name: {} for name in names}
    for key in sorted(ends):
        offsets.setdefault(key.topic, {}).setdefault(key.broker, {})[str(key.queue)] = ends[key]
    return offsets


def clusters(offsets: Mapping[str, Any]) -> tuple[str, ...]:
    """The clusters that offsets belong to, none if they do not say."""
    return tuple(offsets.get(CLUSTERS, {}))


def topics(offsets: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(topic for topic in offsets if not topic.startswith("@")))


def between(start: Mapping[str, Any], end: Mapping[str, Any], *, may_go_back: bool = False) -> list[OffsetRange]:
    """What a batch from `start` to `end` reads: of every queue that both have, if it has grown.

    Raises ValueError for a queue that is gone, or that went back and may not (it reads nothing then).
    """
    begins, ends = flat(start), flat(end)
    for key, begin in begins.items():
        if key not in ends:
            raise ValueError(f"queue {key} is in the offsets that a batch begins at, not in those that it ends at")
        if ends[key] < begin and not may_go_back:
            raise ValueError(f"queue {key} would go back from offset {begin} to {ends[key]}")
    return [OffsetRange(*key, begins[key], end) for key, end in ends.items() if end > begins.get(key, end)]


def waiting(begins: Mapping[QueueKey, int], ends: Mapping[QueueKey, int]) -> list[OffsetRange]:
    """What lies between, for the queues of both, in their order; not of queues that end before they begin."""
    return [OffsetRange(*key, begins[key], end) for key, end in sorted(ends.items()) if end > begins.get(key, end)]


def count(ranges: Iterable[OffsetRange]) -> int:
    return sum(each.size for each in ranges)


def share(ranges: Sequence[OffsetRange], messages_max: int) -> list[OffsetRange]:
    """The first parts of ranges, `messages_max` messages in all, shared out in proportion to what waits.

    Every queue gets at least one message; with more queues than messages they take turns, from batch to batch.
    """
    sizes = share_out([each.size for each in ranges], messages_max, turn=sum(each.begin for each in ranges))
    return [each._replace(end=each.begin + size) for each, size in zip(ranges, sizes, strict=True) if size]


def share_out(sizes: Sequence[int], amount: int, *, turn: int = 0) -> list[int]:
    """`amount` over what waits (`sizes`, all above 0): all of it, or in proportion, at least 1 each.

    With more takers than `amount`, those from `turn` on get 1 each. The sum of the begins of all queues is such a `turn`
    that nobody is left out for ever: it grows by what a batch reads.
    """
    total = sum(sizes)
    if total <= amount:
        return list(sizes)
    if amount < len(sizes):
        given = {(turn + step) % len(sizes) for step in range(amount)}
        return [1 if place in given else 0 for place in range(len(sizes))]
    left, wanted = amount - len(sizes), total - len(sizes)
    shares = [divmod((size - 1) * left, wanted) for size in sizes]
    extra = left - sum(whole for whole, _ in shares)
    by_rest = sorted(range(len(sizes)), key=lambda place: (-shares[place][1], place))[:extra]
    lucky = dict.fromkeys(by_rest)
    return [1 + whole + (place in lucky) for place, (whole, _) in enumerate(shares)]


def split(ranges: Sequence[OffsetRange], *, partitions_min: int = 0, messages_max: int = 0) -> list[OffsetRange]:
    """Cut ranges into pieces of about equal size: none above `messages_max`, at least `partitions_min` in all.

    0 sets no such bound. There are fewer pieces than asked for when there are fewer messages.
    """
    pieces = [1 if not messages_max else -(-each.size // messages_max) for each in ranges]
    while sum(pieces) < partitions_min:
        # The coarsest range is cut once more; sizes fall, so this ends.
        place = max(range(len(ranges)), key=lambda place: ranges[place].size / pieces[place], default=None)
        if place is None or ranges[place].size <= pieces[place]:
            break
        pieces[place] += 1
    return [piece for each, number in zip(ranges, pieces, strict=True) for piece in _cut(each, number)]


def _cut(whole: OffsetRange, pieces: int) -> Iterator[OffsetRange]:
    for place in range(pieces):
        begin = whole.begin + whole.size * place // pieces
        yield whole._replace(begin=begin, end=whole.begin + whole.size * (place + 1) // pieces)
