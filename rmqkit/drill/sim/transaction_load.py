"""Transactions on a simulated cluster: producers of one group, some of which die, and a reader.

A producer that dies is a process that ends between its half and the outcome. Its machine starts it
again, and it continues its script. Until then brokers must ask the other member. If it dies while
it waits for the answer to another outcome, a broker may have that outcome: it is unknown.
"""

from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import count
from typing import Any

from rmqkit.client.client import Client
from rmqkit.client.message import Message, MessageExt, SendResult
from rmqkit.client.producers.outgoing_message import Prepare
from rmqkit.client.producers.producer import ProducerCore, ProducerSettings, SendOutcome
from rmqkit.client.producers.transaction_ends import answer_question, send_end
from rmqkit.client.producers.transactions import TransactionQuestion, TransactionState, end_of, half_of
from rmqkit.drill.plan import TRANSACTIONS
from rmqkit.drill.services import scripts
from rmqkit.drill.sim.load import SimLoad, begin_flow
from rmqkit.errors import ClientError
from rmqkit.runtime.connection import Address
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.uniqueids import UniqueIds

#: when producers begin, after their topics exist
BEGIN_MS = 500
STATES = {scripts.COMMIT: TransactionState.COMMIT, scripts.ROLLBACK: TransactionState.ROLLBACK}


class SimTransactions:
    """The producers and the reader.

    `stored_ms` is the store time of a message on the drill's clock, `node_at` the name of the node
    at an address.
    """

    def __init__(self, load: SimLoad, stored_ms: Callable[[MessageExt], int], node_at: Callable[[Address], str]) -> None:
        self._load = load
        self._rows = load.services
        self._stored_ms = stored_ms
        self._node_at = node_at
        self._group = self._rows.group(TRANSACTIONS)
        #: the scripts outlive the processes
        self._scripts: dict[int, Iterator[scripts.TransactionOrder]] = {}
        #: producer → outcomes that were sent and have no answer: what records one, given the error
        self._sent: dict[str, dict[int, Callable[..., None]]] = {}
        self._sequence = count()

    def begin(self) -> None:
        self._load.client(scripts.TRANSACTION_READER, self._reader)
        for number in range(scripts.TRANSACTION_MEMBERS):
            self._scripts[number] = scripts.transaction_script(self._load.plan, number)
            self._load.client(scripts.transaction_member(number), partial(self._producer, number))

    def _reader(self, client: Client) -> None:
        def given(message: MessageExt) -> None:
            self._rows.visible(scripts.TRANSACTION_READER, message, self._stored_ms(message))

        self._load.read(client, TRANSACTIONS, self._rows.transaction_topic, given)

    # --- producers

    def _producer(self, number: int, client: Client) -> None:
        load, name = self._load, scripts.transaction_member(number)
        core = ProducerCore(client, ProducerSettings(group=self._group))
        prepare = Prepare(UniqueIds(bytes(4), pid=300 + number, salt=client.ports.entropy.getrandbits(31)))
        client.checkers[self._group] = partial(self._asked, client, name)
        client.routes.watch(self._rows.transaction_topic)

        async def write() -> None:
            for order in self._scripts[number]:
                await load.pause(client, order.pause_ms)
                if not load.sending:
                    return
                invoke_ms = load.now_ms()
                outcome = await self._half(core, prepare, order)
                self._rows.half_sent(name, order, invoke_ms, outcome)
                if order.local == scripts.DIES:
                    load.cluster.world.after_ms(0, partial(self._die, name))
                    return
                if isinstance(outcome, SendResult) and order.local in STATES:
                    address = client.routes.master(outcome.queue.broker_name)
                    sent = send_end(client, outcome, end_of(self._group, outcome), STATES[order.local])
                    await self._end(sent, name, order.key, order.local, address, "end")

        client.timers.after(BEGIN_MS, lambda: begin_flow(write()))

    async def _half(self, core: ProducerCore, prepare: Prepare, order: scripts.TransactionOrder) -> SendOutcome | None:
        load = self._load
        message = Message(self._rows.transaction_topic, order.body, keys=order.key)
        half = half_of(prepare.message(message, core.client.clock.wall_ms), self._group)
        queue = MessageQueue(self._rows.transaction_topic, load.broker, order.queue)
        return await load.send_prepared(core, half, queue)

    def _die(self, name: str) -> None:
        world = self._load.cluster.world
        world.kill(name)
        for record in self._sent.pop(name, {}).values():
            record(error="the producer died before the answer")
        world.after_ms(scripts.DEAD_MS, partial(world.restart, name))

    # --- outcomes

    async def _end(
        self,
        sent: Coroutine[Any, Any, str],
        name: str,
        key: str,
        value: str,
        to: Address | None,
        by: str,
    ) -> None:
        node = self._node_at(to) if to is not None else ""
        record = partial(self._rows.decided, name, key, value, by=by, invoke_ms=self._load.now_ms(), node=node)
        waiting, number = self._sent.setdefault(name, {}), next(self._sequence)
        waiting[number] = record
        try:
            error = await sent
        except ClientError as failed:
            error = str(failed)
        del waiting[number]
        record(error=error)

    def _asked(self, client: Client, name: str, question: TransactionQuestion) -> None:
        """Answer a broker with what the record of transactions says."""
        message = question.message
        value = scripts.decision_in(message.body)
        sent = answer_question(client, question, STATES[value])
        begin_flow(self._end(sent, name, message.keys or "", value, question.address, "check"))
