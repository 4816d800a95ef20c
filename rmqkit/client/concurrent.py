"""Concurrent consumption: batches of a queue are delivered side by side and end in any order.

A message that failed is sent back to its broker (36), which delivers it again later from the group's retry topic and in
the end moves it to the dead letter queue. When that cannot be done (the broker does not know the request, refuses it or
is gone) the message stays here, is delivered again after a delay with one more failed delivery counted, and holds the
queue's offset back, so it cannot be lost. In broadcasting there are no retries: a failure is logged and counts as done.

Source: `client/.../impl/consumer/ConsumeMessageConcurrentlyService.java` (`processConsumeResult`).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rmqkit.client.flow import start
from rmqkit.client.message import MessageExt
from rmqkit.client.push_queue import Batch, QueueWork

if TYPE_CHECKING:
    from rmqkit.client.push_consumer import PushConsumer

MAX_RECONSUME_TIMES = 16


class ConcurrentConsumption:
    def __init__(self, consumer: "PushConsumer", dispatch: Callable[[Batch], None]) -> None:
        self._consumer = consumer
        self._dispatch = dispatch

    async def enter(self, work: QueueWork) -> bool:
        return True

    async def leave(self, work: QueueWork) -> None:
        pass

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def arrived(self, work: QueueWork, messages: Sequence[MessageExt]) -> None:
        size = self._consumer.settings.consume_message_batch_max_size
        for begin in range(0, len(messages), size):
            self._dispatch(Batch(work, messages[begin : begin + size]))

    def undelivered(self, batch: Batch) -> None:
        pass  # its messages are still cached and hold the offset back

    def finished(self, batch: Batch, ok: bool) -> None:
        work, consumer = batch.work, self._consumer
        if work.dropped:
            return
        if ok:
            self._done(work, batch.messages)
        elif consumer.settings.broadcasting:
            consumer.client.log.warning(
                "message-failed-and-dropped",
                group=consumer.group,
                messages=",".join(each.msg_id for each in batch.messages),
            )
            self._done(work, batch.messages)
        else:
            start(self._failed(work, batch.messages), consumer.background_failed)

    async def _failed(self, work: QueueWork, messages: Sequence[MessageExt]) -> None:
        consumer = self._consumer
        limit = consumer.settings.max_reconsume_times
        waiting = [
            start(consumer.send_back(each, delay_level=0, max_times=MAX_RECONSUME_TIMES if limit < 0 else limit))
            for each in messages
        ]
        sent = [await promise for promise in waiting]
        if work.dropped:
            return
        back = [each for each, is_sent in zip(messages, sent, strict=True) if is_sent]
        kept = [each for each, is_sent in zip(messages, sent, strict=True) if not is_sent]
        if back:
            self._done(work, back)
        if kept:
            await consumer.client.timers.sleep(consumer.settings.retry_delay_ms)
            if work.is_idle:
                return
            for each in kept:
                each.reconsume_times += 1
            self.arrived(work, kept)

    def _done(self, work: QueueWork, messages: Sequence[MessageExt]) -> None:
        offset = work.cached.remove(messages)
        if offset >= 0:
            self._consumer.offsets.update(work.queue, offset)
