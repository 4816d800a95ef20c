"""The classes of `rmqkit` as coroutines, for asyncio programs.

    async with Producer(group="orders") as producer:
        result = await producer.send(Message("T", b"hello"))

Each object wraps its counterpart in `rmqkit` and shares its I/O thread. So the network never blocks
the asyncio loop, and this package needs no loop of its own. Constructors do not wait for the
network; `close` and the end of an `async with` block do.

A cancelled `send` may still reach its broker. A cancelled `poll` loses nothing: the next poll
returns its messages.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from functools import wraps
from inspect import CORO_CREATED, getcoroutinestate
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from rmqkit import api
from rmqkit.api.admin import AdminFlows, AsyncAdmin
from rmqkit.api.choices import mono_ms
from rmqkit.api.log import logger
from rmqkit.api.transaction_producer import checked_state
from rmqkit.client.consumers.listener import ListenerCall
from rmqkit.client.flow import Deferred
from rmqkit.client.message import Message, MessageExt
from rmqkit.client.producers.transactions import TransactionResult, TransactionState
from rmqkit.errors import ClientClosed, ClientError
from rmqkit.tls.client_choice import Tls
from rmqkit.wire.fastjson import MessageQueue

P = ParamSpec("P")
R = TypeVar("R")

CONSUME_TASKS = 20


class _AsyncCloser:
    """`async with`, and a `close` that runs in a thread because it waits for the network."""

    _inner: Any

    async def close(self) -> None:
        """Close the object and wait for it. Safe to call twice."""
        await asyncio.to_thread(self._inner.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._inner.__exit__, kind, error, tb)


def _in_thread(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Make a coroutine of a blocking method of the counterpart, by running it in a thread."""

    @wraps(method)
    async def call(self: _AsyncCloser, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self._inner, *args, **kwargs)

    return call


def _sent(
    method: Callable[Concatenate[Any, P], R], begin: Callable[Concatenate[Any, P], "Future[R]"], *, takes_room: bool = True
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Make a coroutine of a producer's method. `begin` returns a future of the same result."""

    @wraps(method)
    async def call(self: "Producer", /, *args: P.args, **kwargs: P.kwargs) -> R:
        if takes_room:
            await self._room()
        return await asyncio.wrap_future(begin(self._inner, *args, **kwargs))

    return call


C = TypeVar("C", bound="_Consumer")


class _Consumer(_AsyncCloser):
    """Remembers coroutines that must be awaited before messages can arrive."""

    def __init__(self) -> None:
        self._begun: list[tuple[str, Coroutine[Any, Any, None]]] = []

    def begun(self, call: str, coroutine: Coroutine[Any, Any, None]) -> None:
        """Remember the coroutine of a call. The consumer reports it if it is never awaited.

        Args:
            call: The call as text, for the error message.
            coroutine: Its coroutine.
        """
        self._begun.append((call, coroutine))

    async def _check_awaited(self) -> None:
        """Raise ClientError if a call of `subscribe` or `assign` was not awaited."""
        if not self._begun:
            return
        await asyncio.sleep(0)  # let a task that was just created begin
        missed = [(call, each) for call, each in self._begun if getcoroutinestate(each) == CORO_CREATED]
        self._begun.clear()
        for _call, each in missed:
            each.close()
        if missed:
            calls = ", ".join(call for call, _each in missed)
            raise ClientError(f"not awaited: {calls}; in rmqkit.aio write `await consumer.{missed[0][0]}`")


def _must_be_awaited(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, None]]:
    """Wrap a method so that `_check_awaited` reports a call whose coroutine never ran."""

    @wraps(method)
    def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, None]:
        coroutine = method(self, *args, **kwargs)
        first = repr(args[0]) if args and isinstance(args[0], str) else "..."
        self.begun(f"{method.__name__}({first})", coroutine)
        return coroutine

    return call


