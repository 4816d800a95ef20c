"""Transactions on real processes: producers that live, producers that die, and a consumer.

Two producers of this process send halves and their outcomes (`scripts.transaction_script`), and
answer the brokers' checks. One local transaction in `SLOW_ONE_IN` takes `SLOW_MS`, so that its
outcome may arrive after a check, or after the master is gone.

A half whose producer is to die is sent by a separate process. The drill kills this process with
SIGKILL after `HALVES_EACH` halves, and starts the next one. As long as it lives, brokers may ask it
as well; it answers UNKNOWN, as a program would that is still at work.

Every living producer answers checks from the group's record of transactions, which the body of the
half stands for.
"""

import queue
import time
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple
from zlib import crc32

from rmqkit.api import TransactionProducer, TransactionState
from rmqkit.client.message import Message, MessageExt, SendResult, SendStatus
from rmqkit.client.producers.transactions import TransactionQuestion
from rmqkit.drill.plan import TRANSACTIONS
from rmqkit.drill.real.client_threads import ClientThreads, DelayedItems, Pace
from rmqkit.drill.real.services.contract import ReadTopic
from rmqkit.drill.real.services.killed_producer import HalfAnswer, HalfOrder, ProducerTask
from rmqkit.drill.real.services.producer_process import ProducerProcess
from rmqkit.drill.services import scripts
from rmqkit.drill.services.service_rows import ServiceRows
from rmqkit.errors import ClientError
from rmqkit.wire.fastjson import MessageQueue

#: one in this many local transactions is slow, and takes a time of this range
SLOW_ONE_IN = 4
SLOW_MS = (500, 3_000)
#: a producer process is killed after this many halves
HALVES_EACH = 4
#: limit for a producer process to start, and to send a half, beyond the timeout of the send
START_S = 10.0
POLL_S = 0.1

STATES: Mapping[str, TransactionState] = {
    scripts.COMMIT: TransactionState.COMMIT,
    scripts.ROLLBACK: TransactionState.ROLLBACK,
    scripts.ASK_LATER: TransactionState.UNKNOWN,
}
WORDS = {state: word for word, state in STATES.items()}


class RecordedProducer(TransactionProducer):
    """A producer whose answers to checks are recorded, with the node that asked.

    `nodes` maps the addresses of the brokers to their node names.
    """

    def __init__(self, rows: ServiceRows, client: str, nodes: Mapping[str, str], *, namesrv: str) -> None:
        self._rows = rows
        self._client = client
        self._nodes = nodes
        #: transaction message → when the answer to its check was sent
        self._asked_ms: dict[str, int] = {}
        super().__init__(
            rows.group(TRANSACTIONS),
            check=self._check_record,
            topics=(rows.transaction_topic,),
            namesrv=namesrv,
            instance_name=f"{rows.name}-{client}",
            send_msg_timeout_ms=rows.plan.send_timeout_ms,
        )

    def master_of(self, broker: str) -> str:
        """Return the node that this client's route names as master; "" if it names none."""
        found: list[str] = []
        self._io.do("master_of", lambda: found.append(str(self._io.client.routes.master(broker) or "")))
        return self._nodes.get(found[0], found[0])

    def _check_record(self, message: MessageExt) -> TransactionState:
        self._asked_ms[message.msg_id] = self._rows.now_ms()
        return STATES[scripts.decision_in(message.body)]

    def _answered(self, question: TransactionQuestion, state: TransactionState, why: str) -> None:
        address = str(question.address)
        self._rows.decided(
            self._client,
            question.message.keys or "",
            WORDS[state],
            by="check",
            invoke_ms=self._asked_ms.pop(question.message.msg_id, self._rows.now_ms()),
            error=why,
            node=self._nodes.get(address, address),
        )


class _LocalOutcome(NamedTuple):
    order: scripts.TransactionOrder
    half: SendResult


