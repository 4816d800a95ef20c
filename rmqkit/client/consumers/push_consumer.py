"""PushConsumer: joins a group, pulls its share of the queues, and passes messages to a listener.

The listener runs outside: `dispatch` hands a `ListenerBatch` to a pool of threads, and `finished`
reports its outcome. Everything in between is here:

- which queues to consume (`rebalance.py`) and where to start in them
- pulls and flow control
- the effects of an outcome (`concurrent.py`, `orderly.py`)
- storing offsets: every 5 s, when a queue is released, and at the end

    pull response    then
    FOUND            pass the messages to the listener; pull again at once
    NO_NEW           pull again at once (the broker has waited)
    NO_MATCHED       the same; if no message is held, the offset advances
    OFFSET_ILLEGAL   continue at the broker's offset; release held messages first, ignore outcomes
    an error         pull again in 3 s (20 ms if the broker is busy)

Limits per queue: 1000 messages, 100 MiB, and, if concurrent, a distance of 2000 between the first
and last held offset.

Source: `client/.../impl/consumer/DefaultMQPushConsumerImpl.java` (`pullMessage`),
`RebalanceImpl.java` (`updateProcessQueueTableInRebalance`).
"""

from collections.abc import Callable, Mapping, Sequence

from rmqkit.client.access_denials import RETRY_AFTER_DENIED_MS
from rmqkit.client.client import Client
from rmqkit.client.consumers.concurrent import ConcurrentConsumption
from rmqkit.client.consumers.membership import GroupMembership
from rmqkit.client.consumers.offset_store import OffsetStore
from rmqkit.client.consumers.orderly import UNLOCK_DELAY_MS, OrderlyConsumption
from rmqkit.client.consumers.pull import PullResult, PullStatus, pull
from rmqkit.client.consumers.push_queue import Consumption, ListenerBatch, PushConsumerSettings, QueueWork
from rmqkit.client.consumers.rebalance import Rebalance
from rmqkit.client.consumers.redelivery import Redelivery
from rmqkit.client.consumers.subscriptions import (
    FLOW_CONTROL_MS,
    MIB,
    first_offset,
    heartbeat_of,
)
from rmqkit.client.consumers.topic_rounds import INCOMPLETE_MS
from rmqkit.client.flow import Deferred, gather, start
from rmqkit.client.message import MessageExt
from rmqkit.client.routes import MASTER_ID
from rmqkit.errors import AccessDenied, ClientError, RmqkitError
from rmqkit.wire import properties as props
from rmqkit.wire.bodies import ConsumerData, ConsumerRunningInfo, ProcessQueueInfo
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.topic_names import RETRY_PREFIX


