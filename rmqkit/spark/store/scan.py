"""Finds records, damage and the end of the written part in a commit-log file.

`Scan` cuts a file into pieces that follow each other without a gap, so that their sizes add up to
the size of the file:

- `RecordSlice`: intact records, one after the other. Their sizes add
  up, each states the physical offset where it was found, and the CRC of the body is right. A record
  with consistent sizes but wrong content (CRC, physical offset, zeroes in its properties) is a
  slice of its own, with the reason in `damage`, provided that the log continues behind it.
- `Gap`: bytes without a readable record, and the reason. The scan continues at the next intact
  record (magic, sizes, physical offset, CRC) or at the blank record that ends the file.
- `Filler`: the blank record at the end of a file, or the zeroes behind the written part of the last
  file.

An intact record costs one step of a small loop (sizes, CRC). All other checks run on thousands of
records at once with numpy. The file is read with `pread` in bounded windows, not mapped: with a
mapping, a bad sector or a truncated file would kill the process (SIGBUS). Here it becomes a reason.
A sector that cannot be read counts as zeroes and as damage.

Source: `store/.../CommitLog.java` (`checkMessageAndReturnSize`); stricter in one point, as in
`rmqkit.store.log.scan`: the physical offset in a record must be right.
"""

import os
import re
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import numpy as np

from rmqkit.spark.decode import RECORD_SIZE_MIN, DecodedRecords
from rmqkit.wire.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    POSITION_BODY_CRC,
    POSITION_PHY_OFFSET,
    POSITION_QUEUE_ID,
    POSITION_QUEUE_OFFSET,
    POSITION_SYS_FLAG,
    PROPERTY_CRC_SIZE,
    property_crc_is_right,
)

#: Bytes of a file held in memory at once, unless a record is larger.
WINDOW_SIZE = 8_388_608
#: Unreadable bytes are reported in pieces of this size, in bytes.
SECTOR_SIZE = 4096
ROWS_MAX = 8192
BLANK_SIZE = 8
#: Position of the body's size in a record with IPv4 hosts, and the extra bytes of an IPv6 host.
_BODY_SIZE_AT = 84
_V6_MORE = 12
_HEAD_MAX = _BODY_SIZE_AT + 2 * _V6_MORE + 4
#: Limit of the bytes behind a body: topic and properties, each up to 32767, and their sizes.
_REST_MAX = 2 * (2 + 32767)
_SIZE_MAGIC = Struct(">ii")
_I32_OF = Struct(">i").unpack_from
_I32, _U32 = np.dtype(">i4"), np.dtype(">u4")
_MARKS = re.compile(rb"\xda\xa3\x20[\xa7\xab]|\xcb\xd4\x31\x94")
#: Properties never contain so many zeroes in a row: these come from a page that was not written.
_HOLE = bytes(16)
_CRC_NAME = b"__CRC32#\x01"
WRONG_CRC = "its body does not have the CRC it was stored with"


class LogFile(NamedTuple):
    """One file of a commit log.

    `base` is the physical offset of its first byte (-1 for a file without one). `size` is its size
    and `full_size` the regular size of this log's files, both in bytes. `is_followed`: a later file
    holds data, so zeroes at the end of this one are lost bytes. With a `problem` there is nothing
    to scan: its `size` bytes are missing or do not belong to the log.
    """

    path: str
    base: int
    size: int
    full_size: int
    is_followed: bool
    problem: str = ""


class RecordSlice(NamedTuple):
    """Whole records in a buffer that begins at byte `at` of the file.

    With `damage` the slice is one record.
    """

    records: DecodedRecords
    at: int
    damage: str = ""
    crc_ok: bool = True

    @property
    def size(self) -> int:
        return int(self.records.sizes.sum())


class Gap(NamedTuple):
    """`size` bytes from byte `at` of the file that contain no readable record, and why."""

    at: int
    size: int
    why: str


class Filler(NamedTuple):
    """`size` bytes from byte `at` of the file that legitimately hold no record.

    `kind` is blank, zeroes, or tail (of a file that a broker may be writing).
    """

    at: int
    size: int
    kind: str


