"""PullConsumer: the caller asks for messages when it wants them, while pulls run ahead in the
background.

Queues are either assigned by hand or, after `subscribe`, shared with the other members of the
group. Each queue has a `_Part` with its own pull loop, which pauses while the buffer is full.
`poll` returns buffered messages, with queues taking turns, or waits for the first message.

    position   the offset of the next message that `poll` would return
    commit     stores the positions: messages that were returned count as consumed
    auto       with `auto_commit`, a poll marks the messages of earlier polls as consumed; these
               offsets are stored every `persist_interval_ms` and at the end

A seek replaces the part. The response to a pull in flight belongs to the old part and is dropped
with it.

Two callbacks report changes: `on_share` a change of this member's queues (after `subscribe`), and
`on_queues` that the queues of a watched topic changed (for callers of `assign`).

Source: `client/.../impl/consumer/DefaultLitePullConsumerImpl.java`, `AssignedMessageQueue.java`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rmqkit.client.client import Client
from rmqkit.client.consumers.offset_store import OffsetStore
from rmqkit.client.consumers.pull import PullResult, PullStatus, pull
from rmqkit.client.consumers.rebalance import Rebalance
from rmqkit.client.consumers.subscriptions import (
    FLOW_CONTROL_MS,
    MIB,
    ConsumerSettings,
    check_filter,
    first_offset,
    heartbeat_of,
    subscription,
)
from rmqkit.client.consumers.topic_rounds import TopicRounds
from rmqkit.client.flow import Deferred, start
from rmqkit.client.message import MessageExt
from rmqkit.client.routes import MASTER_ID
from rmqkit.errors import ClientClosed, ClientError, RmqkitError
from rmqkit.wire.bodies import (
    EXPRESSION_TAG,
    SUB_ALL,
    ConsumerData,
    ConsumerRunningInfo,
    ProcessQueueInfo,
    SubscriptionData,
)
from rmqkit.wire.fastjson import MessageQueue

POLL_MAX = 32


@dataclass(kw_only=True)
class PullConsumerSettings(ConsumerSettings):
    """Settings of a pull consumer."""

    auto_commit: bool = True
    #: Whether heartbeats announce this client as a member of the group. A reader that commits
    #: nothing need not be announced.
    announce: bool = True


@dataclass(slots=True, eq=False)
class _Part:
    """One queue that is being read. `dropped` ends its pull loop."""

    queue: MessageQueue
    pull_offset: int | None
    buffer: deque[MessageExt] = field(default_factory=deque)
    buffer_size: int = 0
    done: int | None = None
    dropped: bool = False
    paused: bool = False
    suggest_broker_id: int = 0
    #: The error of the last pull, None after a response.
    failure: ClientError | None = None
    #: Resolved once the start offset is known. Each failed attempt to find it fails the promise and
    #: replaces it.
    begun: Deferred[None] = field(default_factory=Deferred)

    def __post_init__(self) -> None:
        if self.pull_offset is not None:
            self.begun.resolve(None)

    @property
    def position(self) -> int:
        if self.buffer:
            return self.buffer[0].queue_offset
        assert self.pull_offset is not None
        return self.pull_offset

    def drop(self) -> None:
        self.dropped = True
        if not self.begun.done:
            self.begun.resolve(None)

    def failed(self, error: ClientError) -> None:
        self.failure = error
        if self.pull_offset is None:
            begun, self.begun = self.begun, Deferred()
            begun.fail(error)

    def take(self) -> MessageExt:
        message = self.buffer.popleft()
        self.buffer_size -= len(message.record.body)
        return message


class PullConsumerCore:
    """The sans-IO pull consumer of one group."""

    def __init__(self, client: Client, settings: PullConsumerSettings, offsets: OffsetStore) -> None:
        self.client = client
        self.settings = settings
        self.group = settings.group
        self.offsets = offsets
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.closed = False
        #: Called with a topic, all its queues, and the queues that this member now has.
        self.on_share: Callable[[str, list[MessageQueue], list[MessageQueue]], None] = _ignore
        #: Called with a watched topic and all its queues.
        self.on_queues: Callable[[str, list[MessageQueue]], None] = _ignore
        #: Watched topics, with the queues that were last reported.
        self._watched: dict[str, list[MessageQueue]] = {}
        self._parts: dict[MessageQueue, _Part] = {}
        self._rebalance: TopicRounds | None = None
        self._poll: Deferred[None] | None = None
        self._last_served: MessageQueue | None = None
        self._duty = f"pull-commits-{client.next_number()}"
        if settings.announce:
            client.add_consumer(self)
        if settings.auto_commit:
            client.duties.add(self._duty, self._auto_commit, client.clock.mono_ms + settings.persist_interval_ms)

    # --- member of the client

    def heartbeat_data(self) -> ConsumerData | None:
        if not self.settings.announce:
            return None
        return heartbeat_of(self.settings, "CONSUME_ACTIVELY", self.subscriptions)

    def members_changed(self) -> None:
        if self._rebalance is not None:
            self._rebalance.soon()

    # --- which queues

    async def assign(
        self, queues: Iterable[MessageQueue], expression: str = SUB_ALL, expression_type: str = EXPRESSION_TAG
    ) -> None:
        """Read exactly these queues.

        Raises ClientError after `subscribe`, NoRoute for an unknown topic, and BrokerError if a
        broker refuses the filter.
        """
        if self._rebalance is not None:
            raise ClientError("assign() and subscribe() exclude each other; create a second PullConsumer")
        wanted = list(dict.fromkeys(queues))
        for topic in dict.fromkeys(queue.topic for queue in wanted):
            await self._add_topic(topic, expression, expression_type)
        self._set_queues(wanted)
        self.client.heartbeats.soon()

    async def subscribe(self, topic: str, expression: str, expression_type: str) -> None:
        """Consume this member's share of a topic.

        Raises ClientError after `assign`, NoRoute for an unknown topic, and BrokerError if a broker
        refuses the filter.
        """
        if self._parts and self._rebalance is None:
            raise ClientError("assign() and subscribe() exclude each other; create a second PullConsumer")
        await self._add_topic(topic, expression, expression_type)
        if self._rebalance is None:
            self._rebalance = Rebalance(self.client, self.settings, self.subscriptions, self._apply).rounds
            # The round of rebalance that follows must find this client in the group.
            await self.client.heartbeats.beat_all()
            if not self.closed:
                self._rebalance.start()
        else:
            self.client.heartbeats.soon()
            self._rebalance.soon()

    def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic and store its consumed offsets.

        Does nothing for a topic that is not subscribed.
        """
        if self.subscriptions.pop(topic, None) is None:
            return
        self.client.routes.unwatch(topic)
        self._set_queues([queue for queue in self._parts if queue.topic != topic])
        self.client.heartbeats.soon()
        self.members_changed()

    async def watch(self, topic: str) -> None:
        """Call `on_queues` when a topic's queues change. Raises NoRoute for an unknown topic."""
        route = await self.client.routes.find(topic)
        if topic not in self._watched:
            self.client.routes.watch(topic)
        if not self._watched:
            self.client.routes.on_change.append(self._route_changed)
        self._watched[topic] = sorted(route.subscribe)

    def unwatch(self, topic: str) -> None:
        """Stop watching a topic."""
        if self._watched.pop(topic, None) is not None:
            self.client.routes.unwatch(topic)
            if not self._watched:
                self.client.routes.on_change.remove(self._route_changed)

    def _route_changed(self, topic: str) -> None:
        known, route = self._watched.get(topic), self.client.routes.routes.get(topic)
        if known is None or route is None:
            return
        queues = sorted(route.subscribe)
        if queues != known:
            self._watched[topic] = queues
            self.on_queues(topic, queues)

    async def _add_topic(self, topic: str, expression: str, expression_type: str) -> None:
        data = subscription(topic, expression, expression_type, self.client.clock.wall_ms)
        await self.client.routes.find(topic)
        await check_filter(self.client, self.group, data)
        if topic not in self.subscriptions:
            self.client.routes.watch(topic)
        self.subscriptions[topic] = data

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are being read, sorted."""
        return sorted(self._parts)

    def _apply(self, topic: str, queues: Sequence[MessageQueue], alone: bool) -> bool:
        if self.closed or topic not in self.subscriptions:
            return True
        others = [queue for queue in self._parts if queue.topic != topic]
        before = {queue for queue in self._parts if queue.topic == topic}
        self._set_queues([*others, *queues])
        if before != set(queues):
            route = self.client.routes.routes.get(topic)
            self.on_share(topic, sorted(route.subscribe) if route is not None else [], sorted(queues))
        return True

    def _set_queues(self, queues: Sequence[MessageQueue]) -> None:
        wanted = set(queues)
        gone = [queue for queue in self._parts if queue not in wanted]
        for queue in gone:
            part = self._parts.pop(queue)
            part.drop()
            if self.settings.auto_commit and part.done is not None:
                self.offsets.update(queue, part.done)
        if gone:
            start(self._release(gone))
        for queue in queues:
            if queue not in self._parts:
                self._begin(queue, None)

    async def _release(self, queues: Sequence[MessageQueue]) -> None:
        if self.settings.auto_commit:
            await self.offsets.persist(queues)
        for queue in queues:
            if queue not in self._parts:
                self.offsets.forget(queue)

    # --- reading

    async def poll(self, count_max: int = POLL_MAX, timeout_ms: int = 1000) -> list[MessageExt]:
        """Return up to `count_max` messages.

        Waits up to `timeout_ms` for the first message, then returns an empty list. Raises
        ClientError if another poll is waiting.
        """
        for part in self._parts.values():
            if part.pull_offset is not None:
                part.done = part.position
        messages = self._hand_out(count_max)
        if messages or timeout_ms <= 0:
            return messages
        self._check_open()
        if self._poll is not None:
            raise ClientError("another thread is already in poll(); a PullConsumer belongs to one thread at a time")
        waiting = self._poll = Deferred()
        timer = self.client.timers.after(timeout_ms, self.wake)
        await waiting
        timer.cancel()
        return self._hand_out(count_max)

    def wake(self) -> None:
        """End a waiting poll now."""
        if self._poll is not None:
            waiting, self._poll = self._poll, None
            waiting.resolve(None)

    def _hand_out(self, count_max: int) -> list[MessageExt]:
        """Return buffered messages, starting with the queue after the one that was served last."""
        parts = [part for part in self._parts.values() if part.buffer and not part.paused]
        queues = [part.queue for part in parts]
        if self._last_served in queues:
            place = queues.index(self._last_served) + 1
            parts = parts[place:] + parts[:place]
        messages: list[MessageExt] = []
        for part in parts:
            while part.buffer and len(messages) < count_max:
                messages.append(part.take())
            self._last_served = part.queue
            if len(messages) == count_max:
                break
        return messages

    def put_back(self, messages: Sequence[MessageExt]) -> None:
        """Return messages to their buffers: the caller has not looked at them, so the next poll
        returns them.
        """
        for message in reversed(messages):
            part = self._parts.get(message.queue)
            if part is not None and part.pull_offset is not None and message.queue_offset < part.position:
                part.buffer.appendleft(message)
                part.buffer_size += len(message.record.body)
        if messages:
            self.wake()

    @property
    def failures(self) -> dict[MessageQueue, ClientError]:
        """The last error of each queue that cannot be read now."""
        return {queue: part.failure for queue, part in list(self._parts.items()) if part.failure is not None}

    async def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message.

        Raises ClientError if the queue has no position yet and cannot be read.
        """
        while (part := self._part(queue)).pull_offset is None:
            await part.begun
        return part.position

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at `offset` and drop the queue's buffer."""
        old = self._part(queue)
        self._begin(queue, offset, paused=old.paused)
        # Drop the old part last: callers that wait for the position then find the new part.
        old.drop()

    def pause(self, queues: Iterable[MessageQueue], paused: bool) -> None:
        """Pause or resume queues. `poll` returns no messages of paused queues."""
        for queue in queues:
            self._part(queue).paused = paused
        self.wake()

    def _part(self, queue: MessageQueue) -> _Part:
        self._check_open()
        part = self._parts.get(queue)
        if part is None:
            raise ClientError(f"queue {queue.topic}/{queue.broker_name}/{queue.queue_id} is not assigned to this consumer")
        return part

    # --- committing

    async def commit(self, held: Sequence[MessageExt] = (), queues: Iterable[MessageQueue] | None = None) -> None:
        """Store the positions of all queues, or of some `queues`.

        `held` are messages that `poll` has returned but that are not consumed yet. Raises
        ClientError for a queue that is not assigned, and the first error of a broker.
        """
        for part in self._parts.values() if queues is None else [self._part(queue) for queue in queues]:
            if part.pull_offset is not None:
                offsets = [each.queue_offset for each in held if each.queue == part.queue]
                self.offsets.update(part.queue, min([part.position, *offsets]), increase_only=False)
        await self._persist(self._parts)

    async def commit_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store the given offsets. Raises the first error of a broker."""
        for queue, offset in offsets.items():
            self.offsets.update(queue, offset, increase_only=False)
        await self._persist(offsets)

    async def _persist(self, queues: Iterable[MessageQueue]) -> None:
        errors = await self.offsets.persist(list(queues))
        if errors:
            raise errors[0]

    def _auto_commit(self, now_ms: int) -> int:
        for part in self._parts.values():
            if part.done is not None:
                self.offsets.update(part.queue, part.done, increase_only=False)
        start(self._persist(self._parts), self._commit_failed)
        return now_ms + self.settings.persist_interval_ms

    def _commit_failed(self, error: RmqkitError) -> None:
        self.client.failures.warning("commit-failed", error, group=self.group)

    # --- the loop of one queue

    def _begin(self, queue: MessageQueue, pull_offset: int | None, *, paused: bool = False) -> None:
        part = self._parts[queue] = _Part(queue, pull_offset)
        part.paused = paused
        start(self._pull_loop(part))

    async def _pull_loop(self, part: _Part) -> None:
        settings, queue = self.settings, part.queue
        while not part.dropped:
            if len(part.buffer) >= settings.pull_threshold_for_queue or (
                part.buffer_size >= settings.pull_threshold_size_for_queue
            ):
                await self.client.timers.sleep(FLOW_CONTROL_MS)
                continue
            try:
                if part.pull_offset is None:
                    offset = await first_offset(self.client, self.offsets, settings, queue)
                    if part.dropped:
                        return
                    part.pull_offset = offset
                    part.begun.resolve(None)
                pulled = await pull(
                    self.client,
                    self.group,
                    queue,
                    part.pull_offset,
                    self.subscriptions[queue.topic],
                    batch_size=settings.pull_batch_size,
                    suspend_ms=settings.suspend_ms,
                    timeout_ms=settings.pull_timeout_ms,
                    broker_id=part.suggest_broker_id,
                    send_subscription=True,
                )
            except ClientError as error:
                part.suggest_broker_id = MASTER_ID
                self.client.routes.refresh_soon(queue.topic)
                if part.dropped:
                    return
                if str(error) != str(part.failure):
                    self.client.failures.warning("pull-failed", error, group=self.group, queue=str(tuple(queue)))
                part.failed(error)
                await self.client.timers.sleep(settings.pause_ms(error))
                continue
            part.failure = None
            if not part.dropped:
                self._take(part, pulled)

    def _take(self, part: _Part, pulled: PullResult) -> None:
        part.suggest_broker_id = pulled.suggest_broker_id
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            self.client.log.warning(
                "offset-corrected", queue=str(tuple(part.queue)), offset=part.pull_offset, corrected=pulled.next_offset
            )
        part.pull_offset = pulled.next_offset
        if pulled.messages:
            part.buffer.extend(pulled.messages)
            part.buffer_size += sum(len(message.record.body) for message in pulled.messages)
            if not part.paused:
                self.wake()

    # --- requests from brokers

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets (220)."""
        for queue, offset in offsets.items():
            if queue in self._parts:
                self.seek(queue, offset)

    def consumed_offsets(self) -> dict[MessageQueue, int]:
        """Return the position of each queue (221)."""
        return {queue: part.position for queue, part in sorted(self._parts.items()) if part.pull_offset is not None}

    def running_info(self) -> ConsumerRunningInfo:
        """Return the state of this consumer (307)."""
        info = ConsumerRunningInfo(subscription_set=list(self.subscriptions.values()))
        info.properties = {"PROP_CONSUME_TYPE": "CONSUME_ACTIVELY"}
        for queue, part in sorted(self._parts.items()):
            info.mq_table[queue] = ProcessQueueInfo(
                commit_offset=self.offsets.get(queue) or 0,
                cached_msg_count=len(part.buffer),
                cached_msg_min_offset=part.buffer[0].queue_offset if part.buffer else 0,
                cached_msg_max_offset=part.buffer[-1].queue_offset if part.buffer else 0,
                cached_msg_size_in_mib=part.buffer_size // MIB,
            )
        return info

    # --- end

    def _check_open(self) -> None:
        if self.closed or self.client.stopping:
            raise ClientClosed(f"pull consumer of group {self.group} is closed")

    async def close(self, commit_positions: bool = False) -> None:
        """Leave the group.

        With `auto_commit` the consumed offsets are stored; with `commit_positions`, too, all
        messages that `poll` has returned count as consumed.
        """
        if self.closed:
            return
        self.closed = True
        if self._rebalance is not None:
            self._rebalance.stop()
        self.client.duties.remove(self._duty)
        for part in self._parts.values():
            part.drop()
            if commit_positions and part.pull_offset is not None:
                part.done = part.position
            if self.settings.auto_commit and part.done is not None:
                self.offsets.update(part.queue, part.done, increase_only=False)
        if self.settings.auto_commit:
            await self.offsets.persist(list(self._parts))
        for topic in self.subscriptions:
            self.client.routes.unwatch(topic)
        for topic in list(self._watched):
            self.unwatch(topic)
        self.wake()
        await self.client.remove_consumer(self)


def _ignore(*arguments: object) -> None:
    """The default callback."""
