"""Loads consume queues from their folders and finds the end of each one's valid units.

A queue's units are complete and in order. The queue ends at the first impossible unit; as in
Apache, the scan starts at the third-last file. Files that do not continue the chain are listed in
`strangers`: a power loss can leave such files if their units were never synced. A queue without
valid units is left out, and its folder is a stranger too. Recovery decides whether units are
missing.

A folder of the kind that its topic's attribute `queue.type` does not name is a stranger, and the
queue is rebuilt from the log; Apache's broker does not start with such a folder. A slave can have
one, if records reached it before the topic's configuration did.

Source: `store/.../ConsumeQueue.java` and `store/.../queue/BatchConsumeQueue.java` (`recover`),
`store/.../queue/ConsumeQueueStore.java` (`loadConsumeQueues`, `queueTypeShouldBe`).
"""

from collections.abc import Iterator
from struct import Struct

from rmqkit.store.queues.batch_queue import BATCH_UNIT, BATCH_UNIT_SIZE, BatchQueue, BatchUnit
from rmqkit.store.queues.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE, ConsumeQueue
from rmqkit.store.queues.table import QueueTable, is_topic_name

#: the record size in a unit of either kind, behind the physical offset
_SIZE = Struct(">i")
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
        #: whether a folder is of the wrong kind, so that its queue must be rebuilt
        self.is_misplaced = False
        #: the highest physical offset of any unit; -1 without units
        self.phy_max = -1
        self._table = table

    def run(self) -> Iterator[None]:
        # Batch queues first: if a topic that is not known has both kinds, they are the later ones.
        for folder, of_batches in ((self._table.batches.folder, True), (self._table.folder, False)):
            topics = self._table.disk.folders(folder)
            for done, topic in enumerate(topics):
                self.text = f"consume queues of {done}/{len(topics)} topics"
                yield from self._load_topic(folder, topic, of_batches=of_batches)
                yield

    def _load_topic(self, folder: str, topic: str, *, of_batches: bool) -> Iterator[None]:
        table = self._table
        is_batch_topic = table.batches.is_batch_topic(topic)
        for name in table.disk.folders(f"{folder}/{topic}"):
            if not (name.isascii() and name.isdigit() and str(int(name)) == name and is_topic_name(topic)):
                continue
            key = topic, int(name)
            if key in table.by_key or is_batch_topic is (not of_batches):
                self.strangers.append(f"{folder}/{topic}/{name}")
                self.is_misplaced = True
                continue
            queue = table.by_key[key] = table.new(*key, of_batches=of_batches)
            self.strangers += queue.files.load().strangers
            if isinstance(queue, BatchQueue):
                yield from self._load_batches(queue)
            else:
                yield from self._load(queue)

    def _load(self, queue: ConsumeQueue) -> Iterator[None]:
        files = queue.files
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
            self._leave_out(queue)
            return
        queue.offset_min = files.start // UNIT_SIZE
        queue.offset_written = queue.offset_max = queue.offset_synced = queue.offset_next = position
        queue.phy_end = phy_end
        self.phy_max = max(self.phy_max, phy_last)

    def _load_batches(self, queue: BatchQueue) -> Iterator[None]:
        files = queue.files
        end = files.end // BATCH_UNIT_SIZE
        number = self._scan_start(queue)
        queue.number_max = end
        phy_last = phy_end = offset_end = -1
        while number < end:
            units = queue.units(number, min(_UNITS_PER_STEP, end - number))
            before = number
            for unit in map(BatchUnit._make, BATCH_UNIT.iter_unpack(units)):
                unit_end = unit.phy_offset + unit.size
                if not unit.is_valid or unit.phy_offset <= phy_last or unit.base < offset_end or unit_end > self.phy_limit:
                    if unit.phy_offset or unit.size:
                        self.doubtful.add((queue.topic, queue.queue_id))
                    break
                phy_last, phy_end, offset_end = unit.phy_offset, unit_end, unit.base + unit.messages
                number += 1
            if number - before < len(units) // BATCH_UNIT_SIZE or not units:
                break
            yield
        first = queue.numbered(queue.number_min)
        if phy_last < 0 or first is None or not first.is_valid:
            self._leave_out(queue)
            return
        queue.offset_min = first.base
        queue.offset_max = queue.offset_next = offset_end
        queue.offset_written = queue.offset_synced = queue.number_max = number
        queue.phy_end = phy_end
        self.phy_max = max(self.phy_max, phy_last)

    def _leave_out(self, queue: ConsumeQueue) -> None:
        """Forget a queue without valid units; its folder is a stranger."""
        del self._table.by_key[queue.topic, queue.queue_id]
        if len(queue.files):
            self.strangers.append(queue.files.folder)

    def _scan_start(self, queue: ConsumeQueue) -> int:
        """Return the unit to scan from: the first one of the third-last file.

        If that file is empty, the first one of the last file before it that is not.
        """
        files = queue.files
        unit_size = queue.unit_size
        queue.offset_written = queue.offset_max = files.end // unit_size
        start = max(files.start, files.end - _FILES_SCANNED * files.file_size)
        while start > files.start:
            first = queue.units(start // unit_size, 1)
            if len(first) == unit_size and _SIZE.unpack_from(first, 8)[0] > 0:
                break
            start -= files.file_size
        return start // unit_size
