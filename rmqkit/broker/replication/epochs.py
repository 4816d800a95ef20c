"""Epochs: which part of the log was written under which master (`epochFileCheckpoint`).

An election starts an epoch, and the elected master notes where its log ends at that moment: the
epoch's start. Each record belongs to the newest epoch that starts at or before it. Slaves note an
epoch when its first bytes arrive. Two logs are the same up to the end of the newest epoch that both
have with the same start, or up to the end of the shorter log in it (`common_end`).

The rules of the list:

- Epochs and starts grow. If an epoch starts where the one before it starts, that one is empty and
  is dropped: the newest epoch counts. (Apache refuses such an epoch, and then reports the old one.)
- The start of an epoch never moves. A master that begins an epoch again keeps the start. If its log
  ends before that start, it has lost records, and `begin` refuses.
- A truncation of the log removes the epochs that start at or behind the new end. (Apache 5.5.0
  keeps them.)
- Retention removes the epochs that end before the log begins.

The file is Apache's: line 1 the number of entries, line 2 the CRC32 of the rest without its highest
bit (0: not checked), then a line `epoch-start` for each entry. It may lack the newest epoch after a
crash. Then the older epoch seems to continue, and the comparison with the master truncates the log
at the end of that epoch. No message is lost: the slave copies these bytes again.

Source: `store/.../ha/autoswitch/EpochFileCache.java`, `EpochStore`, `CheckpointFile.java`.
"""

from collections.abc import Callable, Sequence
from zlib import crc32

from rmqkit.errors import RmqkitError
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.ports import Disk
from rmqkit.wire.bodies import EpochEntry
from rmqkit.wire.ha.epochs import EpochStart

#: the epoch of a log without epochs
NO_EPOCH = EpochStart(0, 0)


class EpochError(RmqkitError):
    """An epoch cannot begin where this log ends."""


class Epochs:
    """The epochs of one log, oldest first, and their file."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.entries: list[EpochStart] = []
        self._file = AtomicFile(disk, path)

    def validate(self) -> None:
        pairs = zip(self.entries, self.entries[1:], strict=False)
        assert all(one.epoch < two.epoch and one.start < two.start for one, two in pairs), self.entries

    def load(self) -> None:
        """Read the file. Raises AtomicFileDamaged."""
        self.entries = self._file.load(decode) or []

    def save(self, then: Callable[[], None] | None = None) -> None:
        self._file.save(lambda: encode(self.entries), then)

    @property
    def save_error(self) -> OSError | None:
        return self._file.error

    @property
    def last(self) -> int:
        """The newest epoch; -1 if there is none."""
        return self.entries[-1].epoch if self.entries else -1

    def begin(self, epoch: int, start: int) -> bool:
        """Note that the log is written under `epoch` from `start` on. Return whether that is new.

        Raises EpochError if the epoch is older than the newest one, or starts before it.
        """
        if self.entries:
            last = self.entries[-1]
            if epoch < last.epoch:
                raise EpochError(f"epoch {epoch} is older than epoch {last.epoch} of this log")
            if start < last.start:
                raise EpochError(f"the log ends at {start}, before the start {last.start} of its epoch {last.epoch}")
            if epoch == last.epoch:
                return False
            if start == last.start:
                self.entries.pop()
        self.entries.append(EpochStart(epoch, start))
        return True

    def at(self, offset: int) -> EpochStart:
        """Return the epoch of the byte at `offset`."""
        return next((each for each in reversed(self.entries) if each.start <= offset), NO_EPOCH)

    def of_transfer(self, offset: int, named: EpochStart, theirs: Sequence[EpochStart]) -> EpochStart:
        """Return the epoch of a master's bytes at `offset`, NO_EPOCH if it is not new or unknown.

        A transfer names its epoch. But Apache 5.5.0's master names the next one in the last
        transfer of an epoch, so it never names an epoch that fits into one transfer: its handshake
        (`theirs`) has that one (`AutoSwitchHAConnection.transferToSlave`).
        """
        if named.start <= offset:
            return named
        known = (each for each in reversed(theirs) if each.start <= offset and each.epoch > self.last)
        return next(known, NO_EPOCH)

    def end_at(self, offset: int, log_end: int) -> int:
        """Return where the epoch of the byte at `offset` ends."""
        return next((each.start for each in self.entries if each.start > offset), log_end)

    def common_end(self, theirs: Sequence[EpochStart], their_end: int, own_end: int) -> int | None:
        """Return up to where this log and another one are the same; None if that is unknown.

        Epochs without bytes do not count. A log without epochs was written before controller mode,
        and counts as the same. If the other log was written from its first byte on under epochs
        that are newer than all of ours, nothing is.
        """
        mine = [each for each in self.entries if each.start < own_end]
        if not mine:
            return min(their_end, own_end)
        others = {each: number for number, each in enumerate(theirs)}
        for number in range(len(mine) - 1, -1, -1):
            other = others.get(mine[number])
            if other is not None:
                return min(_end(mine, number, own_end), _end(theirs, other, their_end))
        is_older = bool(theirs) and mine[-1].epoch < theirs[0].epoch
        return 0 if is_older and theirs[0].start == mine[0].start == 0 else None

    def cut(self, offset: int) -> None:
        """Forget the epochs of the bytes from `offset` on: the log ends there."""
        self.entries = [each for each in self.entries if each.start < offset]

    def prune(self, offset_min: int) -> bool:
        """Forget the epochs that end before the log begins. Return whether there was one."""
        count = sum(following.start <= offset_min for following in self.entries[1:])
        del self.entries[:count]
        return bool(count)

    def bodies(self, log_end: int) -> list[EpochEntry]:
        """Return the entries as GET_BROKER_EPOCH_CACHE (1007) shows them."""
        return [
            EpochEntry(epoch=each.epoch, start_offset=each.start, end_offset=_end(self.entries, number, log_end))
            for number, each in enumerate(self.entries)
        ]


def _end(entries: Sequence[EpochStart], number: int, log_end: int) -> int:
    return entries[number + 1].start if number + 1 < len(entries) else log_end


def encode(entries: Sequence[EpochStart]) -> bytes:
    """Return the content of the file."""
    text = "".join(f"{each.epoch}-{each.start}\n" for each in entries).encode()
    return b"%d\n%d\n%b" % (len(entries), crc32(text) & 0x7FFFFFFF, text)


def decode(content: bytes) -> list[EpochStart]:
    """Return the entries. Raises ValueError if the content is damaged."""
    count, crc, *rest = content.split(b"\n", 2)
    body = rest[0] if rest else b""
    if int(crc) and int(crc) != crc32(body) & 0x7FFFFFFF:
        raise ValueError("the checksum of the epochs is wrong")
    found = [EpochStart(*map(int, line.split(b"-"))) for line in body.split()]
    if len(found) != int(count):
        raise ValueError(f"{len(found)} epochs, and the first line says {int(count)}")
    kept: list[EpochStart] = []
    for each in found:
        # Apache's file may have epochs from before a truncation.
        kept = [before for before in kept if before.epoch < each.epoch and before.start < each.start]
        kept.append(each)
    return kept
