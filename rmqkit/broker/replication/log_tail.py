"""What tells logs apart: the last bytes, as one broker sends them for another to compare, and the start of the broker.

Two logs with the same bytes at the same place are the same log up to there.
"""

from typing import NamedTuple
from zlib import crc32

from rmqkit.broker.context import BrokerContext
from rmqkit.store.contract import StorageEngine

#: bytes that are sent for comparison
SIZE = 65_536
#: bytes that are compared at a peer's request at most
SIZE_MAX = 1_048_576


class LogTail(NamedTuple):
    """`size` is 0 for a log without bytes; None where a peer says nothing."""

    offset: int | None
    size: int | None
    crc: int | None


class LogStart:
    """One start of a broker: a name for it, and where its log ended when the store was ready."""

    def __init__(self, context: BrokerContext) -> None:
        self.id = f"{context.clock.wall_ms:x}-{context.entropy.getrandbits(32):08x}"
        self.end = 0


def tail_of(context: BrokerContext, store: StorageEngine, end: int) -> LogTail:
    """The last bytes of the log in front of `end`; all of one file."""
    file_size = context.config.commit_log.mapped_file_size_commit_log
    begin = max(store.offset_min, end - SIZE, (end - 1) // file_size * file_size if end else 0)
    data = store.read_log(begin, end - begin) if end > begin else b""
    return LogTail(begin, len(data), crc32(data))


def is_same(store: StorageEngine, tail: LogTail) -> bool | None:
    """Whether this log has the same bytes there; None if it does not have those bytes, or there are none to compare."""
    offset, size, crc = tail
    if offset is None or size is None or crc is None or not 0 < size <= SIZE_MAX:
        return None
    if offset < store.offset_min or offset + size > store.offset_written:
        return None
    data = store.read_log(offset, size)
    return len(data) == size and crc32(data) == crc
