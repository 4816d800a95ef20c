"""Segments: the files of the spool, `spool/<number>.spool` in the broker's store folder.

A segment is a run of records, each with a head (magic, size, CRC32, kind, number) and a payload:

    MESSAGE   a message with its origin; its number is its place in the order of the spool
    DONE      the message of that number is somewhere else now; no payload

Records are only ever appended, to the newest segment; one that has grown past its size is followed by a new one. Segments
are removed from the oldest on, when all their messages are done: so a DONE never goes before its MESSAGE, and what is read
again after a kill is what was not done. When few messages hold an old segment they are copied to the end, under their
numbers, and the segment goes (`compact`).

What is read is checked. A tail that a power loss has torn was never acknowledged, and is cut by beginning a new segment; a
record that is damaged in the middle is passed over to the next one that is whole, and counted.
"""

import re
from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from rmqkit.runtime.ports import Disk

FOLDER = "spool"
SUFFIX = ".spool"
NAME = re.compile(rf"\d{{20}}{re.escape(SUFFIX)}").fullmatch
MAGIC = b"RMSP"
MESSAGE, DONE = 1, 2
#: magic, size of the payload, CRC32 of what follows it, kind, number
HEAD = Struct(">4sIIBQ")
_CHECKED_FROM = 12


class Segment:
    __slots__ = ("live", "live_size", "path", "size")

    def __init__(self, path: str, size: int = 0) -> None:
        self.path = path
        self.size = size
        #: messages that are not done, and their bytes
        self.live: dict[int, None] = {}
        self.live_size = 0


class Place(NamedTuple):
    """Where a message's payload is."""

    segment: Segment
    position: int
    size: int


class Segments:
    def __init__(self, disk: Disk, *, segment_size: int) -> None:
        self._disk = disk
        self._segment_size = segment_size
        self.segments: list[Segment] = []
        #: messages that are not done, by number
        self.places: dict[int, Place] = {}
        self.next_number = 0
        #: records that were found damaged
        self.damaged = 0
        self._may_append = False
        self._next_name = 0
        #: copies are on their way to the disk: what they were made of stays
        self._is_copying = False

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    # --- loading -----------------------------------------------------------------------------------------------------

    def load(self, seen: Callable[[int, bytes], None]) -> Iterator[None]:
        """Read what there is, a segment at each step. `seen` gets number and payload of each message, also of those that
        are done: `places` says at the end. Raises OSError."""
        done: set[int] = set()
        for info in self._disk.list(FOLDER):
            if not NAME(info.name):
                continue
            path = f"{FOLDER}/{info.name}"
            segment = Segment(path, info.size)
            self.segments.append(segment)
            self._next_name = int(info.name[: -len(SUFFIX)]) + 1
            data = self._disk.read(path, 0, info.size)
            for kind, number, position, size in self._records(data):
                self.next_number = max(self.next_number, number + 1)
                if kind == DONE:
                    done.add(number)
                else:
                    # Of two copies the later one stays longer.
                    self.places[number] = Place(segment, position, size)
                    seen(number, data[position : position + size])
            yield
        for number in done:
            self.places.pop(number, None)
        for number, place in self.places.items():
            place.segment.live[number] = None
            place.segment.live_size += place.size

    def _records(self, data: bytes) -> Iterator[tuple[int, int, int, int]]:
        """(kind, number, position of the payload, its size) of each record that is whole."""
        at = 0
        while at + HEAD.size <= len(data):
            magic, size, crc, kind, number = HEAD.unpack_from(data, at)
            end = at + HEAD.size + size
            if magic == MAGIC and end <= len(data) and crc == crc32(memoryview(data)[at + _CHECKED_FROM : end]):
                yield kind, number, at + HEAD.size, size
                at = end
                continue
            self.damaged += 1
            at = data.find(MAGIC, at + 1)
            if at < 0:
                return

    # --- messages ----------------------------------------------------------------------------------------------------

    def append(self, payload: bytes) -> int:
        """Write a message; its number. Raises OSError: nothing is kept."""
        number = self.next_number
        self._keep(number, payload)
        self.next_number += 1
        return number

    def read(self, number: int) -> bytes:
        """The payload. Raises OSError, ValueError for one that is damaged."""
        place = self.places[number]
        data = self._disk.read(place.segment.path, place.position - HEAD.size, HEAD.size + place.size)
        for kind, found, _, _ in self._records(data):
            if (kind, found) == (MESSAGE, number):
                return data[HEAD.size :]
        raise ValueError(f"record {number} of {place.segment.path} is damaged")

    def done(self, number: int) -> None:
        """The message is elsewhere. Raises OSError: after a restart it is there again."""
        place = self.places.pop(number)
        del place.segment.live[number]
        place.segment.live_size -= place.size
        try:
            self._write(DONE, number, b"")
        finally:
            self._remove_done()

    def sync(self, then: Callable[[OSError | None], None]) -> None:
        """`then` when all that was appended is durable, or never will be."""
        self._disk.sync(self.segments[-1].path, then)

    def _keep(self, number: int, payload: bytes, *, may_begin: bool = True) -> None:
        segment, position = self._write(MESSAGE, number, payload, may_begin=may_begin)
        self.places[number] = Place(segment, position + HEAD.size, len(payload))
        segment.live[number] = None
        segment.live_size += len(payload)

    def _write(self, kind: int, number: int, payload: bytes, *, may_begin: bool = True) -> tuple[Segment, int]:
        is_full = may_begin and bool(self.segments) and self.segments[-1].size >= self._segment_size
        if not self._may_append or not self.segments or is_full:
            self._begin()
        segment = self.segments[-1]
        checked = HEAD.pack(MAGIC, len(payload), 0, kind, number)[_CHECKED_FROM:] + payload
        record = HEAD.pack(MAGIC, len(payload), crc32(checked), kind, number) + payload
        position = segment.size
        self._disk.write(segment.path, position, [record])
        segment.size += len(record)
        return segment, position

    def _begin(self) -> None:
        # Never a name again: the removal of the old file may still be under way.
        self.segments.append(Segment(f"{FOLDER}/{self._next_name:020d}{SUFFIX}"))
        self._next_name += 1
        self._may_append = True

    # --- room --------------------------------------------------------------------------------------------------------

    def _remove_done(self) -> None:
        if self._is_copying:
            return
        while self.segments and not self.segments[0].live and (len(self.segments) > 1 or not self.places):
            segment = self.segments.pop(0)
            self._disk.remove(segment.path, _ignored)

    def compact(self, then: Callable[[OSError | None], None]) -> bool:
        """Copy what is left of the oldest segment to the end, when that is little; whether it did. `then` as `sync`'s:
        without an error the segment is gone."""
        if self._is_copying or len(self.segments) < 2 or self.segments[0].live_size * 4 > self.segments[0].size:
            return False
        oldest = self.segments[0]
        # One segment takes all the copies, however large it gets, so that one sync covers them.
        if self.segments[-1].size + oldest.live_size > self._segment_size:
            self._begin()
        self._is_copying = True
        try:
            for number in list(oldest.live):
                place = self.places[number]
                self._keep(number, self.read(number), may_begin=False)
                del oldest.live[number]
                oldest.live_size -= place.size
        except (OSError, ValueError):
            # What is not copied stays where it is, and the segment with it.
            pass

        def synced(error: OSError | None) -> None:
            # Copies that may be lost leave everything as it is, for good.
            if error is None:
                self._is_copying = False
                self._remove_done()
            then(error)

        self.sync(synced)
        return True


def _ignored(error: OSError | None) -> None:
    """A segment that could not be removed is removed after the next start: all of it is done."""
