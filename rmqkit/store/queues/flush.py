"""Writes queue units to their files, syncs them, and then updates the checkpoint.

Every `flushIntervalConsumeQueue` the waiting tails are written: one write per queue, about
`WRITES_PER_RUN` writes per turn; sooner if many units wait. A queue with
`flushConsumeQueueLeastPages` unsynced pages is then synced.

Every `flushConsumeQueueThoroughInterval` a **round** makes everything durable. It begins earlier
once the log has grown by `ROUND_SIZE`: after a crash, recovery reads the log from the last round's
record on, which takes a second per 300 MB or so. A round:

1. Write all tails and note the log's last dispatched record.
2. Sync all written files, two at a time, so that syncs of the commit log do not queue behind them.
3. Sync the log up to the noted record and save the ends of all queues.
4. Move the checkpoint's logics fields to the noted record.

So after a power loss the units of all records up to the checkpoint exist, and recovery rebuilds the
later ones.

The saved ends (`config/consumeQueueEnds.json`, our own file) show recovery that a queue's folder is
missing or too short:

    {"phyOffset": noted record, "table": {topic: {queue id: [first, end]}},
     "deleted": {topic: end of the log when it was deleted}}

`first` is the first queue offset that fits into the queue's first file. `deleted` prevents old
records of a deleted topic from reappearing when queues are rebuilt from the log.

Source: `store/.../queue/ConsumeQueueStore.java` (`FlushConsumeQueueService`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from sys import maxsize

import msgspec

from rmqkit.config import FlushSettings
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.ports import Disk
from rmqkit.store.checkpoint import Checkpoint
from rmqkit.store.log.flush import PAGE_SIZE
from rmqkit.store.queues.consume_queue import ConsumeQueue
from rmqkit.store.queues.extension import QueueExt
from rmqkit.store.queues.table import QueueTable

WRITES_PER_RUN = 256
#: units in tails that trigger the next write early; units in tails above which puts are refused if
#: that write fails
UNITS_SOON = 65_536
UNITS_MAX = 262_144
#: bytes by which the log may grow until the next round, unless the last one began less than
#: `ROUND_PAUSE_MS` ago (each round syncs the files of all queues that have new units)
ROUND_SIZE = 268_435_456
ROUND_PAUSE_MS = 5000
_SYNCS_AT_ONCE = 2
#: one sync: the owner of the file, the file's first byte, and the owner's synced offset afterwards
Job = tuple[ConsumeQueue | QueueExt, int, int]


class QueueEnds(msgspec.Struct, rename="camel"):
    """The content of `consumeQueueEnds.json`.

    `phy_offset` is the start of the noted record; -1 if the file vouches for nothing.
    """

    phy_offset: int = -1
    table: dict[str, dict[str, tuple[int, int]]] = {}
    deleted: dict[str, int] = {}

    @property
    def ranges(self) -> dict[tuple[str, int], tuple[int, int]]:
        """First queue offset and end by (topic, queue id)."""
        return {
            (topic, int(queue_id)): known
            for topic, queues in self.table.items()
            for queue_id, known in queues.items()
            if queue_id.isdigit()
        }


def load_ends(kept: AtomicFile) -> QueueEnds:
    """Return the saved ends, or empty ones if there is no file. Raises AtomicFileDamaged."""
    return kept.load(msgspec.json.Decoder(QueueEnds).decode) or QueueEnds()


class QueueFlush:
    """Writes and syncs the queues of one table.

    `dispatched()` returns the last dispatched record as (start, end, store time). `sync_log` makes
    the log durable up to an offset. `broken(reason)` is called after a failed sync.
    """

    def __init__(
        self,
        *,
        disk: Disk,
        table: QueueTable,
        checkpoint: Checkpoint,
        ends: AtomicFile,
        dispatched: Callable[[], tuple[int, int, int]],
        sync_log: Callable[[int, Callable[[bool], None]], None],
        broken: Callable[[str], None],
    ) -> None:
        #: the saved ends, which a recovery relies on
        self.vouched = QueueEnds()
        self._disk = disk
        self._table = table
        self._checkpoint = checkpoint
        self._ends = ends
        self._dispatched = dispatched
        self._sync_log = sync_log
        self._broken = broken
        self._round_ms = -1
        self._jobs: deque[Job] = deque()
        self._running = 0
        #: whether a round runs, and the record that it will vouch for; None if the log was cut
        #: meanwhile
        self._in_round = False
        self._noted: tuple[int, int, int] | None = None
        self._noted_ends = QueueEnds()
        self._then: list[Callable[[], None]] = []
        #: number of cuts: the result of a round that began before a cut is void
        self._generation = 0

    # --- by interval ------------------------------------------------------------------------------

    def run(self, now_ms: int, settings: FlushSettings) -> int:
        """Write waiting tails and sync what is due. Return when to run next, in mono ms."""
        table = self._table
        if self._round_ms < 0:
            self._round_ms = now_ms
        if not self._in_round and self._is_round_due(now_ms, settings):
            self._round_ms = now_ms
            self.begin_round()
        more = table.write_some(WRITES_PER_RUN)
        least_pages = settings.flush_consume_queue_least_pages
        written, table.written = table.written, []
        for queue in written:
            unit_size = queue.unit_size
            pages = queue.offset_written * unit_size // PAGE_SIZE - queue.offset_synced * unit_size // PAGE_SIZE
            if pages >= least_pages:
                self._add(queue)
        self._start_some()
        return now_ms if more else now_ms + max(settings.flush_interval_consume_queue_ms, 1)

    def _is_round_due(self, now_ms: int, settings: FlushSettings) -> bool:
        passed_ms = now_ms - self._round_ms
        if passed_ms >= settings.flush_consume_queue_thorough_interval_ms:
            return True
        _, end, _ = self._dispatched()
        return passed_ms >= ROUND_PAUSE_MS and end - self.vouched.phy_offset >= ROUND_SIZE

    def begin_round(self, then: Callable[[], None] | None = None) -> bool:
        """Make all current units durable, then update the checkpoint and call `then`.

        Return False, without starting, if a tail cannot be written now.
        """
        table = self._table
        table.write_some(maxsize)
        if table.dirty:
            return False
        if then is not None:
            self._then.append(then)
        table.written.clear()
        self._in_round = True
        self._noted = self._dispatched()
        self._noted_ends = self._ends_of_now()
        for queue in table:
            self._add(queue)
        self._start_some()
        return True

    def _ends_of_now(self) -> QueueEnds:
        ends: dict[str, dict[str, tuple[int, int]]] = {}
        for queue in self._table:
            ends.setdefault(queue.topic, {})[str(queue.queue_id)] = (queue.offset_first, queue.offset_max)
        return QueueEnds(self._noted[0] if self._noted else -1, ends, dict(self.vouched.deleted))

    def delete(self, topics: Sequence[str], log_end: int) -> None:
        """Record that the topics' records before `log_end` are deleted, then remove the folders."""
        vouched = self.vouched
        table = {topic: queues for topic, queues in vouched.table.items() if topic not in topics}
        self.vouched = QueueEnds(vouched.phy_offset, table, {**vouched.deleted, **dict.fromkeys(topics, log_end)})
        self.forget_round()
        self._save(lambda: self._table.remove(topics))

    def disclaim(self, log_end: int, then: Callable[[], None]) -> None:
        """Vouch for nothing until the next round, because the log will be cut to `log_end`.

        `then` is called once this is durable.
        """
        self.vouched = QueueEnds(deleted=self.vouched.deleted)
        self.forget_round()
        self.clamp(log_end, then)

    def clamp(self, log_end: int, then: Callable[[], None]) -> None:
        """Lower the ends of deleted topics to `log_end`: records written behind it are new.

        `then` is called once this is durable.
        """
        deleted = self.vouched.deleted
        self.vouched.deleted = {topic: min(end, log_end) for topic, end in deleted.items()}
        self._save(then)

    def expire(self, phy_min: int) -> None:
        """Forget deleted topics whose records have all left the log."""
        deleted = self.vouched.deleted
        if any(log_end <= phy_min for log_end in deleted.values()):
            self.vouched.deleted = {topic: log_end for topic, log_end in deleted.items() if log_end > phy_min}

    def _save(self, then: Callable[[], None]) -> None:
        self._ends.save(lambda: msgspec.json.encode(self.vouched), then)

    def forget_round(self) -> None:
        """Void the running round, because the log or the queues have changed."""
        self._noted = None
        self._generation += 1

    # --- syncing ----------------------------------------------------------------------------------

    def _add(self, queue: ConsumeQueue) -> None:
        ext = queue.ext
        if ext is not None:
            unsynced, ext.unsynced = ext.unsynced, {}
            self._jobs += [(ext, file_start, ext.offset_written) for file_start in unsynced]
        unsynced, queue.unsynced = queue.unsynced, {}
        self._jobs += [(queue, file_start, queue.offset_written) for file_start in unsynced]

    def _start_some(self) -> None:
        while self._jobs and self._running < _SYNCS_AT_ONCE:
            self._running += 1
            job = self._jobs.popleft()
            self._disk.sync(job[0].files.path(job[1]), partial(self._synced, job))
        if self._in_round and not self._running:
            self._end_round()

    def _synced(self, job: Job, error: OSError | None) -> None:
        queue, file_start, offset = job
        self._running -= 1
        owner = self._table.by_key.get((queue.topic, queue.queue_id))
        known = owner is not None and queue in (owner, owner.ext)
        if error is None:
            queue.offset_synced = min(max(queue.offset_synced, offset), queue.offset_written)
        elif known and queue.files.start <= file_start < queue.files.end:
            self._broken(f"{queue.files.path(file_start)} could not be synced ({error.strerror or error})")
            return
        self._start_some()

    def _end_round(self) -> None:
        """Finish a round, all of whose units are durable.

        Sync the log up to the noted record, save the ends, then update the checkpoint.
        """
        noted, self._noted = self._noted, None
        self._in_round = False
        ends, generation = self._noted_ends, self._generation
        then, self._then = self._then, []

        def finish() -> None:
            for callback in then:
                callback()

        def saved() -> None:
            if noted is not None and generation == self._generation and self._ends.error is None:
                phy_offset, _, store_ms = noted
                self._checkpoint.logics_phy_offset = phy_offset
                self._checkpoint.logics_ms = store_ms
            finish()

        def log_synced(durable: bool) -> None:
            if durable and generation == self._generation:
                self.vouched = ends
                self._save(saved)
            else:
                finish()

        if noted is None:
            finish()
        else:
            self._sync_log(noted[1], log_synced)
