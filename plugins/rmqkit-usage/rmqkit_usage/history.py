"""What is remembered: for each topic a line of points, `(time, messages ever, bytes)`, oldest first.

A point is added when a round of sampling found more messages than the last point has, so a topic at rest costs nothing and
the last point is also the time of its last growth. A line has at most `points_max` points; when it is full the oldest is
dropped, and growth can be told from the second oldest on.

Messages are the sum of the ends of a topic's queues: exact, whatever retention has removed since. Bytes are what the caller
found out about the new messages; they begin at 0 with the accounting and only their growth means something.

A topic whose queues are shorter than they were was deleted and made again: its line begins anew.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

FILE_VERSION = 1


class Point(NamedTuple):
    at_ms: int
    messages: int
    size: int


class Growth(NamedTuple):
    """What a topic took in between two times: `from_ms` is where the window, or the line, begins."""

    messages: int
    size: int
    from_ms: int


class Line(msgspec.Struct, kw_only=True):
    """One topic. `queue_ends` has the end of each queue by queue id, as of the last round."""

    points: list[Point]
    queue_ends: list[int]
    #: messages that are still there, as of the last round
    kept: int = 0

    @property
    def last(self) -> Point:
        return self.points[-1]

    def growth(self, since_ms: int | None) -> Growth:
        """From `since_ms` on, or as far back as the line goes."""
        base = self.points[0]
        if since_ms is not None:
            base = next((point for point in reversed(self.points) if point.at_ms <= since_ms), base)
        from_ms = base.at_ms if since_ms is None else max(base.at_ms, since_ms)
        return Growth(self.last.messages - base.messages, self.last.size - base.size, from_ms)

    def points_since(self, since_ms: int | None) -> Sequence[Point]:
        """The points of the window, with the one before it that they grow from."""
        if since_ms is None:
            return list(self.points)
        before = sum(point.at_ms <= since_ms for point in self.points)
        return self.points[max(0, before - 1) :]


class _File(msgspec.Struct, kw_only=True):
    version: int
    round_ms: int
    topics: dict[str, Line]


class History:
    def __init__(self, *, points_max: int, topics_max: int) -> None:
        self.points_max = points_max
        self.topics_max = topics_max
        self.lines: dict[str, Line] = {}
        #: when the last whole round ended, 0 before the first
        self.round_ms = 0
        #: topics with messages that there was no room for in the last round
        self.left_out = 0

    def ends_of(self, topic: str) -> Sequence[int] | None:
        """The ends of its queues in the last round; all 0 for a topic that came since, None when nothing is known."""
        line = self.lines.get(topic)
        if line is not None:
            return line.queue_ends
        return () if self.round_ms else None

    def add(self, topic: str, queue_ends: Sequence[int], kept: int, size_added: int, at_ms: int) -> bool:
        """What a round found; False when there is no room for another topic. Empty topics are left out."""
        messages = sum(queue_ends)
        line = self.lines.get(topic)
        if line is not None and is_shorter(queue_ends, line.queue_ends):
            del self.lines[topic]
            line = None
        if line is None:
            if not messages:
                return True
            if len(self.lines) >= self.topics_max:
                return False
            line = self.lines[topic] = Line(points=[], queue_ends=[])
            if self.round_ms:
                # It came after the accounting had begun: all of it is growth.
                line.points.append(Point(min(self.round_ms, at_ms), 0, 0))
            else:
                line.points.append(Point(at_ms, messages, 0))
        line.queue_ends = list(queue_ends)
        line.kept = kept
        last = line.last
        if messages > last.messages:
            # A wall clock that was set back must not turn a line around.
            line.points.append(Point(max(at_ms, last.at_ms), messages, last.size + size_added))
            del line.points[: -self.points_max]
        return True

    def end_round(self, topics: Iterable[str], left_out: int, at_ms: int) -> None:
        """A round is over; topics that are no more are forgotten."""
        there = set(topics)
        self.lines = {topic: line for topic, line in self.lines.items() if topic in there}
        self.left_out = left_out
        self.round_ms = max(at_ms, self.round_ms)

    def encode(self) -> bytes:
        return msgspec.json.encode(_File(version=FILE_VERSION, round_ms=self.round_ms, topics=self.lines))

    def take(self, data: bytes) -> None:
        """Continue from a file. Raises ValueError when it is none; lines are cut to what is allowed now."""
        try:
            file = msgspec.json.decode(data, type=_File)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(str(error)) from None
        if file.version != FILE_VERSION:
            raise ValueError(f"its version is {file.version}, not {FILE_VERSION}")
        lines = list(file.topics.items())[: self.topics_max]
        if not all(line.points for _, line in lines):
            raise ValueError("a topic without a point")
        for _, line in lines:
            del line.points[: -self.points_max]
        self.lines = dict(lines)
        self.round_ms = file.round_ms


def is_shorter(ends: Sequence[int], before: Sequence[int]) -> bool:
    """Whether a queue has fewer messages than it had, which only a new queue can."""
    return any(end < old for end, old in zip(ends, before, strict=False)) or any(before[len(ends) :])
