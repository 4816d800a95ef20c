"""One consume queue: 20-byte units in order; unit n belongs to the message with queue offset n.

    i64 physical offset, i32 record size, i64 tags code

Units of new messages are first collected in `tail`, in the byte format of the file, and readers
read them from there. The table writes the tails to the files later, with one write per queue
(`write_tail`): one write per message would be too expensive for a topic with a thousand queues.
After a kill, lost units are rebuilt from the log.

    files: offset_min up to offset_written; tail: offset_written up to offset_max (all readable)
    offset_next: next offset for a put of this turn, at least offset_max

If a queue does not start at the beginning of its first file, pre-blank units (0, 0x7FFFFFFF, 0)
fill the file up to its first unit. A gap in the queue offsets is also filled with units of that
size; they repeat the physical offset of the unit before the gap. A unit never crosses a file
boundary.

Source: `store/.../ConsumeQueue.java`.
"""

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING

from rmqkit.runtime.connection import Buffer
from rmqkit.store.log.files import LogFiles
from rmqkit.store.log.scan import MAGIC_V1, MAGIC_V2

if TYPE_CHECKING:
    from rmqkit.store.queues.extension import QueueExt

UNIT = Struct(">qiq")
UNIT_SIZE = 20
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = UNIT.pack(0, PRE_BLANK_SIZE, 0)
#: most units that are packed by one call
UNITS_PER_PACK = 256
#: the first field of a unit of any kind of queue: the record's physical offset
_phy_of = Struct(">q").unpack_from

#: the longest topic in a V1 record, and in any record, in bytes of UTF-8
_TOPIC_SIZE_V1 = 127
TOPIC_SIZE_MAX = 255