class _RecordAt(NamedTuple):
    """The record at a position: its size in bytes, or 0 if its parts do not add up, and its damage.

    `why` is "" for an intact record.
    """

    size: int
    why: str
    crc_ok: bool = True


class Bytes:
    """Reads an open file and holds one window of it in memory.

    `data` is the window and `at` its position in the file.
    """

    def __init__(self, fd: int, window_size: int = WINDOW_SIZE) -> None:
        #: Ranges [from, to) that the disk could not read, and the last reason.
        self.unreadable: list[tuple[int, int]] = []
        self.error = ""
        self.size = os.fstat(fd).st_size
        self.data, self.at = b"", 0
        self._fd = fd
        self.window_size = window_size

    def hold(self, at: int, size: int) -> int:
        """Hold `size` bytes from `at` (fewer at the file's end). Return their index in `data`."""
        end = min(at + size, self.size)
        if at < self.at or end > self.at + len(self.data):
            self.data, self.at = self.read(at, max(size, self.window_size)), at
        return at - self.at

    def peek(self, at: int, size: int) -> bytes:
        """Return a few bytes, from the window if it has them; the window stays."""
        index = at - self.at
        is_held = 0 <= index <= len(self.data) - size
        return self.data[index : index + size] if is_held else self.read(at, size)

    def read(self, at: int, size: int) -> bytes:
        """Return bytes of the file; sectors that cannot be read are zeroes."""
        size = max(0, min(size, self.size - at))
        try:
            return self._whole(at, size)
        except OSError as error:
            end = at + size
            sectors = range(at - at % SECTOR_SIZE + SECTOR_SIZE, end, SECTOR_SIZE)
            if sectors:
                return b"".join(self.read(low, high - low) for low, high in pairwise((at, *sectors, end)))
            self.error = error.strerror or str(error)
            if (at, end) not in self.unreadable:
                self.unreadable.append((at, end))
            return bytes(size)

    def _whole(self, at: int, size: int) -> bytes:
        data = os.pread(self._fd, size, at)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), at + len(data))
            if not more:  # the file was truncated after its size was read
                return data.ljust(size, b"\0")
            data += more
        return data

    def is_unreadable(self, at: int, size: int) -> bool:
        return any(start < at + size and at < end for start, end in self.unreadable)

    @cached_property
    def data_end(self) -> int:
        """The position behind the last byte that is not zero or could not be read."""
        position = self.size
        while position > 0:
            start = max(0, position - self.window_size)
            used = self.read(start, position - start).rstrip(b"\0")
            ends = [min(high, position) for low, high in self.unreadable if low < position and start < high]
            if used or ends:
                return max(start + len(used), *ends, 0)
            position = start
        return 0


