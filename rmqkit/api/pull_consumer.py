"""PullConsumer: reads messages when the program asks for them.

    with PullConsumer("readers", namesrv="127.0.0.1:9876") as consumer:
        consumer.subscribe("T")
        for message in consumer:            # waits for messages, for ever
            print(message.body)

Without a group it is a reader that nobody sees and that commits nothing: `assign` queues and `poll`. With one, positions
are stored every 5 s and at the end, counting a message as done when the next one is asked for. Leaving a `with` block by
an exception leaves the message that was being worked on undone, so that the group gets it again.

A consumer belongs to one thread at a time; `close` may come from any. Listeners for changes (`subscribe(on_change=...)`,
`watch_queues`) are called in that thread, by the next `poll`: they may seek and commit.

`LitePullConsumer` is another name for it: what it does is what Java's `DefaultLitePullConsumer` does.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from rmqkit.api.choices import choose_allocator, choose_begin, choose_begin_ms, choose_model, choose_offsets
from rmqkit.api.io_thread import User, acquire, release
from rmqkit.client.admin.groups import TOOLS_GROUP, AdminCore
from rmqkit.client.allocators import Allocator
from rmqkit.client.consumers import pull_consumer as core
from rmqkit.client.flow import start
from rmqkit.client.message import MessageExt
from rmqkit.client.producers.outgoing_message import check_group, check_topic
from rmqkit.errors import ClientClosed, ClientError, RmqkitError
from rmqkit.wire.fastjson import MessageQueue

T = TypeVar("T")

#: called with a topic, all its queues, and those of them that are this member's now
ShareListener = Callable[[str, list[MessageQueue], list[MessageQueue]], None]
#: called with a topic and its queues
QueuesListener = Callable[[str, list[MessageQueue]], None]

CLOSE_WAIT_S = 6.0


class PullConsumer(User):
    def __init__(
        self,
        group: str | None = None,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance_name: str | None = None,
        model: str = "clustering",
        consume_from: str = "last",
        consume_timestamp_ms: int | None = None,
        allocator: str | Allocator = "average",
        auto_commit: bool | None = None,
        auto_commit_interval_ms: int = 5000,
        pull_batch_size: int = 32,
        pull_threshold_for_queue: int = 1000,
        pull_threshold_size_for_queue_mib: int = 100,
        offset_folder: str | None = None,
    ) -> None:
        """`namesrv`: `host:port;host:port` or a list; by default NAMESRV_ADDR, else 127.0.0.1:9876.

        `consume_from`: where a group begins that has never consumed a queue: last, first or timestamp (with
        `consume_timestamp_ms`, by default half an hour ago). `auto_commit` is true with a group, false without.
        `model`: clustering shares the queues among the members, broadcasting gives each all of them and keeps offsets in
        files under `offset_folder`.
        """
        self.group = group or TOOLS_GROUP
        check_group(self.group)
        self._with_group = group is not None
        if auto_commit and group is None:
            raise ClientError("auto_commit needs a group to commit for; pass group=")
        settings = core.PullConsumerSettings(
            group=self.group,
            broadcasting=choose_model(model),
            consume_from=choose_begin(consume_from),
            consume_timestamp_ms=choose_begin_ms(consume_timestamp_ms),
            allocator=choose_allocator(allocator),
            pull_batch_size=pull_batch_size,
            pull_threshold_for_queue=pull_threshold_for_queue,
            pull_threshold_size_for_queue=pull_threshold_size_for_queue_mib * 1024 * 1024,
            persist_interval_ms=auto_commit_interval_ms,
            auto_commit=self._with_group if auto_commit is None else auto_commit,
            announce=self._with_group,
        )
        #: messages that a poll of the iterator brought and that were not asked for yet
        self._ready: deque[MessageExt] = deque()
        self._current: MessageExt | None = None
        self._share_listeners: dict[str, ShareListener] = {}
        self._queues_listeners: dict[str, QueuesListener] = {}
        #: what listeners have not been told yet; filled in the I/O thread
        self._changes: deque[Callable[[], None]] = deque()
        self._closed = False
        self._io = acquire(self, namesrv, instance_name, consumer_group=group)
        try:
            self._core = self._io.wait("PullConsumer()", lambda: start(self._make(settings, offset_folder)))
        except BaseException:
            release(self, self._io, group)
            raise
        self._admin = AdminCore(self._io.client)

    async def _make(self, settings: core.PullConsumerSettings, folder: str | None) -> core.PullConsumerCore:
        client = self._io.client
        offsets = choose_offsets(client, settings.group, settings.broadcasting, folder)
        made = core.PullConsumerCore(client, settings, offsets)
        made.on_share, made.on_queues = self._share_changed, self._queues_changed
        return made

    # --- which queues

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic. Raises NoRoute."""
        return self._wait("queues", lambda: self._admin.queues(topic))

    def assign(self, queues: Iterable[MessageQueue], expression: str = "*", *, expression_type: str = "TAG") -> None:
        """Read exactly these queues; an earlier assignment is replaced. `expression` as in `subscribe`."""
        self._wait("assign", lambda: self._core.assign(list(queues), expression, expression_type))

    def subscribe(
        self,
        topic: str,
        expression: str = "*",
        *,
        expression_type: str = "TAG",
        on_change: ShareListener | None = None,
    ) -> None:
        """Share a topic's queues with the other members of the group.

        `expression`: `TagA || TagB`, `*` for all, or `sql("price > 10")` (the same as `expression_type="SQL92"`).
        `on_change(topic, queues, mine)` is told of each new share. Raises
        ClientError without a group, NoRoute for a topic that is not there, BrokerError for a filter that will not do.
        """
        check_topic(topic, to_send=False)
        if not self._with_group:
            raise ClientError("subscribe() needs a group to share queues with; pass group=, or use assign()")
        if on_change is not None:
            self._share_listeners[topic] = on_change
        self._wait("subscribe", lambda: self._core.subscribe(topic, expression, expression_type))

    def unsubscribe(self, topic: str) -> None:
        """Read nothing of a topic any more; its queues go to the other members."""
        self._do("unsubscribe", lambda: self._core.unsubscribe(topic))
        self._share_listeners.pop(topic, None)
        self._ready = deque(each for each in self._ready if each.queue.topic != topic)

    def watch_queues(self, topic: str, listener: QueuesListener) -> None:
        """Have `listener(topic, queues)` called when a topic gets or loses queues, for who assigns them by hand.

        Routes are looked at every 30 s. Raises NoRoute for a topic that is not there.
        """
        check_topic(topic, to_send=False)
        self._queues_listeners[topic] = listener
        self._wait("watch_queues", lambda: self._core.watch(topic))

    def unwatch_queues(self, topic: str) -> None:
        self._do("unwatch_queues", lambda: self._core.unwatch(topic))
        self._queues_listeners.pop(topic, None)

    def _share_changed(self, topic: str, queues: list[MessageQueue], mine: list[MessageQueue]) -> None:
        """In the I/O thread."""
        listener = self._share_listeners.get(topic)
        if listener is not None:
            self._changes.append(lambda: listener(topic, queues, mine))
            self._core.wake()

    def _queues_changed(self, topic: str, queues: list[MessageQueue]) -> None:
        """In the I/O thread."""
        listener = self._queues_listeners.get(topic)
        if listener is not None:
            self._changes.append(lambda: listener(topic, queues))
            self._core.wake()

    def _tell_changes(self) -> None:
        while self._changes:
            self._changes.popleft()()

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are being read now."""
        return self._core.assignment

    @property
    def failures(self) -> dict[MessageQueue, ClientError]:
        """The last error of each queue that cannot be read now. It is tried again all the time."""
        return self._core.failures

    # --- reading

    def poll(self, timeout_ms: int = 1000, count_max: int = core.POLL_MAX) -> list[MessageExt]:
        """Messages that are there, at most `count_max`; waits up to `timeout_ms` for the first, or gives none."""
        if self._io.is_current:
            raise ClientError("poll() inside a callback of the I/O thread would wait for itself")
        until_s = time.monotonic() + timeout_ms / 1000
        while True:
            future = self.poll_async(max(0, round((until_s - time.monotonic()) * 1000)), count_max)
            try:
                messages = future.result()
            except KeyboardInterrupt:
                self.abandon(future)
                raise
            # A change ends a poll that waits; it goes on when its listener was told.
            if messages or not self._changes:
                return messages

    def poll_async(self, timeout_ms: int = 1000, count_max: int = core.POLL_MAX) -> "Future[list[MessageExt]]":
        """As `poll`, with a future for what it would give. One at a time."""
        self._check()
        self._tell_changes()
        self._current = None
        if self._ready:
            future: Future[list[MessageExt]] = Future()
            future.set_result([self._ready.popleft() for _ in range(min(count_max, len(self._ready)))])
            return future
        return self._io.run("PullConsumer", lambda: start(self._core.poll(count_max, timeout_ms)))

    def abandon(self, polled: "Future[list[MessageExt]]") -> None:
        """Nobody waits for this poll any more: it ends at once, and the next one gives what it would have given."""
        polled.add_done_callback(self._put_back)
        self._io.post(self._core.wake)

    def _put_back(self, polled: "Future[list[MessageExt]]") -> None:
        """In the I/O thread."""
        if not polled.cancelled() and polled.exception() is None:
            self._core.put_back(polled.result())

    def __iter__(self) -> Iterator[MessageExt]:
        """Messages one by one, for ever; ends when the consumer is closed."""
        while not self._closed:
            message = self.next_ready()
            if message is not None:
                yield message
                continue
            try:
                self.fill(self.poll())
            except ClientClosed:
                return

    def fill(self, messages: Iterable[MessageExt]) -> None:
        """For iterators: what a poll gave, to be handed out one by one."""
        self._ready.extend(messages)

    def next_ready(self) -> MessageExt | None:
        """For iterators: the next message of `fill`; the one before it counts as done from now on."""
        self._current = self._ready.popleft() if self._ready else None
        return self._current

    @property
    def closed(self) -> bool:
        return self._closed

    def position(self, queue: MessageQueue) -> int:
        """The offset of the message that comes next. Raises ClientError if no broker says where the group is."""
        held = [each.queue_offset for each in self._ready if each.queue == queue]
        position = self._wait("position", lambda: self._core.position(queue))
        return min([position, *held])

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at that offset. One outside the queue is corrected to its nearest end."""
        self._ready = deque(each for each in self._ready if each.queue != queue)
        self._do("seek", lambda: self._core.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        self.seek(queue, max(0, self.offset_min(queue)))

    def seek_to_end(self, queue: MessageQueue) -> None:
        self.seek(queue, self.offset_max(queue))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Give nothing of these queues until `resume`."""
        self._do("pause", lambda: self._core.pause(list(queues), True))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        self._do("pause", lambda: self._core.pause(list(queues), False))

    # --- offsets

    def commit(self, offsets: Mapping[MessageQueue, int] | Iterable[MessageQueue] | None = None) -> None:
        """Store how far the group is: the given offsets, or what was handed out of some queues, or of all.

        Raises the first error.
        """
        if not self._with_group:
            raise ClientError("commit() needs a group to commit for; pass group=")
        if offsets is None:
            self._wait("commit", lambda: self._core.commit(list(self._ready)))
        elif isinstance(offsets, Mapping):
            self._wait("commit", lambda: self._core.commit_offsets(dict(offsets)))
        else:
            queues = list(offsets)
            self._wait("commit", lambda: self._core.commit(list(self._ready), queues))

    def committed(self, queue: MessageQueue) -> int | None:
        """What is stored for the group, None when it never consumed the queue."""
        return self._wait("committed", lambda: self._core.offsets.read(queue))

    def offset_min(self, queue: MessageQueue) -> int:
        return self._wait("offset_min", lambda: self._admin.offset_min(queue))

    def offset_max(self, queue: MessageQueue) -> int:
        """The offset of the next message that will be stored."""
        return self._wait("offset_max", lambda: self._admin.offset_max(queue))

    def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at that time (Unix ms) or later."""
        return self._wait("offset_for_time", lambda: self._admin.offset_for_time(queue, timestamp_ms))

    # --- life

    def close(self) -> None:
        """Leave the group; with auto-commit, what was handed out counts as done. Safe to call twice."""
        self._close(done=True)

    def _close(self, *, done: bool) -> None:
        if self._closed:
            return
        self._closed = True
        io = self._io
        if io.pid != os.getpid():
            return
        held = list(self._ready)
        if not done and self._current is not None:
            held.insert(0, self._current)

        async def close() -> None:
            self._core.put_back(held)
            await self._core.close(commit_positions=done or bool(held))

        if io.ended is None:
            try:
                future = io.run("PullConsumer", lambda: start(close()))
                if not io.is_current:
                    future.result(CLOSE_WAIT_S)
            except (RmqkitError, TimeoutError):
                pass
        release(self, io, self.group if self._with_group else None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._close(done=kind is None)

    def _wait(self, what: str, flow: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._check()
        return self._io.wait(f"PullConsumer.{what}()", lambda: start(flow()))

    def _do(self, what: str, function: Callable[[], None]) -> None:
        self._check()
        self._io.do(f"PullConsumer.{what}()", function)

    def _check(self) -> None:
        self._io.check("PullConsumer")
        if self._closed:
            raise ClientClosed(f"pull consumer of group {self.group} is closed")


#: the same, as Java's clients know it
LitePullConsumer = PullConsumer
