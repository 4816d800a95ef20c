"""One index file, which maps key hashes to records, byte for byte in RocketMQ's format.

    header (40 bytes)     i64 begin time, i64 end time, i64 begin offset, i64 end offset,
                          i32 used slots, i32 count
    slots (4 bytes each)  i32 number of the slot's newest entry, 0 for none
    entries (20 each)     i32 key hash, i64 physical offset, i32 seconds since begin time,
                          i32 number of the slot's previous entry

Entry 0 is never used, so `count` starts at 1. An `IndexFile` holds the header in memory;
`IndexFiles` writes it only once the entries and slots that it covers are durable. So after any
crash the entries below the header's count are complete, and slots that point beyond it can be
rebuilt from them.

Source: `store/.../index/IndexFile.java`, `IndexHeader.java`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from struct import Struct

from rmqkit.runtime.connection import Buffer
from rmqkit.runtime.ports import Disk

HEADER = Struct(">4q2i")
ENTRY = Struct(">iqii")
SLOT_SIZE = 4
ENTRY_SIZE = 20
#: slots are read and written in blocks of this many bytes
BLOCK_SIZE = 16_384
SLOTS_PER_BLOCK = BLOCK_SIZE // SLOT_SIZE


class IndexFile:
    """One file; the attributes are its header (times in ms, `phy` are offsets in the log)."""

    def __init__(self, disk: Disk, path: str, slot_count: int, count_max: int) -> None:
        self.disk = disk
        self.path = path
        self.slot_count = slot_count
        self.count_max = count_max
        self.begin_ms = 0
        self.end_ms = 0
        self.begin_phy = 0
        self.end_phy = 0
        self.used_slots = 0
        self.count = 1
        #: `count` of the header in the file
        self.count_saved = 1

    @property
    def size(self) -> int:
        return HEADER.size + self.slot_count * SLOT_SIZE + self.count_max * ENTRY_SIZE

    @property
    def is_full(self) -> bool:
        return self.count >= self.count_max

    @property
    def header(self) -> bytes:
        return HEADER.pack(self.begin_ms, self.end_ms, self.begin_phy, self.end_phy, self.used_slots, self.count)

    def load(self) -> bool:
        """Read the header. Return False if it is invalid. Raises OSError."""
        values = HEADER.unpack(self.disk.read(self.path, 0, HEADER.size))
        self.begin_ms, self.end_ms, self.begin_phy, self.end_phy, self.used_slots, self.count = values
        self.count = self.count_saved = max(self.count, 1)
        return (
            self.count <= self.count_max
            and 0 <= self.used_slots <= self.slot_count
            and 0 <= self.begin_phy <= self.end_phy
            and self.begin_ms >= 0
        )

    def follow(self, before: IndexFile) -> None:
        """Let this empty file begin where the previous file ends."""
        self.begin_phy = self.end_phy = before.end_phy
        self.begin_ms = self.end_ms = before.end_ms

    # --- entries ----------------------------------------------------------------------------------

    def entry_position(self, number: int) -> int:
        return HEADER.size + self.slot_count * SLOT_SIZE + number * ENTRY_SIZE

    def entries(self, first: int, count: int) -> bytes:
        """Return the bytes of `count` entries, fewer if the file ends before."""
        return self.disk.read(self.path, self.entry_position(first), count * ENTRY_SIZE)

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Return one entry. Raises OSError if the file lacks it."""
        found = self.disk.read(self.path, self.entry_position(number), ENTRY_SIZE)
        if len(found) < ENTRY_SIZE:
            raise OSError(errno.EIO, "an index entry is missing", self.path)
        entry: tuple[int, int, int, int] = ENTRY.unpack(found)
        return entry

    # --- slots ------------------------------------------------------------------------------------

    def blocks(self, first: int, count: int) -> Buffer:
        """Return the bytes of neighbouring blocks. Only the last block of the table is smaller."""
        begin, end = first * BLOCK_SIZE, min((first + count) * BLOCK_SIZE, self.slot_count * SLOT_SIZE)
        return self.disk.view(self.path, HEADER.size + begin, end - begin)

    def write_blocks(self, first: int, content: Buffer) -> None:
        self.disk.write(self.path, HEADER.size + first * BLOCK_SIZE, [content])

    @property
    def block_count(self) -> int:
        return -(-self.slot_count * SLOT_SIZE // BLOCK_SIZE)

    def slot(self, number: int) -> int:
        found = self.disk.read(self.path, HEADER.size + number * SLOT_SIZE, SLOT_SIZE)
        return int.from_bytes(found, "big")

    # --- lookups ----------------------------------------------------------------------------------

    def is_in_time(self, begin_ms: int, end_ms: int) -> bool:
        return begin_ms <= self.end_ms and end_ms >= self.begin_ms and self.count > 1

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the physical offsets with this hash, newest first.

        Entry times have a resolution of one second, so a hit may lie just outside the range.
        """
        number = self.slot(key_hash % self.slot_count)
        while 0 < number < self.count:
            found = self.disk.read(self.path, self.entry_position(number), ENTRY_SIZE)
            if len(found) < ENTRY_SIZE:
                return
            entry_hash, phy_offset, seconds, previous = ENTRY.unpack(found)
            if seconds < 0:
                return
            # The first entry's seconds count from the end time of the previous file.
            stored_ms = self.begin_ms + (seconds * 1000 if number > 1 else 0)
            if entry_hash == key_hash and stored_ms <= end_ms and stored_ms + 999 >= begin_ms:
                yield phy_offset
            if stored_ms + 999 < begin_ms or previous >= number:
                return
            number = previous
