"""PoppedMessage: one delivery of one message, from its pop to its end.

    WAITING     for a thread of the listener
    RUNNING     the listener has it
    ACKING      it is consumed: the ack is on its way
    DELAYING    the listener failed: it becomes visible after the next delay of the retry table
    GIVING_UP   it failed too often: it goes to the dead letters, then it is acked
    RELEASING   no listener had it: it becomes visible soon, and does not count as failed
    ENDED       the broker has answered, or the handle has expired

The broker hides the message for the invisible time. After that its handle is worthless, and the
broker gives the message to any member of the group. The deadline is when that happens by this
client's monotonic clock. It counts from the arrival of the response. A response that arrives later
than its poll may last was delayed on its way, so that delay is subtracted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from rmqkit.client.consumers.subscriptions import ConsumerSettings
from rmqkit.client.message import MessageExt
from rmqkit.wire.bodies.pop import ReceiptHandle
from rmqkit.wire.fastjson import MessageQueue

INVISIBLE_MS_MIN, INVISIBLE_MS_MAX = 5_000, 300_000
#: A broker refuses pops of more messages.
BATCH_NUMS_MAX = 32


class PopStep(Enum):
    """Where a popped message is."""

    WAITING = auto()
    RUNNING = auto()
    ACKING = auto()
    DELAYING = auto()
    GIVING_UP = auto()
    RELEASING = auto()
    ENDED = auto()


_NEXT: Mapping[PopStep, frozenset[PopStep]] = {
    PopStep.WAITING: frozenset(
        {PopStep.RUNNING, PopStep.ACKING, PopStep.GIVING_UP, PopStep.RELEASING, PopStep.ENDED},
    ),
    PopStep.RUNNING: frozenset({PopStep.ACKING, PopStep.DELAYING, PopStep.GIVING_UP, PopStep.ENDED}),
    PopStep.GIVING_UP: frozenset({PopStep.ACKING, PopStep.DELAYING}),
    PopStep.ACKING: frozenset({PopStep.ENDED}),
    PopStep.DELAYING: frozenset({PopStep.ENDED}),
    PopStep.RELEASING: frozenset({PopStep.ENDED}),
    PopStep.ENDED: frozenset(),
}


@dataclass(kw_only=True)
class PopConsumerSettings(ConsumerSettings):
    """Settings of a consumer in pop mode. Names and defaults are those of Apache's
    `DefaultMQPushConsumer`.
    """

    consume_message_batch_max_size: int = 1
    #: Failed deliveries before a message goes to the dead letters. -1: 16.
    max_reconsume_times: int = -1
    #: How long the broker hides a popped message.
    pop_invisible_time_ms: int = 60_000
    #: Messages per pop.
    pop_batch_nums: int = 32
    #: Messages of one queue that are not yet acked before its pops pause.
    pop_threshold_for_queue: int = 96


@dataclass(slots=True, eq=False)
class PopWork:
    """One queue that a consumer pops. Queue -1 stands for all queues of a broker."""

    queue: MessageQueue
    last_pop_ms: int
    #: Messages that may be held before pops pause.
    room: int
    #: Messages that were popped and have not ended.
    held: int = 0
    #: Messages that a listener ended in time since `room` last changed.
    ended_count: int = 0
    #: When messages last expired without a listener, in monotonic ms.
    narrowed_ms: int | None = None
    dropped: bool = False
    #: The consumer is closing: no new pops or deliveries, but outcomes still count.
    stopped: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether the queue has no more pops and deliveries."""
        return self.dropped or self.stopped

    def narrow(self, now_ms: int, pause_ms: int) -> None:
        """Halve the room, at most once in `pause_ms`: messages expired before a listener began."""
        if self.narrowed_ms is None or now_ms - self.narrowed_ms >= pause_ms:
            self.room, self.ended_count, self.narrowed_ms = max(1, self.room // 2), 0, now_ms

    def widen(self, room_max: int) -> None:
        """Count a message that a listener ended in time. A full room of them adds one."""
        self.ended_count += 1
        if self.ended_count >= self.room:
            self.room, self.ended_count = min(room_max, self.room + 1), 0


@dataclass(slots=True, eq=False)
class PoppedMessage:
    """One delivery of one message. Its work counts it until it has ended."""

    message: MessageExt
    handle: ReceiptHandle
    #: The handle as the broker wants it back.
    receipt: str
    #: When the handle expires, in monotonic ms.
    deadline_ms: int
    work: PopWork
    step: PopStep = PopStep.WAITING

    def __post_init__(self) -> None:
        self.work.held += 1

    def go(self, step: PopStep) -> None:
        """Take the next step, which must be one that the table allows."""
        assert step in _NEXT[self.step], f"{self.step.name} → {step.name}"
        self.step = step
        if step is PopStep.ENDED:
            self.work.held -= 1


@dataclass(slots=True, eq=False)
class PopBatch:
    """The messages of one listener call, all of one pop. A `ListenerCall`.

    `answer` is set for a message that an administrator sent. It was not popped: `popped` is empty.
    """

    work: PopWork
    popped: Sequence[PoppedMessage]
    messages: list[MessageExt] = field(default_factory=list)
    answer: Callable[[bool, str], None] | None = None
    started_ms: int | None = None

    def __post_init__(self) -> None:
        self.messages = self.messages or [each.message for each in self.popped]

    @property
    def queue(self) -> MessageQueue:
        return self.work.queue

    def may_begin(self, now_ms: int) -> bool:
        """Return whether a listener may still get it: no handle has expired."""
        if self.answer is not None:
            return True
        return not self.work.is_idle and all(now_ms < each.deadline_ms for each in self.popped)
