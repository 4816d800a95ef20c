"""The index: finds records by topic and key. Fed behind the puts, in small steps, and complete when it is asked.

Records of a turn only go onto a list (`extend`). The duty takes them in batches: `KEYS_PER_STEP` records are hashed, or
`BLOCKS_PER_STEP` blocks of the slot table changed, in one step; a step is about a millisecond. A query first works off
what is on the list, so it finds every record that was readable before it.

When the index is behind the log (after a crash, with damaged or missing files, when its disk was full) it catches up by
reading the log (`_walk`), from the last record it has, or from the log's start when there are no files. Meanwhile
`progress` says where it is, and queries know what is indexed so far. A last file that an unclean stop may have left
half-written is checked and repaired first.

Source: `store/.../index/IndexService.java`; rebuilding everything is ours (upstream begins at the newest file).
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache

from rmqkit.config import IndexSettings
from rmqkit.runtime.connection import Buffer
from rmqkit.runtime.ports import Clock, Disk, Log
from rmqkit.store.contract import IndexHits
from rmqkit.store.index.file import IndexFile
from rmqkit.store.index.files import IndexFiles, Repair
from rmqkit.store.log.commit_log import CommitLog
from rmqkit.store.log.scan import ScanResult, scan
from rmqkit.store.log.walk import LogWalk
from rmqkit.store.queues.table import ROLLED_BACK
from rmqkit.store.queues.table import Put as QueuePut
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.javahash import ascii_key_hash, index_key_hash
from rmqkit.wire.properties import KEY_SEPARATOR, PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY, find

#: records that wait before a batch begins early
BATCH_RECORDS = 16_384
#: records that wait at most; above, a turn works them off itself
WAITING_MAX = 65_536
RECORDS_PER_STEP = 512
BLOCKS_PER_STEP = 64
#: steps a query does at most while the index catches up with an old log
_STEPS_PER_QUERY = 400
_INTERVAL_MS = 1000
#: how long records are collected before they are brought to the file
_COLLECT_MS = 100
_SYNC_INTERVAL_MS = 10_000
_RETRY_MS = 10_000

_UNIQ_KEY = PROPERTY_UNIQ_KEY.encode()
_UNIQ_KEY_PAIR = _UNIQ_KEY + b"\x01"
_UNIQ_KEY_PAIR_SIZE = len(_UNIQ_KEY_PAIR)
_KEYS = PROPERTY_KEYS.encode()
_KEYS_PAIR = _KEYS + b"\x01"
_TAGS = PROPERTY_TAGS.encode()
#: what stands before tags to make a key of them (upstream's INDEX_TAG_TYPE, since 5.4)
TAG_KEY = "T#"

#: topic, properties, offset and time of a record
Row = tuple[str, bytes, int, int]


class Index:
    """`filled(end_ms)` is called when a full file is durable, `broken(reason)` when a sync failed, `wake()` when the duty
    should run soon. `waiting_max` bounds the records that wait, below our own bound (`putMsgIndexHightWater`)."""

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
        self._waiting: deque[QueuePut | Row] = deque()
        #: the last record whose keys were lined up
        self._last_phy = -1
        self._walk: LogWalk | None = None
        self._repair: Repair | None = None
        #: keys of a record that did not fit into the file before
        self._rest: tuple[list[int], int, int] | None = None
        self._is_applying = False
        self._is_held = False
        self._retry_ms = 0
        self._sync_ms = 0

    @property
    def progress(self) -> str:
        """How far it is while it catches up; "" when it is complete."""
        if self._repair is not None:
            return "index: checking the last file"
        if self._walk is not None:
            return f"index: {self._walk.position} of {self._log.offset_written} bytes of the log"
        return ""

    # --- what it is fed ---------------------------------------------------------------------------------------------

    def extend(self, puts: Sequence[QueuePut]) -> None:
        """Records of this turn, in log order."""
        if self._is_live:
            waiting = self._waiting
            waiting.extend(puts)
            if len(waiting) >= BATCH_RECORDS:
                self._wake()
            self._bound()

    def add(self, record: ScanResult) -> None:
        """One record read from the log."""
        if self._is_live:
            self._waiting.append(_row(record))
            self._bound()

    @property
    def _is_live(self) -> bool:
        """Whether records come by `extend` and `add`; else they are read from the log later."""
        return self._walk is None and self._repair is None and self.enabled and not self._is_held

    def _bound(self) -> None:
        while len(self._waiting) > self.waiting_max:
            self._step()

    # --- life -------------------------------------------------------------------------------------------------------

    def load(self, *, is_clean: bool, index_ms: int) -> None:
        """Look at the files. Removes what cannot be trusted. Recovery calls `cut` with the log's end then."""
        if not self.enabled:
            return
        whole = self.files.load()
        if not whole:
            count = self.files.remove_strangers(lambda: _ignore)
            self._notes.warning("index-damaged", files_removed=count, files_kept=len(self.files.files))
        last = self.files.files[-1] if self.files.files else None
        # A header says "full" only when all of the file is on the platter; Apache's checkpoint says so of its own.
        if last is not None and not is_clean and (not last.is_full or last.end_ms > index_ms):
            self._repair = Repair(last)

    def go_on(self) -> None:
        """The log has been cut."""
        self._is_held = False
        if self.enabled:
            self._catch_up()

    def _catch_up(self) -> None:
        """Go on behind the last record that is indexed, reading the log."""
        self._waiting.clear()
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
            # All keys of that record are there: it was not cut off by the end of a file.
            self._walk.next()

    def cut(self, phy_offset: int, then: Callable[[], None]) -> None:
        """Forget what is about records at or after `phy_offset`; `then` is called when that is durable. Nothing is added
        until `go_on`. Raises OSError.

        Has to come before the log goes on from there: an index that knows more than the log would leave keys out.
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
        """Work off what waits and make it durable; what has to be read from the log stays for the next start."""
        if not self.enabled:
            then()
            return
        # A batch that has begun to change the file goes in whole.
        while (self._is_applying or (self._walk is None and self._has_work)) and not self._retry_ms:
            self._step()
        self.files.sync_all(self._file_filled, self._broken, then)

    @property
    def needs_repair(self) -> bool:
        """Whether the next start has to check the last file."""
        return self._repair is not None or self.files.is_behind

    def repair_some(self) -> bool:
        """Whether a file was under repair: a clean stop has to end that first, step by step."""
        if self._repair is None or self._retry_ms:
            return False
        self._step()
        return True

    def _file_filled(self, file: IndexFile) -> None:
        self._filled(file.end_ms)

    # --- the duty -----------------------------------------------------------------------------------------------------

    def run(self, now_ms: int) -> int:
        """One step; when to come back, in mono ms."""
        if not self.enabled:
            return now_ms + _RETRY_MS
        if now_ms < self._retry_ms:
            return self._retry_ms
        self._retry_ms = 0
        if now_ms - self._sync_ms >= _SYNC_INTERVAL_MS:
            self._sync_ms = now_ms
            self.files.sync_due(self._file_filled, self._broken)
        # A walk that has nothing left ends with one more step.
        if self._has_work or (self._walk is not None and not self._is_held):
            self._step()
        if self._is_applying or self._repair is not None or self._walk_left or len(self._waiting) >= RECORDS_PER_STEP:
            return now_ms
        # A trickle is collected: a batch of few records costs a block of slots each. Queries do not wait for it.
        return now_ms + (_COLLECT_MS if self._has_work else _INTERVAL_MS)

    @property
    def _has_work(self) -> bool:
        if self._is_held:
            return False
        if self._repair is not None or self._waiting or self._rest is not None or self.files.batch_size:
            return True
        return self._walk is not None and self._walk.position < self._log.offset_written

    def _step(self) -> None:
        """About a millisecond of work."""
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
        """Hash the keys of some records into the batch; when it is big enough, or nothing more waits, apply it."""
        files = self.files
        if self._rest is not None:
            self._add(*self._rest)
        if self._rest is None:
            if self._walk is not None:
                self._walk_some(self._walk)
            self._add_waiting(files.room(self._clock.wall_ms))
        drained = self._rest is None and not self._waiting and not self._walk_left
        if files.batch_size and (self._rest is not None or drained or files.batch_size >= BATCH_RECORDS):
            self._is_applying = True

    def _add_waiting(self, room: int) -> None:
        """Put the keys of the next records into the batch, which can take `room` of them."""
        take, last_phy = self._waiting.popleft, self._last_phy
        entries: list[tuple[int, int, int]] = []
        for _ in range(min(len(self._waiting), RECORDS_PER_STEP)):
            row = take()
            if len(row) == 7:
                queue, kind, phy_offset, _, _, properties, store_ms = row
                topic = queue.topic
                if kind == ROLLED_BACK:
                    continue
            else:
                topic, properties, phy_offset, store_ms = row
            if phy_offset <= last_phy:
                continue
            last_phy = phy_offset
            hashes = key_hashes(topic, properties)
            room -= len(hashes)
            if room < 0:
                self._rest = hashes, phy_offset, store_ms
                break
            for key_hash in hashes:
                entries.append((key_hash, phy_offset, store_ms))
        self._last_phy = last_phy
        self.files.add(entries)
        if self._rest is not None:
            self._add(*self._rest)

    def _add(self, hashes: list[int], phy_offset: int, store_ms: int) -> None:
        """Put a record's keys into the batch; what does not fit into the file waits until the batch is applied."""
        room = max(self.files.room(self._clock.wall_ms), 0)
        self.files.add([(key_hash, phy_offset, store_ms) for key_hash in hashes[:room]])
        self._rest = (hashes[room:], phy_offset, store_ms) if hashes[room:] else None

    def _walk_some(self, walk: LogWalk) -> None:
        """Read the next records from the log."""
        for _ in range(RECORDS_PER_STEP):
            record = walk.next()
            if record is None:
                # Caught up: from here on records come by `extend` and `add`.
                self._walk = None
                return
            self._waiting.append(_row(record))

    @property
    def _walk_left(self) -> bool:
        return self._walk is not None and self._walk.position < self._log.offset_written

    # --- looking up -----------------------------------------------------------------------------------------------------

    def query(self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int) -> IndexHits:
        """Records of the topic with that key (UNIQ_KEY, one of KEYS, or TAGS after "T#") stored in the time range, in log
        order; the newest `count_max` of them. Upstream's `DefaultMessageStore.queryMessage` leaves false hits to clients.
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
        """The record when it is one of the topic with that key, stored in time."""
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


#: longer properties are not kept: the cache stays small
BEHIND_SIZE_MAX = 256


def key_hashes(topic: str, properties: bytes) -> list[int]:
    """Hashes of what a record can be found by: its unique id, each of its keys, its tags.

    Java's clients put the unique id first, and from one record to the next it is mostly that alone that differs: what comes
    behind it is looked up whole.
    """
    unique, _, behind = properties.partition(b"\x02")
    if unique[:_UNIQ_KEY_PAIR_SIZE] == _UNIQ_KEY_PAIR and len(behind) <= BEHIND_SIZE_MAX and unique.isascii():
        others = _other_hashes(topic, behind)
        if others is not None and len(unique) > _UNIQ_KEY_PAIR_SIZE:
            return [ascii_key_hash(topic, unique[_UNIQ_KEY_PAIR_SIZE:]), *others]
    return _all_hashes(topic, properties)


@lru_cache(maxsize=1024)
def _other_hashes(topic: str, properties: bytes) -> tuple[int, ...] | None:
    """The hashes of properties that come behind a unique id; None when there is another."""
    return None if _UNIQ_KEY_PAIR in properties else tuple(_all_hashes(topic, properties))


def _all_hashes(topic: str, properties: bytes) -> list[int]:
    hashes = []
    unique = find(properties, _UNIQ_KEY)
    if unique:
        hashes.append(_key_hash(topic, unique))
    if _KEYS_PAIR in properties:
        for key in (find(properties, _KEYS) or b"").split(b" "):
            if key:
                hashes.append(_key_hash(topic, key))
    tags = find(properties, _TAGS)
    if tags:
        hashes.append(_tag_hash(topic, tags))
    return hashes


def _key_hash(topic: str, key: bytes) -> int:
    if key.isascii():
        return ascii_key_hash(topic, key)
    return index_key_hash(topic, key.decode("utf-8", "replace"))


@lru_cache(maxsize=4096)
def _tag_hash(topic: str, tags: bytes) -> int:
    return index_key_hash(topic, TAG_KEY + tags.decode("utf-8", "replace"))


def _row(record: ScanResult) -> Row:
    rolled_back = record.sys_flag & MessageSysFlag.TRANSACTION_MASK == MessageSysFlag.TRANSACTION_ROLLBACK
    return record.topic, b"" if rolled_back else record.properties, record.phy_offset, record.store_ms


def _ignore(error: OSError | None) -> None:
    """An index file that could not be removed is found and removed at the next start."""
