"""PopOffsets: which offset a group pops next, in each queue.

The next offset rises when messages are read for a pop, so that the next pop takes other messages.
It is committed as a consumer offset when the checkpoints of all pops before it are stored and the
log is durable: after a power loss a message must not be behind the committed offset without a
checkpoint. If a checkpoint cannot be stored, the next offset goes back to its messages.

At an acting master no checkpoint is stored. There the committed offset rises when all messages of
the pop are acked or handed out again, so that no message is lost with the acting master.

A pop starts at the greater of the next and the committed offset. After a start, the checkpoints
that were read may be ahead of both (`ReviveReader.taken`). A reset by the server beats all.

Source: `broker/.../processor/PopMessageProcessor.java` (`getPopOffset`, `getInitOffset`,
`resetPopOffset`).
"""

from collections.abc import Callable

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.special.pop.pending import PopQueue
from rmqkit.broker.tables.groups import GroupTable
from rmqkit.broker.tables.offsets import OffsetTable
from rmqkit.broker.tables.topics import TopicTable
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.topic_names import RETRY_PREFIX

COMMIT = "pop-commit"
#: pause between a pop and the commit of its offset
COMMIT_MS = 500
#: `ConsumeInitMode.MIN`: a new group starts at the oldest message
INIT_MIN = 0


class NextOffset:
    """The next offset of one group in one queue, and the starts of pops that are not stored yet."""

    __slots__ = ("next", "open", "queue")

    def __init__(self, queue: PopQueue, next_offset: int) -> None:
        self.queue = queue
        self.next = next_offset
        #: start offsets by number of the pop
        self.open: dict[int, int] = {}

    @property
    def stored(self) -> int:
        """The offset before which every message has a stored checkpoint."""
        return min(self.open.values(), default=self.next)


class PopOffsets:
    """The next offsets of all groups that pop."""

    def __init__(
        self,
        context: BrokerContext,
        store: StorageEngine,
        offsets: OffsetTable,
        topics: TopicTable,
        groups: GroupTable,
        taken: dict[PopQueue, int],
        on_reset: Callable[[PopQueue], None],
    ) -> None:
        """`on_reset` is called for a queue whose offset the server has reset."""
        self._context = context
        self._store = store
        self._offsets = offsets
        self._topics, self._groups = topics, groups
        self._taken = taken
        self._on_reset = on_reset
        self._by_queue: dict[PopQueue, NextOffset] = {}
        self._number = 0
        self._revive_queue = 0
        context.duties.add(COMMIT, self._commit, None)

    def __len__(self) -> int:
        """Return the number of queues whose next offset may be ahead of the committed one."""
        return len(self._by_queue)

    def revive_queue(self) -> int:
        """Return the revive queue of the next pop."""
        self._revive_queue = (self._revive_queue + 1) % self._context.config.pop.revive_queue_num
        return self._revive_queue

    def start(self, queue: PopQueue, init_mode: int) -> int:
        """Return where the next pop of a queue starts; commit it for a new group and a reset."""
        topic, group, queue_id = queue
        reset = self._offsets.take_reset(group, topic, queue_id)
        if reset is not None:
            self._forget(queue)
            self._on_reset(queue)
            self._offsets.commit(group, topic, queue_id, reset)
            return reset
        if self._offsets.query(group, topic, queue_id) < 0:
            self._offsets.commit(group, topic, queue_id, self._first(topic, queue_id, init_mode))
        return self.next(queue)

    def next(self, queue: PopQueue) -> int:
        """Return the next offset of a queue; its oldest one for a group without an offset."""
        topic, group, queue_id = queue
        committed = self._offsets.query(group, topic, queue_id)
        if committed < 0:
            committed = self._store.queue_range(topic, queue_id).offset_min
        state, taken = self._by_queue.get(queue), self._taken.get(queue)
        if taken is not None:
            committed = max(committed, min(taken, self._store.queue_range(topic, queue_id).offset_max))
        return committed if state is None else max(committed, state.next)

    def _first(self, topic: str, queue_id: int, init_mode: int) -> int:
        known = self._store.queue_range(topic, queue_id)
        if init_mode == INIT_MIN or topic.startswith(RETRY_PREFIX):
            return known.offset_min
        if (
            self._context.config.pop.init_offset_by_memory
            and known.offset_min <= 0
            and self._store.queue_is_in_memory(topic, queue_id, 0)
        ):
            return 0
        return max(0, known.offset_max - 1)

    # --- what a pop took --------------------------------------------------------------------------

    def skip(self, queue: PopQueue, offset: int) -> None:
        """Move on to `offset` without a checkpoint: nothing before it is wanted."""
        self._state(queue).next = offset
        self._context.duties.wake(COMMIT, self._context.clock.mono_ms + COMMIT_MS)

    def correct(self, queue: PopQueue, offset: int) -> None:
        """Commit an offset in place of one outside the queue, even a lower one."""
        topic, group, queue_id = queue
        self._forget(queue)
        self._offsets.commit(group, topic, queue_id, offset)

    def forget_all(self) -> None:
        """Forget what this broker popped while it acted: its master has taken over."""
        self._by_queue.clear()

    def _forget(self, queue: PopQueue) -> None:
        self._by_queue.pop(queue, None)
        self._taken.pop(queue, None)

    def take(self, queue: PopQueue, start: int, offset: int) -> "tuple[NextOffset, int]":
        """Move on from `start` to `offset`. Returns what `stored` and `failed` want."""
        state = self._state(queue)
        self._number += 1
        state.open[self._number] = start
        state.next = offset
        return state, self._number

    def hold(self, queue: PopQueue, offset: int) -> "tuple[NextOffset, int]":
        """Keep the committed offset from rising above a message. Returns what `stored` wants."""
        state = self._state(queue)
        self._number += 1
        state.open[self._number] = offset
        return state, self._number

    def stored(self, taken: "tuple[NextOffset, int]") -> None:
        """The checkpoint is stored, or at an acting master all its messages are done."""
        state, number = taken
        state.open.pop(number)
        self._context.duties.wake(COMMIT, self._context.clock.mono_ms + COMMIT_MS)

    def failed(self, taken: "tuple[NextOffset, int]") -> None:
        """The checkpoint is not stored: its messages are popped again."""
        state, number = taken
        state.next = min(state.next, state.open.pop(number))

    def _state(self, queue: PopQueue) -> NextOffset:
        state = self._by_queue.get(queue)
        if state is None:
            state = self._by_queue[queue] = NextOffset(queue, 0)
        return state

    # --- commits ----------------------------------------------------------------------------------

    def _commit(self, now_ms: int) -> None:
        states = {queue: (state, state.stored) for queue, state in self._by_queue.items()}

        def synced(durable: bool) -> None:
            if durable:
                for queue, (state, offset) in states.items():
                    if self._by_queue.get(queue) is state:
                        self._commit_one(state, offset)

        self._store.sync(self._store.offset_written, synced)

    def _commit_one(self, state: NextOffset, offset: int) -> None:
        topic, group, queue_id = state.queue
        offset = min(offset, state.stored)
        if topic in self._topics.by_name and self._groups.knows(group):
            if offset > self._offsets.query(group, topic, queue_id):
                self._offsets.commit(group, topic, queue_id, offset)
        elif not state.open:
            del self._by_queue[state.queue]
            return
        if not state.open and state.next <= self._offsets.query(group, topic, queue_id):
            del self._by_queue[state.queue]
