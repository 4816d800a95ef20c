"""PushConsumer: calls a listener for each message, from a pool of threads.

    consumer = PushConsumer("orders", namesrv="127.0.0.1:9876")
    consumer.subscribe("T", "TagA || TagB")

    @consumer.listener
    def handle(message):
        print(message.body)          # return False or raise: the message comes again later

    with consumer:                   # or consumer.start()
        consumer.wait()              # until close() or Ctrl-C

The listener gets one message, or with `batch_max` above 1 a list of messages of one queue. None and True mean done;
False and any exception mean that all of the call's messages come again: later, and to whatever member the broker picks,
or, with `orderly`, after a pause and before anything behind them in their queue.
"""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from rmqkit.api import choices
from rmqkit.api.io_thread import User, acquire, release
from rmqkit.api.listener_pool import ListenerPool
from rmqkit.api.log import logger
from rmqkit.api.pull_consumer import CLOSE_WAIT_S
from rmqkit.client.allocators import Allocator
from rmqkit.client.consumers import push_consumer as core
from rmqkit.client.consumers.push_queue import ListenerBatch, PushConsumerSettings
from rmqkit.client.flow import start
from rmqkit.client.message import MessageExt
from rmqkit.client.producers.outgoing_message import check_group, check_topic
from rmqkit.client.producers.trace import ConsumerTrace, TraceDispatch
from rmqkit.errors import ClientClosed, ClientError, RmqkitError
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.trace import TRACE_TOPIC

CONSUME_THREADS = 20
ORDERLY_THREADS_MAX = 1024

#: what a listener is: a function of one message, or of a list of them
Listener = Callable[[Any], bool | None]


class Runner(Protocol):
    """Where listeners run."""

    def submit(self, batch: ListenerBatch) -> None:
        """Called in the I/O thread; must not block."""

    def close(self, wait_s: float) -> bool: ...


