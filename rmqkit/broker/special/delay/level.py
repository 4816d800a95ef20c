"""One delay level: how far it is delivered, and its puts in flight."""

from collections import deque


class Delivery:
    """One message in flight."""

    __slots__ = ("is_done", "offset", "queue")

    def __init__(self, offset: int, queue: tuple[str, int] | None) -> None:
        self.offset = offset
        #: topic and queue id that it goes to; None for what is dropped
        self.queue = queue
        self.is_done = False


class Level:
    """One delay level; times are monotonic."""

    __slots__ = (
        "again",
        "awaited",
        "delay_ms",
        "due_ms",
        "failures",
        "in_flight",
        "is_full",
        "next",
        "number",
        "offset",
        "retry_ms",
    )

    def __init__(self, number: int, delay_ms: int, offset: int) -> None:
        self.number = number
        self.delay_ms = delay_ms
        self.offset = self.next = offset
        self.in_flight: deque[Delivery] = deque()
        #: those that failed
        self.again: deque[Delivery] = deque()
        self.failures = 0
        self.retry_ms = 0
        #: when to look at it next; None: when a message arrives
        self.due_ms: int | None = None
        #: one past the last message that this broker appended
        self.awaited = 0
        #: as many in flight as may be
        self.is_full = False

    @property
    def queue_id(self) -> int:
        return self.number - 1

    @property
    def in_flight_count(self) -> int:
        """Messages that are not put, those that failed among them."""
        return sum(not each.is_done for each in self.in_flight)

    def has_one_for(self, queue: tuple[str, int] | None) -> bool:
        """Whether one that is not put yet goes to that queue."""
        return queue is not None and any(each.queue == queue and not each.is_done for each in self.in_flight)