class Producer(_AsyncCloser):
    """Sends messages. The asyncio form of `rmqkit.Producer`.

    `send`, `send_batch` and `request` are coroutines. To send many messages concurrently, await
    them with `asyncio.gather`. While `pending_max` messages are in flight, a send waits without
    blocking the loop.

    Cancelling a task that awaits `send` does not withdraw the message: it may still be stored.

    Args:
        group: The producer group.
        **settings: The other arguments of `rmqkit.Producer`.

    Raises:
        ClientError: As in `rmqkit.Producer`.

    Example:
        Send a message and wait for the broker's response:

            import asyncio

            from rmqkit.aio import Message, Producer

            async def main():
                async with Producer("orders", namesrv="127.0.0.1:9876") as producer:
                    result = await producer.send(Message("orders", b"a fresh order"))
                    print(result.status, result.msg_id)

            asyncio.run(main())
    """

    def __init__(self, group: str = "rmqkit", **settings: Any) -> None:
        self._inner: api.Producer = api.Producer(group, **settings)
        self.group = group

    send = _sent(api.Producer.send, api.Producer.send_async)
    send_batch = _sent(api.Producer.send_batch, api.Producer.send_batch_async)
    request = _sent(api.Producer.request, api.Producer.request_async, takes_room=False)
    recall = _sent(api.Producer.recall, api.Producer.recall_async, takes_room=False)

    async def send_oneway(
        self, message: Message, queue: MessageQueue | None = None, *, ordering_key: str | None = None
    ) -> None:
        """Send a message without waiting for a response. It may be lost without notice.

        Args:
            message: The message to send.
            queue: Send to this queue of the message's topic.
            ordering_key: Send to the queue that the hash of this text selects.

        Raises:
            InvalidMessage: No broker would take the message. Nothing was sent.
            ClientClosed: The producer is closed.
        """
        await self._room()
        self._inner.send_oneway(message, queue, ordering_key=ordering_key)

    queues = _in_thread(api.Producer.queues)
    flush = _in_thread(api.Producer.flush)

    async def _room(self) -> None:
        if not self._inner.has_room:
            await asyncio.to_thread(self._inner.wait_for_room)


