"""QueueWork: one queue that a push consumer works on, from its start to its release.

    begin:  (orderly: lock) → (other members in the group: wait 500 ms) → start offset → pull loop
    end:    `dropped`: no more pulls, deliveries or counted outcomes; late responses are ignored

The wait lets the previous member of the queue store its offset before this member reads it.

`Consumption` is the part that differs between concurrent and orderly listeners. A `ListenerBatch`
is the input of one listener call, a `ListenerCall`.

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
    """Settings of a push consumer. Names and defaults are those of Apache's
    `DefaultMQPushConsumer`.
    """

    orderly: bool = False
    consume_message_batch_max_size: int = 1
    #: Redeliveries before a message goes to the dead letters. -1: 16, or no limit if orderly.
    max_reconsume_times: int = -1
    #: Messages whose listener takes longer are sent back. Not used if orderly.
    consume_timeout_ms: int = 900_000
    #: Delay before a message that could not be sent back is redelivered.
    retry_delay_ms: int = 5000
    #: Pause of an orderly queue after a failed message.
    suspend_current_queue_time_ms: int = 1000
    #: Wait between taking over a queue from another member and reading its offset.
    first_pull_delay_ms: int = 500
    #: Orderly: interval between lock renewals, and how long this member trusts a lock. The broker
    #: keeps it for 60 s.
    lock_interval_ms: int = 20_000
    lock_live_ms: int = 30_000


@dataclass(slots=True, eq=False)
class QueueWork:
    """One queue that a push consumer works on."""

    queue: MessageQueue
    last_pull_ms: int
    last_consume_ms: int
    cached: ProcessQueue = field(default_factory=ProcessQueue)
    #: None until the start offset is known.
    pull_offset: int | None = None
    dropped: bool = False
    #: The consumer is closing: no new pulls or deliveries, but outcomes still count.
    stopped: bool = False
    suggest_broker_id: int = 0
    # --- orderly
    delivering: bool = False
    waiting_again: bool = False
    #: When the lease of the lock expires, in monotonic ms. None without a lock.
    locked_until_ms: int | None = None
    #: False if the offset was moved (reset or corrected) while the listener was running.
    results_count: bool = True
    #: Called when the listener of a queue that is being released has ended.
    leaving: Callable[[], None] | None = None

    @classmethod
    def begun_at(cls, queue: MessageQueue, now_ms: int) -> Self:
        """Return the work of a queue that starts now."""
        return cls(queue, last_pull_ms=now_ms, last_consume_ms=now_ms)

    @property
    def is_idle(self) -> bool:
        """Whether the queue has no more pulls and deliveries."""
        return self.dropped or self.stopped


@dataclass(slots=True, eq=False)
class ListenerBatch:
    """The messages of one listener call, all of one queue.

    `answer` is set for a message that an administrator sent. `started_ms` (monotonic) is set when
    the listener begins, by any thread. `expired` is set when the listener takes too long.
    """

    work: QueueWork
    messages: list[MessageExt]
    answer: Callable[[bool, str], None] | None = None
    started_ms: int | None = None
    expired: bool = False

    @property
    def queue(self) -> MessageQueue:
        return self.work.queue

    def may_begin(self, now_ms: int) -> bool:
        """Return whether a listener may still get it: its queue was not released."""
        return self.answer is not None or not self.work.is_idle


class Consumption(Protocol):
    """What differs between concurrent and orderly consumption."""

    async def enter(self, work: QueueWork) -> bool:
        """Return whether the queue may start. Raises ClientError if no broker can tell."""

    def arrived(self, work: QueueWork, messages: Sequence[MessageExt]) -> None:
        """Process pulled messages."""

    def finished(self, batch: ListenerBatch, ok: bool) -> None:
        """Process the outcome of a batch."""

    def undelivered(self, batch: ListenerBatch) -> None:
        """Process a batch that no listener will see."""

    async def leave(self, work: QueueWork) -> None:
        """Release the queue. Its offset has been stored."""

    def start(self) -> None:
        """Start the duties."""

    def stop(self) -> None:
        """Stop the duties."""
