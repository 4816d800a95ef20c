"""Log tails, by which two brokers compare their logs, and `LogStart`, the id of a broker's start.

A broker sends the CRC32 of the last bytes of its log. If another log has the same bytes at the same
offset, the two logs are the same up to there.
"""

from typing import NamedTuple
from zlib import crc32

from rmqkit.broker.context import BrokerContext
from rmqkit.store.contract import StorageEngine

#: bytes at the end of the log that the checksum covers
SIZE = 65_536
#: most bytes that a broker compares when a peer asks
SIZE_MAX = 1_048_576


def whole_end(store: StorageEngine, offset: int) -> int:
    """Return `offset`, or the end of the last record that the queues have if that is smaller.

    A slave reports half a record as well, so a confirm offset may be in the middle of one.
    """
    return min(offset, store.offset_dispatched)


class LogTail(NamedTuple):
    """`size` bytes at `offset` and their CRC32.

    `size` is 0 for an empty log; None if the peer sends no tail.
    """

    offset: int | None
    size: int | None
    crc: int | None


class LogStart:
    """One start of a broker: its unique id, and where the log ended when the store was ready."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self.id = self._make()
        self.end = 0

    def _make(self) -> str:
        return f"{self._context.clock.wall_ms:x}-{self._context.entropy.getrandbits(32):08x}"

    def renew(self, end: int) -> None:
        """Take a new start id as master: a slave that was elected counts as started."""
        self.id, self.end = self._make(), end


def tail_of(context: BrokerContext, store: StorageEngine, end: int) -> LogTail:
    """Return the tail of the log in front of `end`: at most `SIZE` bytes, all from one file."""
    file_size = context.config.commit_log.mapped_file_size_commit_log
    begin = max(store.offset_min, end - SIZE, (end - 1) // file_size * file_size if end else 0)
    data = store.read_log(begin, end - begin) if end > begin else b""
    return LogTail(begin, len(data), crc32(data))


def is_same(store: StorageEngine, tail: LogTail) -> bool | None:
    """Return whether this log has the same bytes as `tail` at the same offset.

    None if this log does not have that range, or if the tail is empty, missing or above `SIZE_MAX`.
    """
    offset, size, crc = tail
    if offset is None or size is None or crc is None or not 0 < size <= SIZE_MAX:
        return None
    if offset < store.offset_min or offset + size > store.offset_written:
        return None
    data = store.read_log(offset, size)
    return len(data) == size and crc32(data) == crc