class TransactionProducer(Producer):
    """Sends a message if a local transaction commits. The asyncio form of
    `rmqkit.TransactionProducer`.

    Create it in a running loop: the check callback runs there.

    Args:
        group: The producer group. It must be the group of the programs that can answer.
        check: A coroutine function, called with a half message without an outcome; returns a
            `TransactionState`.
        **settings: The other arguments of `rmqkit.TransactionProducer`.

    Raises:
        ClientError: As in `rmqkit.TransactionProducer`.

    Example:
        Send a message if a local transaction commits:

            async def pay(message, order):
                await database.execute("UPDATE orders SET paid = 1 WHERE id = ?", order)
                return TransactionState.COMMIT

            async with TransactionProducer("payments", check=check) as producer:
                await producer.send_in_transaction(Message("paid", b"order 7", keys="7"), pay, "7")
    """

    def __init__(self, group: str, *, check: Callable[[MessageExt], Awaitable[TransactionState]], **settings: Any) -> None:
        loop = asyncio.get_running_loop()

        async def checked(message: MessageExt) -> TransactionState:
            return await check(message)

        def ask(message: MessageExt) -> TransactionState:
            return asyncio.run_coroutine_threadsafe(checked(message), loop).result()

        self._inner: api.TransactionProducer = api.TransactionProducer(group, check=ask, **settings)
        self.group = group

    async def send_in_transaction(
        self,
        message: Message,
        local: Callable[[Message, Any], Awaitable[TransactionState]],
        arg: Any = None,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> TransactionResult:
        """Send a half message, await the local transaction, and end the half with its outcome.

        Cancelling it leaves the outcome unknown: the broker asks the check callback.

        Args:
            message: The message. It may have no delay level.
            local: Awaited as `local(message, arg)` if the half message is stored safely.
            arg: Passed to `local`.
            queue: Send to this queue of the message's topic.
            timeout_ms: Timeout of the half message's send.

        Returns:
            The outcome, and whether the broker has confirmed it.

        Raises:
            InvalidMessage: No broker would take the message. Nothing was sent.
            SendFailed: The half message was not stored, or it is unknown whether.
            Exception: What `local` raised. The outcome is then UNKNOWN: the broker asks.
        """
        await self._room()
        half = await asyncio.wrap_future(self._inner.send_half(message, queue, timeout_ms=timeout_ms))
        state = TransactionState.ROLLBACK
        if half.is_ok:
            state = checked_state(await local(message, arg), "the local transaction")
        return await asyncio.wrap_future(self._inner.end(half, state, message=message))


class PullConsumer(_Consumer):
    """Reads messages when the program asks for them. The asyncio form of `rmqkit.PullConsumer`.

    All methods that wait for the network are coroutines, `subscribe` and `assign` too. Iterate with
    `async for`. Only one task may poll at a time. `on_change` and the listener of `watch_queues`
    are called by the next `poll`, in the loop's thread. They must not wait: use them to record the
    change.

    A cancelled `poll` loses nothing: the next poll returns its messages.

    Args:
        group: The consumer group. None: a reader that commits nothing.
        **settings: The other arguments of `rmqkit.PullConsumer`.

    Raises:
        ClientError: As in `rmqkit.PullConsumer`.

    Example:
        Consume a topic as a member of a group:

            from rmqkit.aio import PullConsumer

            async with PullConsumer("reports", namesrv="127.0.0.1:9876") as consumer:
                await consumer.subscribe("orders")
                async for message in consumer:  # waits for messages, without end
                    print(message.body)
    """

    def __init__(self, group: str | None = None, **settings: Any) -> None:
        super().__init__()
        self._inner: api.PullConsumer = api.PullConsumer(group, **settings)
        self.group = self._inner.group

    queues = _in_thread(api.PullConsumer.queues)
    assign = _must_be_awaited(_in_thread(api.PullConsumer.assign))
    # `on_change` is called in the loop's thread, by the next `poll`.
    subscribe = _must_be_awaited(_in_thread(api.PullConsumer.subscribe))
    unsubscribe = _in_thread(api.PullConsumer.unsubscribe)
    watch_queues = _in_thread(api.PullConsumer.watch_queues)
    unwatch_queues = _in_thread(api.PullConsumer.unwatch_queues)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now, sorted."""
        return self._inner.assignment

    @property
    def failures(self) -> dict[MessageQueue, ClientError]:
        """The last error of each queue that cannot be read now. The consumer keeps retrying."""
        return self._inner.failures

    async def poll(self, timeout_ms: int = 1000, count_max: int = 32) -> list[MessageExt]:
        """Return messages that have arrived, or wait for the first one.

        Messages of earlier polls count as consumed from now on. The queues take turns. If the poll
        is cancelled, the next one returns its messages.

        Args:
            timeout_ms: How long to wait for the first message, in ms. 0 does not wait.
            count_max: The largest number of messages to return.

        Returns:
            Up to `count_max` messages. Empty if none arrived in time.

        Raises:
            ClientClosed: The consumer is closed.
            ClientError: A `subscribe` or `assign` was not awaited, or another task is polling.
        """
        await self._check_awaited()
        future = self._inner.poll_async(timeout_ms, count_max)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._inner.abandon(future)
            raise

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Yield messages one by one, without end. Stops when the consumer is closed."""
        inner = self._inner
        while not inner.closed:
            message = inner.next_ready()
            if message is not None:
                yield message
                continue
            try:
                inner.fill(await self.poll())
            except ClientClosed:
                return

    position = _in_thread(api.PullConsumer.position)
    seek = _in_thread(api.PullConsumer.seek)
    seek_to_begin = _in_thread(api.PullConsumer.seek_to_begin)
    seek_to_end = _in_thread(api.PullConsumer.seek_to_end)
    pause = _in_thread(api.PullConsumer.pause)
    resume = _in_thread(api.PullConsumer.resume)
    commit = _in_thread(api.PullConsumer.commit)
    committed = _in_thread(api.PullConsumer.committed)
    offset_min = _in_thread(api.PullConsumer.offset_min)
    offset_max = _in_thread(api.PullConsumer.offset_max)
    offset_for_time = _in_thread(api.PullConsumer.offset_for_time)


AsyncListener = Callable[[Any], Awaitable[bool | None]]


class _Tasks:
    """Runs listeners as tasks of one asyncio loop, at most `tasks_max` at a time.

    Implements `api.push_consumer.Runner`.
    """

    def __init__(self, consumer: "PushConsumer", loop: asyncio.AbstractEventLoop, tasks_max: int) -> None:
        self._consumer = consumer
        self._loop = loop
        self._limit = asyncio.Semaphore(tasks_max)
        self._running: dict[Future[None], ListenerCall] = {}
        self._closed = False

    def submit(self, batch: ListenerCall) -> None:
        if self._closed or self._loop.is_closed():
            self._consumer.inner.discard(batch)
            return
        future = asyncio.run_coroutine_threadsafe(self._handle(batch), self._loop)
        self._running[future] = batch
        future.add_done_callback(lambda done: self._running.pop(done, None))

    async def _handle(self, batch: ListenerCall) -> None:
        async with self._limit:
            if self._closed or not batch.may_begin(mono_ms()):
                self._consumer.inner.discard(batch)
                return
            self._consumer.inner.began(batch)
            ok, error = await self._consumer.call(batch.messages)
            self._consumer.inner.finished(batch, ok, error)

    def close(self, wait_s: float) -> bool:
        """Stop, and wait up to `wait_s` seconds. Must not be called in the loop's thread.

        Returns False if a listener did not end in time.
        """
        self._closed = True
        _, unfinished = wait_for_futures(list(self._running), wait_s)
        return not unfinished


class PushConsumer(_Consumer):
    """Calls a coroutine function for each message. The asyncio form of `rmqkit.PushConsumer`.

    Listeners run as tasks of the loop in which `start` was awaited. Their results mean the same as
    in `rmqkit.PushConsumer`: False or an exception means that the messages are redelivered.

    Args:
        group: The consumer group.
        consume_tasks: The largest number of listeners that run at a time. Replaces
            `consume_threads`.
        **settings: The other arguments of `rmqkit.PushConsumer`.

    Raises:
        ClientError: As in `rmqkit.PushConsumer`.

    Example:
        Consume until the task is cancelled:

            import asyncio

            from rmqkit.aio import PushConsumer

            consumer = PushConsumer("billing", namesrv="127.0.0.1:9876", consume_from="first")

            @consumer.listener
            async def handle(message):
                print(message.topic, message.body)

            async def main():
                await consumer.subscribe("orders", "created || paid")
                async with consumer:  # joins the group
                    await asyncio.Event().wait()

            asyncio.run(main())
    """

    def __init__(self, group: str, *, consume_tasks: int = CONSUME_TASKS, **settings: Any) -> None:
        super().__init__()
        self.inner = api.PushConsumer(group, **settings)
        self._inner: api.PushConsumer = self.inner
        self.group = group
        self._tasks_max = consume_tasks
        self._listener: AsyncListener | None = None

    subscribe = _must_be_awaited(_in_thread(api.PushConsumer.subscribe))
    unsubscribe = _in_thread(api.PushConsumer.unsubscribe)

    def listener(self, function: AsyncListener) -> AsyncListener:
        """Set the listener, a coroutine function. Use it as a decorator.

        Args:
            function: Called with a message, or with a list of messages if `batch_max` is above 1.

        Returns:
            The function itself.
        """
        self._listener = function
        return function

    async def start(self, listener: AsyncListener | None = None) -> Self:
        """Join the group. Listeners run in the loop in which this is awaited.

        Args:
            listener: The listener, unless one was set with `listener`.

        Returns:
            The consumer.

        Raises:
            ClientError: Without a listener or a subscription, or if a `subscribe` was not awaited.
            BrokerError: If a broker refuses a filter.
        """
        await self._check_awaited()
        self._listener = listener or self._listener
        if self._listener is None:
            raise ClientError("start() needs a listener; pass one, or mark a function with @consumer.listener")
        tasks = _Tasks(self, asyncio.get_running_loop(), self._tasks_max)
        await asyncio.to_thread(self._inner.start_with, tasks)
        return self

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this member consumes now, as in `rmqkit.PushConsumer`."""
        return self._inner.assignment

    def suspend(self) -> None:
        """Stop asking for messages until `resume`. Messages that are held are still delivered."""
        self._inner.suspend()

    def resume(self) -> None:
        """Continue pulling after `suspend`."""
        self._inner.resume()

    async def call(self, messages: list[MessageExt]) -> tuple[bool, str]:
        """Run the listener for the messages of one batch. The consumer's tasks use it.

        Args:
            messages: The messages of the batch.

        Returns:
            Whether the messages are consumed, and the text of the listener's exception or "".
        """
        assert self._listener is not None, "started with a listener"
        try:
            return await self._listener(self._inner.argument(messages)) is not False, ""
        except Exception as error:
            logger.exception("group %s: the listener failed; its messages will be redelivered", self.group)
            return False, f"{type(error).__name__}: {error}"

    async def __aenter__(self) -> Self:
        if self._listener is not None:
            await self.start()
        return self


class Admin(_AsyncCloser, AsyncAdmin, AdminFlows):
    """Administers a cluster. The asyncio form of `rmqkit.Admin`: its methods are coroutines.

    Args:
        namesrv: Name servers, as `host:port;host:port` or a list. Default: the environment variable
            NAMESRV_ADDR, or else 127.0.0.1:9876.
        instance_name: Part of the client id, as in `rmqkit.Admin`.
        tls: Whether to connect with TLS: true, false, the path of a file with Java's `tls.client.*`
            keys, or a mapping of them. Default: the environment variable RMQKIT_TLS, or else false.
        access_key: User in whose name requests are signed. Default: RMQKIT_ACCESS_KEY, else the
            file that RMQKIT_ACCESS_FILE names, else requests are not signed.
        secret_key: Password of this user. Default: RMQKIT_SECRET_KEY, else the same file.
        security_token: Token of temporary keys, which some services demand.

    Raises:
        ClientError: As in `rmqkit.Admin`.

    Example:
        Create a topic:

            from rmqkit.aio import Admin

            async with Admin("127.0.0.1:9876") as admin:
                await admin.create_topic("orders", queue_nums=4)
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        instance_name: str | None = None,
        tls: Tls = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
    ) -> None:
        self.inner = self._inner = api.Admin(
            namesrv,
            instance_name=instance_name,
            tls=tls,
            access_key=access_key,
            secret_key=secret_key,
            security_token=security_token,
        )
        self.core = self.inner.core
        self.check = self.inner.check

    async def answer(self, _name: str, ask: Callable[[], Deferred[R]]) -> R:
        """Run a request in the I/O thread and await its result. The methods use it.

        Args:
            _name: The method's name, as the blocking `Admin` takes it; not used here.
            ask: Starts the request.
        """
        return await asyncio.wrap_future(self.inner.io.run("Admin", ask))