class PushConsumer(User):
    """Nothing happens before `start`. Names and defaults are Apache's (`DefaultMQPushConsumer`) where it has them.

    `namesrv`: `host:port;host:port` or a list; by default NAMESRV_ADDR, else 127.0.0.1:9876. `model`: clustering
    shares the queues among the members, broadcasting gives each all of them and keeps offsets in files under
    `offset_folder`. `consume_from`: where a group begins that has never consumed a queue: last, first or timestamp.
    `consume_timeout_ms`: messages whose listener takes longer are handed to another one, not when orderly.
    `retry_delay_ms`: until a message is delivered again that its broker did not take back. `close_wait_ms`: how long
    `close` waits for listeners at work. `trace` writes when the listener began with each message, and what came of it,
    into `trace_topic`.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance_name: str | None = None,
        model: str = "clustering",
        orderly: bool = False,
        consume_from: str = "last",
        consume_timestamp_ms: int | None = None,
        allocator: str | Allocator = "average",
        batch_max: int = 1,
        consume_threads: int = CONSUME_THREADS,
        max_reconsume_times: int = -1,
        pull_batch_size: int = 32,
        pull_threshold_for_queue: int = 1000,
        pull_threshold_size_for_queue_mib: int = 100,
        consume_concurrently_max_span: int = 2000,
        consume_timeout_ms: int = 900_000,
        retry_delay_ms: int = 5000,
        suspend_current_queue_time_ms: int = 1000,
        persist_interval_ms: int = 5000,
        close_wait_ms: int = 5000,
        offset_folder: str | None = None,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
    ) -> None:
        check_group(group)
        if batch_max < 1:
            raise ClientError("batch_max must be at least 1")
        self.group = group
        self._settings = PushConsumerSettings(
            group=group,
            broadcasting=choices.choose_model(model),
            orderly=orderly,
            consume_from=choices.choose_begin(consume_from),
            consume_timestamp_ms=choices.choose_begin_ms(consume_timestamp_ms),
            allocator=choices.choose_allocator(allocator),
            consume_message_batch_max_size=batch_max,
            max_reconsume_times=max_reconsume_times,
            pull_batch_size=pull_batch_size,
            pull_threshold_for_queue=pull_threshold_for_queue,
            pull_threshold_size_for_queue=pull_threshold_size_for_queue_mib * 1024 * 1024,
            consume_concurrently_max_span=consume_concurrently_max_span,
            consume_timeout_ms=consume_timeout_ms,
            retry_delay_ms=retry_delay_ms,
            suspend_current_queue_time_ms=suspend_current_queue_time_ms,
            persist_interval_ms=persist_interval_ms,
        )
        self._close_wait_s = close_wait_ms / 1000
        self._listener: Listener | None = None
        self._started = False
        self._closed = threading.Event()
        self._close_guard = threading.Lock()
        self._trace_topic = choices.choose_trace_topic(trace, trace_topic)
        self._trace: ConsumerTrace | None = None
        threads = ORDERLY_THREADS_MAX if orderly else consume_threads
        self._runner: Runner = ListenerPool(f"rmqkit-{group}", threads, self._consume, self.discard)
        self._io = acquire(self, namesrv, instance_name, consumer_group=group)
        try:
            self._core = self._io.wait("PushConsumer()", lambda: start(self._make(offset_folder)))
        except BaseException:
            release(self, self._io, group)
            raise

    async def _make(self, folder: str | None) -> core.PushConsumerCore:
        client, settings = self._io.client, self._settings
        if self._trace_topic:
            io = self._io
            dispatch = TraceDispatch(
                client,
                io.ids,
                topic=self._trace_topic,
                group=self.group,
                ask_flush=lambda: io.post(dispatch.flush),
            )
            self._trace = ConsumerTrace(dispatch, self.group)
        offsets = choices.choose_offsets(client, settings.group, settings.broadcasting, folder)
        return core.PushConsumerCore(client, settings, offsets, self._dispatch)

    # --- before and while running

    def subscribe(self, topic: str, expression: str = "*", *, expression_type: str = "TAG") -> None:
        """Consume a topic. A second call replaces the first.

        `expression`: `TagA || TagB`, `*` for all, or `sql("price > 10")` (the same as `expression_type="SQL92"`). Brokers
        are asked whether a filter will do, at `start` or here once started; BrokerError says what is wrong with it. A topic
        that does not exist yet is consumed once it does.
        """
        check_topic(topic, to_send=False)

        async def subscribe() -> None:
            await self._core.check(topic, expression, expression_type)
            self._core.subscribe(topic, expression, expression_type)

        self._check()
        self._io.wait("PushConsumer.subscribe()", lambda: start(subscribe()))

    def unsubscribe(self, topic: str) -> None:
        self._check()
        self._io.do("PushConsumer.unsubscribe()", lambda: self._core.unsubscribe(topic))

    def listener(self, function: Listener) -> Listener:
        """Decorator: this function gets the messages."""
        self._listener = function
        return function

    def start(self, listener: Listener | None = None) -> Self:
        """Join the group and begin. Raises ClientError without a listener or a subscription."""
        if listener is not None:
            self._listener = listener
        if self._listener is None:
            raise ClientError("start() needs a listener; pass one, or mark a function with @consumer.listener")
        self.start_with(self._runner)
        return self

    def start_with(self, runner: Runner) -> None:
        """Join the group, with another place for listeners to run (`rmqkit.aio`)."""
        self._check()
        if not self._started:
            self._started = True
            self._runner = runner
            try:
                self._io.wait("PushConsumer.start()", lambda: start(self._core.start()))
            except BaseException:
                self._started = False
                raise

    def suspend(self) -> None:
        """Pull nothing until `resume`; messages that are here already are still delivered."""
        self._check()
        self._io.post(lambda: setattr(self._core, "suspended", True))

    def resume(self) -> None:
        self._check()
        self._io.post(lambda: setattr(self._core, "suspended", False))

    @property
    def traces_dropped(self) -> int:
        """Trace records that were lost, because too many waited or the trace topic took none."""
        return self._trace.dispatch.dropped if self._trace is not None else 0

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues this member works on now."""
        return sorted(self._core.works)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until `close` is called, from a listener or another thread; Ctrl-C ends it too. False when the time was over."""
        return self._closed.wait(timeout_s)

    # --- end

    def close(self) -> None:
        """Let listeners at work end, store offsets, leave the group. Safe to call twice and from a listener."""
        with self._close_guard:
            if self._closed.is_set():
                return
            self._closed.set()
        io = self._io
        if io.pid != os.getpid():
            return
        if io.ended is None:
            try:
                io.run("PushConsumer", lambda: start(self._quiesce())).result(CLOSE_WAIT_S)
                if not self._runner.close(self._close_wait_s):
                    logger.warning("group %s: a listener did not end; its messages will be delivered again", self.group)
                io.run("PushConsumer", lambda: start(self._leave())).result(CLOSE_WAIT_S)
            except (RmqkitError, TimeoutError) as error:
                logger.warning("group %s was not left cleanly: %s", self.group, error)
        release(self, io, self.group)

    async def _quiesce(self) -> None:
        self._core.quiesce()

    async def _leave(self) -> None:
        await self._core.close()
        if self._trace is not None:
            await self._trace.dispatch.close()

    def __enter__(self) -> Self:
        # Without a listener so far, `start(listener)` comes in the block.
        if self._listener is not None and not self._started:
            self.start()
        return self

    def lost(self, error: RmqkitError) -> None:
        """The I/O thread has ended."""
        self._closed.set()
        self._runner.close(0)

    def _check(self) -> None:
        self._io.check("PushConsumer")
        if self._closed.is_set():
            raise ClientClosed(f"push consumer of group {self.group} is closed")

    # --- deliveries

    def _dispatch(self, batch: ListenerBatch) -> None:
        self._runner.submit(batch)

    def _consume(self, batch: ListenerBatch) -> None:
        """In a thread of the pool."""
        if batch.work.is_idle and batch.answer is None:
            self.discard(batch)
            return
        self.began(batch)
        ok, error = self._call(batch.messages)
        self.finished(batch, ok, error)

    def began(self, batch: ListenerBatch) -> None:
        self._core.began(batch)
        if self._trace is not None:
            self._trace.began(batch, choices.wall_ms())

    def finished(self, batch: ListenerBatch, ok: bool, error: str) -> None:
        if self._trace is not None:
            self._trace.ended(batch, choices.wall_ms(), ok, error)
        self._io.post(lambda: self._core.finished(batch, ok, error))

    def discard(self, batch: ListenerBatch) -> None:
        """The listener will not see it."""
        self._io.post(lambda: self._core.undelivered(batch))

    def _call(self, messages: list[MessageExt]) -> tuple[bool, str]:
        listener = self._listener
        assert listener is not None, "started with a listener"
        try:
            return listener(self.argument(messages)) is not False, ""
        except Exception as error:
            ids = ", ".join(each.msg_id for each in messages)
            logger.exception("group %s: the listener failed; %s will come again", self.group, ids)
            return False, f"{type(error).__name__}: {error}"

    def argument(self, messages: list[MessageExt]) -> MessageExt | list[MessageExt]:
        """What the listener is called with."""
        return messages[0] if self._settings.consume_message_batch_max_size == 1 else messages
