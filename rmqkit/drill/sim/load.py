"""The workload on a simulated cluster: nodes with the sans-IO cores of the clients.

As `real/load.py`, but without threads. The work of each writer and each reader is a flow
(`rmqkit.client.flow`). Each has a machine with a client node of its own, or shares one
(`SimLoad.machines`). Consumers commit more often than in real drills, because simulated drills are
shorter.

Pauses end at multiples of `SimLoad.tick_ms`. With ticks of more than 1 ms, brokers receive the
requests of several clients in one turn, and write, replicate and deliver their messages together: a
seed has as many messages in fewer turns. Clients that share a machine share its turns too.
"""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from rmqkit.client.admin.admin import AdminBrokers
from rmqkit.client.client import Client
from rmqkit.client.consumers.offset_store import RemoteOffsets
from rmqkit.client.consumers.pull_consumer import PullConsumerCore, PullConsumerSettings
from rmqkit.client.consumers.push_consumer import PushConsumerCore
from rmqkit.client.consumers.push_queue import ListenerBatch, PushConsumerSettings
from rmqkit.client.consumers.subscriptions import ConsumeFrom
from rmqkit.client.flow import Deferred, start
from rmqkit.client.message import Message, MessageExt
from rmqkit.client.producers.outgoing_message import OutgoingMessage, Prepare
from rmqkit.client.producers.producer import ProducerCore, ProducerSettings, SendOutcome
from rmqkit.drill import workload
from rmqkit.drill.history import FAULT_BITES, History, HistoryRow
from rmqkit.drill.load_history import RecordedLoad
from rmqkit.drill.plan import Plan
from rmqkit.errors import ClientError, RmqkitError
from rmqkit.sim.cluster import SimCluster
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.uniqueids import UniqueIds

POLL_MS = 1_000
COMMIT_MS = 300
RETRY_MS = 100
WORK_MS = 1


