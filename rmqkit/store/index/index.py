"""The index: finds records by topic and key. It is updated after the puts, in small steps.

During a turn, records are only appended to a list (`extend`). A duty processes the list in batches.
One step hashes `RECORDS_PER_STEP` records, or `COLUMN_GAIN` times as many by column, or changes
`BLOCKS_PER_STEP` blocks of the slot table. It takes about a millisecond. A batch of at most
`BLOCKS_PER_STEP` keys is applied in the step that hashes its last record. A query first processes
the whole list, so it finds every record that was readable before it.

So no caller waits for the duty. But the senders of a burst wait for the broker while the duty runs.
A batch begins once no record has arrived for `_QUIET_MS`, the first record has waited for
`_WAIT_MAX_MS`, or `BURST_RECORDS` records wait. This delays the work and does not save it.

The index can fall behind the log: after a crash, if its files are damaged or missing, or if its
disk was full. It then catches up by reading the log (`_walk`), from its last indexed record or,
without index files, from the log's start. Meanwhile `progress` reports its position, and queries
find what is indexed already. If an unclean stop may have left the last file half-written, that file
is checked and repaired first.

Source: `store/.../index/IndexService.java`. Rebuilding from the log's start is ours: Apache starts
at the newest file.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from rmqkit.config import IndexSettings
from rmqkit.runtime.connection import Buffer
from rmqkit.runtime.ports import Clock, Disk, Log
from rmqkit.store.contract import IndexHits
from rmqkit.store.index.entry_batch import Entries
from rmqkit.store.index.file import IndexFile
from rmqkit.store.index.files import IndexFiles, Repair
from rmqkit.store.index.key_hashes import TAG_KEY, batch_hashes, batch_keys, key_hashes, run_hashes
from rmqkit.store.log.commit_log import CommitLog
from rmqkit.store.log.scan import ScanResult, scan
from rmqkit.store.log.walk import LogWalk
from rmqkit.store.queues.batch_put import BatchPut, ColumnPut, RunPut
from rmqkit.store.queues.batch_put import Put as QueuePut
from rmqkit.store.queues.table import ROLLED_BACK
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.javahash import index_key_hash
from rmqkit.wire.properties import KEY_SEPARATOR, PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY, find

#: number of keys that ends a batch. Each block of slots is read and written once per batch
BATCH_RECORDS = 32_768
#: number of waiting records at which the index no longer waits for the end of a burst; they take
#: about 0.4 KB each
BURST_RECORDS = 49_152
#: maximum number of waiting records; above it, the turn itself processes them
WAITING_MAX = 65_536
RECORDS_PER_STEP = 512
#: so many records are hashed by column in the time of one by itself
COLUMN_GAIN = 4
#: for fewer records, hashing by column costs more than it saves
RUN_MIN = 16
BLOCKS_PER_STEP = 64
#: maximum steps of one query while the index catches up with an old log
_STEPS_PER_QUERY = 400
#: pause after the last record that ends a burst
_QUIET_MS = 10
#: how long a record waits for more of them, in a burst and in a trickle
_WAIT_MAX_MS = 2000
#: how long records are collected before they are written to the file
_COLLECT_MS = 100
_SYNC_INTERVAL_MS = 10_000
_RETRY_MS = 10_000

_UNIQ_KEY = PROPERTY_UNIQ_KEY.encode()
_KEYS = PROPERTY_KEYS.encode()
_TAGS = PROPERTY_TAGS.encode()

#: topic, properties, physical offset and store time (ms) of a record
Row = tuple[str, bytes, int, int]


class Index:
    """The index of one engine.

    `filled(end_ms)` is called once a full file is durable, `broken(reason)` after a failed sync,
    and `wake()` if the duty should run soon. `waiting_max` limits the waiting records
    (`putMsgIndexHightWater`, at most WAITING_MAX).
    """

    def __init__(
        self,
        *,
        disk: Disk,
        clock: Clock,
        log: CommitLog,
        folder: str,
        settings: IndexSettings,
        notes: Log,
        filled: Callable[[int], None],
        broken: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        self.enabled = settings.message_index_enable
        self.files = IndexFiles(disk, folder, settings.max_hash_slot_num, settings.max_index_num)
        self.hits_max = settings.max_msgs_num_batch
        self._clock = clock
        self._log = log
        self._notes = notes
        self._filled = filled
        self._broken = broken
        self._wake = wake
        self.waiting_max = WAITING_MAX
        self._waiting: deque[QueuePut | Row | ColumnPut] = deque()
        #: number of records in `_waiting`. All limits count records: a batch or a run is one item
        self._waiting_count = 0
        #: when the first of the waiting records and the last one arrived (monotonic)
        self._first_ms = self._last_ms = 0
        #: physical offset of the last record whose keys are in a batch or in the files
        self._last_phy = -1
        self._walk: LogWalk | None = None
        self._repair: Repair | None = None
        #: keys of a record that did not fit into the previous file, its offset and its store time
        self._rest: tuple[list[int], int, int] | None = None
        self._is_applying = False
        self._is_held = False
        self._retry_ms = 0
        self._sync_ms = 0

    @property
    def progress(self) -> str:
        """The position while catching up; "" if the index is complete."""
        if self._repair is not None:
            return "index: checking the last file"
        if self._walk is not None:
            return f"index: {self._walk.position} of {self._log.offset_written} bytes of the log"
        return ""

    # --- input ------------------------------------------------------------------------------------

    def extend(self, puts: Sequence[QueuePut]) -> None:
        """Add the records of this turn, in log order."""
        if self._is_live:
            self._extend(puts, len(puts))

    def extend_mixed(self, puts: Sequence[QueuePut | ColumnPut]) -> None:
        """Like `extend`, for puts some of which stand for several records."""
        if self._is_live:
            self._extend(puts, sum([len(put.sizes) if isinstance(put, ColumnPut) else 1 for put in puts]))

    def _extend(self, puts: Sequence[QueuePut | ColumnPut], count: int) -> None:
        self._last_ms = self._clock.mono_ms
        if not self._waiting:
            self._first_ms = self._last_ms
        self._waiting.extend(puts)
        self._waiting_count += count
        if self._waiting_count >= BURST_RECORDS:
            self._wake()
        self._bound()

    def add(self, record: ScanResult) -> None:
        """Add one record that was read from the log."""
        if self._is_live:
            self._waiting.append(_row(record))
            self._waiting_count += 1
            self._bound()

    @property
    def _is_live(self) -> bool:
        """Whether `extend` and `add` take records; otherwise they are read from the log later."""
        return self._walk is None and self._repair is None and self.enabled and not self._is_held

    def _bound(self) -> None:
        while self._waiting_count > self.waiting_max:
            self._step()

    # --- life -------------------------------------------------------------------------------------

    def load(self, *, is_clean: bool, index_ms: int) -> None:
        """Load the files and remove those that cannot be trusted.

        Recovery then calls `cut` with the end of the log.
        """
        if not self.enabled:
            return
        whole = self.files.load()
        if not whole:
            count = self.files.remove_strangers(lambda: _ignore)
            self._notes.warning("index-damaged", files_removed=count, files_kept=len(self.files.files))
        last = self.files.files[-1] if self.files.files else None
        # We write a header that says "full" only once the whole file is durable. In a store that
        # Apache wrote, the checkpoint's index time tells which full files are durable.
        if last is not None and not is_clean and (not last.is_full or last.end_ms > index_ms):
            self._repair = Repair(last)

    def go_on(self) -> None:
        """Resume after a cut of the log."""
        self._is_held = False
        if self.enabled:
            self._catch_up()

    def _catch_up(self) -> None:
        """Start reading the log behind the last indexed record."""
        self._waiting.clear()
        self._waiting_count = 0
        self._rest = None
        self._last_phy = -1
        self.files.drop_batch()
        self._is_applying = False
        files = self.files.files
        position = self._log.files.start
        last = next((file for file in reversed(files) if file.count > 1), None)
        if last is not None and last.end_phy >= position:
            position = last.end_phy
        self._walk = LogWalk(self._log, position)
        if last is not None and not last.is_full and position == last.end_phy:
            # The file is not full, so all keys of that record are in it: skip the record.
            self._walk.next()

    def cut(self, phy_offset: int, then: Callable[[], None]) -> None:
        """Drop the entries of records at or after `phy_offset`; call `then` once that is durable.

        Nothing is added until `go_on`. Raises OSError.

        Must come before new records are written there: an index that is ahead of the log would skip
        their keys.
        """
        if not self.enabled:
            then()
            return
        self._is_held = True
        changed = True
        try:
            changed = self.files.shorten(phy_offset)
        finally:
            if changed:
                self._repair = Repair(self.files.files[-1]) if self.files.files else None
        self.files.sync_all(self._file_filled, self._broken, then)

    def drop_expired(self, phy_min: int) -> int:
        return self.files.drop_expired(phy_min) if self.enabled and self._repair is None else 0

    def finish(self, then: Callable[[], None]) -> None:
        """Process the waiting records and make them durable, then call `then`.

        Records that must be read from the log are left for the next start.
        """
        if not self.enabled:
            then()
            return
        # A batch that has begun to change the file must be completed.
        while (self._is_applying or (self._walk is None and self._has_work)) and not self._retry_ms:
            self._step()
        self.files.sync_all(self._file_filled, self._broken, then)

    @property
    def needs_repair(self) -> bool:
        """Whether the next start must check the last file."""
        return self._repair is not None or self.files.is_behind

    def repair_some(self) -> bool:
        """Do a step of a repair, which a clean stop must finish first. Return whether one runs."""
        if self._repair is None or self._retry_ms:
            return False
        self._step()
        return True

    def _file_filled(self, file: IndexFile) -> None:
        self._filled(file.end_ms)

    # --- the duty ---------------------------------------------------------------------------------

    def run(self, now_ms: int) -> int:
        """Do one step. Return when to run next, in mono ms."""
        if not self.enabled:
            return now_ms + _RETRY_MS
        if now_ms < self._retry_ms:
            return self._retry_ms
        self._retry_ms = 0
        if now_ms - self._sync_ms >= _SYNC_INTERVAL_MS:
            self._sync_ms = now_ms
            self.files.sync_due(self._file_filled, self._broken)
        if self._may_wait(now_ms):
            return now_ms + _QUIET_MS
        # A walk that has reached the end of the log needs one more step to finish.
        if self._has_work or (self._walk is not None and not self._is_held):
            self._step()
        if self._is_applying or self._repair is not None or self._walk_left or self._waiting_count >= RECORDS_PER_STEP:
            return now_ms
        # Collect a trickle of records for a while: in a small batch each record costs one block of
        # slots. Queries do not wait for the batch.
        return now_ms + (_COLLECT_MS if self._has_work else _WAIT_MAX_MS)

    def _may_wait(self, now_ms: int) -> bool:
        """Whether no batch is under way, and the records of a burst still arrive."""
        return (
            0 < self._waiting_count < BURST_RECORDS
            and now_ms - self._last_ms < _QUIET_MS
            and now_ms - self._first_ms < _WAIT_MAX_MS
            and not self._is_applying
            and not self.files.batch_size
            and self._rest is None
            and self._is_live
        )

    @property
    def _has_work(self) -> bool:
        if self._is_held:
            return False
        if self._repair is not None or self._waiting or self._rest is not None or self.files.batch_size:
            return True
        return self._walk is not None and self._walk.position < self._log.offset_written

    def _step(self) -> None:
        """Do about a millisecond of work."""
        try:
            if self._repair is not None:
                self._repair_some(self._repair)
            elif self._is_applying:
                self._is_applying = self.files.apply_some(BLOCKS_PER_STEP)
            else:
                self._line_up_some()
        except OSError as error:
            # The slot table may point to entries that were never written.
            self._notes.warning("index-write-failed", error=str(error))
            self._retry_ms = self._clock.mono_ms + _RETRY_MS
            self._repair = Repair(self.files.files[-1]) if self.files.files else None
            self._catch_up()

    def _repair_some(self, repair: Repair) -> None:
        whole = repair.step()
        if whole is None:
            return
        self._repair = None
        if not whole:
            self._notes.warning("index-damaged", file=self.files.files[-1].path)
            self.files.drop_last()
            self._catch_up()

    def _line_up_some(self) -> None:
        """Add the keys of some records to the batch.

        Once the batch is large enough or nothing more waits, apply it: a small one at once, a
        larger one in the next steps.
        """
        files = self.files
        if self._rest is not None:
            self._add(*self._rest)
        if self._rest is None:
            if self._walk is not None:
                self._walk_some(self._walk)
            self._add_waiting(files.room(self._clock.wall_ms))
        drained = self._rest is None and not self._waiting and not self._walk_left
        if files.batch_size and (self._rest is not None or drained or files.batch_size >= BATCH_RECORDS):
            # A small batch needs no step, and so no turn, of its own.
            self._is_applying = files.batch_size > BLOCKS_PER_STEP or files.apply_some(BLOCKS_PER_STEP)

    def _add_waiting(self, room: int) -> None:
        """Add the keys of the next waiting records to the batch, which has room for `room` keys."""
        left = RECORDS_PER_STEP
        while left > 0 and self._waiting and self._rest is None:
            first = self._waiting[0]
            if isinstance(first, RunPut):
                self._replace_first(first)
                continue
            size = self.files.batch_size
            by_column = self._take_batches(first, room) if isinstance(first, BatchPut) else self._take_run(room)
            done = by_column or self._take_rows(room)
            room -= self.files.batch_size - size
            left -= -(-by_column // COLUMN_GAIN) if by_column else done
            self._waiting_count -= done
        if self._rest is not None:
            self._add(*self._rest)

    def _replace_first(self, put: ColumnPut) -> None:
        """Put the records of the first waiting item in its place."""
        self._waiting.popleft()
        self._waiting.extendleft(reversed(list(put.rows())))

    def _take_batches(self, first: BatchPut, room: int) -> int:
        """Take the next batches that are alike, by column. Return how many records that are.

        Replaces the first batch by its records, and takes none, if that is impossible.
        """
        keys = batch_keys(first.queue.topic, first.properties)
        puts: list[BatchPut] = []
        count = 0
        for put in self._waiting:
            if count >= RECORDS_PER_STEP or not isinstance(put, BatchPut):
                break
            if keys is None or batch_keys(put.queue.topic, put.properties) != keys:
                break
            puts.append(put)
            count += len(put.phy_offsets)
        found = None if keys is None else batch_hashes(keys, [put.properties for put in puts])
        if found is None or room < found.keys * count or first.phy_offsets[0] <= self._last_phy:
            self._replace_first(first)
            return 0
        phy_offsets = np.concatenate([np.array(put.phy_offsets, np.int64) for put in puts])
        times_ms = np.repeat([put.store_ms for put in puts], [len(put.phy_offsets) for put in puts])
        self.files.add(found.entries(phy_offsets, times_ms))
        self._last_phy = puts[-1].phy_offsets[-1]
        for _ in puts:
            self._waiting.popleft()
        return count

    def _take_run(self, room: int) -> int:
        """Take the next records by column, like `_take_rows`; none if they are not alike."""
        rows: list[Any] = list(islice(self._waiting, RECORDS_PER_STEP))
        count = len(rows)
        if count < RUN_MIN or set(map(len, rows)) != {7}:
            return 0
        queues, kinds, phys, _, _, properties, times = zip(*rows, strict=True)
        topics = {queue.topic for queue in set(queues)}
        if len(topics) > 1 or min(kinds) == ROLLED_BACK or phys[0] <= self._last_phy:
            return 0
        found = run_hashes(topics.pop(), properties)
        if found is None or room < found.keys * count:
            return 0
        self.files.add(found.entries(np.array(phys, np.int64), np.array(times, np.int64)))
        take = self._waiting.popleft
        for _ in rows:
            take()
        self._last_phy = phys[-1]
        return count

    def _take_rows(self, room: int) -> int:
        """Take waiting records up to the next batch one by one. Return how many."""
        waiting, last_phy = self._waiting, self._last_phy
        take = waiting.popleft
        keyed: list[tuple[int, int, int]] = []
        done = 0
        for done in range(1, min(len(waiting), RECORDS_PER_STEP) + 1):
            row: Any = take()
            size = len(row)
            if size == 7:
                queue, kind, phy_offset, _, _, properties, store_ms = row
                topic = queue.topic
                if kind == ROLLED_BACK:
                    continue
            elif size == 4:
                topic, properties, phy_offset, store_ms = row
            else:
                waiting.appendleft(row)
                done -= 1
                break
            if phy_offset <= last_phy:
                continue
            last_phy = phy_offset
            hashes = key_hashes(topic, properties)
            room -= len(hashes)
            if room < 0:
                self._rest = hashes, phy_offset, store_ms
                break
            for key_hash in hashes:
                keyed.append((key_hash, phy_offset, store_ms))
        self._last_phy = last_phy
        if keyed:
            self.files.add(Entries(*np.array(keyed, np.int64).T))
        return done

    def _add(self, hashes: list[int], phy_offset: int, store_ms: int) -> None:
        """Add a record's keys to the batch.

        Keys that do not fit wait until the batch is applied.
        """
        room = max(self.files.room(self._clock.wall_ms), 0)
        if fitting := hashes[:room]:
            self.files.add(Entries(*np.array([(each, phy_offset, store_ms) for each in fitting], np.int64).T))
        self._rest = (hashes[room:], phy_offset, store_ms) if hashes[room:] else None

    def _walk_some(self, walk: LogWalk) -> None:
        """Read the next records from the log."""
        for _ in range(RECORDS_PER_STEP):
            record = walk.next()
            if record is None:
                # Caught up: from now on records arrive by `extend` and `add`.
                self._walk = None
                return
            self._waiting.append(_row(record))
            self._waiting_count += 1

    @property
    def _walk_left(self) -> bool:
        return self._walk is not None and self._walk.position < self._log.offset_written

    # --- queries ----------------------------------------------------------------------------------

    def query(self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int) -> IndexHits:
        """Return the newest `count_max` records of the topic with this key, in log order.

        Only records stored in the time range. `key` is a UNIQ_KEY, one of KEYS, or TAGS after "T#".
        Hash collisions are filtered out; Apache's `DefaultMessageStore.queryMessage` leaves that to
        the client.
        """
        for _ in range(_STEPS_PER_QUERY if self._walk is not None or self._repair is not None else WAITING_MAX):
            if not self._has_work or self._retry_ms:
                break
            self._step()
        files = self.files.files
        if not files:
            return IndexHits((), 0, 0)
        key_hash = index_key_hash(topic, key)
        found: dict[int, Buffer] = {}
        count_max = min(count_max, self.hits_max)
        for file in reversed(files):
            if file.is_in_time(begin_ms, end_ms) and (self._repair is None or file is not files[-1]):
                for phy_offset in file.find(key_hash, begin_ms, end_ms):
                    if len(found) >= count_max:
                        break
                    record = None if phy_offset in found else self._match(phy_offset, topic, key, begin_ms, end_ms)
                    if record is not None:
                        found[phy_offset] = record
            if len(found) >= count_max or file.begin_ms < begin_ms:
                break
        last = files[-1]
        return IndexHits([found[phy_offset] for phy_offset in sorted(found)], last.end_ms, last.end_phy)

    def _match(self, phy_offset: int, topic: str, key: str, begin_ms: int, end_ms: int) -> Buffer | None:
        """Return the record if its topic, key and store time match, else None."""
        record = self._log.record(phy_offset)
        scanned = None if record is None else scan(record, 0, phy_offset, check_crc=False)
        if scanned is None or scanned.topic != topic or not begin_ms <= scanned.store_ms <= end_ms:
            return None
        wanted = key.encode("utf-8", "surrogatepass")
        keys = find(scanned.properties, _KEYS) or b""
        if find(scanned.properties, _UNIQ_KEY) == wanted or wanted in keys.split(KEY_SEPARATOR.encode()):
            return record
        tags = find(scanned.properties, _TAGS)
        return record if tags is not None and key == TAG_KEY + tags.decode("utf-8", "replace") else None


def _row(record: ScanResult) -> Row:
    rolled_back = record.sys_flag & MessageSysFlag.TRANSACTION_MASK == MessageSysFlag.TRANSACTION_ROLLBACK
    return record.topic, b"" if rolled_back else record.properties, record.phy_offset, record.store_ms


def _ignore(error: OSError | None) -> None:
    """Ignore the error: the next start finds and removes a file that stays."""
