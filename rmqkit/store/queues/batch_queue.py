"""The queue of a BatchCQ topic: a 46-byte unit for each record, which may hold many messages.

    i64 physical offset · i32 record size · i64 tags code · i64 store time (ms)
    i64 base offset · i16 number of messages · i32 -1 (compacted offset) · i32 0 (reserved)

A topic with the attribute `queue.type=BatchCQ` stores a producer's batch as one record, an *inner
batch*. Its body is the batch as the producer encoded it. Its sysFlag has the bits INNER_BATCH and
NEED_UNWRAP, and its properties have INNER_NUM (number of messages) and INNER_BASE (queue offset of
the first one). A record without INNER_NUM is one message.

Two kinds of numbers exist here, which are the same in a `ConsumeQueue`:

- *Queue offsets* count messages: `offset_min`, `offset_max`, `offset_next`, and all arguments named
  `offset`. The queue offsets base up to base + number - 1 belong to one unit.
- *Unit numbers* count units: unit n is at byte 46 * n of the files. `offset_written`,
  `offset_synced` and `number_max` are unit numbers. Units are found by a binary search over their
  base offsets, after a check of the unit that follows the last read.

    files: units number_min up to offset_written; tail: offset_written up to number_max

Two cases decide the design:

- **A torn last batch.** A record is the unit of recovery. If a power loss tears an inner batch, the
  log ends before it, and the queue ends at its base offset: either all messages of a batch exist,
  or none. A unit that is cut takes all its messages along, and the next put gets the base offset
  again.
- **A pull in the middle of a batch with a tag filter.** The pull gets the whole record, and the
  client drops nothing: a group that restarts inside a batch sees the batch again. The filter can
  only decide about the unit, by the tags of the batch itself (0 if it has none, as batches of
  Apache's producer do, so that no tag matches it). A batch that does not match is skipped as a
  whole, so the next offset is the base of the next batch, not the requested offset plus one.

Queue offsets may have gaps, which hold no units. A gap of more than `GAP_MAX` means damage.

Source: `store/.../queue/BatchConsumeQueue.java`, `store/.../CommitLog.java`
(`setBatchSizeIfNeeded`).
"""

from bisect import bisect_left
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from rmqkit.store.contract import Entry
from rmqkit.store.log.files import LogFiles
from rmqkit.store.queues.consume_queue import ConsumeQueue
from rmqkit.wire.properties import PROPERTY_INNER_NUM, find

BATCH_UNIT = Struct(">qiqqqhii")
BATCH_UNIT_SIZE = 46
#: the field is an i16
MESSAGES_MAX = 32_767
#: queue offsets that a record may skip
GAP_MAX = 1 << 31
_NOT_COMPACTED = -1
_INNER_NUM = PROPERTY_INNER_NUM.encode()


class BatchUnit(NamedTuple):
    """One unit. Its record holds the queue offsets `base` up to `base + messages - 1`."""

    phy_offset: int
    size: int
    tags_code: int
    store_ms: int
    base: int
    messages: int
    compacted: int
    reserved: int

    @property
    def is_valid(self) -> bool:
        """Whether Apache takes it for a unit (`BatchConsumeQueue.recover`)."""
        return self.phy_offset >= 0 and self.size > 0 and self.base >= 0 and self.messages > 0


def message_count(properties: bytes, *, none: int = 1) -> int:
    """Return how many messages a record holds: INNER_NUM, or `none` without a valid one."""
    text = find(properties, _INNER_NUM) or b""
    count = int(text) if text.isdigit() and len(text) < 6 else none
    return count if 0 < count <= MESSAGES_MAX else none


