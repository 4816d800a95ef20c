"""PushConsumer: calls a listener for each message, in a pool of threads.

    consumer = PushConsumer("orders", namesrv="127.0.0.1:9876")
    consumer.subscribe("T", "TagA || TagB")

    @consumer.listener
    def handle(message):
        print(message.body)          # return False or raise: the message is redelivered

    with consumer:                   # or consumer.start()
        consumer.wait()              # until close() or Ctrl-C

The listener gets one message or, with `batch_max` above 1, a list of messages of one queue. If it
returns None or True, the messages are consumed. If it returns False or raises, all messages of the
call are redelivered:

- by default later, to any member of the group;
- with `orderly`, after a pause, before any message behind them in their queue.

With `mode="pop"` the members do not divide the queues: any number of them share each one.
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
from rmqkit.client.consumers.listener import ListenerCall, ListenerConsumer
from rmqkit.client.consumers.pop.consumer import PopConsumerCore
from rmqkit.client.consumers.push_consumer import PushConsumerCore
from rmqkit.client.consumers.push_queue import PushConsumerSettings
from rmqkit.client.flow import start
from rmqkit.client.message import MessageExt
from rmqkit.client.producers.outgoing_message import check_group, check_topic
from rmqkit.client.producers.trace import ConsumerTrace, TraceDispatch
from rmqkit.client_keys import choose_keys
from rmqkit.errors import ClientClosed, ClientError, RmqkitError
from rmqkit.tls.client_choice import Tls
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.trace import TRACE_TOPIC

CONSUME_THREADS = 20
ORDERLY_THREADS_MAX = 1024

#: A listener takes one message, or a list of messages if `batch_max` is above 1.
Listener = Callable[[Any], bool | None]


class Runner(Protocol):
    """Runs listeners: a pool of threads, or tasks of an asyncio loop."""

    def submit(self, batch: ListenerCall) -> None:
        """Run the listener for a batch. Called in the I/O thread, so it must not block."""

    def close(self, wait_s: float) -> bool:
        """Stop, and wait up to `wait_s` seconds. Returns False if a listener is still running."""


class PushConsumer(User):
    """Calls a listener for each message of the subscribed topics, in a pool of threads.

    Any thread may use a push consumer. It consumes nothing before `start`, which joins the group. A
    slow listener blocks neither heartbeats nor pulls.

    The listener gets one message or, with `batch_max` above 1, a list of messages of one queue.
    Messages are consumed if it returns None or True. If it returns False or raises, the broker
    redelivers them later (10 s, 30 s, 1 min, …), and after `max_reconsume_times` moves them to the
    dead letters, topic `%DLQ%<group>`. A message may be delivered more than once.

    Names and defaults are those of Apache's `DefaultMQPushConsumer` where it has the option.

    Args:
        group: The consumer group.
        namesrv: Name servers, as `host:port;host:port` or a list. Default: the environment variable
            NAMESRV_ADDR, or else 127.0.0.1:9876.
        instance_name: Part of the client id, `<ip>@<instance_name>`. By default all objects of a
            process with the same name servers share one client id, except a second consumer of a
            group.
        tls: Whether to connect with TLS: true, false, the path of a file with Java's `tls.client.*`
            keys, or a mapping of them. Default: the environment variable RMQKIT_TLS, or else false.
        access_key: User in whose name requests are signed. Default: RMQKIT_ACCESS_KEY, else the
            file that RMQKIT_ACCESS_FILE names, else requests are not signed.
        secret_key: Password of this user. Default: RMQKIT_SECRET_KEY, else the same file.
        security_token: Token of temporary keys, which some services demand.
        mode: `pull` divides the queues among the members. `pop` lets all members share every queue:
            the broker gives each message to one of them, and hides it from the others until it is
            acked or `pop_invisible_time_ms` is over. This member pops whatever mode the broker has
            for the group (`rmqkit group mode` sets it for Java's clients). Excludes `orderly` and
            `model="broadcasting"`.
        model: `clustering` shares the queues among the members. `broadcasting` gives every member
            all messages and stores offsets in files below `offset_folder`. There a failed message
            is logged and dropped, unless `orderly`.
        orderly: Whether to deliver each queue in order, one call of the listener at a time. The
            broker locks each queue for one member.
        consume_from: Where to start in a queue without a committed offset: `last`, `first` or
            `timestamp`.
        consume_timestamp_ms: Unix time in ms for `consume_from="timestamp"`. Default: 30 minutes
            ago.
        allocator: How members share queues: `average`, `circle`, `consistent-hash`, `machine-room`,
            `config`, the name of a plug-in, or an `Allocator` object. All members must use the same
            one.
        batch_max: The largest number of messages per call of the listener. Above 1, the listener
            gets lists.
        consume_threads: The largest number of listener threads. With `orderly` the limit is 1024
            instead.
        max_reconsume_times: Redeliveries before a message goes to the dead letters. -1: 16, or no
            limit with `orderly`.
        pull_batch_size: Messages per pull request.
        pull_threshold_for_queue: Messages of one queue to hold before pulls of it pause.
        pull_threshold_size_for_queue_mib: MiB of bodies of one queue to hold before pulls of it
            pause.
        consume_concurrently_max_span: Distance of offsets between the first and the last held
            message of a queue before pulls of it pause. Not used with `orderly`.
        consume_timeout_ms: A message whose listener takes longer, in ms, is sent back and
            redelivered. Not used with `orderly`.
        retry_delay_ms: Delay in ms before this member redelivers a message that no broker took
            back.
        suspend_current_queue_time_ms: With `orderly`, the pause of a queue in ms after a failed
            message.
        pop_invisible_time_ms: With `mode="pop"`, how long a message is hidden from other members,
            from 5,000 to 300,000 ms. It must cover the wait for a thread and the slowest call of
            the listener, or the message is delivered twice.
        pop_batch_nums: With `mode="pop"`, messages per request, from 1 to 32.
        pop_threshold_for_queue: With `mode="pop"`, messages of one broker and topic that are not
            acked before requests for more pause. A member that cannot begin with them within the
            invisible time lowers it for itself.
        persist_interval_ms: Interval between two commits of offsets, in ms.
        close_wait_ms: How long `close` waits for running listeners, in ms.
        offset_folder: Folder for the offsets of broadcasting consumers. Default:
            `~/.rocketmq_offsets`.
        trace: Whether to record in `trace_topic` when the listener began with each message and how
            it ended.
        trace_topic: Topic of the traces.

    Raises:
        InvalidMessage: If `group` or `trace_topic` is not a valid name.
        ClientError: If a setting is unknown or out of range, or the group already has a consumer
            with this `instance_name`.
        ConfigError: If `allocator` is unknown, a file of `tls` cannot be used, or a key is missing.

    Example:
        Consume until Ctrl-C:

            from rmqkit import PushConsumer

            consumer = PushConsumer("billing", namesrv="127.0.0.1:9876", consume_from="first")
            consumer.subscribe("orders", "created || paid")

            @consumer.listener
            def handle(message):
                print(message.topic, message.body)

            with consumer:  # joins the group
                consumer.wait()
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance_name: str | None = None,
        tls: Tls = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
        mode: str = "pull",
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
        pop_invisible_time_ms: int = 60_000,
        pop_batch_nums: int = 32,
        pop_threshold_for_queue: int = 96,
        persist_interval_ms: int = 5000,
        close_wait_ms: int = 5000,
        offset_folder: str | None = None,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
    ) -> None:
        check_group(group)
        if batch_max < 1:
            raise ClientError("batch_max must be at least 1")
        self.group, self._batch_max = group, batch_max
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
        self._pop = choices.choose_pop(mode, self._settings, pop_invisible_time_ms, pop_batch_nums, pop_threshold_for_queue)
        self._close_wait_s = close_wait_ms / 1000
        self._listener: Listener | None = None
        self._started = False
        self._closed = threading.Event()
        self._close_guard = threading.Lock()
        self._trace_topic = choices.choose_trace_topic(trace, trace_topic)
        self._trace: ConsumerTrace | None = None
        threads = ORDERLY_THREADS_MAX if orderly else consume_threads
        self._runner: Runner = ListenerPool(f"rmqkit-{group}", threads, self._consume, self.discard)
        keys = choose_keys(access_key, secret_key, security_token)
        self._io = acquire(self, namesrv, instance_name, tls=tls, keys=keys, consumer_group=group)
        self._core = self._make_core(offset_folder)

    def _make_core(self, folder: str | None) -> ListenerConsumer[Any]:
        try:
            return self._io.wait("PushConsumer()", lambda: start(self._make(folder)))
        except BaseException:
            release(self, self._io, self.group)
            raise

    async def _make(self, folder: str | None) -> ListenerConsumer[Any]:
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
        if self._pop is not None:
            return PopConsumerCore(client, self._pop, self._dispatch)
        offsets = choices.choose_offsets(client, settings.group, settings.broadcasting, folder)
        return PushConsumerCore(client, settings, offsets, self._dispatch)

    # --- before and while running

    def subscribe(self, topic: str, expression: str = "*", *, expression_type: str = "TAG") -> None:
        """Consume a topic. A second call for the same topic replaces its filter.

        A topic that does not exist yet is consumed once it does. Brokers check the filter in
        `start`, or here if the consumer has started.

        Args:
            topic: The topic.
            expression: `*` for all messages, tags as in `TagA || TagB`, or `sql("price > 10")`.
            expression_type: `TAG` or `SQL92`. `sql(...)` implies SQL92.

        Raises:
            ClientError: If `expression` is invalid.
            BrokerError: If a broker refuses the filter. Its text says why.
        """
        check_topic(topic, to_send=False)

        async def subscribe() -> None:
            await self._core.check(topic, expression, expression_type)
            self._core.subscribe(topic, expression, expression_type)

        self._check()
        self._io.wait("PushConsumer.subscribe()", lambda: start(subscribe()))

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic. Its queues go to the other members of the group.

        Args:
            topic: The topic. Nothing happens if it is not subscribed.
        """
        self._check()
        self._io.do("PushConsumer.unsubscribe()", lambda: self._core.unsubscribe(topic))

    def listener(self, function: Listener) -> Listener:
        """Set the listener. Use it as a decorator.

        Args:
            function: Called with a message, or with a list of messages if `batch_max` is above 1.
                Returning False or raising means that the messages are redelivered.

        Returns:
            The function itself.
        """
        self._listener = function
        return function

    def start(self, listener: Listener | None = None) -> Self:
        """Join the group and begin to consume. Does nothing if the consumer has started.

        Args:
            listener: The listener, unless one was set with `listener`.

        Returns:
            The consumer, for use in a `with` statement.

        Raises:
            ClientError: Without a listener or a subscription.
            BrokerError: If a broker refuses a filter.

        Example:
            Pass the listener directly:

                consumer.start(lambda message: print(message.body))
        """
        if listener is not None:
            self._listener = listener
        if self._listener is None:
            raise ClientError("start() needs a listener; pass one, or mark a function with @consumer.listener")
        self.start_with(self._runner)
        return self

    def start_with(self, runner: Runner) -> None:
        """Join the group, with listeners run by `runner`. `rmqkit.aio` uses it.

        Args:
            runner: Runs the listener for each batch.
        """
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
        """Stop pulling, or popping, until `resume`. Messages that are already held are still
        delivered.
        """
        self._check()
        # Not posted: a runner that calls this in the I/O thread stops the next request with it.
        self._core.suspended = True

    def resume(self) -> None:
        """Continue pulling after `suspend`."""
        self._check()
        self._core.suspended = False

    @property
    def traces_dropped(self) -> int:
        """Trace records that were lost, because too many waited or could not be sent."""
        return self._trace.dispatch.dropped if self._trace is not None else 0

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this member consumes now, sorted. With `mode="pop"`, queue id -1 stands
        for all queues of a broker.
        """
        return sorted(self._core.works)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until `close` is called, by a listener or another thread. Ctrl-C interrupts it.

        Args:
            timeout_s: How long to wait, in seconds. None: without limit.

        Returns:
            Whether the consumer is closed. False if the time was over.
        """
        return self._closed.wait(timeout_s)

    # --- end

    def close(self) -> None:
        """Wait for running listeners, store the offsets and leave the group.

        Safe to call twice, from any thread and from a listener. Messages whose listener does not
        end within `close_wait_ms` are redelivered. With `mode="pop"`, messages that no listener had
        are visible to the other members after 1 s.
        """
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
                    logger.warning("group %s: a listener did not end; its messages will be redelivered", self.group)
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
        # Without a listener, the block calls `start(listener)`.
        if self._listener is not None and not self._started:
            self.start()
        return self

    def lost(self, error: RmqkitError) -> None:
        """Close the consumer. The I/O thread calls this when it ends unexpectedly.

        Args:
            error: Why the thread ended.
        """
        self._closed.set()
        self._runner.close(0)

    def _check(self) -> None:
        self._io.check("PushConsumer")
        if self._closed.is_set():
            raise ClientClosed(f"push consumer of group {self.group} is closed")

    # --- deliveries

    def _dispatch(self, batch: ListenerCall) -> None:
        self._runner.submit(batch)

    def _consume(self, batch: ListenerCall) -> None:
        """Process a batch in a thread of the pool."""
        if not batch.may_begin(choices.mono_ms()):
            self.discard(batch)
            return
        self.began(batch)
        ok, error = self._call(batch.messages)
        self.finished(batch, ok, error)

    def began(self, batch: ListenerCall) -> None:
        """Record that a listener begins with a batch. For runners of `start_with`.

        Args:
            batch: The batch.
        """
        self._core.began(batch)
        if self._trace is not None:
            self._trace.began(batch, choices.wall_ms())

    def finished(self, batch: ListenerCall, ok: bool, error: str) -> None:
        """Report the outcome of a batch. For runners of `start_with`.

        Args:
            batch: The batch.
            ok: Whether its messages are consumed.
            error: The text of the listener's exception, or "".
        """
        if self._trace is not None:
            self._trace.ended(batch, choices.wall_ms(), ok, error)
        self._io.post(lambda: self._core.finished(batch, ok, error))

    def discard(self, batch: ListenerCall) -> None:
        """Report that no listener will see a batch. For runners of `start_with`.

        Args:
            batch: The batch.
        """
        self._io.post(lambda: self._core.undelivered(batch))

    def _call(self, messages: list[MessageExt]) -> tuple[bool, str]:
        listener = self._listener
        assert listener is not None, "started with a listener"
        try:
            return listener(self.argument(messages)) is not False, ""
        except Exception as error:
            ids = ", ".join(each.msg_id for each in messages)
            logger.exception("group %s: the listener failed; %s will be redelivered", self.group, ids)
            return False, f"{type(error).__name__}: {error}"

    def argument(self, messages: list[MessageExt]) -> MessageExt | list[MessageExt]:
        """Return what the listener is called with. For runners of `start_with`.

        Args:
            messages: The messages of a batch.

        Returns:
            The only message, or the list if `batch_max` is above 1.
        """
        return messages[0] if self._batch_max == 1 else messages
