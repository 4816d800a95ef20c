"""TimerProgress: which timers are delivered; and its file, RocketMQ's `config/timercheck`.

A timer is an entry of the timer topic: it has an offset and a slot. It is delivered if

- its slot is before `read_ms` and its offset below `offset`, or
- its slot is `read_ms` and its offset below `slot_offset`,

unless its offset is in `late`: timers that were due and could not be put yet.

On the wire (code 60) and in the file, progress is Apache's seven longs. An Apache broker knows only
`read_ms` and one offset, from which on it reads the topic again. So that offset is the first one
that is late, and Apache delivers some timers twice instead of losing one. What Apache has no field
for follows behind the longs, with their checksum: after an Apache broker has written the file, that
part no longer counts.

The file must never count a delivery that a power loss could undo. So a save takes a copy of the
progress, syncs the commit log and the timer log, and only then writes the copy.

Source: `store/.../timer/TimerCheckpoint.java`.
"""

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from rmqkit.broker.special.contract import SpecialParts
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.store.timer_log import TimerLog
from rmqkit.wire.bodies import DataVersion

#: read time, timer log position, queue offset, the master's queue offset, state version, time,
#: counter
_HEAD = Struct(">7q")
#: the form before there was a version
_SHORT = Struct(">4q")
#: mark, checksum of the head, offset, offset in the slot, number of late offsets
_TAIL = Struct(">4sIqqi")
_MARK = b"rmqk"
#: bytes of the file; Apache maps one page
FILE_SIZE = 4096
#: late timers that progress can name
LATE_MAX = (FILE_SIZE - _HEAD.size - _TAIL.size) // 8


class TimerProgress(NamedTuple):
    """The delivered timers at one point in time. `log_position` counts only for the own file."""

    read_ms: int = 0
    offset: int = 0
    slot_offset: int = 0
    late: tuple[int, ...] = ()
    version: DataVersion = DataVersion()
    #: where the oldest unit begins that still counts
    log_position: int = 0

    def covers(self, slot_ms: int, offset: int) -> bool:
        """Whether the timer at this offset, with this slot, is delivered."""
        if slot_ms > self.read_ms or offset in self.late:
            return False
        return offset < (self.offset if slot_ms < self.read_ms else self.slot_offset)

    def joined(self, theirs: "TimerProgress", slot_ms_of: Callable[[int], int | None]) -> "TimerProgress":
        """Return the progress after a peer's was taken over where it is further.

        If neither is further in every respect, the one with the later read time counts: its timers
        were delivered last. With equal read times, a late timer stays late if neither side covers
        it. `slot_ms_of` returns the slot of the timer at an offset. If it returns None, the timer
        counts as one of the slot `read_ms`: twice is better than never.
        """
        if theirs.read_ms < self.read_ms:
            return self
        version = theirs.version if theirs.version.newer_than(self.version) else self.version
        if theirs.read_ms > self.read_ms:
            return theirs._replace(version=version, log_position=self.log_position)
        late = []
        for each in sorted({*self.late, *theirs.late}):
            known = slot_ms_of(each)
            slot_ms = self.read_ms if known is None else known
            if not self.covers(slot_ms, each) and not theirs.covers(slot_ms, each):
                late.append(each)
        return self._replace(
            offset=max(self.offset, theirs.offset),
            slot_offset=max(self.slot_offset, theirs.slot_offset),
            late=tuple(late),
            version=version,
        )

    def limited(self, limit: "TimerProgress | None", offset_end: int) -> "TimerProgress":
        """Return the progress after a truncation: at most `limit`, and only offsets that exist."""
        limit = self if limit is None else limit
        is_same_slot = limit.read_ms == self.read_ms
        return self._replace(
            read_ms=min(self.read_ms, limit.read_ms),
            offset=min(self.offset, limit.offset, offset_end),
            slot_offset=min(self.slot_offset, limit.slot_offset, offset_end) if is_same_slot else 0,
            late=tuple(each for each in sorted({*self.late, *limit.late}) if each < offset_end),
            log_position=0,
        )

    def encode(self) -> bytes:
        return self._replace(log_position=0).pack()

    def pack(self) -> bytes:
        """Return the bytes with the position, as the file holds them."""
        offset, late = self.offset, self.late
        if len(late) > LATE_MAX:
            late, offset = late[:LATE_MAX], late[LATE_MAX]
        version = self.version
        apache_offset = min(offset, late[0]) if late else offset
        head = _HEAD.pack(
            self.read_ms, self.log_position, apache_offset, apache_offset,
            version.state_version, version.timestamp, version.counter,
        )  # fmt: skip
        if not late and not self.slot_offset:
            return head
        tail = _TAIL.pack(_MARK, crc32(head), offset, self.slot_offset, len(late))
        return head + tail + Struct(f">{len(late)}q").pack(*late)

    @classmethod
    def decode(cls, data: bytes) -> "TimerProgress":
        """Return the progress of its bytes. Raises RemoteProtocolError."""
        if len(data) < _SHORT.size or min(_SHORT.unpack_from(data)) < 0:
            raise RemoteProtocolError(f"a timer checkpoint of {len(data)} bytes: {data[:32].hex()}")
        read_ms, position, own_offset, offset = _SHORT.unpack_from(data)
        offset = min(own_offset, offset)
        version = DataVersion()
        if len(data) >= _HEAD.size:
            *_, state_version, timestamp, counter = _HEAD.unpack_from(data)
            version = DataVersion(counter=counter, state_version=state_version, timestamp=timestamp)
        tail = data[_HEAD.size :]
        if len(tail) >= _TAIL.size and tail.startswith(_MARK):
            _, check, true_offset, slot_offset, count = _TAIL.unpack_from(tail)
            if check == crc32(data[: _HEAD.size]):
                if not 0 <= count <= LATE_MAX or len(tail) < _TAIL.size + 8 * count or true_offset < 0:
                    raise RemoteProtocolError(f"a timer checkpoint with {count} late timers in {len(data)} bytes")
                late = Struct(f">{count}q").unpack_from(tail, _TAIL.size)
                return cls(read_ms, true_offset, slot_offset, late, version, position)
        return cls(read_ms, offset, 0, (), version, position)


class TimerCheckpoint:
    """The file `timercheck`. `progress` is what it holds, or will hold after the save."""

    def __init__(self, parts: SpecialParts) -> None:
        self._store = parts.store
        self._file = AtomicFile(parts.context.disk, f"{parts.folder}/timercheck")

    def load(self) -> TimerProgress:
        """Return the saved progress. Raises AtomicFileDamaged if the file cannot be read."""
        return self._file.load(TimerProgress.decode) or TimerProgress()

    @property
    def is_pending(self) -> bool:
        """Whether a save runs, or the last one failed."""
        return self._file.busy or self._file.error is not None

    def save(self, progress: TimerProgress, log: TimerLog, then: Callable[[], None] | None = None) -> None:
        """Write this progress once the logs are durable. Call `then` in any case."""
        content = progress.pack().ljust(FILE_SIZE, b"\0")

        def log_synced(durable: bool) -> None:
            if durable:
                log.sync(timers_synced)
            elif then is not None:
                then()

        def timers_synced(durable: bool) -> None:
            if durable:
                self._file.save(lambda: content, then)
            elif then is not None:
                then()

        self._store.sync(self._store.offset_written, log_synced)
