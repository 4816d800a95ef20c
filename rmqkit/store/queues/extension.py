"""The extension of one consume queue (`enableConsumeQueueExt`): data too large for a queue entry.

    i16 size · i64 tags code · i64 store time · i16 size of the bit map · bit map

The queue entry of a message then holds the *address* of its unit instead of the tags code: the
unit's offset in the chain of files, minus 2^63. Every number up to -2^31 - 1 is an address; tags
codes (Java int hash codes, or times in ms) are greater. A unit never crosses a file boundary. A
size of -1 marks the unused rest of a file, and 4 bytes are always reserved for this mark.

Apache calls the extension weakly reliable. If a unit cannot be read, the message may match, and the
record itself decides. A wrong unit, however, would hide a message. Therefore:

- Units are written before the entries that point to them, and synced in the same rounds
  (`flush.py`).
- After a start or a cut, new units follow the last unit that an entry points to, in a new file if
  that unit is gone.

Source: `store/.../ConsumeQueueExt.java`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from rmqkit.runtime.connection import Buffer
from rmqkit.store.contract import TagMatch
from rmqkit.store.log.files import LogFiles
from rmqkit.store.queues.consume_queue import UNIT, UNIT_SIZE, ConsumeQueue

#: the greatest address; greater numbers are tags codes
ADDRESS_MAX = -(1 << 31) - 1
_BASE = -(1 << 63)
_OFFSET_MAX = ADDRESS_MAX - _BASE
_HEAD = Struct(">hqqh")
_SIZE_MIN = 20
_SIZE_MAX = 32767
_END_BLANK_SIZE = 4
_END = b"\xff\xff"
#: bytes per read: units of adjacent entries are usually needed together
_WINDOW = 8192
_UNITS_PER_READ = 4096
_CHUNK = 65_536


class ExtUnit(NamedTuple):
    """The extension data of one message."""

    tags_code: int
    store_ms: int
    #: bit map of the groups whose filters match the message; empty if it was not computed
    bits: bytes


@dataclass(slots=True, eq=False)
class QueueExt:
    """The extension of one queue. Offsets count bytes in its chain of files.

    `offset_written` and `offset_max` are -1 until the end of the last valid unit is known.
    """

    topic: str
    queue_id: int
    files: LogFiles
    tail: bytearray = field(default_factory=bytearray)
    offset_written: int = -1
    offset_max: int = -1
    offset_synced: int = 0
    #: files written since their last sync, as offsets of their first bytes
    unsynced: dict[int, None] = field(default_factory=dict)
    _is_loaded: bool = False
    _window: Buffer = b""
    _window_at: int = 0

    # --- reading ----------------------------------------------------------------------------------

    def get(self, address: int) -> ExtUnit | None:
        """Return the unit at an address; None if it is missing or cannot be read."""
        offset = address - _BASE
        if 0 <= self.offset_written <= offset:
            return _parse(self.tail, offset - self.offset_written)
        at = offset - self._window_at
        found = _parse(self._window, at) if 0 <= at < len(self._window) else None
        if found is None:
            self._window = self._read(offset, _WINDOW)
            self._window_at = offset
            found = _parse(self._window, 0)
        if found is None and len(self._window) == _WINDOW:
            return _parse(self._read(offset, _SIZE_MAX), 0)
        return found

    def _read(self, offset: int, size: int) -> Buffer:
        """Return written bytes from one file; none if they cannot be read."""
        self._load()
        files = self.files
        in_file = offset % files.file_size
        size = min(size, files.file_size - in_file)
        if self.offset_written >= 0:
            size = min(size, self.offset_written - offset)
        if size <= 0 or not files.start <= offset < files.end:
            return b""
        try:
            return files.disk.read(files.path(offset), in_file, size)
        except OSError:
            return b""

    def _load(self) -> None:
        """Find the files. Files outside the chain stay, and new files are named after them."""
        if self._is_loaded:
            return
        self._is_loaded = True
        files = self.files
        end = 0
        for path in files.load().strangers:
            name = path.rpartition("/")[2]
            if name.isascii() and name.isdigit() and int(name) <= _OFFSET_MAX:
                end = max(end, int(name) + files.file_size)
        if end > files.end:
            files.start = files.end = 0
            files.begin(files.floor(end + files.file_size - 1))

    # --- growing ----------------------------------------------------------------------------------

    def put(self, queue: ConsumeQueue, tags_code: int, store_ms: int, bits: bytes) -> int:
        """Add a unit. Return its address, or the tags code if the unit cannot be stored."""
        if self.offset_written < 0:
            try:
                self._find_end(queue)
            except OSError:
                return tags_code
        file_size = self.files.file_size
        size = _SIZE_MIN + len(bits)
        left = file_size - self.offset_max % file_size
        if size + _END_BLANK_SIZE > left:
            if size > _SIZE_MAX or size + _END_BLANK_SIZE > file_size:
                return tags_code
            self.tail += _END + bytes(left - len(_END))
            self.offset_max += left
        if self.offset_max + size > _OFFSET_MAX:
            return tags_code
        address = self.offset_max + _BASE
        self.tail += _HEAD.pack(size, tags_code, store_ms, len(bits))
        self.tail += bits
        self.offset_max += size
        return address

    def _find_end(self, queue: ConsumeQueue) -> None:
        """Set the end to just behind the last unit that an entry of the queue points to.

        Raises OSError.
        """
        self._load()
        files = self.files
        address = last_address(queue)
        end = files.end
        if address is not None:
            offset = address - _BASE
            unit = self.get(address)
            if offset >= files.end:
                # The files are gone. Start behind the old addresses, so that none gets a second
                # meaning.
                files.start = files.end = 0
                end = files.floor(offset) + files.file_size
                files.begin(end)
            elif unit is not None and files.floor(offset) + files.file_size == files.end:
                end = offset + _SIZE_MIN + len(unit.bits)
                self._clear(end)
        self.offset_written = self.offset_max = end
        self.offset_synced = min(self.offset_synced, end)

    def _clear(self, position: int) -> None:
        """Zero the bytes behind the last unit, until a whole chunk of zeroes follows."""
        files = self.files
        while position < files.end:
            size = min(_CHUNK, files.end - position)
            path, in_file = files.path(position), position % files.file_size
            if files.disk.read(path, in_file, size) == bytes(size):
                return
            files.disk.write(path, in_file, [bytes(size)])
            self.unsynced[files.floor(position)] = None
            position += size

    def write_tail(self) -> None:
        """Write the tail to the files.

        Raises OSError; units written before the error leave the tail.
        """
        files = self.files
        while self.tail:
            position = self.offset_written
            if position >= files.end:
                if files.start == files.end:
                    files.begin(position)
                files.extend()
            in_file = position % files.file_size
            size = min(len(self.tail), files.file_size - in_file)
            files.disk.write(files.path(position), in_file, [self.tail[:size]])
            self.unsynced[files.floor(position)] = None
            self.tail = self.tail[size:]
            self.offset_written += size

    # --- shrinking --------------------------------------------------------------------------------

    def forget_end(self) -> None:
        """After entries were dropped: find the end again at the next put. Raises OSError."""
        self.write_tail()
        self.offset_written = self.offset_max = -1
        self._window = b""

    def drop_before(self, address: int) -> None:
        """Remove files whose units all precede the one at `address`, but never the last file."""
        self._load()
        files = self.files
        while len(files) > 1 and files.start + files.file_size <= address - _BASE:
            self.unsynced.pop(files.start, None)
            files.remove_first(_ignore)


def last_address(queue: ConsumeQueue) -> int | None:
    """Return the last address in the entries of a queue, or None. Addresses only grow."""
    end = queue.offset_max
    first = queue.files.start // UNIT_SIZE if len(queue.files) else queue.offset_min
    while end > first:
        begin = max(first, end - _UNITS_PER_READ)
        position = begin
        found: int | None = None
        while position < end and (units := queue.units(position, end - position)):
            for _, _, tags_code in UNIT.iter_unpack(units):
                if tags_code <= ADDRESS_MAX:
                    found = tags_code
            position += len(units) // UNIT_SIZE
        if found is not None:
            return found
        end = begin
    return None


def _parse(buffer: Buffer, at: int) -> ExtUnit | None:
    if at + _SIZE_MIN > len(buffer):
        return None
    size, tags_code, store_ms, bits_size = _HEAD.unpack_from(buffer, at)
    if size != _SIZE_MIN + bits_size or bits_size < 0 or at + size > len(buffer):
        return None
    return ExtUnit(tags_code, store_ms, bytes(buffer[at + _SIZE_MIN : at + size]))


def may_match(queue: ConsumeQueue, match: TagMatch, address: int) -> bool:
    """Return whether the message of an entry with an address may match.

    Decides by the unit's tags code, or by its bits if `match` has a `match_unit`. Returns True if
    the unit cannot be read.
    """
    unit = None if queue.ext is None else queue.ext.get(address)
    if unit is None:
        return True
    by_unit: Callable[[ExtUnit], bool] | None = getattr(match, "match_unit", None)
    return match(unit.tags_code) if by_unit is None else by_unit(unit)


def tags_code_at(queue: ConsumeQueue, address: int) -> int:
    """Return the tags code of an entry with an address; 0 if its unit cannot be read."""
    unit = None if queue.ext is None else queue.ext.get(address)
    return 0 if unit is None else unit.tags_code


def _ignore(error: OSError | None) -> None:
    """Ignore the error: a file that stays is never read again."""
