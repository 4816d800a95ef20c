"""TimerLog: the index of timer messages on disk, byte for byte as RocketMQ writes it.

`timerlog/` is a chain of files (100 MiB each) of 52-byte units. A unit says that one record of the
topic `rmq_sys_wheel_timer` waits in one slot: its due time is `write_ms + delay_ms`. `previous` is
the position of the unit before it in the same slot, so the units of a slot form a chain, newest
first. When fewer than 68 bytes of a file are left, a filler takes them.

    start <= a position <= end      `end` is known after a scan (`units`) has found it
    load -> units ... -> cut -> add, flush

The end is not stored: behind it everything is zero. `cut` sees to that, at each start and after the
commit log was truncated. So a scan ends at the first bytes that are no unit, as in Apache.

Source: `store/.../timer/TimerLog.java`, `TimerMessageStore.recoverAndRevise`.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from struct import Struct
from typing import NamedTuple

from rmqkit.errors import RmqkitError
from rmqkit.runtime.ports import Disk
from rmqkit.store.log.files import LogFiles

#: size, previous, magic, write time, delay, log offset, record size, hash of the topic, reserved
_UNIT = Struct(">iqiqiqiiq")
UNIT_SIZE = _UNIT.size
#: the fields of a unit that a `TimerUnit` has
_FIELDS = Struct(">4xqiqiqii8x")
_SIZE_FIELD = UNIT_SIZE.to_bytes(4, "big")
_FILLER = Struct(">iqi")
FILLER_MAGIC = -875286124
#: bits of `TimerUnit.magic`
MAGIC_DEFAULT, MAGIC_ROLL, MAGIC_DELETE = 1, 2, 4
NONE = -1
#: bytes that `read` keeps, since the units of a slot often lie close to each other
BLOCK_SIZE = 65_536
#: linked units that lie next to each other before more of them are read together
LINKED_MIN = 16
_new = tuple.__new__


class TimerUnit(NamedTuple):
    """One entry: the record at `phy_offset` waits in the slot of `write_ms + delay_ms`."""

    previous: int
    magic: int
    write_ms: int
    delay_ms: int
    phy_offset: int
    size: int
    topic_hash: int

    @property
    def slot_ms(self) -> int:
        return self.write_ms + self.delay_ms


class TimerLog:
    """The chain of files. Units are added at its end, in one write per turn."""

    def __init__(self, disk: Disk, folder: str, file_size: int) -> None:
        self._disk = disk
        self._files = LogFiles(disk, folder, file_size)
        #: position of the next unit
        self.end = 0
        #: units that were added and not written, and the position of the first one
        self._buffers: list[bytes] = []
        self._buffered_from = 0
        #: paths that were written since the last sync, as an ordered set
        self._unsynced: dict[str, None] = {}
        #: whether a sync has failed; from then on nothing counts as durable
        self._is_broken = False
        self._block = b""
        self._block_start = 0

    @property
    def start(self) -> int:
        return self._files.start

    def load(self) -> None:
        """Find the files. Raises RmqkitError if they do not have the configured size."""
        found = self._files.load()
        if found.problem:
            raise RmqkitError(f"{found.problem}; set mappedFileSizeTimerLog to the size of the files, or move them away")
        for path in found.strangers:
            self._disk.remove(path, lambda error: None)
        self.end = self._files.start

    # --- reading ----------------------------------------------------------------------------------

    def units(self, position: int, count_max: int) -> tuple[Sequence[TimerUnit], int, bool]:
        """Return the units of one file from `position` on, the next position, and whether it ended.

        The next position is behind the last unit, or the beginning of the next file.
        """
        files = self._files
        if not files.start <= position < files.end:
            return (), position, True
        inside = position - files.floor(position)
        data = self._disk.read(files.path(position), inside, min(count_max * UNIT_SIZE, files.file_size - inside))
        units: list[TimerUnit] = []
        for size, previous, magic, write_ms, delay_ms, phy_offset, record_size, topic_hash, _ in _UNIT.iter_unpack(
            data[: len(data) - len(data) % UNIT_SIZE]
        ):
            if size != UNIT_SIZE or magic | 0xF != 0xF:
                break
            units.append(TimerUnit(previous, magic, write_ms, delay_ms, phy_offset, record_size, topic_hash))
        used = len(units) * UNIT_SIZE
        if len(data) - used < UNIT_SIZE and inside + used + UNIT_SIZE + _FILLER.size <= files.file_size:
            return units, position + used, False
        left = data[used:] or self._disk.read(files.path(position), inside + used, _FILLER.size)
        is_filled = len(left) >= _FILLER.size and _FILLER.unpack_from(left)[2] == FILLER_MAGIC
        if is_filled:
            return units, files.floor(position) + files.file_size, False
        return units, position + used, True

    def read(self, position: int) -> TimerUnit | None:
        """Return the unit at a position, None if there is none."""
        start = position - self._block_start
        if start < 0 or start + UNIT_SIZE > len(self._block):
            if not self._files.start <= position < self._files.end:
                return None
            self._load_block(position)
            start = position - self._block_start
            if start + UNIT_SIZE > len(self._block):
                return None
        size, previous, magic, write_ms, delay_ms, phy_offset, record_size, topic_hash, _ = _UNIT.unpack_from(
            self._block, start
        )
        if size != UNIT_SIZE:
            return None
        return TimerUnit(previous, magic, write_ms, delay_ms, phy_offset, record_size, topic_hash)

    def read_many(self, positions: Sequence[int]) -> list[TimerUnit | None]:
        """Return what `read` returns for each position.

        It costs less if they are in order, and least if the units lie next to each other.
        """
        if positions and positions == list(range(positions[0], positions[-1] + 1, UNIT_SIZE)):
            units = self._read_adjacent(positions[0], len(positions))
            if units is not None:
                return units
        found: list[TimerUnit | None] = []
        unpack, block, block_start = _UNIT.unpack_from, b"", 0
        for position in positions:
            start = position - block_start
            if start < 0 or start + UNIT_SIZE > len(block):
                found.append(self.read(position))
                block, block_start = self._block, self._block_start
                continue
            fields = unpack(block, start)
            found.append(_new(TimerUnit, fields[1:8]) if fields[0] == UNIT_SIZE else None)
        return found

    def read_chain(self, position: int, count_max: int) -> "tuple[list[int], list[TimerUnit], int]":
        """Follow a chain from `position` backwards over up to `count_max` units.

        Returns their positions, the units, and the next position: NONE at the end of the chain,
        that of a unit that cannot be read.
        """
        positions: list[int] = []
        units: list[TimerUnit] = []
        unpack, block, block_start, linked = _UNIT.unpack_from, b"", 0, 0
        while position != NONE and len(units) < count_max:
            if linked >= LINKED_MIN:
                # No more than so far, as the chain may leave here.
                count = min(linked, count_max - len(units), (position - block_start) // UNIT_SIZE + 1)
                adjacent = self._adjacent_before(position, count)
                if adjacent:
                    positions += range(position, position - len(adjacent) * UNIT_SIZE, -UNIT_SIZE)
                    units += adjacent
                    linked = linked + count if len(adjacent) == count else 0
                    position = adjacent[-1].previous
                    continue
                linked = 0
            start = position - block_start
            if 0 <= start <= len(block) - UNIT_SIZE:
                fields = unpack(block, start)
                unit = _new(TimerUnit, fields[1:8]) if fields[0] == UNIT_SIZE else None
            else:
                unit = self.read(position)
                block, block_start = self._block, self._block_start
            if unit is None:
                break
            positions.append(position)
            units.append(unit)
            linked = linked + 1 if unit.previous == position - UNIT_SIZE else 0
            position = unit.previous
        return positions, units, position

    def _adjacent_before(self, position: int, count: int) -> list[TimerUnit]:
        """Return up to `count` units of a chain in the block, from `position` backwards.

        They lie next to each other.
        """
        begin, end = position - (count - 1) * UNIT_SIZE - self._block_start, position + UNIT_SIZE - self._block_start
        units = _decode(self._block[begin:end]) if 0 <= begin < end <= len(self._block) else None
        if units is None:
            return []
        units.reverse()
        taken = 1
        while taken < count and units[taken - 1].previous == position - taken * UNIT_SIZE:
            taken += 1
        return units[:taken]

    def _read_adjacent(self, position: int, count: int) -> "list[TimerUnit | None] | None":
        """Return the units from a position on, None if one of them cannot be read."""
        files, size = self._files, count * UNIT_SIZE
        if not files.start <= position < files.end:
            return None
        data = self._disk.read(files.path(position), position - files.floor(position), size)
        return _decode(data) if len(data) == size else None  # type: ignore[return-value]

    def _load_block(self, position: int) -> None:
        """Read the block that ends with this unit, since a chain leads backwards.

        After a unit before this one, the block begins here: the timers of a slot are put forwards.
        """
        floor = self._files.floor(position)
        begin, end = position - floor, position + UNIT_SIZE - floor
        if self._block and 0 <= position - self._block_start < 2 * BLOCK_SIZE:
            # Bytes behind the written end would be out of date once units are added there.
            written = (self._buffered_from if self._buffers else self.end) - floor
            end = max(end, min(begin + BLOCK_SIZE, written, self._files.file_size))
        else:
            begin = max(0, end - BLOCK_SIZE)
        self._block_start = floor + begin
        self._block = self._disk.read(self._files.path(position), begin, end - begin)

    # --- writing ----------------------------------------------------------------------------------

    def add(
        self, previous: int, magic: int, write_ms: int, delay_ms: int, topic_hash: int, records: Sequence[tuple[int, int]]
    ) -> tuple[int, int]:
        """Add units of one slot and topic, for records given by log offset and size.

        Returns the positions of the first and the last one. `flush` writes them. Raises OSError.
        """
        first, pack, files = NONE, _UNIT.pack, self._files
        for phy_offset, size in records:
            if files.end - self.end < UNIT_SIZE + _FILLER.size:
                self._begin_file()
            unit = pack(UNIT_SIZE, previous, magic, write_ms, delay_ms, phy_offset, size, topic_hash, 0)
            previous = self.end
            if first == NONE:
                first = previous
            self._buffer(unit)
        return first, previous

    def _begin_file(self) -> None:
        """Fill the rest of the last file and add a file. Raises OSError."""
        left = self._files.end - self.end
        if left:
            self._buffer(_FILLER.pack(left, 0, FILLER_MAGIC) + bytes(left - _FILLER.size))
            self.flush()
        self._files.extend()

    def _buffer(self, data: bytes) -> None:
        if not self._buffers:
            self._buffered_from = self.end
        self._buffers.append(data)
        self.end += len(data)

    def flush(self) -> None:
        """Write what was added. Raises OSError; then none of it is in the log."""
        if not self._buffers:
            return
        path = self._files.path(self._buffered_from)
        buffers, self._buffers = self._buffers, []
        try:
            self._disk.write(path, self._buffered_from - self._files.floor(self._buffered_from), [b"".join(buffers)])
        except OSError:
            self.end = self._buffered_from
            raise
        self._unsynced[path] = None

    def discard(self) -> None:
        """Forget what was added and not written."""
        if self._buffers:
            self.end, self._buffers = self._buffered_from, []

    def sync(self, then: Callable[[bool], None]) -> None:
        """Make everything written durable, then call `then` with whether that succeeded."""
        paths, self._unsynced = list(self._unsynced), {}
        left = len(paths)
        if not left:
            then(not self._is_broken)
            return

        def synced(error: OSError | None) -> None:
            nonlocal left
            left -= 1
            self._is_broken |= error is not None
            if not left:
                then(not self._is_broken)

        for path in paths:
            self._disk.sync(path, synced)

    # --- removing ---------------------------------------------------------------------------------

    def cut(self, position: int, then: Callable[[], None]) -> None:
        """End the log at `position`; from there on it reads as zeroes. Then call `then`."""
        files = self._files
        self.discard()
        self._block = b""
        self.end = position
        left = 1

        def ended(error: OSError | None = None) -> None:
            nonlocal left
            left -= 1
            if not left:
                then()

        first = files.floor(position + files.file_size - 1)
        removed = files.remove_from(first, lambda: ended)
        left += removed
        if position < files.end:
            path, inside = files.path(position), position - files.floor(position)
            if self._disk.data_end(path) > inside:
                left += 1

                def truncated(error: OSError | None) -> None:
                    self._disk.create(path, files.file_size)
                    ended()

                self._disk.truncate(path, inside, truncated)
        ended()

    def trim(self, phy_offset_min: int) -> None:
        """Remove files whose last record has left the commit log; never the last file.

        Source: `MappedFileQueue.deleteExpiredFileByOffsetForTimerLog`.
        """
        files = self._files
        per_file = (files.file_size - _FILLER.size) // UNIT_SIZE
        while len(files) > 1:
            last = self.read(files.start + (per_file - 1) * UNIT_SIZE)
            if last is None or last.phy_offset >= phy_offset_min:
                return
            self._block = b""
            files.remove_first(lambda error: None)


def _decode(data: bytes) -> list[TimerUnit] | None:
    """Return the units of these bytes, None if one of them is no unit."""
    count = len(data) // UNIT_SIZE
    if any(data[at::UNIT_SIZE] != _SIZE_FIELD[at : at + 1] * count for at in range(len(_SIZE_FIELD))):
        return None
    return list(map(_new, repeat(TimerUnit), _FIELDS.iter_unpack(data)))
