"""PopConsumerCore: joins a group, pops messages, and passes them to a listener.

The listener runs outside: `dispatch` hands a `PopBatch` to a pool of threads, and `finished`
reports its outcome.

    outcome of the listener               then
    consumed                              ack
    failed                                visible after 10 s, 30 s, 1 min, … 2 h (`DELAYS_MS`)
    failed `max_reconsume_times` times    to the dead letters, then ack
    later than the handle is valid        ack if consumed; else nothing, the message comes again
    none, the consumer closes             visible after 1 s, for other members

A message that comes with more failed deliveries than `max_reconsume_times` goes to the dead letters
without a listener. So a message that crashes its workers ends there too.

Popping a topic also returns messages that were popped before and failed. The consumer also pops the
retry topic of pulls: members in pull mode send failed messages there, and so does a requeue of dead
letters.

Each queue has one pop in flight, which the broker holds for up to 15 s. A message that waits for a
thread longer than its invisible time is not delivered: another member may have it by then. The
broker counts that as a failed delivery. So if a consumer popped more messages than it can begin in
time, messages could go to the dead letters that no listener ever received. Therefore pops of a
queue pause while more than `PopWork.room` messages of it are not acked: `pop_threshold_for_queue`
at first, half of it each time that messages expire in the wait, and one more for each room of
messages that a listener ended in time.

Deviations: Java's clients ack a message that failed too often, so it is lost. Their threshold is
fixed.

Source: `client/.../impl/consumer/DefaultMQPushConsumerImpl.java` (`popMessage`,
`processPopResult`), `ConsumeMessagePopConcurrentlyService.java`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rmqkit.client.consumers.membership import GroupMembership
from rmqkit.client.consumers.pop.assignment import queues_to_pop
from rmqkit.client.consumers.pop.messages import PopBatch, PopConsumerSettings, PoppedMessage, PopStep, PopWork
from rmqkit.client.consumers.pop.receipts import PopReceipts
from rmqkit.client.consumers.pop.request import PopResult, PopStatus, pop
from rmqkit.client.consumers.redelivery import Redelivery
from rmqkit.client.consumers.subscriptions import (
    FLOW_CONTROL_MS,
    MAX_RECONSUME_TIMES,
    heartbeat_of,
)
from rmqkit.client.consumers.topic_rounds import TopicRounds
from rmqkit.client.flow import Deferred, gather, start
from rmqkit.client.message import MessageExt
from rmqkit.errors import ClientError, RmqkitError
from rmqkit.wire.bodies import ConsumerData, ConsumerRunningInfo, PopProcessQueueInfo
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.topic_names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmqkit.client.client import Client

CONSUME_TYPE = "CONSUME_POP"
_DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
#: How long a message stays invisible after its n-th failure (`DefaultMQPushConsumerImpl`,
#: `popDelayLevel`).
DELAYS_MS = tuple(delay_s * 1000 for delay_s in _DELAYS_S)
#: Until a message that no listener had is visible again.
RELEASE_MS = 1000
#: Pause after a pop that was answered at once without messages, so that a broker that cannot hold
#: pops is not asked in a tight loop.
EMPTY_PAUSE_MS = 100
#: How long `close` waits for acks and releases. Copies to the dead letters take 3 s at most.
CLOSE_WAIT_MS = 2000


class PopConsumerCore:
    """The sans-IO consumer in pop mode of one group."""

    def __init__(self, client: "Client", settings: PopConsumerSettings, dispatch: Callable[[PopBatch], None]) -> None:
        """For each batch that `dispatch` gets, call `began` and `finished`, or `undelivered`."""
        self.client = client
        self.settings = settings
        self.group = settings.group
        self._membership = GroupMembership(client, self, self.members_changed)
        self.subscriptions = self._membership.subscriptions
        self.subscribe, self.check = self._membership.subscribe, self._membership.check
        self.works: dict[MessageQueue, PopWork] = {}
        self.closed = False
        self.started = False
        self._dispatch = dispatch
        self._rounds = TopicRounds(client, settings.group, settings.rebalance_interval_ms, self.subscriptions, self._assign)
        self._receipts = PopReceipts(client, settings.group)
        self._redelivery = Redelivery(client, settings.group)
        limit = settings.max_reconsume_times
        self._times_max = MAX_RECONSUME_TIMES if limit < 0 else limit
        #: Copies to the dead letters that no broker has answered. A dict as an ordered set.
        self._burials: dict[Deferred[None], None] = {}
        #: No pops. Messages that are held are still delivered.
        self.suspended = False
        #: Messages whose handle expired before a listener began, or while one ran.
        self.expired_count = 0

    # --- member of the client

    def heartbeat_data(self) -> ConsumerData | None:
        return heartbeat_of(self.settings, CONSUME_TYPE, self.subscriptions)

    def members_changed(self) -> None:
        if self.started and not self.closed:
            self._rounds.soon()

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Do nothing (220): the broker itself pops from the new offsets."""

    def consumed_offsets(self) -> dict[MessageQueue, int]:
        """Return nothing (221): the broker knows the offsets."""
        return {}

    def running_info(self) -> ConsumerRunningInfo:
        """Return the state of this consumer (307)."""
        info = ConsumerRunningInfo(subscription_set=list(self.subscriptions.values()))
        info.properties = {
            "PROP_CONSUMEORDERLY": "false",
            "PROP_CONSUME_TYPE": CONSUME_TYPE,
            "PROP_NAMESERVER_ADDR": ";".join(map(str, self.client.name_servers.addresses)),
        }
        to_wall_ms = self.client.clock.wall_ms - self.client.clock.mono_ms
        for queue, work in sorted(self.works.items()):
            info.mq_pop_table[queue] = PopProcessQueueInfo(
                last_pop_timestamp=work.last_pop_ms + to_wall_ms, wait_ack_count=work.held
            )
        return info

    # --- life

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic. Messages of it that wait for a listener are released."""
        if self._membership.unsubscribe(topic):
            self._keep_only(topic, ())

    async def start(self) -> None:
        """Join the group. Raises the errors of `GroupMembership.join`."""
        await self._membership.join(RETRY_PREFIX + self.group)
        if self.closed:
            return
        self.started = True
        self._rounds.start()

    def quiesce(self) -> None:
        """Stop popping and delivering. Outcomes of running listeners still count."""
        self._rounds.stop()
        for work in self.works.values():
            work.stopped = True

    async def close(self) -> None:
        """Wait until brokers have the acks and the releases, and leave the group."""
        if self.closed:
            return
        self.closed = True
        self.quiesce()
        await gather(list(self._burials))
        await self._receipts.close(CLOSE_WAIT_MS)
        for work in self.works.values():
            work.dropped = True
        await self._redelivery.close()
        await self._membership.leave()

    # --- which queues

    async def _assign(self, topic: str) -> bool:
        queues = await queues_to_pop(self.client, self.group, topic)
        if self._rounds.is_stopped or topic not in self.subscriptions:
            return True
        self._keep_only(topic, queues)
        for queue in queues:
            if queue not in self.works:
                work = self.works[queue] = PopWork(queue, self.client.clock.mono_ms, self.settings.pop_threshold_for_queue)
                start(self._pop_loop(work))
        return bool(queues)

    def _keep_only(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        for work in [each for each in self.works.values() if each.queue.topic == topic]:
            if work.queue not in queues:
                del self.works[work.queue]
                work.dropped = True

    # --- pops

    async def _pop_loop(self, work: PopWork) -> None:
        last_error = ""
        while not work.is_idle:
            if self.suspended or work.held > work.room:
                await self.client.timers.sleep(FLOW_CONTROL_MS)
                continue
            data = self.subscriptions.get(work.queue.topic)
            if data is None:
                return
            asked_ms = work.last_pop_ms = self.client.clock.mono_ms
            try:
                result = await pop(self.client, self.settings, work, data)
            except ClientError as error:
                if str(error) != last_error and not work.is_idle:
                    last_error = str(error)
                    self.client.failures.warning("pop-failed", error, group=self.group, queue=str(tuple(work.queue)))
                await self.client.timers.sleep(self.settings.pause_ms(error))
                continue
            last_error = ""
            self._take(work, result)
            if result.status is PopStatus.FULL:
                await self.client.timers.sleep(self.settings.retry_after_error_ms)
            elif result.status is PopStatus.NOTHING and self.client.clock.mono_ms - asked_ms < EMPTY_PAUSE_MS:
                await self.client.timers.sleep(EMPTY_PAUSE_MS)

    def _take(self, work: PopWork, result: PopResult) -> None:
        for popped in result.unwanted:
            self._receipts.ack(popped)
        wanted: list[PoppedMessage] = []
        for popped in result.messages:
            if work.is_idle:
                self._receipts.release(popped, RELEASE_MS)
            elif popped.message.reconsume_times > self._times_max:
                self._start_burying(popped)
            else:
                wanted.append(popped)
        size = self.settings.consume_message_batch_max_size
        for begin in range(0, len(wanted), size):
            self._dispatch(PopBatch(work, wanted[begin : begin + size]))

    # --- outcomes

    def began(self, batch: PopBatch) -> None:
        """Record that a listener begins with a batch. The thread of the listener may call this."""
        batch.started_ms = self.client.clock.mono_ms
        for popped in batch.popped:
            popped.go(PopStep.RUNNING)

    def finished(self, batch: PopBatch, ok: bool, error: str = "") -> None:
        """Process the outcome of a batch. `error` is the text of the listener's exception."""
        if batch.answer is not None:
            batch.answer(ok, error)
            return
        for popped in batch.popped:
            if ok:
                self._receipts.ack(popped)
            elif self._has_expired(popped):
                popped.go(PopStep.ENDED)
            elif popped.message.reconsume_times >= self._times_max:
                self._start_burying(popped)
            else:
                self._receipts.delay(popped, _delay_ms(popped.message))
        if not self._note_expired(batch):
            batch.work.widen(self.settings.pop_threshold_for_queue)

    def undelivered(self, batch: PopBatch) -> None:
        """Process a batch that no listener will see: its handles have expired, its queue was
        dropped, or the consumer closes.
        """
        if batch.answer is not None:
            batch.answer(False, "the consumer is closing")
            return
        for popped in batch.popped:
            if self._has_expired(popped):
                popped.go(PopStep.ENDED)
            else:
                self._receipts.release(popped, RELEASE_MS)
        if self._note_expired(batch):
            batch.work.narrow(self.client.clock.mono_ms, self.settings.pop_invisible_time_ms // 2)

    def deliver_directly(self, message: MessageExt, answer: Callable[[bool, str], None]) -> None:
        """Deliver a message that an administrator wants consumed now. It was not popped."""
        work = PopWork(message.queue, self.client.clock.mono_ms, room=1)
        self._dispatch(PopBatch(work, (), [message], answer))

    def _has_expired(self, popped: PoppedMessage) -> bool:
        return self.client.clock.mono_ms >= popped.deadline_ms

    def _note_expired(self, batch: PopBatch) -> bool:
        """Return whether a handle of the batch has expired, and count those that have."""
        expired = [each for each in batch.popped if self._has_expired(each)]
        if not expired:
            return False
        if self.expired_count % 1000 == 0:
            self.client.log.warning(
                "invisible-time-over",
                group=self.group,
                first=expired[0].message.msg_id,
                invisible_ms=self.settings.pop_invisible_time_ms,
                note="listeners are too slow: raise pop_invisible_time_ms or lower pop_threshold_for_queue",
            )
        self.expired_count += len(expired)
        return True

    def _start_burying(self, popped: PoppedMessage) -> None:
        giving_up = start(self._give_up(popped), self._background_failed)
        if not giving_up.done:
            self._burials[giving_up] = None
            giving_up.when_done(lambda: self._burials.pop(giving_up))

    async def _give_up(self, popped: PoppedMessage) -> None:
        """Move a message to the dead letters, and ack it once a broker has the copy."""
        popped.go(PopStep.GIVING_UP)
        if await self._redelivery.send_to_dead_letters(popped.message):
            self._receipts.ack(popped)
        else:
            self._receipts.delay(popped, DELAYS_MS[0])

    def _background_failed(self, error: RmqkitError) -> None:
        self.client.log.error("consumption-failed", group=self.group, error=str(error))


def _delay_ms(message: MessageExt) -> int:
    return DELAYS_MS[min(message.reconsume_times, len(DELAYS_MS) - 1)]
