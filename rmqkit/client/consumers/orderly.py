"""Orderly consumption: one batch of a queue at a time, in queue order, by one member of the group.

The broker's lock makes sure that no other member consumes the queue:

- The member locks a queue (41) before it begins with it, and renews the lock every 20 s.
- The lock is a lease: this member trusts it for 30 s, the broker keeps it for 60 s.
- The member unlocks the queue (42) when it releases the queue and has stored its offset.
- If the lock is refused or expires, the member drops the queue. The next rebalance takes it up
  again at the stored offset.

If a broker does not support locks, order holds only while the group does not change. This is logged
once.

A failed batch is redelivered after a pause, before any message behind it. After
`max_reconsume_times` (no limit by default) a message goes to the dead letters through its broker
(36).

Source: `client/.../impl/consumer/ConsumeMessageOrderlyService.java`, `RebalanceImpl.java` (`lock`,
`lockAll`), `RebalancePushImpl.java` (`removeUnnecessaryMessageQueue`).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rmqkit.client.client import decoded
from rmqkit.client.consumers.push_queue import ListenerBatch, QueueWork
from rmqkit.client.flow import start
from rmqkit.client.message import MessageExt
from rmqkit.errors import BrokerError, ClientError, PeerUnreachable
from rmqkit.wire.bodies import LockBatchAnswer, LockBatchBody
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue

if TYPE_CHECKING:
    from rmqkit.client.consumers.push_consumer import PushConsumerCore

LOCK_TIMEOUT_MS = 1000
#: How long to wait for a running listener before its queue is unlocked.
UNLOCK_DELAY_MS = 20_000
TO_DEAD_LETTERS = -1


class OrderlyConsumption:
    """The orderly `Consumption` of one push consumer.

    Invariant: at most one batch per queue is with the listener (`work.delivering`).
    """

    def __init__(self, consumer: "PushConsumerCore", dispatch: Callable[[ListenerBatch], None]) -> None:
        self._consumer = consumer
        self._dispatch = dispatch
        self._duty = f"locks-{consumer.group}"
        self._locks = not consumer.settings.broadcasting
        self._without_locks: dict[str, None] = {}
        self._interval_ms = consumer.settings.lock_interval_ms
        self._live_ms = consumer.settings.lock_live_ms

    # --- locks

    def start(self) -> None:
        if self._locks:
            client = self._consumer.client
            client.duties.add(self._duty, self._renew, client.clock.mono_ms + self._interval_ms)

    def stop(self) -> None:
        self._consumer.client.duties.remove(self._duty)

    async def enter(self, work: QueueWork) -> bool:
        if not self._locks:
            return True
        locked = await self._lock(work.queue.broker_name, [work.queue])
        if work.queue not in locked:
            return False
        if work.dropped:
            await self._unlock(work.queue)
            return False
        work.locked_until_ms = self._consumer.client.clock.mono_ms + self._live_ms
        return True

    async def leave(self, work: QueueWork) -> None:
        if self._locks and work.locked_until_ms is not None:
            work.locked_until_ms = None
            await self._unlock(work.queue)

    def _renew(self, now_ms: int) -> int:
        by_broker: dict[str, list[QueueWork]] = {}
        for work in self._consumer.works.values():
            if work.locked_until_ms is not None:
                by_broker.setdefault(work.queue.broker_name, []).append(work)
        for broker_name, works in by_broker.items():
            start(self._renew_at(broker_name, works))
        return now_ms + self._interval_ms

    async def _renew_at(self, broker_name: str, works: Sequence[QueueWork]) -> None:
        try:
            locked = await self._lock(broker_name, [work.queue for work in works])
        except ClientError as error:
            # Keep the queues until the lease expires: the next round may renew it in time.
            self._consumer.client.failures.warning("lock-not-renewed", error, broker=broker_name)
            return
        until_ms = self._consumer.client.clock.mono_ms + self._live_ms
        for work in works:
            if work.dropped:
                continue
            if work.queue in locked:
                work.locked_until_ms = until_ms
            else:
                self._consumer.drop(work, "another member has its lock")

    async def _lock(self, broker_name: str, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """Lock queues and return those that this member now holds.

        Raises ClientError if the broker does not respond.
        """
        client = self._consumer.client
        if broker_name in self._without_locks:
            return set(queues)
        master = client.routes.master(broker_name)
        if master is None:
            raise PeerUnreachable(f"{broker_name} has no master that could lock a queue", kind="connect", address="")
        body = LockBatchBody(
            client_id=client.settings.client_id, consumer_group=self._consumer.group, mq_set=list(queues)
        ).encode()
        try:
            reply = await client.ask(master, RequestCode.LOCK_BATCH_MQ, None, body, timeout_ms=LOCK_TIMEOUT_MS)
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            if broker_name not in self._without_locks:
                self._without_locks[broker_name] = None
                note = "order may break while the members of the group change"
                client.log.warning("no-queue-locks", broker=broker_name, note=note)
            return set(queues)
        return set(decoded(reply, LockBatchAnswer.decode).lock_ok_mq_set)

    async def _unlock(self, queue: MessageQueue) -> None:
        client = self._consumer.client
        master = client.routes.master(queue.broker_name)
        if master is None or queue.broker_name in self._without_locks:
            return
        body = LockBatchBody(
            client_id=client.settings.client_id, consumer_group=self._consumer.group, mq_set=[queue]
        ).encode()
        try:
            await client.ask(master, RequestCode.UNLOCK_BATCH_MQ, None, body, timeout_ms=LOCK_TIMEOUT_MS)
        except ClientError as error:
            client.failures.warning("unlock-failed", error, queue=str(tuple(queue)))

    # --- deliveries

    def arrived(self, work: QueueWork, messages: Sequence[MessageExt]) -> None:
        self._next(work)

    def _next(self, work: QueueWork) -> None:
        """Deliver the next batch, unless one is in flight or the queue pauses after a failure."""
        consumer = self._consumer
        if work.is_idle or work.delivering or work.waiting_again:
            return
        if work.locked_until_ms is not None and work.locked_until_ms <= consumer.client.clock.mono_ms:
            consumer.drop(work, "its lock expired")
            return
        messages = work.cached.take(consumer.settings.consume_message_batch_max_size)
        if messages:
            work.delivering = True
            self._dispatch(ListenerBatch(work, messages))

    def finished(self, batch: ListenerBatch, ok: bool) -> None:
        work = batch.work
        work.delivering = False
        if ok and work.results_count and (not work.dropped or work.leaving is not None):
            offset = work.cached.commit()
            if offset >= 0:
                self._consumer.offsets.update(work.queue, offset, increase_only=False)
        if work.leaving is not None:
            leaving, work.leaving = work.leaving, None
            leaving()
        elif work.dropped:
            return
        elif ok:
            self._next(work)
        else:
            start(self._failed(work, batch.messages), self._consumer.background_failed)

    def undelivered(self, batch: ListenerBatch) -> None:
        work = batch.work
        work.delivering = False
        work.cached.put_back()
        if work.leaving is not None:
            leaving, work.leaving = work.leaving, None
            leaving()

    async def _failed(self, work: QueueWork, messages: Sequence[MessageExt]) -> None:
        """Redeliver the messages after a pause, or send them to the dead letters."""
        consumer = self._consumer
        limit = consumer.settings.max_reconsume_times
        given_up = limit >= 0 and all(each.reconsume_times >= limit for each in messages)
        work.waiting_again = True
        if given_up:
            sent = [await consumer.send_back(each, delay_level=TO_DEAD_LETTERS, max_times=limit) for each in messages]
            if all(sent) and not work.dropped:
                consumer.offsets.update(work.queue, work.cached.commit(), increase_only=False)
                work.waiting_again = False
                self._next(work)
                return
        for each in messages:
            each.reconsume_times += 1
        work.cached.put_back()
        await consumer.client.timers.sleep(consumer.settings.suspend_current_queue_time_ms)
        work.waiting_again = False
        self._next(work)
