"""SingleLog: the controller's log for one controller. Every entry is synced before it is committed.

One controller is enough for brokers to fail over. While it is down, no master is elected, and
masters refuse messages once their lease ends. Its disk is the only copy of the table.

Files, in the folder of the log:

    snapshot                        the table after an entry, replaced as a whole
    log-00000000000000001234        the entries behind a snapshot that ends with entry 1234

A log file has a header, and frames. A frame has the entries of one turn: magic, size, CRC, index of
the first entry, number of entries, then size and bytes of each entry. The next frame is written
after the sync of this one. So a frame that cannot be read is

- a torn write, if no readable frame follows. It was never committed: it is cut off;
- damage, if one follows. The start is refused, since committed entries are lost.

After `snapshot_entries` entries the log writes a snapshot, then starts a file, then removes the old
one. Entries that are proposed meanwhile wait. A file that starts behind the snapshot is a gap, so
an old `snapshot.bak` is never taken for the present one.

A full disk makes only the proposals of this turn fail. After a failed sync the log accepts nothing
more.
"""

import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from rmqkit.controller.contract import (
    ENTRY_SIZE_MAX,
    ControllerLogFault,
    Leadership,
    LogOutcome,
    LogParts,
    Settled,
)

DUTY = "controller-log"
TERM = 1
FRAME_ENTRIES_MAX = 256
MAGIC = b"RKL1"
FILE_MAGIC = b"RKF1"
SNAPSHOT_MAGIC = b"RKS1"
#: magic, index of the last entry before the file, CRC of it
_FILE_HEAD = struct.Struct(">4sQI")
#: magic, bytes after this head, CRC of them
_FRAME_HEAD = struct.Struct(">4sII")
#: index of the first entry, number of entries
_FRAME_BODY = struct.Struct(">QI")
_SIZE = struct.Struct(">I")
#: magic, index of the last entry in the snapshot, CRC of index and table
_SNAPSHOT_HEAD = struct.Struct(">4sQI")
_INDEX = struct.Struct(">Q")
_LOG_NAME = "log-"


class _Proposal(NamedTuple):
    entry: bytes
    then: Settled


class _Frame(NamedTuple):
    first: int
    entries: Sequence[bytes]
    end: int


