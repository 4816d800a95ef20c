"""Queues with extensions: `QueueTable` and `ConsumeQueue` plus one extension unit per entry.

Entries of the schedule topic hold no address. Their tags code is a due time, which must be readable
even if the extension (`extension.py`) is lost.

A `BatchQueue` has no extension, as in Apache: its units hold tags code and store time.

Source: `store/.../ConsumeQueue.java` (`putMessagePositionInfoWrapper`, `truncateDirtyLogicFiles`,
`deleteExpiredFile`).
"""

from collections.abc import Iterable, Sequence

from rmqkit.runtime.ports import Disk
from rmqkit.store.contract import Arrival, BitMap
from rmqkit.store.log.files import LogFiles
from rmqkit.store.log.scan import ScanResult
from rmqkit.store.queues.batch_put import ColumnPut, Put, rows_of
from rmqkit.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue
from rmqkit.store.queues.extension import ADDRESS_MAX, QueueExt
from rmqkit.store.queues.table import BatchFolder, QueueTable
from rmqkit.wire.topic_names import SCHEDULE_TOPIC


class ExtQueue(ConsumeQueue):
    """A queue whose entries point to units in `ext`."""

    ext: QueueExt
    __slots__ = ("ext", "next_unit")

    def __init__(self, topic: str, queue_id: int, files: LogFiles, ext: QueueExt) -> None:
        super().__init__(topic, queue_id, files)
        self.ext = ext
        #: store time (ms) and bits for the unit of the record that `put` adds next
        self.next_unit: tuple[int, bytes] | None = None

    def put(self, queue_offset: int, phy_offset: int, size: int, tags_code: int) -> bool:
        unit, self.next_unit = self.next_unit, None
        if not super().put(queue_offset, phy_offset, size, tags_code):
            return False
        if unit is not None:
            # The entry is the last one in the tail. Replace its tags code with the address.
            address = self.ext.put(self, tags_code, *unit)
            self.tail[-8:] = address.to_bytes(8, "big", signed=True)
        return True

    def write_tail(self) -> None:
        self.ext.write_tail()
        super().write_tail()

    def cut_to(self, offset: int) -> None:
        super().cut_to(offset)
        self.ext.forget_end()

    def restart(self, queue_offset: int) -> None:
        super().restart(queue_offset)
        self.ext.forget_end()

    def drop_expired(self, phy_min: int) -> int:
        dropped = super().drop_expired(phy_min)
        if dropped:
            first = self.unit(max(self.offset_min, self.files.start // UNIT_SIZE))
            if first is not None and first[2] <= ADDRESS_MAX:
                self.ext.drop_before(first[2])
        return dropped


class ExtQueueTable(QueueTable):
    """The queues of an engine, each with an extension. Without a `bit_map`, units have no bits."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        file_size: int,
        batches: BatchFolder,
        *,
        ext_folder: str,
        ext_file_size: int,
        bit_map: BitMap | None,
    ) -> None:
        super().__init__(disk, folder, file_size, batches)
        self.ext_folder = ext_folder
        self.ext_file_size = ext_file_size
        self._bit_map = bit_map

    def new_plain(self, topic: str, queue_id: int) -> ConsumeQueue:
        files = LogFiles(self.disk, f"{self.folder}/{topic}/{queue_id}", self.file_size)
        ext_files = LogFiles(self.disk, f"{self.ext_folder}/{topic}/{queue_id}", self.ext_file_size)
        return ExtQueue(topic, queue_id, files, QueueExt(topic, queue_id, ext_files))

    def extend(self, puts: Sequence[Put], arrivals: list[Arrival]) -> None:
        if self.has_batches:
            puts = self.extend_batches(puts, arrivals)
        bit_map = self._bit_map
        changed: list[Put] = []
        for put in puts:
            queue, queue_offset, phy_offset, size, tags_code, properties, store_ms = put
            if queue_offset >= 0 and isinstance(queue, ExtQueue) and queue.topic != SCHEDULE_TOPIC:
                bits = bit_map(queue.topic, properties) if bit_map is not None else b""
                address = queue.ext.put(queue, tags_code, store_ms, bits)
                put = (queue, queue_offset, phy_offset, size, address, properties, store_ms)
            changed.append(put)
        first = len(arrivals)
        super().extend(changed, arrivals)
        codes = iter([put[4] for put in puts if put[1] >= 0])
        # Arrivals carry the tags code, not the address: waiting pulls filter by it.
        arrivals[first:] = [arrival._replace(tags_code=next(codes)) for arrival in arrivals[first:]]

    def extend_mixed(self, puts: Sequence[Put | ColumnPut], arrivals: list[Arrival]) -> None:
        self.extend(rows_of(puts), arrivals)

    def put(self, record: ScanResult) -> Arrival | None:
        if record.topic != SCHEDULE_TOPIC:
            queue = self.by_key.get((record.topic, record.queue_id)) or self.make(record.topic, record.queue_id)
            if isinstance(queue, ExtQueue):
                bits = self._bit_map(record.topic, record.properties) if self._bit_map is not None else b""
                queue.next_unit = (record.store_ms, bits)
        return super().put(record)

    def remove(self, topics: Iterable[str]) -> None:
        topics = list(topics)
        for topic in topics:
            # Before the queue's own folder: once that is removed, new files may be written.
            if topic in self.removing:
                self.disk.remove(f"{self.ext_folder}/{topic}", _ignore)
        super().remove(topics)


def _ignore(error: OSError | None) -> None:
    """Ignore the error: no entry points to the files that stay."""
