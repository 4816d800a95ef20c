"""ReviveReader: turns the records of the revive topic into pending checkpoints and their acks.

A record that cannot be read is logged and skipped. The messages of a checkpoint with another broker
name are in that broker's log (`foreign`). Checkpoints that came through the timer wait longer
(`TIMER_GRACE_MS`), since their acks come after them.

Source: `broker/.../processor/PopReviveService.java` (`consumeReviveMessage`).
"""

from collections.abc import Iterable

from rmqkit.broker.special.contract import SpecialParts
from rmqkit.broker.special.pop.acting_pops import ActingPops
from rmqkit.broker.special.pop.counts import ACK, CHECKPOINT, PopCounts
from rmqkit.broker.special.pop.pending import Key, Pending, PendingTable, PopQueue, ReviveQueue, key_of
from rmqkit.broker.special.pop.progress import reset_ms
from rmqkit.errors import CorruptRecord, RemoteProtocolError
from rmqkit.store.contract import Entry
from rmqkit.wire import properties as props
from rmqkit.wire.bodies.pop import TAG_ACK, TAG_BATCH_ACK, TAG_CHECKPOINT, PopCheckpoint, decode_ack
from rmqkit.wire.record import Record, decode_record

#: how much longer checkpoints wait that came through the timer
TIMER_GRACE_MS = 3_000

_TAGS = props.PROPERTY_TAGS.encode()
_TIMER_OUT = props.PROPERTY_TIMER_OUT_MS.encode()


class ReviveReader:
    """Reads revive queues into the table of pending checkpoints."""

    def __init__(self, parts: SpecialParts, topic: str, unlogged: ActingPops, counts: PopCounts) -> None:
        self._context = parts.context
        self._store = parts.store
        self._offsets = parts.offsets
        self._topic = topic
        self._broker_name = parts.context.config.identity.broker_name
        #: one past the last message that was popped from a queue before the start; the committed
        #: offset may be older
        self.taken: dict[PopQueue, int] = {}
        #: of each queue with checkpoints that were read since the last commit: pop time of the
        #: newest one, and one past its last message
        self.popped: dict[PopQueue, tuple[int, int]] = {}
        #: checkpoints that are being moved to the end of their queue; reading the copy ends it
        self.moving: dict[Key, None] = {}
        #: who popped, by revive queue and offset of records that are put but not yet read
        self.clients: dict[tuple[int, int], str] = {}
        self._unlogged = unlogged
        self._counts = counts
        self._pending = PendingTable()
        #: wall time of the start
        self._started_ms = 0

    def start(self, pending: PendingTable) -> None:
        """Read into this table from now on."""
        self._pending = pending
        self._started_ms = self._context.clock.wall_ms
        self.taken.clear()
        self.popped.clear()
        self.moving.clear()
        self.clients.clear()
        self.taken.update(self._unlogged.next)

    def read(self, queue: ReviveQueue, count: int) -> int:
        """Read up to `count` records of a queue; return how many were read."""
        known = self._store.queue_range(self._topic, queue.queue_id)
        if queue.next < known.offset_min:
            self._context.log.warning(
                "revive-offset-corrected", queue=queue.queue_id, offset=queue.next, corrected=known.offset_min
            )
            queue.next = known.offset_min
        read = 0
        while read < count and queue.next < known.offset_max:
            entries = self._store.entries(self._topic, queue.queue_id, queue.next, count - read)
            if not entries:
                break
            for entry in entries:
                queue.next = entry.queue_offset + 1
                self._apply(queue, entry)
            read += len(entries)
        return read

    def _apply(self, queue: ReviveQueue, entry: Entry) -> None:
        """Take one record of a revive queue into the table."""
        client_id = self.clients.pop((queue.queue_id, entry.queue_offset), "")
        if not entry.size:
            return
        try:
            record = decode_record(self._store.read_log(entry.phy_offset, entry.size), check_crc=True)
            if not isinstance(record, Record) or record.topic != self._topic:
                return
            tag = props.find(record.properties, _TAGS)
            if tag == TAG_CHECKPOINT:
                self._apply_checkpoint(queue, entry.queue_offset, record, client_id)
            elif tag in (TAG_ACK, TAG_BATCH_ACK):
                self._apply_ack(queue, record)
        except (CorruptRecord, RemoteProtocolError) as error:
            self._context.log.error(
                "revive-record-unreadable", queue=queue.queue_id, offset=entry.queue_offset, why=str(error)
            )

    def _apply_checkpoint(self, queue: ReviveQueue, offset: int, record: Record, client_id: str) -> None:
        checkpoint = PopCheckpoint.decode(record.body)
        broker_name = checkpoint.broker_name or self._broker_name
        self._counts.note_read(checkpoint.group, checkpoint.topic, queue.queue_id, CHECKPOINT)
        key = key_of(checkpoint, broker_name)
        due_ms = checkpoint.pop_ms + checkpoint.invisible_ms
        if _TIMER_OUT in record.properties:
            # Its acks may still be in the timer, which is late after a start.
            due_ms = max(due_ms, record.store_ms, self._started_ms) + TIMER_GRACE_MS
        self.moving.pop(key, None)
        pending = Pending(checkpoint, key, queue.queue_id, offset, due_ms)
        pending.client_id = client_id
        self._unlogged.logged(pending)
        if broker_name == self._broker_name:
            self._note_popped(pending, is_known=offset < queue.known)
        self._pending.add(pending)

    def _note_popped(self, pending: Pending, *, is_known: bool) -> None:
        """Note that these messages were popped, unless their group was reset since.

        `is_known`: the record was there at the start, so a former life popped them.
        """
        pop_ms = pending.checkpoint.pop_ms
        if not pending.offsets or pop_ms <= reset_ms(self._offsets, pending.queue):
            return
        end = pending.offsets[-1] + 1
        if is_known:
            self.taken[pending.queue] = max(self.taken.get(pending.queue, 0), end)
        if end > self.popped.get(pending.queue, (0, 0))[1]:
            self.popped[pending.queue] = pop_ms, end

    def _apply_ack(self, queue: ReviveQueue, record: Record) -> None:
        ack = decode_ack(record.body)
        key = ack.topic, ack.group, ack.queue_id, ack.start, ack.pop_ms, ack.broker_name or self._broker_name
        self.apply_ack(queue, key, [ack.offset] if ack.offsets is None else ack.offsets)

    def apply_ack(self, queue: ReviveQueue, key: Key, offsets: Iterable[int]) -> None:
        """Mark messages of a checkpoint as done: the next record of this queue acks them."""
        self._counts.note_read(key[1], key[0], queue.queue_id, ACK)
        pending = self._pending.by_key.get(key)
        if pending is not None:
            self._pending.done(pending, pending.bits_of(offsets))
