"""RecentHalves: the halves that this broker has stored last and that are not ended yet.

Most halves are ended a moment after they were stored. Their end then needs neither the log nor a
decoder. Each half is given out once: a second end of it reads the log.

A record of a write that failed must not stay here, because another record may get its place.
"""

from zlib import crc32

from rmqkit.store.contract import Put, PutResult
from rmqkit.wire.hosts import HOST_V4_SIZE
from rmqkit.wire.record import MAGIC_V1, Record

#: halves, and bytes of their records, that are kept; beyond it the oldest are dropped
HALVES_MAX, SIZE_MAX = 8_192, 8_388_608


class RecentHalves:
    """Halves by their offset in the log, the oldest first."""

    def __init__(self) -> None:
        #: the half, where it is, and its store time in ms
        self._halves: dict[int, tuple[Put, PutResult, int]] = {}
        self._size = 0

    def add(self, put: Put, result: PutResult, store_ms: int) -> None:
        """Keep a half that was appended."""
        if len(put.born_host) != HOST_V4_SIZE or len(put.store_host) != HOST_V4_SIZE:
            return  # the log changes the flags of such a record
        _, phy_offset, _, phy_offset_next, _, _ = result
        self._halves[phy_offset] = put, result, store_ms
        self._size += phy_offset_next - phy_offset
        while self._size > SIZE_MAX or len(self._halves) > HALVES_MAX:
            self._drop(next(iter(self._halves)))

    def take(self, phy_offset: int) -> Record | None:
        """Return the record of the half at this offset and forget it; None if it is not here."""
        if phy_offset not in self._halves:
            return None
        put, (_, _, queue_offset, _, _, _), store_ms = self._halves[phy_offset]
        size = self._drop(phy_offset)
        topic, queue_id, flag, sys_flag, born_ms, born_host, store_host, times, prepared_offset, body, properties, _ = put
        return tuple.__new__(
            Record,
            (
                size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, phy_offset, sys_flag, born_ms,
                born_host, store_ms, store_host, times, prepared_offset, body, topic, properties,
            ),
        )  # fmt: skip

    def _drop(self, phy_offset: int) -> int:
        """Forget a half; return the size of its record in bytes."""
        result = self._halves.pop(phy_offset)[1]
        size = result.phy_offset_next - result.phy_offset
        self._size -= size
        return size

    def clear(self) -> None:
        self._halves.clear()
        self._size = 0
