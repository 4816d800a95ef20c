"""Concurrent consumption: batches of a queue are delivered in parallel and end in any order.

A failed message is sent back (`redelivery.py`): it is redelivered from the group's retry topic, and
in the end goes to the dead letters. If no broker takes it, the message stays here and is
redelivered after a delay, counting one more failure. It holds the queue's offset back, so it cannot
be lost. Broadcasting has no retries: a failure is logged, and the message counts as consumed.

A listener that takes longer than `consume_timeout_ms` must not hold the queue's offset back
forever. Its messages are sent back as if it had failed, and its later outcome is ignored.

Source: `client/.../impl/consumer/ConsumeMessageConcurrentlyService.java` (`processConsumeResult`,
`cleanExpireMsg`), `ProcessQueue.java` (`cleanExpiredMsg`).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rmqkit.client.consumers.push_queue import ListenerBatch, QueueWork
from rmqkit.client.consumers.subscriptions import MAX_RECONSUME_TIMES
from rmqkit.client.flow import start
from rmqkit.client.message import MessageExt

if TYPE_CHECKING:
    from rmqkit.client.consumers.push_consumer import PushConsumerCore

#: Delay level of messages whose listener took too long.
EXPIRED_LEVEL = 3


class ConcurrentConsumption:
    """The concurrent `Consumption` of one push consumer."""

    def __init__(self, consumer: "PushConsumerCore", dispatch: Callable[[ListenerBatch], None]) -> None:
        self._consumer = consumer
        self._dispatch = dispatch
        self._duty = f"consume-timeout-{consumer.group}"
        #: Batches that were dispatched and have not ended. A dict as an ordered set.
        self._out: dict[ListenerBatch, None] = {}

    async def enter(self, work: QueueWork) -> bool:
        return True

    async def leave(self, work: QueueWork) -> None:
        pass

    def start(self) -> None:
        self._consumer.client.duties.add(self._duty, self._expire, None)

    def stop(self) -> None:
        self._consumer.client.duties.remove(self._duty)

    def arrived(self, work: QueueWork, messages: Sequence[MessageExt]) -> None:
        consumer = self._consumer
        size = consumer.settings.consume_message_batch_max_size
        for begin in range(0, len(messages), size):
            batch = ListenerBatch(work, list(messages[begin : begin + size]))
            self._out[batch] = None
            self._dispatch(batch)
        if not consumer.settings.broadcasting:
            consumer.client.duties.wake(self._duty, consumer.client.clock.mono_ms + consumer.settings.consume_timeout_ms)

    def undelivered(self, batch: ListenerBatch) -> None:
        # Its messages stay cached and hold the offset back.
        self._out.pop(batch, None)

    def finished(self, batch: ListenerBatch, ok: bool) -> None:
        work, consumer = batch.work, self._consumer
        self._out.pop(batch, None)
        if work.dropped:
            return
        if ok:
            self._done(work, batch.messages)
        elif batch.expired:
            pass  # its messages have been sent back, or will be
        elif consumer.settings.broadcasting:
            consumer.client.log.warning(
                "message-failed-and-dropped",
                group=consumer.group,
                messages=",".join(each.msg_id for each in batch.messages),
            )
            self._done(work, batch.messages)
        else:
            start(self._failed(work, batch.messages), consumer.background_failed)

    def _expire(self, now_ms: int) -> int | None:
        """Send back batches whose listener takes too long. Returns when the next one is due."""
        timeout_ms = self._consumer.settings.consume_timeout_ms
        due_ms: int | None = None
        for batch in list(self._out):
            # A batch that still waits for a thread begins now at the earliest.
            end_ms = now_ms + timeout_ms if batch.started_ms is None else batch.started_ms + timeout_ms
            if batch.expired:
                continue
            if end_ms <= now_ms:
                batch.expired = True
                start(self._expired(batch), self._consumer.background_failed)
            elif due_ms is None or end_ms < due_ms:
                due_ms = end_ms
        return due_ms

    async def _expired(self, batch: ListenerBatch) -> None:
        """Send back a batch whose listener takes too long."""
        work, consumer = batch.work, self._consumer
        if work.is_idle:
            return
        ids = ",".join(each.msg_id for each in batch.messages)
        consumer.client.log.warning("listener-takes-too-long", group=consumer.group, messages=ids)
        refused = await self._send_back(work, batch.messages, EXPIRED_LEVEL)
        if not refused or work.dropped:
            return
        if batch in self._out:
            # The listener is still running. Its outcome counts again, for these messages.
            batch.messages = refused
            batch.started_ms, batch.expired = consumer.client.clock.mono_ms, False
            consumer.client.duties.wake(self._duty, batch.started_ms + consumer.settings.consume_timeout_ms)
        else:
            await self._redeliver_locally(work, [each for each in refused if each in work.cached])

    async def _failed(self, work: QueueWork, messages: Sequence[MessageExt]) -> None:
        refused = await self._send_back(work, messages, 0)
        if refused and not work.dropped:
            await self._redeliver_locally(work, refused)

    async def _send_back(self, work: QueueWork, messages: Sequence[MessageExt], delay_level: int) -> list[MessageExt]:
        """Send messages back. Returns those that no broker took; the rest count as consumed."""
        consumer = self._consumer
        limit = consumer.settings.max_reconsume_times
        times_max = MAX_RECONSUME_TIMES if limit < 0 else limit
        waiting = [start(consumer.send_back(each, delay_level=delay_level, max_times=times_max)) for each in messages]
        sent = [await promise for promise in waiting]
        back = [each for each, is_sent in zip(messages, sent, strict=True) if is_sent]
        if back and not work.dropped:
            self._done(work, back)
        return [each for each, is_sent in zip(messages, sent, strict=True) if not is_sent]

    async def _redeliver_locally(self, work: QueueWork, messages: Sequence[MessageExt]) -> None:
        """Redeliver messages after a delay, because no broker took them back."""
        consumer = self._consumer
        await consumer.client.timers.sleep(consumer.settings.retry_delay_ms)
        if work.is_idle or not messages:
            return
        for each in messages:
            each.reconsume_times += 1
        self.arrived(work, messages)

    def _done(self, work: QueueWork, messages: Sequence[MessageExt]) -> None:
        offset = work.cached.remove(messages)
        if offset >= 0:
            self._consumer.offsets.update(work.queue, offset)