class BatchQueue(ConsumeQueue):
    """One queue of records that may hold several messages each."""

    unit_size = BATCH_UNIT_SIZE
    __slots__ = ("_next_read", "number_max")

    def __init__(self, topic: str, queue_id: int, files: LogFiles) -> None:
        super().__init__(topic, queue_id, files)
        #: one past the number of the last unit
        self.number_max = 0
        #: number of the unit that follows the last read
        self._next_read = 0

    # --- reading ----------------------------------------------------------------------------------

    @property
    def number_min(self) -> int:
        """Number of the first unit."""
        return self.files.start // BATCH_UNIT_SIZE if len(self.files) else self.offset_written

    def numbered(self, number: int) -> BatchUnit | None:
        """Return the unit with this number; None if there is none or it cannot be read."""
        found = self.units(number, 1) if self.number_min <= number < self.number_max else b""
        return BatchUnit._make(BATCH_UNIT.unpack(found)) if len(found) == BATCH_UNIT_SIZE else None

    def number_at(self, offset: int) -> int:
        """Return the number of the first unit with a message at or after a queue offset.

        `number_max` if there is none.
        """
        low, high = self.number_min, self.number_max
        for number in (self._next_read - 1, self._next_read):
            if low <= number < high:
                low, high = (low, number) if self._ends_after(number, offset) else (number + 1, high)
        return bisect_left(range(high), True, low, key=lambda number: self._ends_after(number, offset))

    def _ends_after(self, number: int, offset: int) -> bool:
        unit = self.numbered(number)
        return unit is not None and unit.base + unit.messages > offset

    def note_read(self, number: int) -> None:
        """Remember that a read ended before this unit: the next read often starts there."""
        self._next_read = number

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Return physical offset, record size and tags code of the record with this message."""
        found = self.numbered(self.number_at(offset)) if self.offset_min <= offset < self.offset_max else None
        return None if found is None or found.base > offset else found[:3]

    def entries(self, offset: int, end: int, count_max: int) -> Sequence[Entry]:
        """Return an entry for each record with messages at `offset` or later and before `end`."""
        number = self.number_at(offset)
        units = self.units(number, min(count_max, self.number_max - number))
        return [
            Entry(base, phy_offset, size, tags_code, count)
            for phy_offset, size, tags_code, _, base, count, _, _ in BATCH_UNIT.iter_unpack(units)
            if base < end
        ]

    def first_at(self, phy_offset: int, low: int) -> int:
        unit = self.numbered(self._number_of(phy_offset))
        return self.offset_max if unit is None else max(low, unit.base)

    def _number_of(self, phy_offset: int) -> int:
        """Return the number of the first unit whose record starts at or after `phy_offset`."""

        def reached(number: int) -> bool:
            unit = self.numbered(number)
            return unit is not None and unit.phy_offset >= phy_offset

        return bisect_left(range(self.number_max), True, self.number_min, key=reached)

    @property
    def phy_last(self) -> int:
        unit = self.numbered(self.number_max - 1)
        return -1 if unit is None else unit.phy_offset

    @property
    def offset_first(self) -> int:
        unit = self.numbered(self.number_min)
        return self.offset_min if unit is None else unit.base

    @property
    def position_end(self) -> int:
        return self.number_max * BATCH_UNIT_SIZE

    def confirmed_max(self, phy_offset: int) -> int:
        number = self._number_of(phy_offset)
        last = self.numbered(number - 1)
        if last is None:
            return self.offset_min
        return last.base if last.phy_offset + last.size > phy_offset else last.base + last.messages

    def offset_by_time(self, timestamp_ms: int, *, upper: bool) -> int:
        """Return the base offset of the first record stored at or after the time.

        With `upper`, of the last record stored at or before it. The last record's base if all
        records are older. Apache: `BatchConsumeQueue.getOffsetInQueueByTime`, which finds a time
        between two records only without `upper`.
        """

        def reached(number: int) -> bool:
            unit = self.numbered(number)
            return unit is not None and unit.store_ms >= timestamp_ms + upper

        number = bisect_left(range(self.number_max), True, self.number_min, key=reached) - upper
        found = self.numbered(max(self.number_min, min(number, self.number_max - 1)))
        return 0 if found is None else found.base

    # --- growing ----------------------------------------------------------------------------------

    def put(self, queue_offset: int, phy_offset: int, size: int, tags_code: int, store_ms: int = 0, count: int = 1) -> bool:
        """Add the unit of a record with `count` messages. Return False if it adds nothing.

        As in a `ConsumeQueue`, a record with queue offset 0 behind units of older records is the
        first one of a topic that was deleted and recreated.
        """
        if phy_offset < self.phy_end:
            return False
        if queue_offset != self.offset_max:
            if self.offset_max == self.offset_min or queue_offset == 0:
                self.restart(queue_offset)
            elif not 0 < queue_offset - self.offset_max <= GAP_MAX:
                return False
        self.tail += BATCH_UNIT.pack(phy_offset, size, tags_code, store_ms, queue_offset, count, _NOT_COMPACTED, 0)
        self.number_max += 1
        self.offset_max = queue_offset + count
        if self.offset_next < self.offset_max:
            self.offset_next = self.offset_max
        self.phy_end = phy_offset + size
        return True

    def restart(self, queue_offset: int) -> None:
        self._restart_files(0)
        self.offset_min = self.offset_max = self.offset_next = queue_offset
        self.offset_written = self.offset_synced = self.number_max = 0
        self.phy_end = -1
        self.tail = bytearray()

    @property
    def _is_first_write(self) -> bool:
        """Always False: the first unit is at the start of a file, with any queue offset."""
        return False

    # --- shrinking --------------------------------------------------------------------------------

    def correct_min(self, phy_min: int) -> None:
        """Set `offset_min` to the first message that is still in the log, else to `offset_max`."""
        self.offset_min = max(self.offset_min, self.first_at(phy_min, 0))

    def cut(self, phy_offset: int) -> None:
        self._cut_numbers(self._number_of(phy_offset), self.offset_max)

    def cut_to(self, offset: int) -> None:
        """Drop the units with messages at or after `offset`; zero them on disk. Raises OSError."""
        self._cut_numbers(self.number_at(offset), offset)

    def _cut_numbers(self, number: int, offset: int) -> None:
        """Drop the units from `number` on. Without units left, the queue ends at `offset`."""
        if number < self.number_max:
            first = self.numbered(number)
            offset = min(offset, first.base) if first is not None else offset
        if number >= self.offset_written:
            self.tail = self.tail[: (number - self.offset_written) * BATCH_UNIT_SIZE]
        else:
            self._empty(number * BATCH_UNIT_SIZE)
            self.tail = bytearray()
            self.offset_written = number
            self.offset_synced = min(self.offset_synced, number)
        self.number_max = number
        last = self.numbered(number - 1)
        self.offset_max = self.offset_next = offset if last is None else last.base + last.messages
        self.offset_min = min(self.offset_min, self.offset_max)
        self.phy_end = -1 if last is None else last.phy_offset + last.size
