"""Pending checkpoints: what was popped and is neither acked nor handed out again.

`Pending` is one checkpoint; its `bits` mark the messages that are done. `PendingTable` finds them
by key (what an ack names), by due time, and by their record in a revive queue. A `ReviveQueue` has
the state of one revive queue: `next` is the first record not read, and everything before the first
open record is finished.

A second record with the key of an open checkpoint replaces the first one. That is how a checkpoint
that waits for very long moves to the end of its queue (`PopRevive`).
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from msgspec import structs

from rmqkit.wire.bodies.pop import PopCheckpoint

#: topic, group, queue id, start offset, pop time, broker name
Key = tuple[str, str, int, int, int, str]
#: topic, group, queue id
PopQueue = tuple[str, str, int]


def key_of(checkpoint: PopCheckpoint, broker_name: str) -> Key:
    """Return the key of a checkpoint; `broker_name` is for one without a name, which is our own."""
    each = checkpoint
    return each.topic, each.group, each.queue_id, each.start, each.pop_ms, each.broker_name or broker_name


class Pending:
    """One checkpoint. Bit i of `bits` is set once `offsets[i]` is acked or handed out again."""

    __slots__ = (
        "bits",
        "checkpoint",
        "client_id",
        "due_ms",
        "full",
        "is_due",
        "key",
        "offsets",
        "queue",
        "record",
        "revive_queue",
    )

    def __init__(self, checkpoint: PopCheckpoint, key: Key, revive_queue: int, record: int, due_ms: int) -> None:
        self.checkpoint = checkpoint
        self.key = key
        #: the queue that its messages came from
        self.queue: PopQueue = key[:3]
        self.revive_queue = revive_queue
        #: queue offset of its record; -1: it is in no record (`ActingPops`)
        self.record = record
        #: wall time in ms
        self.due_ms = due_ms
        self.offsets = checkpoint.offsets
        #: `bits` when all messages are done
        self.full = (1 << len(self.offsets)) - 1
        #: id or address of the client that popped, "" if unknown
        self.client_id = ""
        self.bits = checkpoint.bits & self.full
        #: it is being handed out again
        self.is_due = False

    @property
    def is_done(self) -> bool:
        return self.bits == self.full

    @property
    def left(self) -> int:
        """The number of messages that are not done."""
        return len(self.offsets) - self.bits.bit_count()

    @property
    def marked(self) -> PopCheckpoint:
        """The checkpoint with the marks that it has now."""
        bits = self.bits - (1 << 32) if self.bits >> 31 else self.bits  # Java's int
        return structs.replace(self.checkpoint, bits=bits)

    @property
    def place(self) -> str:
        """Where it waits, for the origin of its messages: the offset of its record, or its key."""
        topic, group, queue_id, start, pop_ms, _ = self.key
        return str(self.record) if self.record >= 0 else f"{topic}@{group}@{queue_id}@{start}@{pop_ms}"

    def index(self, offset: int) -> int:
        """Return the bit of a message, -1 if the checkpoint does not have it or it is done."""
        try:
            found = self.offsets.index(offset)
        except ValueError:
            return -1
        return -1 if self.bits >> found & 1 else found

    def bits_of(self, offsets: Iterable[int]) -> int:
        """Return the bits of messages; those that the checkpoint does not have are skipped."""
        bits = 0
        for offset in offsets:
            if offset in self.offsets:
                bits |= 1 << self.offsets.index(offset)
        return bits


class ReviveQueue:
    """One revive queue."""

    __slots__ = ("awaited", "known", "next", "open", "queue_id")

    def __init__(self, queue_id: int, next_offset: int, known: int) -> None:
        self.queue_id = queue_id
        #: one past the last record that was there at the start
        self.known = known
        self.next = next_offset
        #: one past the last record that this broker appended; it may not be visible yet
        self.awaited = 0
        #: open checkpoints by the offset of their record, in order
        self.open: dict[int, Pending] = {}

    @property
    def finished(self) -> int:
        """One past the last record that is finished, together with all before it."""
        return next(iter(self.open), self.next)


class PendingTable:
    """All pending checkpoints of one broker."""

    def __init__(self) -> None:
        #: by queue id
        self.revive_queues: dict[int, ReviveQueue] = {}
        self.by_key: dict[Key, Pending] = {}
        #: popped messages without an ack, by the queue they came from
        self.in_flight: dict[PopQueue, int] = {}
        self._due: list[tuple[int, int, Pending]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self.by_key)

    def __iter__(self) -> Iterator[Pending]:
        return iter(self.by_key.values())

    def add(self, pending: Pending) -> None:
        """Add a checkpoint whose record was read; it may be done already."""
        known = self.by_key.pop(pending.key, None)
        if known is not None:
            self._remove(known)
            pending.client_id = pending.client_id or known.client_id
        if pending.is_done:
            return
        self.by_key[pending.key] = pending
        if pending.record >= 0:
            self.revive_queues[pending.revive_queue].open[pending.record] = pending
        self.in_flight[pending.queue] = self.in_flight.get(pending.queue, 0) + pending.left
        self._sequence += 1
        heappush(self._due, (pending.due_ms, self._sequence, pending))

    def done(self, pending: Pending, bits: int) -> None:
        """Mark messages as done. Does nothing for those that are."""
        if self.by_key.get(pending.key) is not pending:
            return
        added = bits & pending.full & ~pending.bits
        pending.bits |= added
        self._count(pending.queue, -added.bit_count())
        if pending.is_done:
            del self.by_key[pending.key]
            self.revive_queues[pending.revive_queue].open.pop(pending.record, None)

    def take_due(self, wall_ms: int) -> Pending | None:
        """Return a checkpoint that is due at `wall_ms`, each once."""
        while self._due and self._due[0][0] <= wall_ms:
            pending = heappop(self._due)[2]
            if self.by_key.get(pending.key) is pending and not pending.is_due:
                pending.is_due = True
                return pending
        return None

    def next_due_ms(self) -> int | None:
        while self._due and self.by_key.get(self._due[0][2].key) is not self._due[0][2]:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def _remove(self, pending: Pending) -> None:
        self._count(pending.queue, -pending.left)
        self.revive_queues[pending.revive_queue].open.pop(pending.record, None)

    def _count(self, queue: PopQueue, change: int) -> None:
        count = self.in_flight.get(queue, 0) + change
        if count > 0:
            self.in_flight[queue] = count
        else:
            self.in_flight.pop(queue, None)