class Scan:
    """Cuts one file into pieces.

    `is_live`: a broker may be writing, so an incomplete end is not damage. A slice has at most
    `rows_max` records.
    """

    def __init__(self, source: Bytes, file: LogFile, *, is_live: bool = False, rows_max: int = ROWS_MAX) -> None:
        self._source, self._file = source, file
        self._is_live, self._rows_max = is_live, rows_max
        self._topics: set[bytes] = set()

    def pieces(self) -> Iterator[RecordSlice | Gap | Filler]:
        """Yield the pieces from the first byte to the last, without gaps or overlaps."""
        at, end = 0, self._source.size
        while at < end:
            for piece in self._next(at):
                yield piece
                at += piece.size
        if end < self._file.full_size and not self._is_live:
            yield Gap(end, self._file.full_size - end, f"the file ends {self._file.full_size - end} bytes too early")

    def _next(self, at: int) -> list[RecordSlice | Gap | Filler]:
        source = self._source
        plain = self._run(source.hold(at, RECORD_SIZE_MIN)) or self._filler(at)
        if plain is not None:
            return [plain]
        look = self._record_at(at)
        if look.size and not look.why:
            # The record is too large for the rest of the window.
            run = self._run(source.hold(at, look.size), rows_max=1)
            assert run is not None, "an intact record is intact in every window"
            return [run]
        if look.size and self._continues_at(at + look.size):
            index = source.hold(at, look.size)
            return [RecordSlice(DecodedRecords(source.data, [index]), source.at, look.why, look.crc_ok)]
        return self._gap(at, look.why)

    # --- the plain case: intact records

    def _run(self, index: int, rows_max: int = 0) -> RecordSlice | None:
        """Return the intact records from `index` of the window on, or None if there is none."""
        data = self._source.data
        end, rows_max = len(data), rows_max or self._rows_max
        places: list[int] = []
        unpack = _SIZE_MAGIC.unpack_from
        while index + RECORD_SIZE_MIN <= end and len(places) < rows_max:
            size, magic = unpack(data, index)
            if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < RECORD_SIZE_MIN or size > end - index:
                break
            places.append(index)
            index += size
        if not places:
            return None
        records = DecodedRecords(data, places)
        parts, ends = records.parts, records.ends
        ok = parts.ok & (records.head(POSITION_PHY_OFFSET) == self._file.base + self._source.at + records.starts)
        ok &= (records.head(POSITION_QUEUE_ID, _I32) >= 0) & (records.head(POSITION_QUEUE_OFFSET) >= 0)
        for low, high in self._source.unreadable:
            ok &= (records.starts + self._source.at >= high) | (ends + self._source.at <= low)
        count = len(places) if ok.all() else int(np.argmin(ok))
        crcs, problem = records.head(POSITION_BODY_CRC, _U32), self._problem
        columns = (crcs, parts.bodies, parts.body_ends, parts.topics, parts.properties, ends)
        rows = zip(places[:count], *(each.tolist() for each in columns), strict=False)
        for number, (start, crc, body, body_end, topic_at, properties, end) in enumerate(rows):
            if problem(data, start, crc, body, body_end, topic_at, properties, end):
                count = number
                break
        if count < len(places):
            records = DecodedRecords(data, places[:count])
        return RecordSlice(records, self._source.at) if count else None

    def _problem(
        self, data: bytes, start: int, crc: int, body: int, body_end: int, topic_at: int, properties: int, end: int
    ) -> str:
        """Return what is wrong with the content of a record whose parts add up, or ""."""
        if body_end > body and crc32(data[body:body_end]) & 0x7FFFFFFF != crc:
            return WRONG_CRC
        topic = data[topic_at : properties - 2]
        if topic not in self._topics:
            if b"\0" in topic or topic.decode(errors="ignore").encode() != topic:
                return "its topic is not text"
            self._topics.add(topic)
        if data.find(_HOLE, properties, end) >= 0 or (end > properties and data[end - 1] == 0):
            return "zeroes in its properties, as if a page had not been written"
        crc_at = end - PROPERTY_CRC_SIZE
        if crc_at >= properties and data.startswith(_CRC_NAME, crc_at) and not property_crc_is_right(data[start:end]):
            return "it does not have the CRC that its properties state"
        return ""

    # --- everything else

    def _filler(self, at: int) -> Filler | None:
        left = self._source.size - at
        head = self._source.peek(at, min(BLANK_SIZE, left))
        if self._is_blank(at, head):
            return Filler(at, left, "blank")
        is_end = not any(head) and not self._file.is_followed and self._source.data_end <= at
        return Filler(at, left, "zeroes") if is_end else None

    def _is_blank(self, at: int, head: bytes) -> bool:
        return len(head) >= BLANK_SIZE and _SIZE_MAGIC.unpack_from(head) == (self._file.full_size - at, MAGIC_BLANK)

    def _continues_at(self, at: int) -> bool:
        """Whether another record begins at `at`, or the log legitimately ends there.

        If so, the size that the previous record states is right.
        """
        return at >= self._source.size or self._filler(at) is not None or self._record_at(at).size > 0

    def _record_at(self, at: int) -> _RecordAt:
        """Examine the record at `at`. Reads the record only if its size and its body's agree."""
        source = self._source
        left = source.size - at
        head = source.peek(at, min(_HEAD_MAX, left))
        if len(head) < BLANK_SIZE:
            return _RecordAt(0, f"{len(head)} bytes are too few for a record")
        size, magic = _SIZE_MAGIC.unpack_from(head)
        if magic == MAGIC_BLANK:
            return _RecordAt(0, f"a blank record of {size} bytes where {self._file.full_size - at} are left")
        if not any(head[:BLANK_SIZE]):
            return _RecordAt(0, "zeroes where a record should be")
        if magic not in (MAGIC_V1, MAGIC_V2):
            return _RecordAt(0, f"magic {magic & 0xFFFFFFFF:#010x} is not a record's")
        if not RECORD_SIZE_MIN <= size <= left:
            return _RecordAt(0, f"a record of {size} bytes where {left} are left")
        flags = head[POSITION_SYS_FLAG + 3]
        body = _BODY_SIZE_AT + _V6_MORE * ((flags >> 4 & 1) + (flags >> 5 & 1)) + 4
        body_size = _I32_OF(head, body - 4)[0]
        rest = size - body - body_size
        if body_size < 0 or rest < 3:
            return _RecordAt(0, f"a body of {body_size} bytes in a record of {size}")
        unsound = _RecordAt(0, f"the parts of a record of {size} bytes do not add up to its size")
        if rest > _REST_MAX:
            return unsound
        record = source.peek(at, size)
        records = DecodedRecords(record, [0])
        topic_at, properties = int(records.parts.topics[0]), int(records.parts.properties[0])
        topic_size = properties - 2 - topic_at
        if topic_size < 0 or properties > size:
            return _RecordAt(0, f"a topic of {topic_size} bytes in a record of {size}")
        if not records.parts.ok[0]:
            return unsound
        if source.is_unreadable(at, size):
            return _RecordAt(size, f"some of its bytes could not be read ({source.error})", False)
        crc, place = int(records.head(POSITION_BODY_CRC, _U32)[0]), int(records.head(POSITION_PHY_OFFSET)[0])
        why = self._problem(record, 0, crc, body, body + body_size, topic_at, properties, size)
        if not why and place != self._file.base + at:
            why = f"it states physical offset {place}, which is not its own"
        if not why and (head[POSITION_QUEUE_ID] | head[POSITION_QUEUE_OFFSET]) & 0x80:
            why = "its queue id or offset is negative"
        return _RecordAt(size, why, why != WRONG_CRC)

    def _gap(self, at: int, why: str) -> list[RecordSlice | Gap | Filler]:
        """Return the unreadable bytes from `at` to the position where the scan can continue."""
        source = self._source
        if source.is_unreadable(at, BLANK_SIZE):
            why = f"could not be read ({source.error})"
        position = self._next_sound(at + 1)
        if position is not None:
            return [Gap(at, position - at, why)]
        if self._is_live and not self._file.is_followed:
            return [Filler(at, source.size - at, "tail")]
        end = source.size if self._file.is_followed else source.data_end
        gap = Gap(at, end - at, f"{why}; no intact record up to the end of the written part")
        return [gap, Filler(end, source.size - end, "zeroes")] if end < source.size else [gap]

    def _next_sound(self, at: int) -> int | None:
        """Return where the first intact record, or the file's blank record, begins from `at` on."""
        source = self._source
        while at + BLANK_SIZE <= source.size:
            data = source.read(at, source.window_size)
            for mark in _MARKS.finditer(data, 4):
                place = at + mark.start() - 4
                if self._is_blank(place, data[mark.start() - 4 : mark.end()]):
                    return place
                # Check the physical offset first. To examine a record with a damaged size would
                # read all of that size.
                if int.from_bytes(source.peek(place + POSITION_PHY_OFFSET, 8), "big") == self._file.base + place:
                    look = self._record_at(place)
                    if look.size and not look.why:
                        return place
            at += len(data) - BLANK_SIZE + 1
        return None
