"""Timers on a simulated cluster: one writer, which recalls some of them, and one reader."""

from collections.abc import Callable
from functools import partial

from rmqkit.client.client import Client
from rmqkit.client.message import Message, MessageExt, SendResult
from rmqkit.client.producers.outgoing_message import Prepare
from rmqkit.client.producers.producer import ProducerCore, ProducerSettings
from rmqkit.drill.plan import TIMERS
from rmqkit.drill.services import scripts
from rmqkit.drill.sim.load import SimLoad, begin_flow
from rmqkit.errors import ClientError
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.uniqueids import UniqueIds

#: when the writer begins, after its topics exist
BEGIN_MS = 500
RECALL_TIMEOUT_MS = 600


class SimTimers:
    """The writer and the reader.

    `stored_ms` is the store time of a message on the drill's clock.
    """

    def __init__(self, load: SimLoad, stored_ms: Callable[[MessageExt], int]) -> None:
        self._load = load
        self._rows = load.services
        self._stored_ms = stored_ms

    def begin(self) -> None:
        self._load.client(scripts.TIMER_READER, self._reader)
        self._load.client(scripts.TIMER_WRITER, self._writer)

    def _reader(self, client: Client) -> None:
        def given(message: MessageExt) -> None:
            self._rows.timer_due(scripts.TIMER_READER, message, self._stored_ms(message))

        self._load.read(client, TIMERS, self._rows.timer_topic, given)

    def _writer(self, client: Client) -> None:
        load = self._load
        core = ProducerCore(client, ProducerSettings(group=f"{load.name}-timer-writers"))
        prepare = Prepare(UniqueIds(bytes(4), pid=200, salt=client.ports.entropy.getrandbits(31)))

        async def write() -> None:
            for order in scripts.timer_script(load.plan):
                await load.pause(client, order.pause_ms)
                if not load.sending:
                    return
                queue = MessageQueue(self._rows.timer_topic, load.broker, order.queue)
                invoke_ms = load.now_ms()
                message = self._message(order, client.clock.wall_ms)
                outcome = await load.send(core, prepare, message, queue)
                self._rows.timer_sent(order, invoke_ms, outcome)
                if isinstance(outcome, SendResult) and outcome.recall_handle and order.recall_after_ms:
                    due_ms = invoke_ms + order.delay_ms
                    recall = partial(self._recall, core, order, outcome.recall_handle, due_ms)
                    client.timers.after(order.recall_after_ms, recall)

        client.timers.after(BEGIN_MS, lambda: begin_flow(write()))

    def _message(self, order: scripts.TimerOrder, wall_ms: int) -> Message:
        topic = self._rows.timer_topic
        if order.is_absolute:
            return Message(topic, order.body, keys=order.key, deliver_at=wall_ms + order.delay_ms)
        return Message(topic, order.body, keys=order.key, delay_ms=order.delay_ms)

    def _recall(self, core: ProducerCore, order: scripts.TimerOrder, handle: str, due_ms: int) -> None:
        async def recall() -> None:
            invoke_ms = self._load.now_ms()
            failed: ClientError | None = None
            try:
                await core.recall(handle, RECALL_TIMEOUT_MS)
            except ClientError as error:
                failed = error
            self._rows.recalled(order, due_ms, invoke_ms, failed)

        begin_flow(recall())
