"""The workload on real processes: threads with the clients of `rmqkit`.

Each writer and each reader is its own thread. A failed send is recorded as well, and the writer
continues at its pace. A reader that gets an error (no broker reachable) tries again.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from rmqkit.api import Producer, PullConsumer, PushConsumer
from rmqkit.client.message import Message, MessageExt, SendResult
from rmqkit.drill import workload
from rmqkit.drill.history import FAULT_BITES, History, HistoryRow
from rmqkit.drill.load_history import RecordedLoad
from rmqkit.drill.plan import Plan
from rmqkit.drill.real.client_threads import ClientThreads, Pace
from rmqkit.drill.real.services.table import make_loads
from rmqkit.drill.real.takeover import TakeoverLoad
from rmqkit.errors import ClientError, RmqkitError
from rmqkit.runtime.connection import Address
from rmqkit.wire.fastjson import MessageQueue

POLL_MS = 200
COMMIT_MS = 500
RETRY_S = 0.1
JOIN_S = 15.0


class RealLoad(RecordedLoad):
    """Writers and readers of one drill."""

    def __init__(
        self,
        plan: Plan,
        history: History,
        now_ms: Callable[[], int],
        *,
        namesrv: str,
        name: str,
        broker: str,
        nodes: Mapping[str, str],
        brokers: Sequence[str],
    ) -> None:
        """`nodes` maps the addresses of the brokers to their node names.

        `brokers` are the names of all broker groups.
        """
        super().__init__(plan, history, now_ms, name=name, broker=broker)
        self.namesrv = namesrv
        #: the load for takeovers; None if no slave may act
        self.takeover: TakeoverLoad | None = None
        if plan.acting:
            self.takeover = TakeoverLoad(self, nameserver=Address.parse(namesrv.partition(";")[0]), nodes=nodes)
        self._service_loads = make_loads(self.services, namesrv=namesrv, read=self.read, nodes=nodes, brokers=brokers)
        self._threads = ClientThreads()
        self._producers: list[Producer] = []
        self._push: list[PushConsumer] = []

    def start(self) -> None:
        """Start all writers and readers. Raises ClientError."""
        self._threads.begin()
        for number in range(workload.PUSH_MEMBERS):
            self._start_push(number)
        self._threads.read("pull", partial(self._pull, workload.PULL))
        for number in range(self.plan.writers):
            self._threads.write(workload.writer_name(number), partial(self._write, number))
        if self.takeover is not None:
            self.takeover.start()
        for service in self._service_loads:
            service.start()

    def seen(self, row: HistoryRow) -> None:
        """Let the late groups join after the proof of the fault."""
        super().seen(row)
        if row.kind == "event" and row.key == FAULT_BITES:
            self.given[workload.LATE] = {}
            self._threads.read("late", partial(self._pull, workload.LATE))
            if self.takeover is not None:
                self.takeover.join_ordered()

    def stop_sending(self) -> None:
        """Stop the writers, and return when every send has ended."""
        self._threads.sending.clear()
        if self.takeover is not None:
            self.takeover.stop_sending(JOIN_S)
        for service in self._service_loads:
            service.stop_sending(JOIN_S)
        self._threads.stop_sending(JOIN_S)
        for producer in self._producers:
            producer.close()

    def close(self) -> None:
        self.stop_sending()
        self._threads.reading.clear()
        for consumer in self._push:
            with suppress(RmqkitError):
                consumer.close()
        if self.takeover is not None:
            self.takeover.close(JOIN_S)
        for service in self._service_loads:
            service.close(JOIN_S)
        self._threads.close(JOIN_S)

    # --- writing

    def _write(self, number: int) -> None:
        plan = self.plan
        name = workload.writer_name(number)
        producer = Producer(
            f"{self.name}-writers",
            namesrv=self.namesrv,
            instance_name=f"{self.name}-w{number}",
            send_msg_timeout_ms=plan.send_timeout_ms,
        )
        self._producers.append(producer)
        pace = Pace()
        for order in workload.script(plan, number):
            pace.wait(order.pause_ms)
            if not self._threads.sending.is_set():
                return
            self._send(producer, name, order)

    def _send(self, producer: Producer, name: str, order: workload.Order) -> None:
        queue = MessageQueue(self.name, self.broker, order.queue) if order.queue >= 0 else None
        invoke_ms = self.now_ms()
        try:
            outcome: SendResult | ClientError = producer.send(Message(self.name, order.body, keys=order.key), queue)
        except ClientError as error:
            outcome = error
        self.sent(name, order, invoke_ms, outcome)

    # --- reading

    def _start_push(self, number: int) -> None:
        consumer = PushConsumer(
            self.group(workload.PUSH),
            namesrv=self.namesrv,
            instance_name=f"{self.name}-p{number}",
            orderly=True,
            consume_from="first",
            persist_interval_ms=COMMIT_MS,
        )
        self._push.append(consumer)
        consumer.subscribe(self.name)

        def listen(message: MessageExt) -> None:
            self.delivered(workload.PUSH, f"push-{number}", message)

        consumer.start(listen)

    def _pull(self, kind: str) -> None:
        self.read(kind, self.name, self._threads.reading, lambda message: self.delivered(kind, f"{kind}-0", message))

    def read(self, kind: str, topic: str, going: threading.Event, given: Callable[[MessageExt], None]) -> None:
        """Consume a topic as the only member of a group, while `going` is set.

        `given` receives each message.
        """
        consumer = PullConsumer(
            self.group(kind),
            namesrv=self.namesrv,
            instance_name=f"{self.name}-{kind}",
            consume_from="first",
            auto_commit_interval_ms=COMMIT_MS,
        )
        try:
            self.subscribed(consumer, topic, going)
            while going.is_set():
                try:
                    messages = consumer.poll(POLL_MS)
                except ClientError:
                    time.sleep(RETRY_S)
                    continue
                for message in messages:
                    given(message)
        except ClientError as error:  # no steady state follows without a reader, so the drill reports it
            self.history.add("event", key=f"group {kind} ended", value=str(error), invoke_ms=self.now_ms())
        finally:
            consumer.close()

    def subscribed(self, consumer: PullConsumer, topic: str, reading: threading.Event) -> None:
        """Subscribe, and retry on errors: a paused master does not answer.

        Raises the last error once `reading` is cleared.
        """
        while True:
            try:
                consumer.subscribe(topic)
                return
            except ClientError:
                if not reading.is_set():
                    raise
                time.sleep(RETRY_S)