class ConsumeQueue:
    """One queue. All `offset_*` attributes are queue offsets, `phy_*` are offsets in the log.

    `BatchQueue` is the other kind of queue: its units are larger and hold several messages.
    """

    #: bytes of one unit in the files and the tail
    unit_size = UNIT_SIZE
    #: the queue's extension; only an `ExtQueue` has one
    ext: "QueueExt | None" = None

    __slots__ = (
        "files",
        "listed",
        "magic",
        "offset_max",
        "offset_min",
        "offset_next",
        "offset_synced",
        "offset_written",
        "phy_end",
        "queue_id",
        "tail",
        "topic",
        "topic_field",
        "unsynced",
    )

    def __init__(self, topic: str, queue_id: int, files: LogFiles) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = files
        encoded = topic.encode()
        if len(encoded) <= _TOPIC_SIZE_V1:
            self.magic = MAGIC_V1
            self.topic_field = bytes([len(encoded)]) + encoded
        else:
            self.magic = MAGIC_V2
            self.topic_field = len(encoded).to_bytes(2, "big") + encoded
        self.offset_min = 0
        self.offset_written = 0
        self.offset_synced = 0
        self.offset_max = 0
        self.offset_next = 0
        #: end offset of the last record that has a unit; -1 without units
        self.phy_end = -1
        self.tail = bytearray()
        #: whether the queue is in the table's list of queues with a tail
        self.listed = False
        #: files written since their last sync, as offsets of their first bytes
        self.unsynced: dict[int, None] = {}

    # --- reading ----------------------------------------------------------------------------------

    def units(self, offset: int, count: int) -> Buffer:
        """Return at most `count` units from `offset` on.

        Fewer if a file ends or the tail begins before; none if the file cannot be read.
        """
        behind, unit_size = offset - self.offset_written, self.unit_size
        if behind >= 0:
            return self.tail[behind * unit_size : (behind + count) * unit_size]
        files = self.files
        position = offset * unit_size
        if position < files.start:
            return b""
        in_file = position % files.file_size
        size = min(min(count, -behind) * unit_size, files.file_size - in_file)
        try:
            found = files.disk.read(files.path(position), in_file, size)
        except OSError:
            return b""
        return found[: len(found) - len(found) % unit_size]

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Return physical offset, record size and tags code; None outside the queue."""
        if not self.offset_min <= offset < self.offset_max:
            return None
        found = self.units(offset, 1)
        return UNIT.unpack(found) if len(found) == UNIT_SIZE else None

    def first_at(self, phy_offset: int, low: int) -> int:
        """Return the first queue offset >= `low` whose record starts at or after `phy_offset`.

        `offset_max` if there is none.
        """
        high = self.offset_max
        while low < high:
            middle = (low + high) // 2
            found = self.units(middle, 1)
            unit = UNIT.unpack(found) if len(found) == UNIT_SIZE else (-1, 0, 0)
            if unit[0] >= phy_offset and (unit[0] or unit[1] != PRE_BLANK_SIZE):
                high = middle
            else:
                low = middle + 1
        return low

    @property
    def phy_last(self) -> int:
        """Physical offset of the last unit's record; -1 without units."""
        found = self.units(self.offset_max - 1, 1) if self.offset_max > self.offset_min else b""
        return int(UNIT.unpack(found)[0]) if len(found) == UNIT_SIZE else -1

    @property
    def offset_first(self) -> int:
        """The first queue offset that fits into the queue's first file."""
        return self.files.start // UNIT_SIZE

    @property
    def position_end(self) -> int:
        """One past the position of the last unit in the files, in bytes."""
        return self.offset_max * UNIT_SIZE

    def confirmed_max(self, phy_offset: int) -> int:
        """Return one past the last queue offset whose record ends at or before `phy_offset`."""
        offset = self.first_at(phy_offset, self.offset_min)
        last = self.unit(offset - 1)
        return offset - 1 if last is not None and last[0] + last[1] > phy_offset else offset

    # --- growing ----------------------------------------------------------------------------------

    def put(self, queue_offset: int, phy_offset: int, size: int, tags_code: int) -> bool:
        """Add the unit of a record read from the log. Return False if it adds nothing.

        That is the case if the queue already has the unit, or if the record's queue offset is
        impossible. A record with queue offset 0 behind units of older records is the first one of a
        topic that was deleted and recreated.
        """
        if phy_offset < self.phy_end:
            return False
        if queue_offset != self.offset_max and not self._jump(queue_offset):
            return False
        self.tail += UNIT.pack(phy_offset, size, tags_code)
        self.offset_max = queue_offset + 1
        if self.offset_next < self.offset_max:
            self.offset_next = self.offset_max
        self.phy_end = phy_offset + size
        return True

    def _jump(self, queue_offset: int) -> bool:
        """Continue at another queue offset. Return False if it is impossible for this queue.

        An empty queue may start at any offset, and offset 0 restarts a queue. A gap of less than
        one file is filled. A larger jump means that the record is damaged.
        """
        gap = queue_offset - self.offset_max
        if self.offset_max == self.offset_min or queue_offset == 0:
            self.restart(queue_offset)
            return True
        if not 0 < gap * UNIT_SIZE < self.files.file_size:
            return False
        last = self.units(self.offset_max - 1, 1)
        phy_last = UNIT.unpack(last)[0] if len(last) == UNIT_SIZE else 0
        self.tail += UNIT.pack(phy_last, PRE_BLANK_SIZE, 0) * gap
        self.offset_max = queue_offset
        return True

    def restart(self, queue_offset: int) -> None:
        """Drop all units; the next one will have the offset `queue_offset`. Raises OSError.

        A file whose name will be reused is overwritten with zeroes, not removed, because a removal
        completes later.
        """
        self._restart_files(queue_offset * UNIT_SIZE)
        self.offset_min = self.offset_written = self.offset_synced = self.offset_max = queue_offset
        self.offset_next = queue_offset
        self.phy_end = -1
        self.tail = bytearray()

    def _restart_files(self, position: int) -> None:
        """Prepare the files for a first unit at byte `position`. Raises OSError."""
        files = self.files
        if files.start <= position < files.end:
            while files.start < files.floor(position):
                files.remove_first(_ignore)
            self._empty(position)
        else:
            files.remove_from(0, lambda: _ignore)
            files.begin(position)
        self.unsynced = {start: None for start in self.unsynced if files.start <= start < files.end}

    def _empty(self, position: int) -> None:
        """Overwrite everything written at or after `position` with zeroes."""
        files = self.files
        end = min(self.offset_written * self.unit_size, files.end)
        while position < end:
            size = min(end, files.floor(position) + files.file_size) - position
            files.disk.write(files.path(position), position % files.file_size, [bytes(size)])
            self.unsynced[files.floor(position)] = None
            position += size

    @property
    def needs_file(self) -> bool:
        """Whether writing the tail needs a new file."""
        return self.offset_written * self.unit_size + len(self.tail) > self.files.end

    def write_tail(self) -> None:
        """Write the tail to the files, with one write per file.

        Raises OSError; units written before the error leave the tail.
        """
        files = self.files
        file_size, unit_size = files.file_size, self.unit_size
        while self.tail:
            position = self.offset_written * unit_size
            if files.start == files.end:
                files.begin(position)
            if position >= files.end:
                files.extend()
            in_file = position % file_size
            size = min(len(self.tail), file_size - in_file)
            file_start = position - in_file
            blank = in_file if file_start == files.start and self._is_first_write else 0
            buffers: list[Buffer] = [self.tail[:size] if size < len(self.tail) else self.tail]
            if blank:
                buffers.insert(0, PRE_BLANK * (blank // UNIT_SIZE))
            files.disk.write(files.path(position), in_file - blank, buffers)
            self.unsynced[file_start] = None
            # Replace the tail instead of clearing it: readers may hold slices of it.
            self.tail = self.tail[size:]
            self.offset_written += size // unit_size

    @property
    def _is_first_write(self) -> bool:
        """Whether the files hold no unit yet, so that the bytes before the first must be filled."""
        return self.offset_written == self.offset_min

    # --- shrinking --------------------------------------------------------------------------------

    def correct_min(self, phy_min: int) -> None:
        """Set `offset_min` to the first unit whose record is still in the log.

        If there is none, set it to `offset_max`. Apache: `ConsumeQueue.correctMinOffset`.
        """
        first = max(self.offset_min, self.files.start // UNIT_SIZE) if len(self.files) else self.offset_min
        if first >= self.offset_max:
            self.offset_min = max(self.offset_min, min(first, self.offset_max))
            return
        last = self.units(self.offset_max - 1, 1)
        if len(last) == UNIT_SIZE and UNIT.unpack(last)[0] < phy_min:
            self.offset_min = self.offset_max
            return
        found = self.units(first, 1)
        if len(found) == UNIT_SIZE:
            phy_offset, size, _ = UNIT.unpack(found)
            if phy_offset >= phy_min and size != PRE_BLANK_SIZE:
                self.offset_min = first
                return
        self.offset_min = self.first_at(phy_min, first)

    def drop_expired(self, phy_min: int) -> int:
        """Remove the files whose last record has left the log, but never the last file.

        Return how many files were removed.
        """
        files = self.files
        dropped = 0
        while len(files) > 1:
            last = (files.start + files.file_size) // self.unit_size - 1
            found = self.units(last, 1)
            if last >= self.offset_written or len(found) != self.unit_size or _phy_of(found)[0] >= phy_min:
                break
            self.unsynced.pop(files.start, None)
            files.remove_first(_ignore)
            dropped += 1
        return dropped

    def cut(self, phy_offset: int) -> None:
        """Drop the units of records that start at or after `phy_offset`; zero them on disk.

        Raises OSError.
        """
        offset = self.first_at(phy_offset, max(self.offset_min, self.files.start // UNIT_SIZE))
        if offset < self.offset_max:
            self.cut_to(offset)

    def cut_to(self, offset: int) -> None:
        """Drop the units from queue offset `offset` on; zero them on disk. Raises OSError."""
        if offset >= self.offset_written:
            self.tail = self.tail[: (offset - self.offset_written) * UNIT_SIZE]
        else:
            self._empty(offset * UNIT_SIZE)
            self.tail = bytearray()
            self.offset_written = offset
            self.offset_synced = min(self.offset_synced, offset)
        self.offset_max = self.offset_next = offset
        self.offset_min = min(self.offset_min, offset)
        last = self.units(offset - 1, 1) if offset > self.offset_min else b""
        self.phy_end = -1
        if len(last) == UNIT_SIZE:
            phy_offset, size, _ = UNIT.unpack(last)
            self.phy_end = phy_offset + (size if size != PRE_BLANK_SIZE else 0)


@lru_cache(maxsize=256)
def layout_of_units(count: int) -> Struct:
    """Return the layout of this many units, with three values each."""
    return Struct(">" + "qiq" * count)


def _ignore(error: OSError | None) -> None:
    """Ignore the error: a file that stays is overwritten later, or removed with its topic."""
