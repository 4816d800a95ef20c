"""All consume queues of an engine, by (topic, queue id).

A queue is created by its first message and removed when its topic is deleted. Units arrive in two
ways:

- `extend` is the hot path: records of this turn whose queue, offset and tags code are known.
  `extend_mixed` also takes uniform batches and runs, whole.
- `put` takes records read from the log (recovery, replication).

A topic has queues of one kind: `ConsumeQueue`, or `BatchQueue` in `batchconsumequeue/` if its
attribute `queue.type` is BatchCQ. The kind is chosen when a queue is made. A slave may get records
of a topic that it does not know yet. It then makes a plain queue, and replaces it when an inner
batch arrives (`batch_queue`).

Tails wait in memory for `write_some`. The table counts the waiting units, so that the engine can
limit them.

While the folder of a deleted topic is being removed, nothing is written for a recreated topic of
the same name. Its units stay in the tail until the removal has ended.

Source: `store/.../queue/ConsumeQueueStore.java`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from operator import add
from struct import Struct
from typing import NamedTuple

from rmqkit.runtime.connection import Buffer
from rmqkit.runtime.ports import Disk
from rmqkit.store.contract import Arrival, IsBatchTopic
from rmqkit.store.log.files import LogFiles
from rmqkit.store.log.scan import ScanResult, is_queued, scan
from rmqkit.store.queues.batch_put import BatchPut, ColumnPut, Put, RunPut, queues_of
from rmqkit.store.queues.batch_queue import BatchQueue, message_count
from rmqkit.store.queues.consume_queue import (
    PRE_BLANK_SIZE,
    TOPIC_SIZE_MAX,
    UNIT,
    UNIT_SIZE,
    UNITS_PER_PACK,
    ConsumeQueue,
    layout_of_units,
)
from rmqkit.wire.codes import MessageSysFlag

#: cost of creating a file, in plain writes
FILE_COST = 16
#: in place of the queue offset: a record without a unit
PREPARED, ROLLED_BACK = -1, -2
_UNIT = Struct(">qiq").pack
_new = tuple.__new__
_INNER_BATCH = MessageSysFlag.INNER_BATCH
#: units per read while a plain queue is replaced
_UNITS_PER_READ = 4096


class BatchFolder(NamedTuple):
    """Where the queues of BatchCQ topics are, and which topics those are.

    `record_at` returns the record at a physical offset; None if it has left the log.
    """

    folder: str
    file_size: int
    is_batch_topic: IsBatchTopic
    record_at: Callable[[int], Buffer | None]


class QueueTable:
    """All queues, and which of their tails must still be written."""

    def __init__(self, disk: Disk, folder: str, file_size: int, batches: BatchFolder) -> None:
        self.disk = disk
        self.folder = folder
        self.file_size = file_size
        self.batches = batches
        #: whether any queue was ever a `BatchQueue`: if not, `extend` need not look for them
        self.has_batches = False
        self.by_key: dict[tuple[str, int], ConsumeQueue] = {}
        #: number of units in tails
        self.waiting = 0
        #: queues with a tail, oldest tail first
        self.dirty: list[ConsumeQueue] = []
        #: queues whose tails were written since `QueueFlush` last checked them
        self.written: list[ConsumeQueue] = []
        #: topics whose folders are being removed -> number of removals
        self.removing: dict[str, int] = {}
        self.on_removed: Callable[[], None] = lambda: None
        #: why the last write of tails failed; "" if it succeeded
        self.error = ""

    def __len__(self) -> int:
        return len(self.by_key)

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self.by_key.values()))

    def make(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, creating it if absent; None if the topic or the queue id is invalid."""
        queue = self.by_key.get((topic, queue_id))
        if queue is None and queue_id >= 0 and is_topic_name(topic):
            queue = self.new(topic, queue_id, of_batches=self.batches.is_batch_topic(topic) or False)
            self.by_key[topic, queue_id] = queue
        return queue

    def new(self, topic: str, queue_id: int, *, of_batches: bool) -> ConsumeQueue:
        """Return a new queue that is not in the table yet."""
        if not of_batches:
            return self.new_plain(topic, queue_id)
        self.has_batches = True
        files = LogFiles(self.disk, f"{self.batches.folder}/{topic}/{queue_id}", self.batches.file_size)
        return BatchQueue(topic, queue_id, files)

    def new_plain(self, topic: str, queue_id: int) -> ConsumeQueue:
        return ConsumeQueue(topic, queue_id, LogFiles(self.disk, f"{self.folder}/{topic}/{queue_id}", self.file_size))

    def batch_queue(self, plain: ConsumeQueue) -> BatchQueue:
        """Replace a plain queue by a `BatchQueue` with the same records. Raises OSError.

        Their queue offsets and numbers of messages are those of the records: the plain queue has
        one entry even for an inner batch, which came while a deleted topic was known as a plain
        one. Records that have left the log are dropped. Only a few records can arrive before their
        topic's configuration does, so this is not done in steps.
        """
        key = plain.topic, plain.queue_id
        queue = self.new(*key, of_batches=True)
        assert isinstance(queue, BatchQueue)
        offset = plain.offset_min
        while offset < plain.offset_max and (units := plain.units(offset, _UNITS_PER_READ)):
            for phy_offset, size, _ in UNIT.iter_unpack(units):
                record = self.batches.record_at(phy_offset) if size != PRE_BLANK_SIZE else None
                found = None if record is None else scan(record, 0, phy_offset, check_crc=False)
                if found is not None:
                    _, _, _, queue_offset, _, _, store_ms, tags_code, properties = found
                    queue.put(queue_offset, phy_offset, size, tags_code, store_ms, message_count(properties))
            offset += len(units) // UNIT_SIZE
        queue.offset_next = max(queue.offset_next, plain.offset_next)
        if plain.listed:
            self.dirty.remove(plain)
        self.by_key[key] = queue
        self._list(queue)
        self.disk.remove(plain.files.folder, _ignore)
        return queue

    def _must_be_batch(self, queue: ConsumeQueue, properties: bytes) -> bool:
        """Return whether the kind of a queue is wrong for an inner batch with these properties.

        It is not if the topic is known as a plain one: its queue then stays plain, as in Apache.
        """
        if isinstance(queue, BatchQueue) or message_count(properties, none=0) == 0:
            return False
        return self.batches.is_batch_topic(queue.topic) is not False

    def _list(self, queue: ConsumeQueue) -> None:
        if not queue.listed:
            queue.listed = True
            self.dirty.append(queue)

    # --- growing ----------------------------------------------------------------------------------

    def extend(self, puts: Sequence[Put], arrivals: list[Arrival]) -> None:
        """Add units for the records of this turn, which the log has written."""
        if self.has_batches:
            puts = self.extend_batches(puts, arrivals)
        arrive, unit = arrivals.append, _UNIT
        last: ConsumeQueue | None = None
        for queue, queue_offset, phy_offset, size, tags_code, _, _ in puts:
            if queue_offset < 0:
                continue
            if queue is not last:
                # Looked up only if the queue changes: all messages of a batch share one.
                last, topic, queue_id, tail = queue, queue.topic, queue.queue_id, queue.tail
                if not queue.listed:
                    queue.listed = True
                    self.dirty.append(queue)
            tail += unit(phy_offset, size, tags_code)
            queue.offset_max = queue_offset + 1
            queue.phy_end = phy_offset + size
            # Half the cost of Arrival(...).
            arrive(_new(Arrival, (topic, queue_id, queue_offset, tags_code, 1)))
        self.waiting += len(puts)

    def extend_mixed(self, puts: Sequence[Put | ColumnPut], arrivals: list[Arrival]) -> None:
        """Like `extend`, for puts some of which stand for several records."""
        singles: list[Put] = []
        for put in puts:
            if not isinstance(put, ColumnPut):
                singles.append(put)
                continue
            if self.has_batches and any(isinstance(queue, BatchQueue) for queue in queues_of(put)):
                singles.extend(put.rows())
                continue
            if singles:
                self.extend(singles, arrivals)
                singles = []
            if isinstance(put, BatchPut):
                self._extend_batch(put, arrivals)
            else:
                self._extend_run(put, arrivals)
        self.extend(singles, arrivals)

    def _extend_batch(self, put: BatchPut, arrivals: list[Arrival]) -> None:
        """Add the units of a uniform batch, with one arrival for all."""
        queue, queue_offset, phy_offsets, sizes, tags_code, _, _, phy_next = put
        count = len(sizes)
        self.waiting += count
        if queue_offset < 0:
            return
        self._list(queue)
        if count <= UNITS_PER_PACK:
            values = [0, 0, tags_code] * count
            values[::3], values[1::3] = phy_offsets, sizes
            queue.tail += layout_of_units(count).pack(*values)
        else:
            queue.tail += b"".join(map(_UNIT, phy_offsets, sizes, repeat(tags_code)))
        queue.offset_max = queue_offset + count
        queue.phy_end = phy_next
        arrivals.append(Arrival(queue.topic, queue.queue_id, queue_offset, tags_code, count))

    def _extend_run(self, put: RunPut, arrivals: list[Arrival]) -> None:
        """Add the units of a run, with one arrival for each of its queues."""
        queues, queue_offsets, phy_offsets, sizes, tags_codes, _, _, _ = put
        if len(set(tags_codes)) > 1:
            self.extend(list(put.rows()), arrivals)
            return
        self.waiting += len(queues)
        units: dict[ConsumeQueue, list[bytes]] = {queue: [] for queue in queues}
        for queue, unit in zip(queues, map(_UNIT, phy_offsets, sizes, tags_codes), strict=True):
            units[queue].append(unit)
        ends = dict(zip(queues, map(add, phy_offsets, sizes), strict=True))
        last_offsets = dict(zip(queues, queue_offsets, strict=True))
        for queue, its in units.items():
            self._list(queue)
            queue.tail += b"".join(its)
            queue.offset_max = last_offsets[queue] + 1
            queue.phy_end = ends[queue]
            first = queue.offset_max - len(its)
            arrivals.append(Arrival(queue.topic, queue.queue_id, first, tags_codes[0], len(its)))

    def extend_batches(self, puts: Sequence[Put], arrivals: list[Arrival]) -> Sequence[Put]:
        """Add units to the queues of BatchCQ topics. Return the puts of the other queues."""
        others: list[Put] = []
        for put in puts:
            queue, queue_offset, phy_offset, size, tags_code, properties, store_ms = put
            if not isinstance(queue, BatchQueue):
                others.append(put)
            elif queue_offset >= 0:
                self._list(queue)
                self.waiting += 1
                queue.put(queue_offset, phy_offset, size, tags_code, store_ms, message_count(properties))
                arrivals.append(Arrival(queue.topic, queue.queue_id, queue_offset, tags_code))
        return others

    def put(self, record: ScanResult) -> Arrival | None:
        """Add the unit of a record read from the log. Return None if that changes nothing."""
        if not is_queued(record.sys_flag):
            return None
        queue = self.by_key.get((record.topic, record.queue_id)) or self.make(record.topic, record.queue_id)
        if queue is None:
            return None
        if record.sys_flag & _INNER_BATCH and self._must_be_batch(queue, record.properties):
            queue = self.batch_queue(queue)
        before = len(queue.tail)
        if isinstance(queue, BatchQueue):
            count = message_count(record.properties)
            is_new = queue.put(
                record.queue_offset, record.phy_offset, record.size, record.tags_code, record.store_ms, count
            )
        else:
            is_new = queue.put(record.queue_offset, record.phy_offset, record.size, record.tags_code)
        if not is_new:
            return None
        self.waiting += (len(queue.tail) - before) // queue.unit_size
        self._list(queue)
        return Arrival(record.topic, record.queue_id, record.queue_offset, record.tags_code)

    def write_some(self, cost_max: int) -> bool:
        """Write tails up to a total cost of `cost_max`. Return whether more can be written.

        A write costs 1, a new file `FILE_COST`. After an error the remaining tails stay.
        """
        dirty = self.dirty
        if not dirty:
            return False
        kept: list[ConsumeQueue] = []
        done = cost = 0
        self.error = ""
        while done < len(dirty) and cost < cost_max and not self.error:
            queue = dirty[done]
            done += 1
            if queue.topic in self.removing:
                kept.append(queue)
                continue
            cost += FILE_COST if queue.needs_file else 1
            try:
                queue.write_tail()
            except OSError as error:
                self.error = f"{queue.files.folder}: {error.strerror or error}"
                kept.append(queue)
            else:
                queue.listed = False
                self.written.append(queue)
        self.dirty = dirty[done:] + kept
        if not self.dirty:
            self.waiting = 0
        elif done:
            self.waiting = sum([len(queue.tail) for queue in self.dirty]) // UNIT_SIZE
        return len(self.dirty) > len(kept)

    # --- shrinking --------------------------------------------------------------------------------

    def detach(self, topics: Iterable[str]) -> int:
        """Drop the queues of these topics. Return how many.

        Their folders stay until `remove`, and nothing is written there in between.
        """
        gone = set(topics)
        keys = [key for key in self.by_key if key[0] in gone]
        for key in keys:
            queue = self.by_key.pop(key)
            if queue.listed:
                self.dirty.remove(queue)
        for topic in sorted({key[0] for key in keys}):
            self.removing[topic] = self.removing.get(topic, 0) + 1
        self.waiting = sum([len(queue.tail) for queue in self.dirty]) // UNIT_SIZE
        return len(keys)

    def remove(self, topics: Iterable[str]) -> None:
        """Remove the folders of detached topics."""
        for topic in topics:
            if topic in self.removing:
                if self.has_batches:
                    self.removing[topic] += 1
                    self.disk.remove(f"{self.batches.folder}/{topic}", partial(self._removed, topic))
                self.disk.remove(f"{self.folder}/{topic}", partial(self._removed, topic))

    def _removed(self, topic: str, error: OSError | None) -> None:
        count = self.removing.pop(topic, 1) - 1
        if count:
            self.removing[topic] = count
        self.on_removed()

    def cut(self, phy_offset: int) -> None:
        """Drop the units of records that start at or after `phy_offset`. Raises OSError."""
        for queue in self.by_key.values():
            if queue.phy_end > phy_offset:
                queue.cut(phy_offset)
            # Records that are cut before they were dispatched have taken offsets, too (#7689).
            queue.offset_next = queue.offset_max
        self.waiting = sum([len(queue.tail) for queue in self.dirty]) // UNIT_SIZE

    @property
    def phy_last(self) -> int:
        """Start of the last record that has a unit in any queue; -1 if there is none."""
        return max([queue.phy_last for queue in self.by_key.values()], default=-1)


def _ignore(error: OSError | None) -> None:
    """Ignore the error: a plain folder that stays is removed at the next start."""


def is_topic_name(topic: str) -> bool:
    """Return whether the name is valid as a folder name and short enough for a record."""
    if not topic or topic in (".", "..") or "/" in topic or "\0" in topic or "\\" in topic:
        return False
    try:
        return len(topic.encode()) <= TOPIC_SIZE_MAX
    except UnicodeEncodeError:
        return False
