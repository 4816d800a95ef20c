"""Timers on real processes: a producer that sends and recalls them, and a consumer.

The producer sends to queues of the broken group (`scripts.timer_script`). Between two sends it asks
for the recalls whose time has come, if the brokers allow recalls (`recallMessageEnable`).
"""

import time
from typing import NamedTuple

from rmqkit.api import Producer
from rmqkit.client.message import Message, MessageExt, SendResult
from rmqkit.drill.plan import TIMERS
from rmqkit.drill.real.client_threads import ClientThreads, DelayedItems, Pace
from rmqkit.drill.real.services.contract import ReadTopic
from rmqkit.drill.services import scripts
from rmqkit.drill.services.service_rows import ServiceRows
from rmqkit.errors import ClientError
from rmqkit.wire.fastjson import MessageQueue


class _Recall(NamedTuple):
    order: scripts.TimerOrder
    #: when the timer is due, on the drill's clock
    due_ms: int
    handle: str


class TimerLoad:
    """The clients of the timers of one drill. `read` consumes a topic until its flag is cleared."""

    def __init__(self, rows: ServiceRows, *, namesrv: str, read: ReadTopic) -> None:
        self._rows = rows
        self._namesrv = namesrv
        self._read = read
        self._threads = ClientThreads()
        self._may_recall = rows.plan.word("recallMessageEnable").lower() == "true"
        self._recalls: DelayedItems[_Recall] = DelayedItems()

    def start(self) -> None:
        self._threads.begin()
        self._threads.read(scripts.TIMER_READER, self._consume)
        self._threads.write(scripts.TIMER_WRITER, self._write)

    def stop_sending(self, join_s: float) -> None:
        self._threads.stop_sending(join_s)

    def close(self, join_s: float) -> None:
        self._threads.close(join_s)

    def _consume(self) -> None:
        rows = self._rows
        wall_ms = time.time() * 1000 - rows.now_ms()

        def given(message: MessageExt) -> None:
            rows.timer_due(scripts.TIMER_READER, message, round(message.store_timestamp_ms - wall_ms))

        self._read(TIMERS, rows.timer_topic, self._threads.reading, given)

    def _write(self) -> None:
        rows = self._rows
        pace = Pace()
        with Producer(
            f"{rows.name}-writers",
            namesrv=self._namesrv,
            instance_name=f"{rows.name}-{scripts.TIMER_WRITER}",
            send_msg_timeout_ms=rows.plan.send_timeout_ms,
        ) as producer:
            for order in scripts.timer_script(rows.plan):
                pace.wait(order.pause_ms)
                if not self._threads.sending.is_set():
                    return
                self._send(producer, order)
                for recall in self._recalls.due(rows.now_ms()):
                    self._recall(producer, recall)

    def _send(self, producer: Producer, order: scripts.TimerOrder) -> None:
        rows = self._rows
        invoke_ms = rows.now_ms()
        message = Message(
            rows.timer_topic,
            order.body,
            keys=order.key,
            deliver_at=round(time.time() * 1000) + order.delay_ms if order.is_absolute else None,
            delay_ms=0 if order.is_absolute else order.delay_ms,
        )
        try:
            queue = MessageQueue(rows.timer_topic, rows.broker, order.queue)
            outcome: SendResult | ClientError = producer.send(message, queue)
        except ClientError as error:
            outcome = error
        rows.timer_sent(order, invoke_ms, outcome)
        handle = outcome.recall_handle if isinstance(outcome, SendResult) else None
        if handle and order.recall_after_ms and self._may_recall:
            recall = _Recall(order, invoke_ms + order.delay_ms, handle)
            self._recalls.add(rows.now_ms() + order.recall_after_ms, recall)

    def _recall(self, producer: Producer, recall: _Recall) -> None:
        rows = self._rows
        invoke_ms = rows.now_ms()
        failed: ClientError | None = None
        try:
            producer.recall(recall.handle)
        except ClientError as error:
            failed = error
        rows.recalled(recall.order, recall.due_ms, invoke_ms, failed)
