"""The same names as coroutines, for asyncio programs.

    async with Producer(group="orders") as producer:
        result = await producer.send(Message("T", b"hello"))

Each object wraps its counterpart in `rmqkit` and shares its I/O thread: asyncio's loop is never blocked by the network, and
this package needs no loop of its own. Constructors do not wait; `close` and the end of an `async with` block do.

A cancelled `send` may still reach its broker. A cancelled `poll` loses nothing: what it would have given comes next time.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from functools import partial, wraps
from inspect import CORO_CREATED, getcoroutinestate, signature
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from rmqkit import api
from rmqkit.api.log import logger
from rmqkit.client.admin import messages, stats
from rmqkit.client.admin.groups import Admin as CoreAdmin
from rmqkit.client.consumers.push_queue import Batch
from rmqkit.client.flow import start
from rmqkit.client.message import Message, MessageExt, SendResult
from rmqkit.errors import ClientClosed, ClientError
from rmqkit.wire.fastjson import MessageQueue

P = ParamSpec("P")
R = TypeVar("R")

CONSUME_TASKS = 20


class _Closing:
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


C = TypeVar("C", bound="_Consumer")


class _Consumer(_Closing):
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


class Producer(_Closing):
    """See `rmqkit.Producer`, whose arguments these are."""

    def __init__(self, group: str = "rmqkit", **settings: Any) -> None:
        self._inner: api.Producer = api.Producer(group, **settings)
        self.group = group

    async def send(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        ordering_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        await self._room()
        future = self._inner.send_async(message, queue, ordering_key=ordering_key, timeout_ms=timeout_ms)
        return await asyncio.wrap_future(future)

    async def send_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None = None, *, timeout_ms: int | None = None
    ) -> SendResult:
        await self._room()
        return await asyncio.wrap_future(self._inner.send_batch_async(messages, queue, timeout_ms=timeout_ms))

    async def send_oneway(
        self, message: Message, queue: MessageQueue | None = None, *, ordering_key: str | None = None
    ) -> None:
        await self._room()
        self._inner.send_oneway(message, queue, ordering_key=ordering_key)

    async def request(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        ordering_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> MessageExt:
        future = self._inner.request_async(message, queue, ordering_key=ordering_key, timeout_ms=timeout_ms)
        return await asyncio.wrap_future(future)

    async def queues(self, topic: str) -> list[MessageQueue]:
        return await asyncio.to_thread(self._inner.queues, topic)

    async def flush(self, timeout_s: float | None = None) -> bool:
        return await asyncio.to_thread(self._inner.flush, timeout_s)

    async def _room(self) -> None:
        if not self._inner.has_room:
            await asyncio.to_thread(self._inner.wait_for_room)


class PullConsumer(_Consumer):
    """See `rmqkit.PullConsumer`, whose arguments these are."""

    def __init__(self, group: str | None = None, **settings: Any) -> None:
        super().__init__()
        self._inner: api.PullConsumer = api.PullConsumer(group, **settings)
        self.group = self._inner.group

    async def queues(self, topic: str) -> list[MessageQueue]:
        return await asyncio.to_thread(self._inner.queues, topic)

    @_must_be_awaited
    async def assign(self, queues: Iterable[MessageQueue], expression: str = "*", *, expression_type: str = "TAG") -> None:
        await asyncio.to_thread(partial(self._inner.assign, list(queues), expression, expression_type=expression_type))

    @_must_be_awaited
    async def subscribe(
        self,
        topic: str,
        expression: str = "*",
        *,
        expression_type: str = "TAG",
        on_change: api.pull_consumer.ShareListener | None = None,
    ) -> None:
        """`on_change` is called in the loop's thread, by the next `poll`."""
        await asyncio.to_thread(
            partial(self._inner.subscribe, topic, expression, expression_type=expression_type, on_change=on_change)
        )

    async def unsubscribe(self, topic: str) -> None:
        await asyncio.to_thread(self._inner.unsubscribe, topic)

    async def watch_queues(self, topic: str, listener: api.pull_consumer.QueuesListener) -> None:
        await asyncio.to_thread(self._inner.watch_queues, topic, listener)

    async def unwatch_queues(self, topic: str) -> None:
        await asyncio.to_thread(self._inner.unwatch_queues, topic)

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

    async def position(self, queue: MessageQueue) -> int:
        return await asyncio.to_thread(self._inner.position, queue)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        await asyncio.to_thread(self._inner.seek, queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        await asyncio.to_thread(self._inner.seek_to_begin, queue)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        await asyncio.to_thread(self._inner.seek_to_end, queue)

    async def pause(self, queues: Iterable[MessageQueue]) -> None:
        await asyncio.to_thread(self._inner.pause, list(queues))

    async def resume(self, queues: Iterable[MessageQueue]) -> None:
        await asyncio.to_thread(self._inner.resume, list(queues))

    async def commit(self, offsets: Mapping[MessageQueue, int] | Iterable[MessageQueue] | None = None) -> None:
        await asyncio.to_thread(self._inner.commit, offsets)

    async def committed(self, queue: MessageQueue) -> int | None:
        return await asyncio.to_thread(self._inner.committed, queue)

    async def offset_min(self, queue: MessageQueue) -> int:
        return await asyncio.to_thread(self._inner.offset_min, queue)

    async def offset_max(self, queue: MessageQueue) -> int:
        return await asyncio.to_thread(self._inner.offset_max, queue)

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return await asyncio.to_thread(self._inner.offset_for_time, queue, timestamp_ms)


AsyncListener = Callable[[Any], Awaitable[bool | None]]


class _Tasks:
    """Runs listeners as tasks of one asyncio loop, at most `tasks_max` at a time (an `api.push_consumer.Runner`)."""

    def __init__(self, consumer: "PushConsumer", loop: asyncio.AbstractEventLoop, tasks_max: int) -> None:
        self._consumer = consumer
        self._loop = loop
        self._limit = asyncio.Semaphore(tasks_max)
        self._running: dict[Future[None], Batch] = {}
        self._closed = False

    def submit(self, batch: Batch) -> None:
        if self._closed or self._loop.is_closed():
            self._consumer.inner.discard(batch)
            return
        future = asyncio.run_coroutine_threadsafe(self._handle(batch), self._loop)
        self._running[future] = batch
        future.add_done_callback(lambda done: self._running.pop(done, None))

    async def _handle(self, batch: Batch) -> None:
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

    @_must_be_awaited
    async def subscribe(self, topic: str, expression: str = "*", *, expression_type: str = "TAG") -> None:
        await asyncio.to_thread(partial(self._inner.subscribe, topic, expression, expression_type=expression_type))

    async def unsubscribe(self, topic: str) -> None:
        await asyncio.to_thread(self._inner.unsubscribe, topic)

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


def _awaits(
    method: Callable[Concatenate[CoreAdmin, P], Coroutine[Any, Any, R]],
) -> "Callable[Concatenate[Admin, P], Coroutine[Any, Any, R]]":
    """The asyncio form of a flow of the core."""
    wanted = signature(method)

    @wraps(method)
    async def call(self: "Admin", /, *args: P.args, **kwargs: P.kwargs) -> R:
        inner = self.inner
        inner.check()
        wanted.bind(inner.core, *args, **kwargs)  # wrong arguments raise here, not in the I/O thread
        return await asyncio.wrap_future(inner.io.run("Admin", lambda: start(method(inner.core, *args, **kwargs))))

    return call


class Admin(_Closing):
    """See `rmqkit.Admin`."""

    def __init__(self, namesrv: str | Sequence[str] | None = None, *, instance_name: str | None = None) -> None:
        self.inner = self._inner = api.Admin(namesrv, instance_name=instance_name)

    cluster_info = _awaits(CoreAdmin.cluster_info)
    topics = _awaits(CoreAdmin.topics)
    topics_of_cluster = _awaits(CoreAdmin.topics_of_cluster)
    route = _awaits(CoreAdmin.route)
    queues = _awaits(CoreAdmin.queues)
    masters = _awaits(CoreAdmin.masters)
    broker_address = _awaits(CoreAdmin.broker_address)

    create_topic = _awaits(CoreAdmin.create_topic)
    delete_topic = _awaits(CoreAdmin.delete_topic)
    topic_config = _awaits(CoreAdmin.topic_config)
    topic_stats = _awaits(CoreAdmin.topic_stats)
    set_topic_perm = _awaits(stats.set_topic_perm)
    topic_rates = _awaits(stats.topic_rates)
    clean_unused_topics = _awaits(stats.clean_unused_topics)
    clean_expired_queues = _awaits(stats.clean_expired_queues)

    broker_config = _awaits(CoreAdmin.broker_config)
    update_broker_config = _awaits(CoreAdmin.update_broker_config)
    broker_runtime = _awaits(CoreAdmin.broker_runtime)
    broker_stats = _awaits(stats.broker_stats)
    ask_broker = _awaits(CoreAdmin.ask_broker)
    ha_status = _awaits(CoreAdmin.ha_status)

    nameserver_config = _awaits(CoreAdmin.nameserver_config)
    update_nameserver_config = _awaits(CoreAdmin.update_nameserver_config)
    wipe_write_perm = _awaits(CoreAdmin.wipe_write_perm)
    add_write_perm = _awaits(CoreAdmin.add_write_perm)
    put_kv = _awaits(CoreAdmin.put_kv)
    get_kv = _awaits(CoreAdmin.get_kv)
    delete_kv = _awaits(CoreAdmin.delete_kv)
    kv_list = _awaits(CoreAdmin.kv_list)

    offset_min = _awaits(CoreAdmin.offset_min)
    offset_max = _awaits(CoreAdmin.offset_max)
    offset_for_time = _awaits(CoreAdmin.offset_for_time)
    earliest_store_time = _awaits(CoreAdmin.earliest_store_time)
    group_offset = _awaits(CoreAdmin.group_offset)
    group_offsets = _awaits(CoreAdmin.group_offsets)
    set_group_offset = _awaits(CoreAdmin.set_group_offset)
    reset_group_offset = _awaits(CoreAdmin.reset_group_offset)
    reset_group_offsets = _awaits(CoreAdmin.reset_group_offsets)
    move_group = _awaits(CoreAdmin.move_group)
    clone_group = _awaits(stats.clone_group)
    consume_stats = _awaits(CoreAdmin.consume_stats)
    group_progress = _awaits(CoreAdmin.group_progress)

    groups = _awaits(CoreAdmin.groups)
    group_config = _awaits(CoreAdmin.group_config)
    create_group = _awaits(CoreAdmin.create_group)
    delete_group = _awaits(CoreAdmin.delete_group)
    groups_of_topic = _awaits(CoreAdmin.groups_of_topic)
    topics_of_group = _awaits(CoreAdmin.topics_of_group)
    consumer_connections = _awaits(CoreAdmin.consumer_connections)
    producer_connections = _awaits(CoreAdmin.producer_connections)
    consumer_running_info = _awaits(CoreAdmin.consumer_running_info)

    view_message = _awaits(CoreAdmin.view_message)
    query_messages = _awaits(CoreAdmin.query_messages)
    message_at = _awaits(CoreAdmin.message_at)
    find_message = _awaits(messages.find_message)
    message_track = _awaits(messages.message_track)
    consume_directly = _awaits(messages.consume_directly)
