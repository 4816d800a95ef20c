"""The same names as coroutines, for asyncio programs.

    async with Producer(group="orders") as producer:
        result = await producer.send(Message("T", b"hello"))

Each object wraps its counterpart in `rmqkit` and shares its I/O thread: asyncio's loop is never blocked by the network, and
this package needs no loop of its own. Constructors do not wait; `close` and the end of an `async with` block do.

A cancelled `send` may still reach its broker. A cancelled `poll` loses nothing: what it would have given comes next time.
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
from rmqkit.api.log import logger
from rmqkit.client.consumers.push_queue import ListenerBatch
from rmqkit.client.flow import Deferred
from rmqkit.client.message import Message, MessageExt
from rmqkit.errors import ClientClosed, ClientError
from rmqkit.wire.fastjson import MessageQueue

P = ParamSpec("P")
R = TypeVar("R")

CONSUME_TASKS = 20


class _AsyncCloser:
    """`async with`, and `close` in a thread: it waits for the network."""

    _inner: Any

    async def close(self) -> None:
        await asyncio.to_thread(self._inner.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._inner.__exit__, kind, error, tb)


def _in_thread(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A method of the counterpart, which waits for the network, as a coroutine."""

    @wraps(method)
    async def call(self: _AsyncCloser, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self._inner, *args, **kwargs)

    return call


def _sent(
    method: Callable[Concatenate[Any, P], R], begin: Callable[Concatenate[Any, P], "Future[R]"], *, takes_room: bool = True
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A method of the producer as a coroutine; `begin` gives a future for what `method` returns."""

    @wraps(method)
    async def call(self: "Producer", /, *args: P.args, **kwargs: P.kwargs) -> R:
        if takes_room:
            await self._room()
        return await asyncio.wrap_future(begin(self._inner, *args, **kwargs))

    return call


C = TypeVar("C", bound="_Consumer")


class _Consumer(_AsyncCloser):
    """Knows the calls that have to be awaited before messages can come, and were not."""

    def __init__(self) -> None:
        self._begun: list[tuple[str, Coroutine[Any, Any, None]]] = []

    def begun(self, call: str, coroutine: Coroutine[Any, Any, None]) -> None:
        self._begun.append((call, coroutine))

    async def _check_awaited(self) -> None:
        """Raises ClientError naming the calls that were not awaited."""
        if not self._begun:
            return
        await asyncio.sleep(0)  # one that was made a task a moment ago begins now
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
    """The same method; `_check_awaited` reports a call whose coroutine never ran."""

    @wraps(method)
    def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, None]:
        coroutine = method(self, *args, **kwargs)
        first = repr(args[0]) if args and isinstance(args[0], str) else "..."
        self.begun(f"{method.__name__}({first})", coroutine)
        return coroutine

    return call


class Producer(_AsyncCloser):
    """See `rmqkit.Producer`, whose arguments these are."""

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
        await self._room()
        self._inner.send_oneway(message, queue, ordering_key=ordering_key)

    queues = _in_thread(api.Producer.queues)
    flush = _in_thread(api.Producer.flush)

    async def _room(self) -> None:
        if not self._inner.has_room:
            await asyncio.to_thread(self._inner.wait_for_room)


class PullConsumer(_Consumer):
    """See `rmqkit.PullConsumer`, whose arguments these are."""

    def __init__(self, group: str | None = None, **settings: Any) -> None:
        super().__init__()
        self._inner: api.PullConsumer = api.PullConsumer(group, **settings)
        self.group = self._inner.group

    queues = _in_thread(api.PullConsumer.queues)
    assign = _must_be_awaited(_in_thread(api.PullConsumer.assign))
    #: `on_change` is called in the loop's thread, by the next `poll`
    subscribe = _must_be_awaited(_in_thread(api.PullConsumer.subscribe))
    unsubscribe = _in_thread(api.PullConsumer.unsubscribe)
    watch_queues = _in_thread(api.PullConsumer.watch_queues)
    unwatch_queues = _in_thread(api.PullConsumer.unwatch_queues)

    @property
    def assignment(self) -> list[MessageQueue]:
        return self._inner.assignment

    @property
    def failures(self) -> dict[MessageQueue, ClientError]:
        return self._inner.failures

    async def poll(self, timeout_ms: int = 1000, count_max: int = 32) -> list[MessageExt]:
        """Raises ClientError if a `subscribe` or an `assign` was not awaited."""
        await self._check_awaited()
        future = self._inner.poll_async(timeout_ms, count_max)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._inner.abandon(future)
            raise

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Messages one by one, for ever; ends when the consumer is closed."""
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
    """Runs listeners as tasks of one asyncio loop, at most `tasks_max` at a time (an `api.push_consumer.Runner`)."""

    def __init__(self, consumer: "PushConsumer", loop: asyncio.AbstractEventLoop, tasks_max: int) -> None:
        self._consumer = consumer
        self._loop = loop
        self._limit = asyncio.Semaphore(tasks_max)
        self._running: dict[Future[None], ListenerBatch] = {}
        self._closed = False

    def submit(self, batch: ListenerBatch) -> None:
        if self._closed or self._loop.is_closed():
            self._consumer.inner.discard(batch)
            return
        future = asyncio.run_coroutine_threadsafe(self._handle(batch), self._loop)
        self._running[future] = batch
        future.add_done_callback(lambda done: self._running.pop(done, None))

    async def _handle(self, batch: ListenerBatch) -> None:
        async with self._limit:
            if self._closed or (batch.work.is_idle and batch.answer is None):
                self._consumer.inner.discard(batch)
                return
            self._consumer.inner.began(batch)
            ok, error = await self._consumer.call(batch.messages)
            self._consumer.inner.finished(batch, ok, error)

    def close(self, wait_s: float) -> bool:
        """Called in a thread that is not the loop's."""
        self._closed = True
        _, unfinished = wait_for_futures(list(self._running), wait_s)
        return not unfinished


class PushConsumer(_Consumer):
    """See `rmqkit.PushConsumer`, whose arguments these are but for `consume_threads`. Listeners are coroutine functions."""

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
        """Decorator: this coroutine function gets the messages."""
        self._listener = function
        return function

    async def start(self, listener: AsyncListener | None = None) -> Self:
        """Join the group; listeners run in the loop that this was awaited in.

        Raises ClientError if a `subscribe` was not awaited.
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
        return self._inner.assignment

    def suspend(self) -> None:
        self._inner.suspend()

    def resume(self) -> None:
        self._inner.resume()

    async def call(self, messages: list[MessageExt]) -> tuple[bool, str]:
        """Run the listener; whether it is done with the messages, and why not."""
        assert self._listener is not None, "started with a listener"
        try:
            return await self._listener(self._inner.argument(messages)) is not False, ""
        except Exception as error:
            logger.exception("group %s: the listener failed; its messages will come again", self.group)
            return False, f"{type(error).__name__}: {error}"

    async def __aenter__(self) -> Self:
        if self._listener is not None:
            await self.start()
        return self


class Admin(_AsyncCloser, AsyncAdmin, AdminFlows):
    """See `rmqkit.Admin`."""

    def __init__(self, namesrv: str | Sequence[str] | None = None, *, instance_name: str | None = None) -> None:
        self.inner = self._inner = api.Admin(namesrv, instance_name=instance_name)
        self.core = self.inner.core
        self.check = self.inner.check

    async def answer(self, _name: str, ask: Callable[[], Deferred[R]]) -> R:
        return await asyncio.wrap_future(self.inner.io.run("Admin", ask))
