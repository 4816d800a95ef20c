"""Producer: sends messages, from any thread.

    with Producer(group="orders", namesrv="127.0.0.1:9876") as producer:
        result = producer.send(Message("T", b"hello", keys="k1"))
        future = producer.send_async(Message("T", b"world"))
        reply = producer.request(Message("questions", b"and?"), timeout_ms=5000)

The calling thread checks and compresses its message and puts it on a deque; the I/O thread of the client id does the rest
and resolves the future. Callbacks of futures run in the I/O thread and must be short.

At most `pending_max` messages of `pending_bytes_max` bytes wait for their answers; beyond that a sending thread is held
until there is room.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from rmqkit.api.choices import choose_fault_policy, choose_trace_topic, wall_ms
from rmqkit.api.io_thread import IoThread, User, acquire, release
from rmqkit.client.fault_policy import FaultPolicy
from rmqkit.client.flow import Deferred, start
from rmqkit.client.message import Message, MessageExt, SendResult
from rmqkit.client.producers import producer as core
from rmqkit.client.producers.compression import compression
from rmqkit.client.producers.outgoing_message import (
    COMPRESS_LEVEL,
    COMPRESS_OVER,
    MESSAGE_SIZE_MAX,
    OutgoingMessage,
    Prepare,
    check_group,
)
from rmqkit.client.producers.trace import ProducerTrace, TraceDispatch
from rmqkit.client.routes import DEFAULT_TOPIC
from rmqkit.errors import ClientClosed, ClientError, InvalidMessage, RmqkitError
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.trace import TRACE_TOPIC

PENDING_MAX = 20_000
PENDING_BYTES_MAX = 64 * 1024 * 1024
#: a thread that sends faster than the I/O thread works must not keep it from reading answers
JOBS_A_TURN = 500


class _Job(NamedTuple):
    """One send on its way to the I/O thread."""

    outgoing: OutgoingMessage
    future: "Future[SendResult | None]"
    options: Mapping[str, Any]


class Producer(User):
    def __init__(
        self,
        group: str = "rmqkit",
        *,
        namesrv: str | Sequence[str] | None = None,
        instance_name: str | None = None,
        send_msg_timeout_ms: int = 3000,
        retry_times_when_send_failed: int = 2,
        retry_times_when_send_async_failed: int = 2,
        retry_another_broker_when_not_store_ok: bool = False,
        send_msg_max_timeout_per_request_ms: int | None = None,
        fault_policy: str | FaultPolicy = "none",
        compress_msg_body_over: int = COMPRESS_OVER,
        compress_type: str = "zlib",
        compress_level: int = COMPRESS_LEVEL,
        max_message_size: int = MESSAGE_SIZE_MAX,
        create_topic_key: str = DEFAULT_TOPIC,
        default_topic_queue_nums: int = 4,
        pending_max: int = PENDING_MAX,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
    ) -> None:
        """Ready to send when this returns; connections are made when they are needed.

        `namesrv`: `host:port;host:port` or a list; by default NAMESRV_ADDR, else 127.0.0.1:9876. `fault_policy`: none,
        latency, latency-4x, a plug-in's name, or an object. `trace` writes what became of each acknowledged send into
        `trace_topic`, where Apache's tools and ours look for it. The other names and defaults are Apache's
        (`DefaultMQProducer`). Raises ClientError for settings that cannot be.
        """
        check_group(group)
        self.group = group
        self._timeout_ms = send_msg_timeout_ms
        self._pending_max = pending_max
        self._pending_bytes_max = pending_bytes_max
        self._settings = core.ProducerSettings(
            group=group,
            retry_times_when_send_failed=retry_times_when_send_failed,
            retry_times_when_send_async_failed=retry_times_when_send_async_failed,
            retry_another_broker_when_not_store_ok=retry_another_broker_when_not_store_ok,
            send_msg_max_timeout_per_request_ms=send_msg_max_timeout_per_request_ms,
            create_topic_key=create_topic_key,
            default_topic_queue_nums=default_topic_queue_nums,
            fault_policy=choose_fault_policy(fault_policy),
        )
        algorithm = compression(compress_type)
        self._trace_topic = choose_trace_topic(trace, trace_topic)
        self._jobs: deque[_Job] = deque()
        self._asked = False
        #: what the I/O thread has taken and not ended
        self._unfinished: dict[Future[SendResult | None], None] = {}
        self._room = threading.Condition()
        #: threads that wait for room or for the end of all
        self._held = 0
        #: what was put and has not ended; under the guard
        self._guard = threading.Lock()
        self._pending = 0
        self._pending_bytes = 0
        self._closed = False
        self._io: IoThread = acquire(self, namesrv, instance_name)
        self._prepare = Prepare(
            self._io.ids,
            message_size_max=max_message_size,
            compress_over=compress_msg_body_over,
            compression=algorithm,
            compress_level=compress_level,
        )
        self._core: core.ProducerCore | None = None
        self._trace: TraceDispatch | None = None
        self._io.post(self._begin)

    # --- sending

    def send(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        ordering_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send and wait for the broker's answer.

        `queue` sends to that queue; `ordering_key` to a queue chosen by its hash, the same for the same key as long as the
        topic's queues stay. Both are tried once, anything else `retry_times_when_send_failed` times more.

        Raises InvalidMessage before anything is sent, NoRoute, SendFailed (look at its `maybe_stored`), ClientClosed,
        ClientForked.
        """
        if self._io.is_current:
            raise ClientError("send() inside a callback of the I/O thread would wait for itself; use send_async()")
        retries = self._settings.retry_times_when_send_failed
        outgoing = self._prepare.message(message, wall_ms())
        result: SendResult = self._put(outgoing, queue, ordering_key, timeout_ms, retries).result()
        return result

    def send_async(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        ordering_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> "Future[SendResult]":
        """As `send`, with a future for what it would return or raise. Raises InvalidMessage at once.

        Waits for room when `pending_max` messages are on their way already.
        """
        retries = self._settings.retry_times_when_send_async_failed
        return self._put(self._prepare.message(message, wall_ms()), queue, ordering_key, timeout_ms, retries)

    def send_oneway(self, message: Message, queue: MessageQueue | None = None, *, ordering_key: str | None = None) -> None:
        """Send without an answer: it may be lost and nobody will know. Raises InvalidMessage, ClientClosed."""
        outgoing = self._prepare.message(message, wall_ms())
        future = self._put(outgoing, queue, ordering_key, self._timeout_ms, 0, oneway=True)
        future.add_done_callback(_forget_error)

    def send_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None = None, *, timeout_ms: int | None = None
    ) -> SendResult:
        """Several messages of one topic in one request, stored all or none. The limits are those of one message."""
        if self._io.is_current:
            raise ClientError(
                "send_batch() inside a callback of the I/O thread would wait for itself; use send_batch_async()"
            )
        return self.send_batch_async(messages, queue, timeout_ms=timeout_ms).result()

    def send_batch_async(
        self, messages: Sequence[Message], queue: MessageQueue | None = None, *, timeout_ms: int | None = None
    ) -> "Future[SendResult]":
        outgoing = self._prepare.batch(messages, wall_ms())
        retries = self._settings.retry_times_when_send_failed
        return self._put(outgoing, queue, None, timeout_ms, retries)

    # --- requests

    def request(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        ordering_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> MessageExt:
        """Send a message and wait for its consumer's reply (`MessageExt.reply`).

        `timeout_ms` is for all of it. Raises as `send` does, and RequestTimeout when no reply came: the request may have
        been worked on all the same.
        """
        if self._io.is_current:
            raise ClientError("request() inside a callback of the I/O thread would wait for itself; use request_async()")
        return self.request_async(message, queue, ordering_key=ordering_key, timeout_ms=timeout_ms).result()

    def request_async(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        ordering_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> "Future[MessageExt]":
        """As `request`, with a future for what it would return or raise. Raises InvalidMessage at once."""
        self._check()
        timeout_ms = timeout_ms or self._timeout_ms
        outgoing = self._prepare.request(message, wall_ms(), self._io.client_id, timeout_ms)
        _check_queue(queue, outgoing.topic)

        def ask() -> Deferred[MessageExt]:
            if self._core is None:
                raise self._io.ended or ClientClosed(f"producer {self.group} is closed")
            return self._core.request(outgoing, timeout_ms=timeout_ms, queue=queue, ordering_key=ordering_key)

        return self._io.run("Producer", ask)

    def recall(self, handle: str, *, timeout_ms: int | None = None) -> str:
        """Take a message back before it is due; return its id.

        `handle` is `SendResult.recall_handle` of its send. The broker needs recallMessageEnable=true. A recall that is
        answered after the message was delivered has no effect. Raises InvalidMessage for a handle that is none,
        BrokerError when the broker refuses it (the time has passed, recalls are off).
        """
        if self._io.is_current:
            raise ClientError("recall() inside a callback of the I/O thread would wait for itself; use recall_async()")
        return self.recall_async(handle, timeout_ms=timeout_ms).result()

    def recall_async(self, handle: str, *, timeout_ms: int | None = None) -> "Future[str]":
        """As `recall`, with a future for what it would return or raise."""
        self._check()

        def ask() -> Deferred[str]:
            if self._core is None:
                raise self._io.ended or ClientClosed(f"producer {self.group} is closed")
            return start(self._core.recall(handle, timeout_ms or self._timeout_ms))

        return self._io.run("Producer", ask)

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that messages of a topic may be sent to. Raises NoRoute."""
        self._check()

        async def find() -> list[MessageQueue]:
            settings = self._settings
            routes = self._io.client.routes
            route = await routes.find_to_publish(topic, settings.create_topic_key, settings.default_topic_queue_nums)
            return list(route.publish)

        return self._io.wait("queues()", lambda: start(find()))

    # --- life

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until every message sent so far has ended. False when the time was over."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._room:
            self._held += 1
            try:
                while self._pending:
                    left = None if until is None else until - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    self._room.wait(0.1 if left is None else min(left, 0.1))
            finally:
                self._held -= 1
        return True

    def close(self) -> None:
        """Wait for what is on its way (no longer than its timeouts), and leave. Safe to call twice and at any time."""
        if self._closed:
            return
        self._closed = True
        io = self._io
        if io.pid != os.getpid():
            return
        if not io.is_current and io.ended is None:
            self.flush(self._timeout_ms / 1000 + 1)
            try:
                io.run("Producer", lambda: start(self._leave())).result(self._timeout_ms / 1000 + 3)
            except (RmqkitError, TimeoutError):
                pass
        release(self, io)

    # --- inside

    def _put(
        self,
        outgoing: OutgoingMessage,
        queue: MessageQueue | None,
        ordering_key: str | None,
        timeout_ms: int | None,
        retries: int,
        oneway: bool = False,
    ) -> "Future[Any]":
        """The future is of a SendResult, of a one-way send of None."""
        self._check()
        _check_queue(queue, outgoing.topic)
        if not self.has_room:
            self.wait_for_room()
        future: Future[SendResult | None] = Future()
        options = {
            "timeout_ms": timeout_ms or self._timeout_ms,
            "retry_times": retries,
            "queue": queue,
            "ordering_key": ordering_key,
            "oneway": oneway,
        }
        with self._guard:
            self._pending += 1
            self._pending_bytes += len(outgoing.body)
        self._jobs.append(_Job(outgoing, future, options))
        if not self._asked:
            self._asked = True
            self._io.post(self._take_jobs)
        return future

    def _check(self) -> None:
        self._io.check("Producer")
        if self._closed:
            raise ClientClosed(f"producer {self.group} is closed")

    @property
    def traces_dropped(self) -> int:
        """Trace records that were lost, because too many waited or the trace topic took none."""
        return self._trace.dropped if self._trace is not None else 0

    @property
    def has_room(self) -> bool:
        """Whether `send_async` would not wait."""
        return self._pending < self._pending_max and self._pending_bytes < self._pending_bytes_max

    def wait_for_room(self) -> None:
        if self._io.is_current:
            return
        with self._room:
            self._held += 1
            try:
                while not self.has_room and self._io.ended is None:
                    self._room.wait(0.1)
            finally:
                self._held -= 1

    # --- in the I/O thread

    def _begin(self) -> None:
        if self._io.ended is None:
            self._core = core.ProducerCore(self._io.client, self._settings)
            if self._trace_topic:
                self._trace = TraceDispatch(self._io.client, self._io.ids, topic=self._trace_topic, group=self.group)
                self._core.trace = ProducerTrace(self._trace, self.group)

    def _take_jobs(self) -> None:
        # Cleared first: a job that is put from here on asks again.
        self._asked = False
        jobs, producer = self._jobs, self._core
        for _ in range(JOBS_A_TURN):
            try:
                outgoing, future, options = jobs.popleft()
            except IndexError:
                return
            if not future.set_running_or_notify_cancel():
                self._count_down(len(outgoing.body))
            elif producer is None or self._io.ended is not None:
                self._count_down(len(outgoing.body))
                future.set_exception(self._io.ended or ClientClosed(f"producer {self.group} is closed"))
            else:
                self._unfinished[future] = None
                producer.send(outgoing, partial(self._ended, future, len(outgoing.body)), **options)
        if not self._asked:
            self._asked = True
            self._io.post(self._take_jobs)

    def _ended(self, future: "Future[SendResult | None]", size: int, outcome: core.SendOutcome | None) -> None:
        self._unfinished.pop(future, None)
        self._count_down(size)
        if isinstance(outcome, ClientError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _count_down(self, size: int) -> None:
        with self._guard:
            self._pending -= 1
            self._pending_bytes -= size
        # A held thread goes on when a quarter is free, not for each message.
        if self._held and self._pending <= self._pending_max * 3 // 4:
            with self._room:
                self._room.notify_all()

    async def _leave(self) -> None:
        if self._trace is not None:
            await self._trace.close()
        if self._core is not None:
            await self._core.close()

    def lost(self, error: RmqkitError) -> None:
        """The I/O thread has ended."""
        for future in list(self._unfinished):
            del self._unfinished[future]
            future.set_exception(error)
        with self._guard:
            self._pending, self._pending_bytes = len(self._jobs), 0
        while self._jobs:
            self._take_jobs()


def _check_queue(queue: MessageQueue | None, topic: str) -> None:
    if queue is not None and queue.topic != topic:
        raise InvalidMessage(f"queue {queue} is not one of topic {topic}")


def _forget_error(future: "Future[Any]") -> None:
    """A one-way send has no outcome that anybody waits for."""
    if not future.cancelled():
        future.exception()