class SingleLog:
    """The log of a controller that has no peers."""

    def __init__(self, parts: LogParts) -> None:
        self.leadership = Leadership()
        self.failed = ""
        self._parts = parts
        self._disk = parts.ports.disk
        self._target = parts.target
        #: index of the last committed entry
        self._index = 0
        self._snapshot_index = 0
        self._path = ""
        #: where the next frame goes
        self._end = 0
        self._proposals: deque[_Proposal] = deque()
        #: those of the frame that is being synced
        self._syncing: list[_Proposal] = []
        self._settled: deque[tuple[Settled, LogOutcome]] = deque()
        #: no frame may be written: a torn end is cut off, or a snapshot is written
        self._held = False
        self._snapshot_due = 0

    @property
    def busy(self) -> bool:
        return bool(self._syncing) or self._held

    def start(self) -> None:
        self._parts.duties.add(DUTY, lambda now_ms: None, None)
        self._snapshot_index = self._index = self._restore()
        self._path, base = self._choose_file()
        if not self._path:
            self._begin_file(self._index)
        else:
            self._replay(base)
        self._snapshot_due = self._snapshot_index + self._parts.snapshot_entries
        self._lead()

    def propose(self, entry: bytes, then: Settled) -> None:
        if len(entry) > ENTRY_SIZE_MAX:
            raise ValueError(f"an entry of the controller's log has at most {ENTRY_SIZE_MAX} bytes, not {len(entry)}")
        if self.leadership.is_self:
            self._proposals.append(_Proposal(entry, then))
        else:
            self._settled.append((then, LogOutcome.LOST))
        self._wake()

    def barrier(self, then: Settled) -> None:
        outcome = LogOutcome.COMMITTED if self.leadership.is_self else LogOutcome.LOST
        self._settled.append((then, outcome))
        self._wake()

    def receive(self, peer_id: str, message: bytes) -> None:
        """Drop the message: there are no peers."""

    def settle(self) -> None:
        while self._settled:
            then, outcome = self._settled.popleft()
            then(outcome)
        if self._proposals and not self._syncing and not self._held:
            self._write()

    def stop(self) -> None:
        self._resign()

    def facts(self) -> Mapping[str, str]:
        return {
            "type": "single",
            "entries": str(self._index),
            "snapshotEntries": str(self._snapshot_index),
            "bytes": str(self._end),
            "failed": self.failed,
        }

    # --- leadership

    def _lead(self) -> None:
        own = next(peer for peer in self._parts.peers if peer.id == self._parts.self_id)
        self.leadership = Leadership(TERM, own.id, own.address, True)
        self._target.leadership_changed(self.leadership)

    def _resign(self) -> None:
        if not self.leadership.is_self:
            return
        self.leadership = Leadership(TERM)
        waiting, self._proposals = self._proposals, deque()
        for each in waiting:
            each.then(LogOutcome.FAILED)
        self._target.leadership_changed(self.leadership)

    def _wake(self) -> None:
        """Make sure that a turn follows, even if this is called at the end of one."""
        self._parts.duties.wake(DUTY, self._parts.ports.clock.mono_ms)

    # --- writing

    def _write(self) -> None:
        batch = [self._proposals.popleft() for _ in range(min(len(self._proposals), FRAME_ENTRIES_MAX))]
        body = bytearray(_FRAME_BODY.pack(self._index + 1, len(batch)))
        for each in batch:
            body += _SIZE.pack(len(each.entry)) + each.entry
        frame = _FRAME_HEAD.pack(MAGIC, len(body), crc32(body)) + body
        try:
            self._disk.write(self._path, self._end, (frame,))
        except OSError as error:
            self._parts.ports.log.error("controller-log-not-written", path=self._path, error=str(error))
            self._settled.extend((each.then, LogOutcome.FAILED) for each in batch)
            self._wake()
            return
        self._end += len(frame)
        self._syncing = batch
        self._disk.sync(self._path, self._synced)

    def _synced(self, error: OSError | None) -> None:
        batch, self._syncing = self._syncing, []
        if error is not None:
            for each in batch:
                each.then(LogOutcome.LOST)
            self._fail(f"{self._path} cannot be synced: {error}")
            return
        for each in batch:
            self._index += 1
            self._target.apply(each.entry)
            each.then(LogOutcome.COMMITTED)
        if self._index >= self._snapshot_due:
            self._write_snapshot()

    def _fail(self, why: str) -> None:
        self.failed = why
        self._parts.ports.log.error("controller-log-failed", reason=why)
        self._resign()

    def _write_snapshot(self) -> None:
        self._held = True
        index = self._index
        table = self._target.snapshot()
        content = _SNAPSHOT_HEAD.pack(SNAPSHOT_MAGIC, index, crc32(_INDEX.pack(index) + table)) + table

        def done(error: OSError | None) -> None:
            self._held = False
            self._snapshot_due = index + self._parts.snapshot_entries
            if error is not None:
                self._parts.ports.log.warning("controller-snapshot-not-written", error=str(error))
                self._wake()
                return
            self._snapshot_index = index
            self._begin_file(index)

        self._disk.replace(self._snapshot_path, content, done)

    def _begin_file(self, index: int) -> None:
        """Continue in a new file behind entry `index`; remove the old one once that is durable."""
        old, path = self._path, self._file_path(index)
        head = _FILE_HEAD.pack(FILE_MAGIC, index, crc32(_INDEX.pack(index)))
        self._held = True

        def synced(error: OSError | None) -> None:
            self._held = False
            if error is not None:
                self._fail(f"{path} cannot be synced: {error}")
                return
            self._path, self._end = path, len(head)
            if old:
                self._disk.remove(old, _ignore)
            self._wake()

        try:
            self._disk.write(path, 0, (head,))
        except OSError as error:
            if not old:
                raise ControllerLogFault(f"the controller's log {path} cannot be written: {error}") from None
            self._held = False
            self._parts.ports.log.warning("controller-log-not-continued", path=path, error=str(error))
            return
        self._disk.sync(path, synced)

    # --- reading

    @property
    def _snapshot_path(self) -> str:
        return f"{self._parts.folder}/snapshot"

    def _file_path(self, index: int) -> str:
        return f"{self._parts.folder}/{_LOG_NAME}{index:020}"

    def _restore(self) -> int:
        """Restore the newest readable snapshot; return its last entry's index, 0 without one."""
        damage = ""
        for path in (self._snapshot_path, f"{self._snapshot_path}.bak"):
            size = self._disk.size(path)
            if not size:
                continue
            content = self._disk.read(path, 0, size)
            if len(content) >= _SNAPSHOT_HEAD.size:
                magic, index, crc = _SNAPSHOT_HEAD.unpack_from(content)
                table = content[_SNAPSHOT_HEAD.size :]
                if magic == SNAPSHOT_MAGIC and crc == crc32(_INDEX.pack(index) + table):
                    self._target.restore(table)
                    return int(index)
            damage = damage or path
        if damage:
            raise ControllerLogFault(f"{damage} is damaged; restore the folder {self._parts.folder} from a copy")
        return 0

    def _choose_file(self) -> tuple[str, int]:
        """Return path and base of the newest file with a whole header, and remove all others."""
        found = [each for each in self._disk.list(self._parts.folder) if each.name.startswith(_LOG_NAME)]
        chosen, base = "", 0
        for each in reversed(found):
            path = f"{self._parts.folder}/{each.name}"
            head = self._disk.read(path, 0, _FILE_HEAD.size)
            if not chosen and len(head) == _FILE_HEAD.size:
                magic, index, crc = _FILE_HEAD.unpack(head)
                if magic == FILE_MAGIC and crc == crc32(_INDEX.pack(index)):
                    chosen, base = path, int(index)
                    continue
            self._disk.remove(path, _ignore)
        if base > self._snapshot_index:
            raise ControllerLogFault(
                f"{chosen} begins behind entry {base}, but the snapshot ends with {self._snapshot_index}: the snapshot is "
                f"lost or old; restore the folder {self._parts.folder} from a copy"
            )
        return chosen, base

    def _replay(self, base: int) -> None:
        """Apply the entries behind the snapshot; cut off a torn end."""
        size = self._disk.size(self._path) or 0
        content = self._disk.read(self._path, 0, size)
        position, last = _FILE_HEAD.size, base
        while (frame := _frame_at(content, position)) is not None and frame.first == last + 1:
            for entry in frame.entries:
                last += 1
                if last > self._index:
                    self._apply(last, entry)
            position = frame.end
        if last < self._index:
            # The snapshot is newer than all of the file: the next entries go into a file behind it.
            self._begin_file(self._index)
            return
        self._index, self._end = last, position
        if position == len(content):
            return
        for later in _magics(content, position + 1):
            if _frame_at(content, later) is not None:
                raise ControllerLogFault(
                    f"{self._path} is damaged at byte {position}, and committed entries follow; restore the folder "
                    f"{self._parts.folder} from a copy"
                )
        self._parts.ports.log.warning("controller-log-cut", path=self._path, size=position, cut=len(content) - position)
        self._held = True
        self._disk.truncate(self._path, position, self._truncated)

    def _apply(self, index: int, entry: bytes) -> None:
        try:
            self._target.apply(entry)
        except ControllerLogFault as fault:
            advice = f"restore the folder {self._parts.folder} from a copy"
            raise ControllerLogFault(f"{self._path}: entry {index} cannot be applied: {fault}; {advice}") from None

    def _truncated(self, error: OSError | None) -> None:
        self._held = False
        if error is not None:
            self._fail(f"{self._path} cannot be cut: {error}")
        self._wake()


