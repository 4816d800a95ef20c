"""PullConsumer: reads messages when the program asks for them.

    with PullConsumer("readers", namesrv="127.0.0.1:9876") as consumer:
        consumer.subscribe("T")
        for message in consumer:            # waits for messages, without end
            print(message.body)

Without a group it is a reader: brokers do not know it and it commits nothing. `assign` queues and
`poll`. With a group, positions are committed every 5 s and at the end. A message counts as consumed
when the program asks for the next one. If an exception leaves the `with` block, the current message
does not count as consumed, and the group gets it again.

A consumer belongs to one thread at a time; only `close` may come from another one. The next `poll`
calls listeners for changes (`subscribe(on_change=...)`, `watch_queues`) in that thread, so they may
seek and commit.

`LitePullConsumer` is another name for this class, which corresponds to Java's
`DefaultLitePullConsumer`.
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
from rmqkit.client_keys import choose_keys
from rmqkit.errors import ClientClosed, ClientError, RmqkitError
from rmqkit.tls.client_choice import Tls
from rmqkit.wire.fastjson import MessageQueue

T = TypeVar("T")

#: Called with a topic, all its queues, and the queues that this member now has.
ShareListener = Callable[[str, list[MessageQueue], list[MessageQueue]], None]
#: Called with a topic and all its queues.
QueuesListener = Callable[[str, list[MessageQueue]], None]

CLOSE_WAIT_S = 6.0


class PullConsumer(User):
    """Reads messages when the program asks for them.

    A pull consumer belongs to one thread at a time. Only `close` may be called from another thread.

    Either `subscribe` to topics, whose queues are shared with the other members of the group, or
    `assign` queues by hand. Pulls run ahead in the background.

    With a group and `auto_commit`, the consumer commits every `auto_commit_interval_ms` and in
    `close`. A message counts as consumed when the program asks for the next one. If an exception
    leaves the `with` block, the message in progress is not committed. A message may be delivered
    more than once: after a rebalance or a crash.

    Args:
        group: The consumer group. None: a reader that brokers do not list, that commits nothing,
            and that can only `assign`.
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
        model: `clustering` shares the queues among the members. `broadcasting` gives every member
            all queues and stores offsets in files below `offset_folder`.
        consume_from: Where to start in a queue without a committed offset: `last`, `first` or
            `timestamp`.
        consume_timestamp_ms: Unix time in ms for `consume_from="timestamp"`. Default: 30 minutes
            ago.
        allocator: How members share queues: `average`, `circle`, `consistent-hash`, `machine-room`,
            `config`, the name of a plug-in, or an `Allocator` object. All members must use the same
            one.
        auto_commit: Whether to commit in the background. Default: true with a group, false without.
        auto_commit_interval_ms: Interval between two commits, in ms.
        pull_batch_size: Messages per pull request.
        pull_threshold_for_queue: Messages of one queue to buffer before pulls of it pause.
        pull_threshold_size_for_queue_mib: MiB of bodies of one queue to buffer before pulls of it
            pause.
        offset_folder: Folder for the offsets of broadcasting consumers. Default:
            `~/.rocketmq_offsets`.

    Raises:
        InvalidMessage: If `group` is not a valid name.
        ClientError: If a setting is unknown, `auto_commit` is set without a group, or the group
            already has a consumer with this `instance_name`.
        ConfigError: If `allocator` is unknown, a file of `tls` cannot be used, or a key is missing.

    Example:
        Consume a topic as a member of a group:

            from rmqkit import PullConsumer

            with PullConsumer("reports", namesrv="127.0.0.1:9876") as consumer:
                consumer.subscribe("orders")
                for message in consumer:  # waits for messages, without end
                    print(message.body)

        Read a topic once, without a group:

            with PullConsumer() as reader:
                reader.assign(reader.queues("orders"))
                for queue in reader.assignment:
                    reader.seek_to_begin(queue)
                messages = reader.poll(timeout_ms=5000)
    """

    def __init__(
        self,
        group: str | None = None,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance_name: str | None = None,
        tls: Tls = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
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
        #: Messages that the iterator has polled but not yet yielded.
        self._ready: deque[MessageExt] = deque()
        self._current: MessageExt | None = None
        self._share_listeners: dict[str, ShareListener] = {}
        self._queues_listeners: dict[str, QueuesListener] = {}
        #: Listener calls that the next `poll` makes. The I/O thread appends.
        self._changes: deque[Callable[[], None]] = deque()
        self._closed = False
        keys = choose_keys(access_key, secret_key, security_token)
        self._io = acquire(self, namesrv, instance_name, tls=tls, keys=keys, consumer_group=group)
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
        """Return the queues of a topic that can be read.

        Args:
            topic: The topic.

        Raises:
            NoRoute: If no name server knows the topic.
        """
        return self._wait("queues", lambda: self._admin.queues(topic))

    def assign(self, queues: Iterable[MessageQueue], expression: str = "*", *, expression_type: str = "TAG") -> None:
        """Read exactly these queues. This replaces an earlier assignment.

        Args:
            queues: The queues to read.
            expression: The filter, as in `subscribe`.
            expression_type: As in `subscribe`.

        Raises:
            ClientError: After `subscribe`, or if `expression` is invalid.
            NoRoute: If no name server knows a topic.
            BrokerError: If a broker refuses the filter.
        """
        self._wait("assign", lambda: self._core.assign(list(queues), expression, expression_type))

    def subscribe(
        self,
        topic: str,
        expression: str = "*",
        *,
        expression_type: str = "TAG",
        on_change: ShareListener | None = None,
    ) -> None:
        """Consume a topic, sharing its queues with the other members of the group.

        A second call for the same topic replaces its filter.

        Args:
            topic: The topic.
            expression: `*` for all messages, tags as in `TagA || TagB`, or `sql("price > 10")`.
            expression_type: `TAG` or `SQL92`. `sql(...)` implies SQL92.
            on_change: Called as `on_change(topic, queues, mine)` after each change of this member's
                queues, by the next `poll` and in its thread. It may seek and commit.

        Raises:
            ClientError: Without a group, after `assign`, or if `expression` is invalid.
            NoRoute: If no name server knows the topic.
            BrokerError: If a broker refuses the filter.

        Example:
            Start every new queue at its first message:

                def rewind(topic, queues, mine):
                    for queue in mine:
                        if not consumer.committed(queue):
                            consumer.seek_to_begin(queue)

                consumer.subscribe("orders", "created || paid", on_change=rewind)
        """
        check_topic(topic, to_send=False)
        if not self._with_group:
            raise ClientError("subscribe() needs a group to share queues with; pass group=, or use assign()")
        if on_change is not None:
            self._share_listeners[topic] = on_change
        self._wait("subscribe", lambda: self._core.subscribe(topic, expression, expression_type))

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic. Its queues go to the other members of the group.

        Args:
            topic: The topic. Nothing happens if it is not subscribed.
        """
        self._do("unsubscribe", lambda: self._core.unsubscribe(topic))
        self._share_listeners.pop(topic, None)
        self._ready = deque(each for each in self._ready if each.queue.topic != topic)

    def watch_queues(self, topic: str, listener: QueuesListener) -> None:
        """Call a listener when the queues of a topic change. Useful together with `assign`.

        The client checks routes every 30 s.

        Args:
            topic: The topic.
            listener: Called as `listener(topic, queues)` by the next `poll`, in its thread.

        Raises:
            NoRoute: If no name server knows the topic.
        """
        check_topic(topic, to_send=False)
        self._queues_listeners[topic] = listener
        self._wait("watch_queues", lambda: self._core.watch(topic))

    def unwatch_queues(self, topic: str) -> None:
        """Stop calling the listener of `watch_queues`.

        Args:
            topic: The topic.
        """
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

    def _call_listeners(self) -> None:
        while self._changes:
            self._changes.popleft()()

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now, sorted."""
        return self._core.assignment

    @property
    def failures(self) -> dict[MessageQueue, ClientError]:
        """The last error of each queue that cannot be read now. The consumer keeps retrying."""
        return self._core.failures

    # --- reading

    def poll(self, timeout_ms: int = 1000, count_max: int = core.POLL_MAX) -> list[MessageExt]:
        """Return messages that have arrived, or wait for the first one.

        Messages of earlier polls count as consumed from now on. The queues take turns.

        Args:
            timeout_ms: How long to wait for the first message, in ms. 0 does not wait.
            count_max: The largest number of messages to return.

        Returns:
            Up to `count_max` messages. Empty if none arrived in time.

        Raises:
            ClientClosed: The consumer is closed.
            ClientError: Another thread is polling, or this is a callback of the I/O thread.

        Example:
            Process messages, then commit:

                messages = consumer.poll(timeout_ms=5000)
                for message in messages:
                    print(message.queue, message.queue_offset, message.body)
                consumer.commit()
        """
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
            # A change ends a waiting poll. Continue: the next round calls the listener.
            if messages or not self._changes:
                return messages

    def poll_async(self, timeout_ms: int = 1000, count_max: int = core.POLL_MAX) -> "Future[list[MessageExt]]":
        """Poll without blocking. Only one poll may run at a time.

        Args:
            timeout_ms: As in `poll`.
            count_max: As in `poll`.

        Returns:
            A future of what `poll` would return.
        """
        self._check()
        self._call_listeners()
        self._current = None
        if self._ready:
            future: Future[list[MessageExt]] = Future()
            future.set_result([self._ready.popleft() for _ in range(min(count_max, len(self._ready)))])
            return future
        return self._io.run("PullConsumer", lambda: start(self._core.poll(count_max, timeout_ms)))

    def abandon(self, polled: "Future[list[MessageExt]]") -> None:
        """End a poll whose result is no longer needed. The next poll returns its messages.

        Args:
            polled: A future of `poll_async`.
        """
        polled.add_done_callback(self._put_back)
        self._io.post(self._core.wake)

    def _put_back(self, polled: "Future[list[MessageExt]]") -> None:
        """In the I/O thread."""
        if not polled.cancelled() and polled.exception() is None:
            self._core.put_back(polled.result())

    def __iter__(self) -> Iterator[MessageExt]:
        """Yield messages one by one, without end. Stops when the consumer is closed."""
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
        """Buffer messages of a poll for `next_ready`. `rmqkit.aio` uses it for its iterator.

        Args:
            messages: The messages, in order.
        """
        self._ready.extend(messages)

    def next_ready(self) -> MessageExt | None:
        """Return the next buffered message, or None. The one before it counts as consumed."""
        self._current = self._ready.popleft() if self._ready else None
        return self._current

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that the program will get.

        Args:
            queue: An assigned queue.

        Raises:
            ClientError: If the queue is not assigned, or no broker can tell where the group stands.
        """
        held = [each.queue_offset for each in self._ready if each.queue == queue]
        position = self._wait("position", lambda: self._core.position(queue))
        return min([position, *held])

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset. Drops the buffered messages of the queue.

        Args:
            queue: An assigned queue.
            offset: The queue offset of the next message. An offset outside the queue is corrected
                to the nearer end.

        Raises:
            ClientError: If the queue is not assigned.
        """
        self._ready = deque(each for each in self._ready if each.queue != queue)
        self._do("seek", lambda: self._core.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the first message that the queue still has.

        Args:
            queue: An assigned queue.
        """
        self.seek(queue, max(0, self.offset_min(queue)))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue at the end of the queue: only new messages follow.

        Args:
            queue: An assigned queue.
        """
        self.seek(queue, self.offset_max(queue))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues until `resume`.

        Args:
            queues: Assigned queues.

        Raises:
            ClientError: If a queue is not assigned.
        """
        self._do("pause", lambda: self._core.pause(list(queues), True))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these queues again.

        Args:
            queues: Assigned queues.

        Raises:
            ClientError: If a queue is not assigned.
        """
        self._do("resume", lambda: self._core.pause(list(queues), False))

    # --- offsets

    def commit(self, offsets: Mapping[MessageQueue, int] | Iterable[MessageQueue] | None = None) -> None:
        """Store the group's offsets at the brokers and wait for their responses.

        A message that the iterator has yielded counts as consumed, the current one included.

        Args:
            offsets: Offsets to store by queue; or queues whose consumed messages to commit. None:
                commit all assigned queues.

        Raises:
            ClientError: Without a group, for a queue that is not assigned, or the first error of a
                broker.
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
        """Return the offset that is stored for the group, or None if it never consumed the queue.

        With clustering, a broker returns 0 for such a queue if it still has the first message in
        memory.

        Args:
            queue: Any queue.

        Raises:
            ClientError: If no broker can tell.
        """
        return self._wait("committed", lambda: self._core.offsets.read(queue))

    def offset_min(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that the queue still has.

        Args:
            queue: Any queue.
        """
        return self._wait("offset_min", lambda: self._admin.offset_min(queue))

    def offset_max(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that will be stored.

        Args:
            queue: Any queue.
        """
        return self._wait("offset_max", lambda: self._admin.offset_max(queue))

    def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message that was stored at that time or later.

        Args:
            queue: Any queue.
            timestamp_ms: Unix time in ms.
        """
        return self._wait("offset_for_time", lambda: self._admin.offset_for_time(queue, timestamp_ms))

    # --- life

    def close(self) -> None:
        """Leave the group. Safe to call twice and from any thread.

        With `auto_commit`, all messages that the program got count as consumed.
        """
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


#: Another name for `PullConsumer`, as in Java's clients.
LitePullConsumer = PullConsumer
