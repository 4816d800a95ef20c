"""The history: for each topic a line of points `(time, messages ever, bytes)`, oldest first.

A round adds a point if it found more messages than the last point has. So an idle topic adds
nothing, and the last point has the time of the last growth. A line has at most `points_max` points.
When it is full, the oldest point is dropped, and growth is known only since the next one.

`messages` is the sum of the ends of a topic's queues: it is exact, whatever retention has removed.
`bytes` is the sum of the sizes that the caller passes for new messages. It starts at 0 with the
history, so only differences mean anything.

If a queue of a topic is shorter than before, the topic was deleted and created again: its line
starts again.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

FILE_VERSION = 1


class Point(NamedTuple):
    """The usage of a topic at a time: Unix time in ms, messages ever, bytes."""

    at_ms: int
    messages: int
    size: int


class Growth(NamedTuple):
    """The growth of a topic over a window. `from_ms` is the begin of the window, or of the line."""

    messages: int
    size: int
    from_ms: int


class Line(msgspec.Struct, kw_only=True):
    """The history of one topic.

    `queue_ends` has the end of each queue by queue id, as of the last round.
    """

    points: list[Point]
    queue_ends: list[int]
    #: messages that the broker still had in the last round
    kept: int = 0

    @property
    def last(self) -> Point:
        return self.points[-1]

    def growth(self, since_ms: int | None) -> Growth:
        """Return the growth since `since_ms`.

        If that is None or before the first point, return the growth since the first point.
        """
        base = self.points[0]
        if since_ms is not None:
            base = next((point for point in reversed(self.points) if point.at_ms <= since_ms), base)
        from_ms = base.at_ms if since_ms is None else max(base.at_ms, since_ms)
        return Growth(self.last.messages - base.messages, self.last.size - base.size, from_ms)

    def points_since(self, since_ms: int | None) -> Sequence[Point]:
        """Return the points of the window, and the one before it that they grow from."""
        if since_ms is None:
            return list(self.points)
        before = sum(point.at_ms <= since_ms for point in self.points)
        return self.points[max(0, before - 1) :]


class _File(msgspec.Struct, kw_only=True):
    version: int
    round_ms: int
    topics: dict[str, Line]


class History:
    """The lines of all topics, within the limits `points_max` and `topics_max`."""

    def __init__(self, *, points_max: int, topics_max: int) -> None:
        self.points_max = points_max
        self.topics_max = topics_max
        self.lines: dict[str, Line] = {}
        #: Unix time in ms at which the last complete round ended, 0 before the first one
        self.round_ms = 0
        #: topics with messages that the last round did not follow, because of `topics_max`
        self.left_out = 0

    def ends_of(self, topic: str) -> Sequence[int] | None:
        """Return the ends of the topic's queues in the last round.

        Empty, which means all 0, for a topic that is new since the last round. None before the
        first round.
        """
        line = self.lines.get(topic)
        if line is not None:
            return line.queue_ends
        return () if self.round_ms else None

    def add(self, topic: str, queue_ends: Sequence[int], kept: int, size_added: int, at_ms: int) -> bool:
        """Record a round's result for a topic. Return False if `topics_max` leaves no room for it.

        Topics without messages are left out.
        """
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
                # The topic is new since the last round: all of its messages are growth.
                line.points.append(Point(min(self.round_ms, at_ms), 0, 0))
            else:
                line.points.append(Point(at_ms, messages, 0))
        line.queue_ends = list(queue_ends)
        line.kept = kept
        last = line.last
        if messages > last.messages:
            # Times of a line must not go back, even if the wall clock was set back.
            line.points.append(Point(max(at_ms, last.at_ms), messages, last.size + size_added))
            del line.points[: -self.points_max]
        return True

    def end_round(self, topics: Iterable[str], left_out: int, at_ms: int) -> None:
        """End a round, and forget the topics that are not in `topics`."""
        existing = set(topics)
        self.lines = {topic: line for topic, line in self.lines.items() if topic in existing}
        self.left_out = left_out
        self.round_ms = max(at_ms, self.round_ms)

    def encode(self) -> bytes:
        """Return the history as the content of a file."""
        return msgspec.json.encode(_File(version=FILE_VERSION, round_ms=self.round_ms, topics=self.lines))

    def take(self, data: bytes) -> None:
        """Continue with the history of a file, cut to the present limits.

        Raises ValueError if `data` is not a history; then nothing changes.
        """
        try:
            file = msgspec.json.decode(data, type=_File)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(str(error)) from None
        if file.version != FILE_VERSION:
            raise ValueError(f"version {file.version}, but only {FILE_VERSION} is supported")
        lines = list(file.topics.items())[: self.topics_max]
        if not all(line.points for _, line in lines):
            raise ValueError("a topic has no points")
        for _, line in lines:
            del line.points[: -self.points_max]
        self.lines = dict(lines)
        self.round_ms = file.round_ms


def is_shorter(ends: Sequence[int], before: Sequence[int]) -> bool:
    """Return whether a queue is shorter than before: then the topic was created again."""
    return any(end < old for end, old in zip(ends, before, strict=False)) or any(before[len(ends) :])
