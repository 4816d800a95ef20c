"""QueueWork: one queue that a push consumer works on, from taking it over to letting it go.

    begin:  (orderly: lock) → (others in the group: wait a moment) → where to begin → loop of pulls
    end:    `dropped`: nothing is pulled, delivered or counted any more; answers and results that still come are ignored

The moment of waiting lets the member that had the queue store its offset, which is read only after it.

`Consumption` is what differs between concurrent and orderly listeners; a `ListenerBatch` is what a listener gets in one
call.

Source: `client/.../impl/consumer/{DefaultMQPushConsumerImpl,ProcessQueue,PullRequest}.java`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from rmqkit.client.consumers.process_queue import ProcessQueue
from rmqkit.client.consumers.subscriptions import ConsumerSettings
from rmqkit.client.message import MessageExt
from rmqkit.wire.fastjson import MessageQueue


@dataclass(kw_only=True)
class PushConsumerSettings(ConsumerSettings):
    """Names and defaults are upstream's (`DefaultMQPushConsumer`) where it has them."""

    orderly: bool = False
    consume_message_batch_max_size: int = 1
    #: deliveries before a message goes to the dead letter queue; -1: 16, and without end when orderly
    max_reconsume_times: int = -1
    #: a listener that is at work on messages for longer no longer counts: they are sent back; not when orderly
    consume_timeout_ms: int = 900_000
    #: until a message that could not be sent back is delivered again
    retry_delay_ms: int = 5000
    #: until an orderly queue whose message failed goes on
    suspend_current_queue_time_ms: int = 1000
    #: between taking a queue over from another member and reading its offset
    first_pull_delay_ms: int = 500
    #: orderly: between two renewals of the locks, and how long this member trusts one (the broker keeps it for longer)
    lock_interval_ms: int = 20_000
    lock_live_ms: int = 30_000


@dataclass(slots=True, eq=False)
class QueueWork:
    queue: MessageQueue
    last_pull_ms: int
    last_consume_ms: int
    cached: ProcessQueue = field(default_factory=ProcessQueue)
    #: None until it is known where the queue is begun
    pull_offset: int | None = None
    dropped: bool = False
    #: nothing new is begun, results still count (a consumer that closes)
    stopped: bool = False
    suggest_broker_id: int = 0
    # --- orderly
    delivering: bool = False
    waiting_again: bool = False
    #: lease of the lock in monotonic ms; None without one
    locked_until_ms: int | None = None
    #: false when the offset was moved by somebody else while the listener was at work
    results_count: bool = True
    #: what to do once the listener is done with a queue that is being let go
    leaving: Callable[[], None] | None = None

    @classmethod
    def begun_at(cls, queue: MessageQueue, now_ms: int) -> Self:
        return cls(queue, last_pull_ms=now_ms, last_consume_ms=now_ms)

    @property
    def is_idle(self) -> bool:
        return self.dropped or self.stopped


@dataclass(slots=True, eq=False)
class ListenerBatch:
    """Messages for one call of the listener, all of one queue. `answer` is for a message that an administrator sent.

    `started_ms` (monotonic) is set when the listener begins, perhaps by another thread; `expired` when it took too long.
    """

    work: QueueWork
    messages: list[MessageExt]
    answer: Callable[[bool, str], None] | None = None
    started_ms: int | None = None
    expired: bool = False

    @property
    def queue(self) -> MessageQueue:
        return self.work.queue


class Consumption(Protocol):
    async def enter(self, work: QueueWork) -> bool:
        """May the queue be begun? Raises ClientError when nobody can tell."""

    def arrived(self, work: QueueWork, messages: Sequence[MessageExt]) -> None:
        """Messages have been pulled."""

    def finished(self, batch: ListenerBatch, ok: bool) -> None:
        """The listener is done with a batch."""

    def undelivered(self, batch: ListenerBatch) -> None:
        """Nobody will see the batch."""

    async def leave(self, work: QueueWork) -> None:
        """The queue has been let go; its offset is stored."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
