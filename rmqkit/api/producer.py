"""Producer: sends messages. Any thread may use it.

The calling thread checks and compresses its message and appends it to a deque. The I/O thread of
the client id sends it and resolves the future. Callbacks of futures run in the I/O thread and must
be short.

Above the limits of `send_queue.py`, a sending thread blocks until there is room.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from rmqkit.api.choices import choose_fault_policy, choose_trace_topic, wall_ms
from rmqkit.api.io_thread import IoThread, User, acquire, release
from rmqkit.api.send_queue import SendQueue
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
from rmqkit.client_keys import choose_keys
from rmqkit.errors import ClientClosed, ClientError, InvalidMessage, RmqkitError
from rmqkit.tls.client_choice import Tls
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.trace import TRACE_TOPIC

PENDING_MAX = 20_000
PENDING_BYTES_MAX = 64 * 1024 * 1024


class Producer(User):
    """Sends messages. Any thread may use a producer.

    A producer is ready when its constructor returns. It opens connections when it needs them. Close
    it, or use it as a context manager.

    Names and defaults are those of Apache's `DefaultMQProducer` where it has the option.

    Args:
        group: The producer group. Brokers list a producer's connections under this name.
        namesrv: Name servers, as `host:port;host:port` or a list. Default: the environment variable
            NAMESRV_ADDR, or else 127.0.0.1:9876.
        instance_name: Part of the client id, `<ip>@<instance_name>`. By default all objects of a
            process with the same name servers share one client id, one I/O thread and their
            connections.
        tls: Whether to connect with TLS: true, false, the path of a file with Java's `tls.client.*`
            keys, or a mapping of them. Default: the environment variable RMQKIT_TLS, or else false.
        access_key: User in whose name requests are signed. Default: RMQKIT_ACCESS_KEY, else the
            file that RMQKIT_ACCESS_FILE names, else requests are not signed.
        secret_key: Password of this user. Default: RMQKIT_SECRET_KEY, else the same file.
        security_token: Token of temporary keys, which some services demand.
        send_msg_timeout_ms: Timeout of a send or request, all attempts included, in ms.
        retry_times_when_send_failed: Retries after a failed `send` or `send_batch`.
        retry_times_when_send_async_failed: Retries after a failed `send_async`.
        retry_another_broker_when_not_store_ok: Whether a status other than SEND_OK is followed by
            an attempt at another broker. This may store the message twice.
        send_msg_max_timeout_per_request_ms: Limit of one attempt, in ms. None: an attempt may use
            all the time that is left. The last attempt always may.
        fault_policy: Which broker the next attempt goes to: `none` (round robin that skips the
            broker that just failed), `latency`, `latency-4x`, the name of a plug-in, or a
            `FaultPolicy` object.
        compress_msg_body_over: Compress bodies of at least this many bytes. Batches are never
            compressed.
        compress_type: `zlib`, `lz4` or `zstd`. The last two need the extra `rmqkit[compression]`.
        compress_level: Compression level of zlib and zstd. lz4 ignores it.
        max_message_size: Largest body, or encoded batch, in bytes before compression.
        create_topic_key: The topic whose route is used for an unknown topic, so that a send can
            create it.
        default_topic_queue_nums: Queues per broker of a topic that a send creates.
        pending_max: Messages that may wait for a response. Above it, sends block.
        pending_bytes_max: Bytes of bodies that may wait for a response. Above it, sends block.
        trace: Whether to record each acknowledged send in `trace_topic`, in Java's format.
        trace_topic: Topic of the traces.

    Raises:
        InvalidMessage: If `group` or `trace_topic` is not a valid name.
        ClientError: If a name server address is invalid, or `compress_type` is unknown or its
            package is missing.
        ConfigError: If `fault_policy` is unknown, a file of `tls` cannot be used, or a key is
            missing.

    Example:
        Send a message and wait for the broker's response:

            from rmqkit import Message, Producer

            with Producer("orders", namesrv="127.0.0.1:9876") as producer:
                result = producer.send(Message("orders", b"a fresh order", keys="order-7"))
                print(result.status, result.msg_id)
    """

    def __init__(
        self,
        group: str = "rmqkit",
        *,
        namesrv: str | Sequence[str] | None = None,
        instance_name: str | None = None,
        tls: Tls = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
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
        check_group(group)
        self.group = group
        self._timeout_ms = send_msg_timeout_ms
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
        self._closed = False
        self._io: IoThread = acquire(
            self, namesrv, instance_name, tls=tls, keys=choose_keys(access_key, secret_key, security_token)
        )
        self._sends = SendQueue(self._io, group, pending_max, pending_bytes_max)
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
        """Send a message and wait for the broker's response.

        If an attempt fails, the producer retries at another broker, up to
        `retry_times_when_send_failed` times and within the timeout. With `queue` or `ordering_key`
        it tries only once: another queue would break the order.

        Args:
            message: The message to send.
            queue: Send to this queue of the message's topic.
            ordering_key: Send to the queue that the hash of this text selects. Equal keys go to the
                same queue as long as the topic's queues do not change.
            timeout_ms: Timeout of the whole send in ms. Default: `send_msg_timeout_ms`.

        Returns:
            The status, the ids, and the queue and offset of the stored message.

        Raises:
            InvalidMessage: No broker would take the message. Nothing was sent.
            NoRoute: No name server knows the topic, or it has no queue to write to.
            PeerUnreachable: No name server answered.
            SendFailed: No broker acknowledged the message. See its `maybe_stored`.
            ClientClosed: The producer is closed.
            ClientForked: The producer was created in the parent process.
            ClientError: Called in a callback of the I/O thread. Use `send_async` there.

        Example:
            Keep the order of one customer's messages:

                for body in (b"created", b"paid", b"shipped"):
                    producer.send(Message("orders", body), ordering_key="customer-7")
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
        """Send a message and return a future of the result.

        Blocks while `pending_max` messages or `pending_bytes_max` bytes are in flight. Callbacks of
        the future run in the I/O thread and must be short.

        Args:
            message: The message to send.
            queue: As in `send`.
            ordering_key: As in `send`.
            timeout_ms: As in `send`.

        Returns:
            A future of what `send` would return or raise.

        Raises:
            InvalidMessage: No broker would take the message. Nothing was sent.
            ClientClosed: The producer is closed.
            ClientForked: The producer was created in the parent process.

        Example:
            Send many messages, then wait for all of them:

                futures = [producer.send_async(Message("orders", b"%d" % n)) for n in range(1000)]
                results = [future.result() for future in futures]
        """
        retries = self._settings.retry_times_when_send_async_failed
        return self._put(self._prepare.message(message, wall_ms()), queue, ordering_key, timeout_ms, retries)

    def send_oneway(self, message: Message, queue: MessageQueue | None = None, *, ordering_key: str | None = None) -> None:
        """Send a message without waiting for a response.

        The message may be lost without notice. There is one attempt, and its errors are ignored.

        Args:
            message: The message to send.
            queue: As in `send`.
            ordering_key: As in `send`.

        Raises:
            ClientError: As in `send_async`.
        """
        outgoing = self._prepare.message(message, wall_ms())
        future = self._put(outgoing, queue, ordering_key, self._timeout_ms, 0, oneway=True)
        future.add_done_callback(_forget_error)

    def send_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None = None, *, timeout_ms: int | None = None
    ) -> SendResult:
        """Send several messages of one topic in one request. The broker stores all of them or none.

        Args:
            messages: At least one message. Replies and messages with a `delay_level` cannot be in a
                batch.
            queue: As in `send`.
            timeout_ms: As in `send`.

        Returns:
            The result of the batch. Its ids are joined by commas, and its offset is that of the
                first message.

        Raises:
            InvalidMessage: The batch is empty, has more than one topic, or is larger than
                `max_message_size`; or no broker would take one of its messages. Nothing was sent.
            ClientError: As in `send`.

        Example:
            Send two messages at once:

                producer.send_batch([Message("orders", b"one"), Message("orders", b"two")])
        """
        if self._io.is_current:
            raise ClientError(
                "send_batch() inside a callback of the I/O thread would wait for itself; use send_batch_async()"
            )
        return self.send_batch_async(messages, queue, timeout_ms=timeout_ms).result()

    def send_batch_async(
        self, messages: Sequence[Message], queue: MessageQueue | None = None, *, timeout_ms: int | None = None
    ) -> "Future[SendResult]":
        """Send a batch and return a future of the result. See `send_batch` and `send_async`.

        Args:
            messages: As in `send_batch`.
            queue: As in `send`.
            timeout_ms: As in `send`.

        Returns:
            A future of what `send_batch` would return or raise.

        Raises:
            InvalidMessage: As in `send_batch`.
        """
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
        """Send a message and wait for the reply of a consumer (`MessageExt.reply`).

        Args:
            message: The request.
            queue: As in `send`.
            ordering_key: As in `send`.
            timeout_ms: Timeout of the whole exchange in ms. Default: `send_msg_timeout_ms`.

        Returns:
            The reply.

        Raises:
            RequestTimeout: No reply arrived in time. If its `sent` is true, a consumer may have
                processed the request.
            ClientError: As in `send`.

        Example:
            Ask, and print the reply:

                reply = producer.request(Message("questions", b"and?"), timeout_ms=5000)
                print(reply.body)
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
        """Send a request and return a future of the reply. See `request`.

        Args:
            message: As in `request`.
            queue: As in `send`.
            ordering_key: As in `send`.
            timeout_ms: As in `request`.

        Returns:
            A future of what `request` would return or raise.

        Raises:
            ClientError: As in `send_async`.
        """
        self._check()
        timeout_ms = timeout_ms or self._timeout_ms
        outgoing = self._prepare.request(message, wall_ms(), self._io.client_id, timeout_ms)
        _check_queue(queue, outgoing.topic)

        def ask() -> Deferred[MessageExt]:
            if self._core is None:
                raise self._io.ended or ClientClosed(f"producer {self.group} is closed")
            return self._core.request(outgoing, timeout_ms=timeout_ms, queue=queue, ordering_key=ordering_key)

        return self._io.run("Producer", ask)

    # --- recalls

    def recall(self, handle: str, *, timeout_ms: int | None = None) -> str:
        """Recall a message that is not due yet.

        The broker needs recallMessageEnable=true. It cannot tell whether the message was delivered
        already: a recall that arrives too late has no effect.

        Args:
            handle: `SendResult.recall_handle` of the message's send.
            timeout_ms: Timeout in ms. Default: `send_msg_timeout_ms`.

        Returns:
            The message's id (`SendResult.msg_id`).

        Raises:
            InvalidMessage: The handle is not one.
            BrokerError: The broker refused it: the time has passed, or recalls are off.
            ClientError: The broker of the message has no master, or did not respond.

        Example:
            A reminder that is no longer wanted:

                sent = producer.send(Message("reminders", b"pay", delay_ms=3_600_000))
                producer.recall(sent.recall_handle)
        """
        if self._io.is_current:
            raise ClientError("recall() inside a callback of the I/O thread would deadlock; use recall_async()")
        return self.recall_async(handle, timeout_ms=timeout_ms).result()

    def recall_async(self, handle: str, *, timeout_ms: int | None = None) -> "Future[str]":
        """Start a recall.

        Args:
            handle: As in `recall`.
            timeout_ms: As in `recall`.

        Returns:
            A future with the result or the error of `recall`.
        """
        self._check()

        def ask() -> Deferred[str]:
            if self._core is None:
                raise self._io.ended or ClientClosed(f"producer {self.group} is closed")
            return start(self._core.recall(handle, timeout_ms or self._timeout_ms))

        return self._io.run("Producer", ask)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of a topic may be sent to.

        Args:
            topic: The topic. For an unknown one, the queues are those that a send would create.

        Raises:
            NoRoute: No name server knows the topic, or it has no queue to write to.
        """
        self._check()

        async def find() -> list[MessageQueue]:
            settings = self._settings
            routes = self._io.client.routes
            route = await routes.find_to_publish(topic, settings.create_topic_key, settings.default_topic_queue_nums)
            return list(route.publish)

        return self._io.wait("queues()", lambda: start(find()))

    # --- life

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until no send is pending.

        Args:
            timeout_s: How long to wait, in seconds. None: without limit.

        Returns:
            Whether all sends have ended. False if the time was over.
        """
        return self._sends.wait_until_empty(timeout_s)

    def close(self) -> None:
        """Wait for pending sends, then close the producer. Safe to call twice and from any thread.

        Waits no longer than the timeouts of the pending sends allow.
        """
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
        """Queue a send. The future's result is a SendResult, or None for a one-way send."""
        self._check()
        _check_queue(queue, outgoing.topic)
        options = {
            "timeout_ms": timeout_ms or self._timeout_ms,
            "retry_times": retries,
            "queue": queue,
            "ordering_key": ordering_key,
            "oneway": oneway,
        }
        return self._sends.put(outgoing, options)

    def _check(self) -> None:
        self._io.check("Producer")
        if self._closed:
            raise ClientClosed(f"producer {self.group} is closed")

    @property
    def traces_dropped(self) -> int:
        """Trace records that were lost, because too many waited or could not be sent."""
        return self._trace.dropped if self._trace is not None else 0

    @property
    def has_room(self) -> bool:
        """Whether `send_async` would return without blocking."""
        return self._sends.has_room

    def wait_for_room(self) -> None:
        """Block until there is room for another send. Returns at once in the I/O thread."""
        self._sends.wait_for_room()

    # --- in the I/O thread

    def _begin(self) -> None:
        if self._io.ended is None:
            self._core = self._sends.core = core.ProducerCore(self._io.client, self._settings)
            if self._trace_topic:
                self._trace = TraceDispatch(self._io.client, self._io.ids, topic=self._trace_topic, group=self.group)
                self._core.trace = ProducerTrace(self._trace, self.group)

    async def _leave(self) -> None:
        if self._trace is not None:
            await self._trace.close()
        if self._core is not None:
            await self._core.close()

    def lost(self, error: RmqkitError) -> None:
        """Fail all pending sends. The I/O thread calls this when it ends unexpectedly.

        Args:
            error: Why the thread ended.
        """
        self._sends.lost(error)


def _check_queue(queue: MessageQueue | None, topic: str) -> None:
    if queue is not None and queue.topic != topic:
        raise InvalidMessage(f"queue {queue} does not belong to topic {topic}")


def _forget_error(future: "Future[Any]") -> None:
    """Retrieve the error of a one-way send: no caller waits for its outcome."""
    if not future.cancelled():
        future.exception()
