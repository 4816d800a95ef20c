"""Level: one delay level, how far it is delivered, and its puts in flight."""

from collections import deque


class Delivery:
    """One message that is being put."""

    __slots__ = ("is_done", "offset", "queue")

    def __init__(self, offset: int, queue: tuple[str, int] | None) -> None:
        self.offset = offset
        #: topic and queue id of its destination; None if the message is dropped
        self.queue = queue
        self.is_done = False


class Level:
    """One delay level. All times are monotonic.

    `offset` is the first offset of its queue not known to be delivered; `next` is the next to put.
    `in_flight` holds the deliveries from `offset` to `next` in order.
    """

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
        #: failed puts that wait for their retry; they are also in `in_flight`
        self.again: deque[Delivery] = deque()
        self.failures = 0
        self.retry_ms = 0
        #: when to serve the level next; None: when a message arrives
        self.due_ms: int | None = None
        #: one past the last message that this broker appended
        self.awaited = 0
        #: no further put is allowed until one in flight has ended
        self.is_full = False

    @property
    def queue_id(self) -> int:
        return self.number - 1

    @property
    def in_flight_count(self) -> int:
        """The number of messages in flight that are not stored, including failed ones."""
        return sum(not each.is_done for each in self.in_flight)

    def has_one_for(self, queue: tuple[str, int] | None) -> bool:
        """Whether a message in flight that is not stored goes to this queue."""
        return queue is not None and any(each.queue == queue and not each.is_done for each in self.in_flight)