def make_single(parts: LogParts) -> SingleLog:
    """Return the log. Raises ControllerLogFault if the group has several controllers."""
    if len(parts.peers) != 1:
        raise ControllerLogFault(
            f"controllerType=single is for one controller, and controllerDLegerPeers has {len(parts.peers)}: set raft"
        )
    return SingleLog(parts)


def _frame_at(content: bytes, position: int) -> _Frame | None:
    """Return the frame at a position, None if there is no whole one."""
    start = position + _FRAME_HEAD.size
    if len(content) < start:
        return None
    magic, size, crc = _FRAME_HEAD.unpack_from(content, position)
    body = memoryview(content)[start : start + size]
    if magic != MAGIC or len(body) < size or size < _FRAME_BODY.size or crc32(body) != crc:
        return None
    first, count = _FRAME_BODY.unpack_from(body)
    entries: list[bytes] = []
    at = _FRAME_BODY.size
    for _ in range(count):
        (length,) = _SIZE.unpack_from(body, at)
        at += _SIZE.size
        entries.append(bytes(body[at : at + length]))
        at += length
    return _Frame(first, entries, start + size)


def _magics(content: bytes, position: int) -> Iterator[int]:
    while (position := content.find(MAGIC, position)) >= 0:
        yield position
        position += 1


def _ignore(error: OSError | None) -> None:
    """A file that stays is removed at the next start."""
