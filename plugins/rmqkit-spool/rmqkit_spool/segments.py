"""Segments: the files of the spool, `spool/<number>.spool` in the broker's store folder.

A segment is a sequence of records, each with a head (magic, size, CRC32, kind, number) and a
payload:

    MESSAGE   a message with its origin; its number is its place in the order of the spool
    DONE      the message of that number was put elsewhere; no payload

Records are only appended, to the newest segment. Once that has reached its size, a new one follows.
Segments are removed from the oldest on, when all their messages are done. So a DONE is never
removed before its MESSAGE, and a restart after a kill finds exactly the messages that are not done.
If only a few messages remain in the oldest segment, `compact` copies them to the end, under their
numbers, and removes the segment.

Every record is checked when it is read. A tail that a power loss has torn was never acknowledged:
the next append begins a new segment. A damaged record in the middle is skipped and counted; reading
continues at the next whole record.
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
#: magic, size of the payload, CRC32 of everything after this field, kind, number
HEAD = Struct(">4sIIBQ")
_CHECKED_FROM = 12


class Segment:
    """One file, and the messages in it that are not done."""

    __slots__ = ("live", "live_size", "path", "size")

    def __init__(self, path: str, size: int = 0) -> None:
        self.path = path
        self.size = size
        #: numbers of the messages that are not done; the size of their payloads in bytes
        self.live: dict[int, None] = {}
        self.live_size = 0


class Place(NamedTuple):
    """The position of a message's payload."""

    segment: Segment
    position: int
    size: int


class Segments:
    """All files of one spool."""

    def __init__(self, disk: Disk, *, segment_size: int) -> None:
        self._disk = disk
        self._segment_size = segment_size
        self.segments: list[Segment] = []
        #: the place of each message that is not done, by its number
        self.places: dict[int, Place] = {}
        self.next_number = 0
        #: number of damaged records found
        self.damaged = 0
        #: whether the newest segment was begun by this process, so that its tail is not torn
        self._may_append = False
        self._next_name = 0
        #: copies of messages are not durable yet, so the segment of the originals must stay
        self._is_copying = False

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    # --- loading ----------------------------------------------------------------------------------

    def load(self, seen: Callable[[int, bytes], None]) -> Iterator[None]:
        """Read the files, one segment at each step.

        `seen` is called with number and payload of each message, even if it is done: `places` is
        complete only at the end. Raises OSError.
        """
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
                    # Of two copies the later one counts: its segment is removed later.
                    self.places[number] = Place(segment, position, size)
                    seen(number, data[position : position + size])
            yield
        for number in done:
            self.places.pop(number, None)
        for number, place in self.places.items():
            place.segment.live[number] = None
            place.segment.live_size += place.size

    def _records(self, data: bytes) -> Iterator[tuple[int, int, int, int]]:
        """Yield (kind, number, position of the payload, its size) of each whole record."""
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

    # --- messages ---------------------------------------------------------------------------------

    def append(self, payload: bytes) -> int:
        """Write a message and return its number. Raises OSError; then nothing is stored."""
        number = self.next_number
        self._keep(number, payload)
        self.next_number += 1
        return number

    def read(self, number: int) -> bytes:
        """Return the payload.

        Raises OSError if the file cannot be read, ValueError if the record is damaged.
        """
        place = self.places[number]
        data = self._disk.read(place.segment.path, place.position - HEAD.size, HEAD.size + place.size)
        for kind, found, _, _ in self._records(data):
            if (kind, found) == (MESSAGE, number):
                return data[HEAD.size :]
        raise ValueError(f"record {number} of {place.segment.path} is damaged")

    def done(self, number: int) -> None:
        """Record that a message was put elsewhere.

        Raises OSError if that cannot be written: after a restart the message is pending again.
        """
        place = self.places.pop(number)
        del place.segment.live[number]
        place.segment.live_size -= place.size
        try:
            self._write(DONE, number, b"")
        finally:
            self._remove_done()

    def sync(self, then: Callable[[OSError | None], None]) -> None:
        """Call `then` once everything appended is durable, or with the error if it will not be."""
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
        # Names are never reused: the removal of the old file may still be in progress.
        self.segments.append(Segment(f"{FOLDER}/{self._next_name:020d}{SUFFIX}"))
        self._next_name += 1
        self._may_append = True

    # --- room -------------------------------------------------------------------------------------

    def _remove_done(self) -> None:
        if self._is_copying:
            return
        while self.segments and not self.segments[0].live and (len(self.segments) > 1 or not self.places):
            segment = self.segments.pop(0)
            self._disk.remove(segment.path, _ignored)

    def compact(self, then: Callable[[OSError | None], None]) -> bool:
        """Copy the messages of the oldest segment to the end, if they fill at most a quarter of it.

        Return whether it did. `then` is called as in `sync`; without an error the segment is
        removed.
        """
        if self._is_copying or len(self.segments) < 2 or self.segments[0].live_size * 4 > self.segments[0].size:
            return False
        oldest = self.segments[0]
        # All copies go to one segment, whatever its size, so that one sync covers them.
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
            # Messages that were not copied stay in the segment, so it stays too.
            pass

        def synced(error: OSError | None) -> None:
            # If the copies may be lost, no segment is removed any more.
            if error is None:
                self._is_copying = False
                self._remove_done()
            then(error)

        self.sync(synced)
        return True


def _ignored(error: OSError | None) -> None:
    """Ignore the error: a segment that was not removed is removed after the next start."""
