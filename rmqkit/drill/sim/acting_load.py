"""The simulated workload for groups whose slaves act for their masters; see `workload.py`.

In addition to `load.py` it has:

- delayed messages and the group that reads them;
- an ordered group that joins after the proof of the fault;
- lockers, which ask for queue locks as members of a group would; sometimes they renew their locks,
  and sometimes they never release them;
- in some seeds, a group whose listener fails: messages that it sends back must be redelivered.

Timeouts are short. A fault lasts only seconds, so a client that waited half a minute would miss it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any
from zlib import crc32

from rmqkit.client.client import Client, decoded
from rmqkit.client.consumers.offset_store import RemoteOffsets
from rmqkit.client.consumers.push_consumer import PushConsumerCore
from rmqkit.client.consumers.push_queue import ListenerBatch, PushConsumerSettings
from rmqkit.client.consumers.subscriptions import ConsumeFrom
from rmqkit.client.message import Message, MessageExt
from rmqkit.client.producers.outgoing_message import Prepare
from rmqkit.client.producers.producer import ProducerCore, ProducerSettings
from rmqkit.drill import workload
from rmqkit.drill.history import FAULT_BEGINS, FAULT_BITES, IN_SYNC_AGAIN, NODE_BACK, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.sim.acting_plans import TIMERS_MS, ActingExtras
from rmqkit.drill.sim.load import COMMIT_MS, RETRY_MS, WORK_MS, SimLoad, begin_flow
from rmqkit.errors import ClientError
from rmqkit.runtime.connection import Address
from rmqkit.settings.broker_sections import DEFAULT_DELAY_LEVELS, delays_ms
from rmqkit.sim.cluster import SimCluster
from rmqkit.wire.bodies import LockBatchAnswer, LockBatchBody
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.uniqueids import UniqueIds

TIMES = {
    "suspend_ms": 1_000,
    "pull_timeout_ms": 2_000,
    "retry_after_error_ms": 300,
    "rebalance_interval_ms": 4_000,
}
#: the same with fewer calls
CALM_TIMES = {**TIMES, "suspend_ms": 1_500, "persist_interval_ms": 1_000}
#: clients send at multiples of this, so that brokers receive their requests in one turn
TICK_MS = min(TIMERS_MS)
#: listeners work for `WORK_MS` on one message in this many
WORKS_ONE_IN = 4
LOCK_TIMEOUT_MS = 600
#: Event → the highest delay level that is sent from then on, 0 for no more messages. So a drill
#: does not wait long at its end. The messages of the highest level are sent before the fault.
LEVELS_FROM = {FAULT_BITES: 2, NODE_BACK: 1, IN_SYNC_AGAIN: 0}
#: Clients share two machines, as those of an application share a process and its connections. The
#: members of a group are on different machines.
APPS = ("app-0", "app-1")
MACHINES = {
    **dict.fromkeys(("writer-0", "writer-2", "pull-0", "push-0", "delayed-0", "locker-0"), APPS[0]),
    **dict.fromkeys(("writer-1", "delayer", "late-0", "push-1", "ordered-0", "retry-0", "locker-1"), APPS[1]),
}
#: the group whose listener fails, and one in how many messages fails at its first delivery
RETRY = "retry"
FAILS_ONE_IN = 8
#: the delay level of the first redelivery
RETRY_LEVEL = 3
#: Failed messages are redelivered until about this long after the last fault. At that time writers
#: end, and the drill waits for the delayed messages that are not delivered yet.
RETRIES_MS = 2_000
#: share of the steps in which a locker renews its locks; in which it never releases them; and the
#: same if a fault has begun meanwhile, so that locks outlive restarts
RENEWS, FORGETS, FORGETS_AT_FAULT = 0.3, 0.15, 0.6


class ActingLoad(SimLoad):
    """Writers, readers, the delayer and lockers of one drill."""

    tick_ms = TICK_MS
    machines = MACHINES

    def __init__(
        self,
        cluster: SimCluster,
        plan: Plan,
        history: History,
        now_ms: Callable[[], int],
        *,
        name: str,
        broker: str,
        extras: ActingExtras,
    ):
        super().__init__(cluster, plan, history, now_ms, name=name, broker=broker)
        self.extras = extras
        #: when a fault began last
        self._fault_ms = 0
        #: until when the listener of the retry group fails; None before the fault
        self._fails_until_ms: int | None = None
        self._level_max = max(workload.levels_ms(plan), default=0)
        self.times = dict(CALM_TIMES)
        self.lock_times = {
            "lock_interval_ms": extras.lease_ms // 4,
            "lock_live_ms": extras.lease_ms // 2,
            "first_pull_delay_ms": TICK_MS,
        }
        #: (node, wall time of its machine) → virtual time, in ms
        self.world_ms: Callable[[str, int], int] = lambda node, wall_ms: wall_ms - cluster.world.wall_start_ms

    def work_ms(self, batch: ListenerBatch) -> int:
        """Return how long the listener works: on most batches not at all."""
        return 0 if batch.messages[0].queue_offset % WORKS_ONE_IN else WORK_MS

    def topics(self) -> list[str]:
        return [self.name, self.delayed_topic]

    def begin(self) -> None:
        super().begin()
        if workload.levels_ms(self.plan):
            self.client(f"{workload.DELAYED}-0", self._delayed)
            self.client(workload.DELAYER, self._delayer)
        if self.extras.retries:
            self.given[RETRY] = {}
            self.client(f"{RETRY}-0", self._retry)
        for number in range(workload.LOCKERS):
            self.client(workload.locker_name(number), partial(self._locker, number))

    def seen(self, row: HistoryRow) -> None:
        super().seen(row)
        if row.kind != "event":
            return
        self._level_max = LEVELS_FROM.get(row.key, self._level_max)
        if row.key == FAULT_BEGINS:
            self._fault_ms = row.invoke_ms
            if self._fails_until_ms is None:
                due_ms = delays_ms(self.plan.word("messageDelayLevel", DEFAULT_DELAY_LEVELS))[RETRY_LEVEL - 1]
                self._fails_until_ms = row.invoke_ms + self.plan.fault_ms + RETRIES_MS - due_ms
        if row.key == FAULT_BITES and workload.ORDERED not in self.given:
            self.given[workload.ORDERED] = {}
            self.client(f"{workload.ORDERED}-0", partial(self.push, workload.ORDERED, 0))

    # --- delayed messages

    def _delayer(self, client: Client) -> None:
        core = ProducerCore(client, ProducerSettings(group=f"{self.name}-delayers"))
        prepare = Prepare(UniqueIds(bytes(4), pid=100, salt=client.ports.entropy.getrandbits(31)))
        delays_ms = workload.levels_ms(self.plan)

        async def write() -> None:
            for drawn in workload.delay_script(self.plan):
                order = drawn._replace(level=min(drawn.level, self._level_max))
                await self.pause(client, order.pause_ms)
                if not self.sending or not order.level:
                    return
                message = Message(self.delayed_topic, order.body, keys=order.key, delay_level=order.level)
                queue = MessageQueue(self.delayed_topic, self.broker, order.queue)
                invoke_ms = self.now_ms()
                outcome = await self.send(core, prepare, message, queue)
                self.delay_sent(order, delays_ms[order.level], invoke_ms, outcome)

        client.timers.after(500, lambda: begin_flow(write()))

    def _delayed(self, client: Client) -> None:
        self.read(client, workload.DELAYED, self.delayed_topic, lambda message: self._due(client, message))

    def _due(self, client: Client, message: MessageExt) -> None:
        # Only masters append, so the clock is that of the master's machine.
        stored_ms = self.world_ms(f"{message.broker_name}-0", message.store_timestamp_ms)
        self.due(f"{workload.DELAYED}-0", message, stored_ms)

    # --- messages that fail and are redelivered

    def _retry(self, client: Client) -> None:
        """Start a group whose listener fails for about one message in `FAILS_ONE_IN`.

        The message is sent back, and must be redelivered. While a slave acts, it escapes as delayed
        messages do.
        """
        group = self.group(RETRY)
        times: dict[str, Any] = {"persist_interval_ms": COMMIT_MS, "retry_delay_ms": RETRY_MS, **self.times}
        settings = PushConsumerSettings(group=group, consume_from=ConsumeFrom.FIRST, **times)

        def done(batch: ListenerBatch) -> None:
            (message,) = batch.messages
            key = message.keys or ""
            if self._fails(key) and not message.reconsume_times:
                self.waiting[f"{RETRY} {key}"] = self.now_ms()
                if message.queue.topic == self.name:
                    table, place = self.given[RETRY], (message.broker_name, message.queue_id)
                    table[place] = max(table.get(place, 0), message.queue_offset + 1)
                consumer.finished(batch, False)
                return
            self.waiting.pop(f"{RETRY} {key}", None)
            if message.queue.topic == self.name:
                self.delivered(RETRY, f"{RETRY}-0", message, any_order=True)
            else:
                self._came_again(message)
            consumer.finished(batch, True)

        consumer = PushConsumerCore(client, settings, RemoteOffsets(client, group), self.listener(client, done))
        consumer.subscribe(self.name, "*", "TAG")
        self.join(client, consumer)

    def _fails(self, key: str) -> bool:
        """Return whether the listener fails for the first delivery of a message."""
        ended = self._fails_until_ms is not None and self.now_ms() > self._fails_until_ms
        return not ended and crc32(key.encode()) % FAILS_ONE_IN == 0

    def _came_again(self, message: MessageExt) -> None:
        """Record a redelivery from a retry queue, whose offsets mean nothing to checkers."""
        self.history.add(
            "deliver",
            client=f"{RETRY}-0",
            key=message.keys or "",
            value=workload.checksum(message.body),
            invoke_ms=self.now_ms(),
            group=self.group(RETRY),
            ordered=False,
        )

    # --- locks

    def _locker(self, number: int, client: Client) -> None:
        name = workload.locker_name(number)

        async def work() -> None:
            for order in workload.lock_script(self.plan, number):
                await self.pause(client, order.pause_ms)
                if not self.sending:
                    return
                asked_ms = self.now_ms()
                granted = await self._lock(client, name, order.queues)
                chance = client.ports.entropy.random()
                if chance < RENEWS and granted:
                    await self.pause(client, order.hold_ms)
                    granted = await self._lock(client, name, granted) or granted
                await self.pause(client, order.hold_ms)
                forgets = FORGETS_AT_FAULT if self._fault_ms > asked_ms else FORGETS
                if granted and chance < 1 - forgets:
                    await self._unlock(client, name, granted)

        client.routes.watch(self.name)
        client.timers.after(300 + 70 * number, lambda: begin_flow(work()))

    async def _lock(self, client: Client, name: str, queues: tuple[int, ...]) -> tuple[int, ...]:
        """Ask for locks; return the queues of the broken group that were granted."""
        invoke_ms = self.now_ms()
        master = await self._master(client)
        if master is None:
            await client.timers.sleep(RETRY_MS)
            return ()
        try:
            reply = await client.ask(
                master, RequestCode.LOCK_BATCH_MQ, None, self._lock_body(client, queues), timeout_ms=LOCK_TIMEOUT_MS
            )
        except ClientError as error:
            self.locks_asked(name, self._node_at(master), queues, None, invoke_ms, str(error))
            return ()
        locked = decoded(reply, LockBatchAnswer.decode).lock_ok_mq_set
        granted = tuple(sorted(queue.queue_id for queue in locked))
        self.locks_asked(name, self._node_at(master), queues, granted, invoke_ms)
        return granted

    async def _unlock(self, client: Client, name: str, queues: tuple[int, ...]) -> None:
        """Release locks at the current master, if the route has one."""
        invoke_ms = self.now_ms()
        master = await self._master(client)
        if master is None:
            return
        body, answered = self._lock_body(client, queues), True
        # The locker gives up its lock even if no broker answers.
        try:
            await client.ask(master, RequestCode.UNLOCK_BATCH_MQ, None, body, timeout_ms=LOCK_TIMEOUT_MS)
        except ClientError:
            answered = False
        self.locks_returned(name, self._node_at(master), queues, invoke_ms, answered=answered)

    async def _master(self, client: Client) -> Address | None:
        try:
            await client.routes.find(self.name)
        except ClientError:
            return None
        return client.routes.master(self.broker)

    def _lock_body(self, client: Client, queues: tuple[int, ...]) -> bytes:
        wanted = [MessageQueue(self.name, self.broker, queue) for queue in queues]
        group = self.group(workload.LOCK)
        return LockBatchBody(client_id=client.settings.client_id, consumer_group=group, mq_set=wanted).encode()

    def _node_at(self, address: Address) -> str:
        found = self.cluster.world.net.find(address)
        return found.name if found is not None else str(address)