class SimLoad(RecordedLoad):
    """Writers and readers of one drill."""

    #: groups that must receive messages in a steady state
    readers: tuple[str, ...] = (workload.PULL, workload.PUSH)
    #: pauses of clients end at multiples of this
    tick_ms = 1
    #: client → the machine that it shares with others; any other client has one of its own
    machines: Mapping[str, str] = {}

    def __init__(
        self, cluster: SimCluster, plan: Plan, history: History, now_ms: Callable[[], int], *, name: str, broker: str
    ):
        super().__init__(plan, history, now_ms, name=name, broker=broker)
        self.cluster = cluster
        self.has_topic = False
        self.sending = True
        self.reading = True
        #: sends without an answer
        self.under_way = 0
        #: settings of consumers that differ from their defaults, in ms
        self.times: dict[str, int] = {}
        #: the same for the locks of ordered consumers
        self.lock_times: dict[str, int] = {}

    def start(self) -> None:
        """Create the topics. Clients begin once they exist (`has_topic`)."""
        self.cluster.client("admin", self._admin, is_operator=True)

    def topics(self) -> list[str]:
        """Return the names of the topics to create."""
        return [self.name]

    def _admin(self, client: Client) -> None:
        async def make() -> None:
            wanted = self.topics()
            while wanted:
                try:
                    await AdminBrokers(client).create_topic(wanted[-1], queue_nums=self.plan.queues)
                    wanted.pop()
                except RmqkitError:
                    await client.timers.sleep(RETRY_MS)
            self.has_topic = True

        client.timers.after(1, lambda: begin_flow(make()))

    def begin(self) -> None:
        """Start the writers and readers. The topics must exist."""
        for number in range(workload.PUSH_MEMBERS):
            self.client(f"push-{number}", partial(self.push, workload.PUSH, number))
        self.client("pull-0", partial(self._pull, workload.PULL))
        self.begin_writers()

    def begin_writers(self) -> None:
        """Start the writers, and have every row of the history seen."""
        for number in range(self.plan.writers):
            self.client(workload.writer_name(number), partial(self._writer, number))
        self.history.on_row = self.seen

    def seen(self, row: HistoryRow) -> None:
        """Let the late group join after the proof of the fault."""
        super().seen(row)
        if row.kind == "event" and row.key == FAULT_BITES:
            self.join_late()

    def join_late(self) -> None:
        """Start the late group, once."""
        if workload.LATE not in self.given:
            self.given[workload.LATE] = {}
            self.client("late-0", partial(self._pull, workload.LATE))

    def client(self, name: str, begin: Callable[[Client], Any]) -> None:
        """Start a client: `begin` gets the client node of its machine."""
        machine = self.machines.get(name, name)
        if machine in self.cluster.world.names:
            self.cluster.world.call(machine, begin)
        else:
            self.cluster.client(machine, begin)

    # --- writing

    def _writer(self, number: int, client: Client) -> None:
        name = workload.writer_name(number)
        core = ProducerCore(client, ProducerSettings(group=f"{self.name}-writers"))
        prepare = Prepare(UniqueIds(bytes(4), pid=1 + number, salt=client.ports.entropy.getrandbits(31)))

        async def write() -> None:
            for order in workload.script(self.plan, number):
                await self.pause(client, order.pause_ms)
                if not self.sending:
                    return
                queue = MessageQueue(self.name, self.broker, order.queue) if order.queue >= 0 else None
                invoke_ms = self.now_ms()
                outcome = await self.send(core, prepare, Message(self.name, order.body, keys=order.key), queue)
                self.sent(name, order, invoke_ms, outcome)

        client.timers.after(500, lambda: begin_flow(write()))

    async def pause(self, client: Client, pause_ms: float) -> None:
        """Wait about `pause_ms`: until the nearest later tick."""
        now_ms, tick_ms = client.clock.mono_ms, self.tick_ms
        until_ms = max(round((now_ms + pause_ms) / tick_ms), now_ms // tick_ms + 1) * tick_ms
        await client.timers.sleep(until_ms - now_ms)

    async def send(
        self, core: ProducerCore, prepare: Prepare, message: Message, queue: MessageQueue | None
    ) -> SendOutcome | None:
        """Send one message, once, and wait for its outcome."""
        return await self.send_prepared(core, prepare.message(message, core.client.clock.wall_ms), queue)

    async def send_prepared(
        self, core: ProducerCore, outgoing: OutgoingMessage, queue: MessageQueue | None
    ) -> SendOutcome | None:
        """As `send`, for a message that is ready for the wire."""
        ended: Deferred[SendOutcome | None] = Deferred()
        self.under_way += 1
        core.send(outgoing, ended.resolve, timeout_ms=self.plan.send_timeout_ms, queue=queue)
        outcome = await ended
        self.under_way -= 1
        return outcome

    # --- reading

    def push(self, kind: str, number: int, client: Client) -> PushConsumerCore:
        """Start an ordered member of a group that consumes the topic with a PushConsumer."""
        group, name = self.group(kind), f"{kind}-{number}"
        times: dict[str, Any] = {"persist_interval_ms": COMMIT_MS, **self.times, **self.lock_times}
        settings = PushConsumerSettings(group=group, orderly=True, consume_from=ConsumeFrom.FIRST, **times)

        def done(batch: ListenerBatch) -> None:
            for message in batch.messages:
                self.delivered(kind, name, message)
            consumer.finished(batch, True)

        consumer = PushConsumerCore(client, settings, RemoteOffsets(client, group), self.listener(client, done))
        consumer.subscribe(self.name, "*", "TAG")
        self.join(client, consumer)
        return consumer

    def listener(self, client: Client, done: Callable[[ListenerBatch], None]) -> Callable[[ListenerBatch], None]:
        """Return a listener that calls `done` when its work on a batch is over.

        Without work that is in the same turn, also for the batches that follow in a queue.
        """
        ended: list[ListenerBatch] = []

        def end() -> None:
            for batch in ended:  # `done` may add the next batch
                done(batch)
            ended.clear()

        def dispatch(batch: ListenerBatch) -> None:
            work_ms = self.work_ms(batch)
            if work_ms:
                client.timers.after(work_ms, partial(done, batch))
                return
            if not ended:
                client.timers.after(0, end)
            ended.append(batch)

        return dispatch

    def work_ms(self, batch: ListenerBatch) -> int:
        """Return how long the listener works on a batch of one message."""
        return WORK_MS

    def join(self, client: Client, consumer: PushConsumerCore) -> None:
        """Start the consumer, and retry until it succeeds."""

        async def join() -> None:
            while not consumer.started:
                try:
                    await consumer.start()
                except ClientError:
                    await client.timers.sleep(RETRY_MS)

        client.timers.after(200, lambda: begin_flow(join()))

    def _pull(self, kind: str, client: Client) -> None:
        self.read(client, kind, self.name, lambda message: self.delivered(kind, f"{kind}-0", message))

    def read(self, client: Client, kind: str, topic: str, given: Callable[[MessageExt], None]) -> None:
        """Pull a topic as the only member of a group; `given` receives each message."""
        group = self.group(kind)
        times: dict[str, Any] = {"persist_interval_ms": COMMIT_MS, **self.times}
        settings = PullConsumerSettings(group=group, consume_from=ConsumeFrom.FIRST, **times)
        core = PullConsumerCore(client, settings, RemoteOffsets(client, group))

        async def read() -> None:
            joined = False
            while not client.stopping:
                try:
                    if not joined:
                        await core.subscribe(topic, "*", "TAG")
                        joined = True
                    messages = await core.poll(timeout_ms=POLL_MS)
                except ClientError:
                    await client.timers.sleep(RETRY_MS)
                    continue
                if self.reading:
                    for message in messages:
                        given(message)

        client.timers.after(200, lambda: begin_flow(read()))


def begin_flow(flow: Coroutine[Any, Any, Any]) -> None:
    """Start a flow whose end nobody waits for."""
    start(flow)
