"""Entries on their way into an index file, by column.

Each slot holds the number of its newest entry, and each entry the number of the entry that its slot
held before (`file.py`). `chain` computes both for many entries at once: it sorts them by slot, and
entries of one slot are then next to each other, oldest first. Only the oldest one of a slot needs
the slot table.

numpy does the work for whole columns. A loop over the entries takes ten times as long. Blocks of
slots are few: there a loop takes less time than numpy.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqkit.store.index.file import BLOCK_SIZE, SLOTS_PER_BLOCK, IndexFile

Numbers = NDArray[np.int64]

#: one entry of a file
ENTRY_TYPE = np.dtype([("hash", ">i4"), ("phy_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
#: slots as a file holds them
SLOT_TYPE = np.dtype(">i4")
#: the greatest value of an entry's time field
_SECONDS_MAX = 0x7FFFFFFF
#: entries of one batch are numbered in so many bits
_NUMBER_BITS = 32


class Entries(NamedTuple):
    """Entries for an index file, in log order."""

    hashes: Numbers
    phy_offsets: Numbers
    #: store times in ms
    times_ms: Numbers


class SlotOrder(NamedTuple):
    """Entries sorted by slot, those of one slot in log order."""

    slots: Numbers
    #: the position of each in the batch
    positions: Numbers


_NONE: Numbers = np.empty(0, np.int64)
_NO_ENTRIES = Entries(_NONE, _NONE, _NONE)
_NO_ORDER = SlotOrder(_NONE, _NONE)


class EntryBatch:
    """Entries for one file, which are written together.

    `add` collects them. Then `begin`, `change_slots` until it returns False, and `encode`.
    """

    def __init__(self, slot_count: int) -> None:
        self.size = 0
        #: whether `begin` was called
        self.has_begun = False
        #: slots that pointed to no entry before
        self.used_slots = 0
        self._slot_count = slot_count
        self._parts: list[Entries] = []
        self.entries = _NO_ENTRIES
        self._order = _NO_ORDER
        #: where the entries of each block of slots begin in `_order`, and one past the last entry
        self._bounds: list[int] = []
        self._previous = _NONE
        self._blocks_done = 0

    @property
    def has_changed_slots(self) -> bool:
        """Whether slots of the file point to these entries."""
        return self._blocks_done > 0

    def add(self, entries: Entries) -> None:
        self._parts.append(entries)
        self.size += len(entries.hashes)

    def begin(self) -> None:
        """Sort the entries by slot. Nothing may be added afterwards."""
        self.has_begun = True
        self.entries = Entries(*map(np.concatenate, zip(*self._parts, strict=True)))
        self._order = in_order(self.entries.hashes % self._slot_count)
        blocks = self._order.slots // SLOTS_PER_BLOCK
        self._bounds = [0, *((blocks[1:] != blocks[:-1]).nonzero()[0] + 1).tolist(), self.size]
        self._previous = np.zeros(self.size, np.int64)

    def change_slots(self, file: IndexFile, block_count: int) -> bool:
        """Point the slots of up to `block_count` blocks of the table to these entries.

        Return whether more are left. Raises OSError.
        """
        bounds = self._bounds[self._blocks_done : self._blocks_done + block_count + 1]
        first, last = bounds[0], bounds[-1]
        part = SlotOrder(self._order.slots[first:last], self._order.positions[first:last])
        numbers: list[int] = (part.slots[np.array(bounds[:-1]) - first] // SLOTS_PER_BLOCK).tolist()
        runs = _runs(numbers)
        content = bytearray().join([file.blocks(*run) for run in runs])
        # Only the last block of a file is smaller than the others, and it comes last here too.
        begins = [(at - number) * SLOTS_PER_BLOCK for at, number in enumerate(numbers)]
        sizes = [end - begin for begin, end in pairwise(bounds)]
        slots = SlotOrder(part.slots + np.repeat(begins, sizes), part.positions)
        used = chain(slots, file.count, np.frombuffer(content, SLOT_TYPE), self._previous)
        left = memoryview(content)
        for number, count in runs:
            file.write_blocks(number, left[: count * BLOCK_SIZE])
            left = left[count * BLOCK_SIZE :]
        self.used_slots += used
        self._blocks_done += len(numbers)
        return last < self.size

    def encode(self, file: IndexFile) -> bytes:
        """Return the bytes of the entries, which follow the entries of the file."""
        hashes, phy_offsets, times_ms = self.entries
        encoded = np.empty(self.size, ENTRY_TYPE)
        encoded["hash"], encoded["phy_offset"], encoded["previous"] = hashes, phy_offsets, self._previous
        if file.count > 1:
            encoded["seconds"] = _seconds(file.begin_ms, times_ms)
        else:
            # The first entry's seconds count from the end time of the previous file, the seconds of
            # the following entries from the first entry's time.
            encoded["seconds"] = _seconds(int(times_ms[0]), times_ms)
            encoded["seconds"][:1] = _seconds(file.begin_ms, times_ms[:1])
        return encoded.tobytes()


def in_order(slots: Numbers) -> SlotOrder:
    """Return the order of entries with these slots."""
    both = np.sort(slots << _NUMBER_BITS | np.arange(len(slots)))
    return SlotOrder(both >> _NUMBER_BITS, both & ((1 << _NUMBER_BITS) - 1))


def chain(order: SlotOrder, first: int, table: NDArray[np.int32], previous: Numbers) -> int:
    """Point slots of `table` to their newest entries. Return how many pointed to no entry before.

    Entry n of the batch becomes number `first` + n of the file. Its number of the previous entry is
    put into `previous[n]`, 0 for none. A slot of the table that points to `first` or beyond is a
    leftover of a crash and counts as empty.
    """
    slots, positions = order
    is_edge = np.ones(len(slots) + 1, bool)
    np.not_equal(slots[1:], slots[:-1], out=is_edge[1:-1])
    is_oldest, is_newest, is_same = is_edge[:-1], is_edge[1:], ~is_edge[1:-1]
    before = table[slots[is_oldest]]
    is_valid = (before > 0) & (before < first)
    previous[positions[is_oldest]] = np.where(is_valid, before, 0)
    previous[positions[1:][is_same]] = positions[:-1][is_same] + first
    table[slots[is_newest]] = positions[is_newest] + first
    return len(before) - int(np.count_nonzero(is_valid))


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first number and the length of each run of neighbouring numbers."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        first, count = runs[-1] if runs else (-1, 0)
        if first + count == number:
            runs[-1] = first, count + 1
        else:
            runs.append((number, 1))
    return runs


def _seconds(begin_ms: int, times_ms: Numbers) -> Numbers:
    """Return the time fields of entries: seconds since `begin_ms`."""
    if begin_ms <= 0:
        return np.zeros(len(times_ms), np.int64)
    return np.minimum(np.maximum((times_ms - begin_ms) // 1000, 0), _SECONDS_MAX)
