"""Loading consume queues from their folders: how far each can be believed.

A queue's units are whole, in order, and end where the first impossible one stands (upstream scans from the third-last
file as well). Files that cannot continue the chain are named in `strangers`: a power loss may leave such files of units
that were never synced. A queue with nothing to believe is left out, its folder is a stranger too. Whether too little is
left is for recovery to say.

Source: `store/.../ConsumeQueue.java` (`recover`), `store/.../queue/ConsumeQueueStore.java` (`loadConsumeQueues`).
"""

from collections.abc import Iterator

from rmqkit.store.queues.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE, ConsumeQueue
from rmqkit.store.queues.table import QueueTable

_UNITS_PER_STEP = 16_384
_FILES_SCANNED = 3


class QueueLoad:
    """`run` is a generator: each step is bounded, `text` says where it is. No record lies at or behind `phy_limit`."""

    def __init__(self, table: QueueTable, phy_limit: int) -> None:
        self.text = ""
        self.phy_limit = phy_limit
        #: queues that end at something that is neither a unit nor nothing
        self.doubtful: set[tuple[str, int]] = set()
        #: files and folders that have to go before anything is written
        self.strangers: list[str] = []
        #: the highest physical offset any unit has
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
        """The first unit of the third-last file, or of the last one before it that holds anything."""
        files = queue.files
        queue.offset_written = queue.offset_max = files.end // UNIT_SIZE
        start = max(files.start, files.end - _FILES_SCANNED * files.file_size)
        while start > files.start:
            first = queue.units(start // UNIT_SIZE, 1)
            if len(first) == UNIT_SIZE and UNIT.unpack(first)[1] > 0:
                break
            start -= files.file_size
        return start // UNIT_SIZE
