"""Orderly consumption: one batch of a queue at a time, in the order of the queue, by one member of the group.

That nobody else works on the queue is what the broker's lock is for (41): taken before the queue is begun, renewed every
20 s, valid here for 30 s (at the broker 60 s), given back (42) when the queue is let go and its offset is stored. A queue
whose lock was refused or ran out is dropped; the next rebalance takes it up again where the stored offset says. With a
broker that knows no locks order holds only as long as the group does not change; that is said once.

A batch that failed is delivered again after a pause, before anything behind it. After `max_reconsume_times` (by default
never) a message goes to the dead letter queue by way of its broker (36).

Source: `client/.../impl/consumer/ConsumeMessageOrderlyService.java`, `RebalanceImpl.java` (`lock`, `lockAll`),
`RebalancePushImpl.java` (`removeUnnecessaryMessageQueue`).
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
#: a listener that is still at work this long after its queue was let go is not waited for
UNLOCK_DELAY_MS = 20_000
TO_DEAD_LETTERS = -1


class OrderlyConsumption:
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
            # The lease decides: it may be renewed in time by the next round.
            self._consumer.client.log.warning("lock-not-renewed", broker=broker_name, error=str(error))
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
        """The queues that are ours now. Raises ClientError when the broker gives no answer."""
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
            client.log.warning("unlock-failed", queue=str(tuple(queue)), error=str(error))

    # --- deliveries

    def arrived(self, work: QueueWork, messages: Sequence[MessageExt]) -> None:
        self._next(work)

    def _next(self, work: QueueWork) -> None:
        """Deliver the next batch, unless one is out already or the queue waits after a failure."""
        consumer = self._consumer
        if work.is_idle or work.delivering or work.waiting_again:
            return
        if work.locked_until_ms is not None and work.locked_until_ms <= consumer.client.clock.mono_ms:
            consumer.drop(work, "its lock ran out")
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