class PushConsumerCore:
    """The sans-IO push consumer of one group."""

    def __init__(
        self,
        client: Client,
        settings: PushConsumerSettings,
        offsets: OffsetStore,
        dispatch: Callable[[ListenerBatch], None],
    ) -> None:
        """For each batch that `dispatch` gets, call `finished` or `undelivered` exactly once."""
        self.client = client
        self.settings = settings
        self.group = settings.group
        self.offsets = offsets
        self.retry_topic = RETRY_PREFIX + settings.group
        self._membership = GroupMembership(client, self, self.members_changed)
        self.subscriptions = self._membership.subscriptions
        self.subscribe, self.check = self._membership.subscribe, self._membership.check
        self.works: dict[MessageQueue, QueueWork] = {}
        self.closed = False
        self.started = False
        kind = OrderlyConsumption if settings.orderly else ConcurrentConsumption
        self._consumption: Consumption = kind(self, dispatch)
        self._dispatch = dispatch
        self._rebalance = Rebalance(client, settings, self.subscriptions, self._apply).rounds
        self._duty = f"offsets-{settings.group}"
        #: Queues that are being released. They can start again only after their offset is stored.
        self._releasing: dict[MessageQueue, Deferred[None]] = {}
        self._redelivery = Redelivery(client, settings.group)
        self._flow_controls = 0
        #: No pulls. Messages that are held are still delivered.
        self.suspended = False

    # --- member of the client

    def heartbeat_data(self) -> ConsumerData | None:
        return heartbeat_of(self.settings, "CONSUME_PASSIVELY", self.subscriptions)

    def members_changed(self) -> None:
        if self.started and not self.closed:
            self._rebalance.soon()

    # --- life

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic and release its queues."""
        if self._membership.unsubscribe(topic):
            for work in [work for work in self.works.values() if work.queue.topic == topic]:
                self._release(work)

    async def start(self) -> None:
        """Join the group. Raises the errors of `GroupMembership.join`."""
        await self._membership.join(None if self.settings.broadcasting else self.retry_topic)
        if self.closed:
            return
        self.started = True
        self._consumption.start()
        self.client.duties.add(self._duty, self._persist, self.client.clock.mono_ms + self.settings.persist_interval_ms)
        self._rebalance.start()

    def quiesce(self) -> None:
        """Stop pulling and delivering. Outcomes of running listeners still count."""
        self._rebalance.stop()
        for work in self.works.values():
            work.stopped = True

    async def close(self) -> None:
        """Store the offsets, release the locks and leave the group."""
        if self.closed:
            return
        self.closed = True
        if self.started:
            self.quiesce()
            self._consumption.stop()
            self.client.duties.remove(self._duty)
            works = list(self.works.values())
            await gather(list(self._releasing.values()))
            self._report(await self.offsets.persist(list(self.works)))
            await gather([start(self._consumption.leave(work)) for work in works])
            for work in works:
                work.dropped = True
        await self._redelivery.close()
        await self._membership.leave()

    def _persist(self, now_ms: int) -> int:
        async def persist() -> None:
            self._report(await self.offsets.persist(list(self.works)))

        start(persist())
        return now_ms + self.settings.persist_interval_ms

    def _report(self, errors: Sequence[ClientError]) -> None:
        if errors:
            self.client.failures.warning("offsets-not-stored", errors[0], group=self.group, count=len(errors))

    # --- which queues

    def _apply(self, topic: str, queues: Sequence[MessageQueue], alone: bool) -> bool:
        if self.closed:
            return True
        wanted = set(queues)
        for work in [each for each in self.works.values() if each.queue.topic == topic]:
            if work.queue not in wanted:
                self._release(work)
        for queue in queues:
            if queue not in self.works and queue not in self._releasing:
                work = self.works[queue] = QueueWork.begun_at(queue, self.client.clock.mono_ms)
                start(self._begin(work, alone))
        return wanted <= self.works.keys()

    async def _begin(self, work: QueueWork, alone: bool) -> None:
        try:
            if not await self._consumption.enter(work):
                self._give_up(work)
                return
            if not alone:
                await self.client.timers.sleep(self.settings.first_pull_delay_ms)
            if work.is_idle:
                return
            work.pull_offset = await first_offset(self.client, self.offsets, self.settings, work.queue)
        except ClientError as error:
            if not work.is_idle:
                self.client.failures.warning("queue-not-begun", error, group=self.group, queue=str(tuple(work.queue)))
                # Its broker may no longer be the master.
                self.client.routes.refresh_soon(work.queue.topic)
                self._give_up(work, RETRY_AFTER_DENIED_MS if isinstance(error, AccessDenied) else INCOMPLETE_MS)
            return
        await self._pull_loop(work)

    def _give_up(self, work: QueueWork, pause_ms: int = INCOMPLETE_MS) -> None:
        """Drop a queue that could not start. A rebalance after `pause_ms` tries it again."""
        if self.works.get(work.queue) is work:
            del self.works[work.queue]
        work.dropped = True
        # One round for all refused queues. With a timer for each queue, every timer would begin a
        # round that asks for all of them.
        self._rebalance.later(pause_ms)

    def drop(self, work: QueueWork, why: str) -> None:
        """Release a queue because of an error. A rebalance takes it up again."""
        self.client.log.warning("queue-dropped", group=self.group, queue=str(tuple(work.queue)), why=why)
        self._release(work)
        self.members_changed()

    def _release(self, work: QueueWork) -> None:
        if self.works.get(work.queue) is work:
            del self.works[work.queue]
        work.dropped = True
        ended = self._releasing[work.queue] = start(self._leave(work))
        ended.when_done(lambda: self._released(work.queue))

    def _released(self, queue: MessageQueue) -> None:
        self._releasing.pop(queue, None)
        self.members_changed()

    async def _leave(self, work: QueueWork) -> None:
        if work.delivering:
            # The lock is still ours, so the outcome of the running listener may count.
            listener_done: Deferred[None] = Deferred()

            def done() -> None:
                work.leaving = None
                if not listener_done.done:
                    listener_done.resolve(None)

            work.leaving = done
            timer = self.client.timers.after(UNLOCK_DELAY_MS, done)
            await listener_done
            timer.cancel()
        self._report(await self.offsets.persist([work.queue]))
        self.offsets.forget(work.queue)
        await self._consumption.leave(work)

    # --- pulls

    async def _pull_loop(self, work: QueueWork) -> None:
        last_error = ""
        while not work.is_idle:
            if self.suspended or self._holds_enough(work):
                await self.client.timers.sleep(FLOW_CONTROL_MS)
                continue
            data = self.subscriptions.get(work.queue.topic)
            if data is None:
                return
            work.last_pull_ms = self.client.clock.mono_ms
            assert work.pull_offset is not None
            try:
                pulled = await pull(
                    self.client,
                    self.group,
                    work.queue,
                    work.pull_offset,
                    data,
                    batch_size=self.settings.pull_batch_size,
                    suspend_ms=self.settings.suspend_ms,
                    timeout_ms=self.settings.pull_timeout_ms,
                    commit_offset=None if self.settings.broadcasting else self.offsets.get(work.queue),
                    broker_id=work.suggest_broker_id,
                )
            except ClientError as error:
                work.suggest_broker_id = MASTER_ID
                if str(error) != last_error and not work.is_idle:
                    last_error = str(error)
                    self.client.failures.warning("pull-failed", error, group=self.group, queue=str(tuple(work.queue)))
                await self.client.timers.sleep(self.settings.pause_ms(error))
                continue
            last_error = ""
            if not work.is_idle:
                self._take(work, pulled)

    def _holds_enough(self, work: QueueWork) -> bool:
        cached, settings = work.cached, self.settings
        enough = (
            cached.count > settings.pull_threshold_for_queue
            or cached.size > settings.pull_threshold_size_for_queue
            or (not settings.orderly and cached.span > settings.consume_concurrently_max_span)
        )
        if enough:
            if self._flow_controls % 1000 == 0:
                self.client.log.warning(
                    "flow-control",
                    group=self.group,
                    queue=str(tuple(work.queue)),
                    messages=cached.count,
                    bytes=cached.size,
                    span=cached.span,
                )
            self._flow_controls += 1
        return enough

    def _take(self, work: QueueWork, pulled: PullResult) -> None:
        work.suggest_broker_id = pulled.suggest_broker_id
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            self._correct(work, pulled.next_offset)
            return
        work.pull_offset = pulled.next_offset
        if pulled.messages:
            for message in pulled.messages:
                self._show_first_topic(message)
            work.cached.put(pulled.messages)
            self._consumption.arrived(work, pulled.messages)
        elif not work.cached.count:
            self.offsets.update(work.queue, pulled.next_offset)

    def _correct(self, work: QueueWork, offset: int) -> None:
        self.client.log.warning(
            "offset-corrected", group=self.group, queue=str(tuple(work.queue)), offset=work.pull_offset, corrected=offset
        )
        self.offsets.update(work.queue, offset, increase_only=False)
        if work.cached.count:
            # Outcomes of batches in flight would move the offset again. End this work; a
            # new one starts.
            work.results_count = False
            self._release(work)
        else:
            work.pull_offset = offset

    def _show_first_topic(self, message: MessageExt) -> None:
        if message.topic == self.retry_topic:
            message.topic = message.properties.get(props.PROPERTY_RETRY_TOPIC, message.topic)

    # --- outcomes

    def finished(self, batch: ListenerBatch, ok: bool, error: str = "") -> None:
        """Process the outcome of a batch. `error` is the text of the listener's exception."""
        if batch.answer is not None:
            batch.answer(ok, error)
            return
        batch.work.last_consume_ms = self.client.clock.mono_ms
        self._consumption.finished(batch, ok)

    def began(self, batch: ListenerBatch) -> None:
        """Record that a listener begins with a batch. Any thread may call this."""
        batch.started_ms = self.client.clock.mono_ms

    def undelivered(self, batch: ListenerBatch) -> None:
        """Process a batch that no listener will see: its queue was released, or the consumer
        closes.
        """
        if batch.answer is not None:
            batch.answer(False, "the consumer is closing")
        else:
            self._consumption.undelivered(batch)

    def deliver_directly(self, message: MessageExt, answer: Callable[[bool, str], None]) -> None:
        """Deliver a message that an administrator wants consumed now.

        It belongs to no queue that this consumer works on, so its outcome moves no offset.
        """
        self._show_first_topic(message)
        self._dispatch(ListenerBatch(QueueWork.begun_at(message.queue, self.client.clock.mono_ms), [message], answer))

    async def send_back(self, message: MessageExt, *, delay_level: int, max_times: int) -> bool:
        """Have a message redelivered later. Returns False if no broker took it."""
        return await self._redelivery.send_back(message, delay_level=delay_level, times_max=max_times)

    def background_failed(self, error: RmqkitError) -> None:
        self.client.log.error("consumption-failed", group=self.group, error=str(error))

    # --- requests from brokers

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets (220)."""
        for queue, offset in offsets.items():
            work = self.works.get(queue)
            if work is not None:
                work.results_count = False
                self.offsets.update(queue, offset, increase_only=False)
                self._release(work)

    def consumed_offsets(self) -> dict[MessageQueue, int]:
        """Return the consumed offset of each queue (221)."""
        return {queue: offset for queue in sorted(self.works) if (offset := self.offsets.get(queue)) is not None}

    def running_info(self) -> ConsumerRunningInfo:
        """Return the state of this consumer (307)."""
        info = ConsumerRunningInfo(subscription_set=list(self.subscriptions.values()))
        info.properties = {
            "PROP_CONSUMEORDERLY": "true" if self.settings.orderly else "false",
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "allocateMessageQueueStrategy": self.settings.allocator.name,
            "PROP_NAMESERVER_ADDR": ";".join(map(str, self.client.name_servers.addresses)),
        }
        to_wall_ms = self.client.clock.wall_ms - self.client.clock.mono_ms
        for queue, work in sorted(self.works.items()):
            cached = work.cached
            first = cached.offset_done() if cached.count else 0
            info.mq_table[queue] = ProcessQueueInfo(
                commit_offset=self.offsets.get(queue) or 0,
                cached_msg_count=cached.count,
                cached_msg_min_offset=first,
                cached_msg_max_offset=cached.offset_last if cached.count else 0,
                cached_msg_size_in_mib=cached.size // MIB,
                locked=work.locked_until_ms is not None,
                last_pull_timestamp=work.last_pull_ms + to_wall_ms,
                last_consume_timestamp=work.last_consume_ms + to_wall_ms,
            )
        return info