class TransactionLoad:
    """The clients of the transactions of one drill."""

    def __init__(self, rows: ServiceRows, *, namesrv: str, read: ReadTopic, nodes: Mapping[str, str]) -> None:
        """`nodes` maps the addresses of the brokers to their node names."""
        self._rows = rows
        self._namesrv = namesrv
        self._read = read
        self._nodes = nodes
        self._threads = ClientThreads()
        self._producers: list[RecordedProducer] = []
        #: transactions whose producer is to die
        self._killed_orders: queue.SimpleQueue[scripts.TransactionOrder] = queue.SimpleQueue()

    def start(self) -> None:
        rows = self._rows
        self._threads.begin()
        self._threads.read(scripts.TRANSACTION_READER, self._consume)
        for number in range(scripts.TRANSACTION_MEMBERS):
            name = scripts.transaction_member(number)
            producer = RecordedProducer(rows, name, self._nodes, namesrv=self._namesrv)
            self._producers.append(producer)
            self._threads.write(name, partial(self._write, number, producer))
        self._threads.write("killed", self._write_killed)

    def stop_sending(self, join_s: float) -> None:
        self._threads.stop_sending(join_s)

    def close(self, join_s: float) -> None:
        self._threads.close(join_s)
        for producer in self._producers:
            producer.close()

    def _consume(self) -> None:
        rows = self._rows
        wall_ms = time.time() * 1000 - rows.now_ms()

        def given(message: MessageExt) -> None:
            rows.visible(scripts.TRANSACTION_READER, message, round(message.store_timestamp_ms - wall_ms))

        self._read(TRANSACTIONS, rows.transaction_topic, self._threads.reading, given)

    # --- producers that live

    def _write(self, number: int, producer: RecordedProducer) -> None:
        rows, client = self._rows, scripts.transaction_member(number)
        outcomes: DelayedItems[_LocalOutcome] = DelayedItems()
        pace = Pace()
        for order in scripts.transaction_script(rows.plan, number):
            pace.wait(order.pause_ms)
            is_last = not self._threads.sending.is_set()
            for outcome in outcomes.due(rows.now_ms() + SLOW_MS[1] if is_last else rows.now_ms()):
                self._end(client, producer, outcome)
            if is_last:
                return
            if order.local == scripts.DIES:
                self._killed_orders.put(order)
                continue
            half = self._send_half(client, producer, order)
            if half is not None and order.local != scripts.ASK_LATER:
                outcomes.add(rows.now_ms() + local_ms(order.key), _LocalOutcome(order, half))

    def _send_half(self, client: str, producer: RecordedProducer, order: scripts.TransactionOrder) -> SendResult | None:
        """Send a half. Return None if it was not acknowledged."""
        rows = self._rows
        place = MessageQueue(rows.transaction_topic, rows.broker, order.queue)
        invoke_ms = rows.now_ms()
        try:
            half = producer.send_half(Message(rows.transaction_topic, order.body, keys=order.key), place).result()
        except ClientError as error:
            rows.half_sent(client, order, invoke_ms, error)
            return None
        rows.half_sent(client, order, invoke_ms, half)
        return half

    def _end(self, client: str, producer: RecordedProducer, outcome: _LocalOutcome) -> None:
        """Report what the local transaction says."""
        rows, order = self._rows, outcome.order
        node, invoke_ms = producer.master_of(rows.broker), rows.now_ms()
        ended = producer.end(outcome.half, STATES[order.local]).result()
        rows.decided(client, order.key, order.local, by="end", invoke_ms=invoke_ms, error=ended.end_error, node=node)

    # --- producers that die

    def _write_killed(self) -> None:
        number = 0
        while self._threads.sending.is_set():
            self._run_and_kill(f"killed-{number}")
            number += 1

    def _run_and_kill(self, client: str) -> None:
        """Start a producer process, let it send halves, and kill it."""
        rows = self._rows
        task = ProducerTask(
            namesrv=self._namesrv,
            group=rows.group(TRANSACTIONS),
            instance_name=f"{rows.name}-{client}",
            topic=rows.transaction_topic,
            broker=rows.broker,
            timeout_ms=rows.plan.send_timeout_ms,
        )
        process = ProducerProcess(task)
        try:
            sent = 0
            while sent < HALVES_EACH and self._threads.sending.is_set():
                try:
                    order = self._killed_orders.get(timeout=POLL_S)
                except queue.Empty:
                    continue
                sent += 1
                if not self._send_by_process(client, process, order):
                    return
        finally:
            process.kill()

    def _send_by_process(self, client: str, process: ProducerProcess, order: scripts.TransactionOrder) -> bool:
        """Send one half by a process. Return whether the process may send another one."""
        rows = self._rows
        invoke_ms = rows.now_ms()
        wait_s = START_S + rows.plan.send_timeout_ms / 1000
        answer = process.send(HalfOrder(key=order.key, body=order.body, queue=order.queue), wait_s)
        rows.half_sent(client, order, invoke_ms, self._outcome(order, answer))
        return bool(answer.status or not answer.maybe_stored)

    def _outcome(self, order: scripts.TransactionOrder, answer: HalfAnswer) -> SendResult | ClientError:
        if not answer.status:
            return ClientError(answer.error, maybe_stored=answer.maybe_stored)
        return SendResult(
            status=SendStatus(answer.status),
            msg_id=answer.msg_id,
            offset_msg_id="",
            queue=MessageQueue(self._rows.transaction_topic, self._rows.broker, order.queue),
            queue_offset=-1,
            transaction_id=answer.transaction_id or None,
        )


def local_ms(key: str) -> int:
    """Return how long the local transaction of a half takes, in ms; mostly 0."""
    number = crc32(key.encode())
    return 0 if number % SLOW_ONE_IN else SLOW_MS[0] + number // SLOW_ONE_IN % (SLOW_MS[1] - SLOW_MS[0])
