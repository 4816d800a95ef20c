"""Loads consume queues from their folders and finds the end of each one's valid units.

A queue's units are complete and in order. The queue ends at the first impossible unit; as in
Apache, the scan starts at the third-last file. Files that do not continue the chain are listed in
`strangers`: a power loss can leave such files if their units were never synced. A queue without
valid units is left out, and its folder is a stranger too. Recovery decides whether units are
missing.

Source: `store/.../ConsumeQueue.java` (`recover`), `store/.../queue/ConsumeQueueStore.java`
(`loadConsumeQueues`).
"""

from collections.abc import Iterator

from rmqkit.store.queues.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE, ConsumeQueue
from rmqkit.store.queues.table import QueueTable

_UNITS_PER_STEP = 16_384
_FILES_SCANNED = 3


class QueueLoad:
    """Loads all queues of a table.

    `run` is a generator with bounded steps; `text` is its progress. A unit is impossible if its
    record would end behind `phy_limit`.
    """

    def __init__(self, table: QueueTable, phy_limit: int) -> None:
        self.text = ""
        self.phy_limit = phy_limit
        #: queues whose first impossible unit is not just zeroes
        self.doubtful: set[tuple[str, int]] = set()
        #: files and folders to remove before anything is written
        self.strangers: list[str] = []
        #: the highest physical offset of any unit; -1 without units
        self.phy_max = -1
        self._table = table

    def run(self) -> Iterator[None]:
        disk, folder = self._table.disk, self._table.folder
        topics = disk.folders(folder)
        for done, topic in enumerate(topics):
            self.text = f"consume queues of {done}/{len(topics)} topics"
            for name in disk.folders(f"{folder}/{topic}"):
                if name.isascii() and name.isdigit() and str(int(name)) == name:
                    queue = self._table.make(topic, int(name))
                    if queue is not None:
                        yield from self._load(queue)
            yield

    def _load(self, queue: ConsumeQueue) -> Iterator[None]:
        files = queue.files
        loaded = files.load()
        self.strangers += loaded.strangers
        position = self._scan_start(queue)
        end = files.end // UNIT_SIZE
        phy_last = phy_end = -1
        while position < end:
            units = queue.units(position, min(_UNITS_PER_STEP, end - position))
            before = position
            for phy_offset, size, _ in UNIT.iter_unpack(units):
                if size != PRE_BLANK_SIZE:
                    if phy_offset <= phy_last or size <= 0 or phy_offset + size > self.phy_limit:
                        if phy_offset or size:
                            self.doubtful.add((queue.topic, queue.queue_id))
                        break
                    phy_last, phy_end = phy_offset, phy_offset + size
                position += 1
            if position - before < len(units) // UNIT_SIZE or not units:
                break
            yield
        if phy_last < 0:
            del self._table.by_key[queue.topic, queue.queue_id]
            if len(files):
                self.strangers.append(files.folder)
            return
        queue.offset_min = files.start // UNIT_SIZE
        queue.offset_written = queue.offset_max = queue.offset_synced = queue.offset_next = position
        queue.phy_end = phy_end
        self.phy_max = max(self.phy_max, phy_last)

    def _scan_start(self, queue: ConsumeQueue) -> int:
        """Return the unit to scan from: the first one of the third-last file.

        If that file is empty, the first one of the last file before it that is not.
        """
        files = queue.files
        queue.offset_written = queue.offset_max = files.end // UNIT_SIZE
        start = max(files.start, files.end - _FILES_SCANNED * files.file_size)
        while start > files.start:
            first = queue.units(start // UNIT_SIZE, 1)
            if len(first) == UNIT_SIZE and UNIT.unpack(first)[1] > 0:
                break
            start -= files.file_size
        return start // UNIT_SIZE
