"""Decides when to sync the commit log: periodic flush, group commit, `transientStorePoolEnable`.

One sync runs at a time. It covers everything written when it was requested. Requests made meanwhile
join the next sync (group commit). If the unsynced part spans two files, the older one is synced
first. A failed sync is final, because the kernel may have dropped the dirty pages: `failed` stays
set, every waiting request gets False, and nothing is acknowledged any more.

Every `flushIntervalCommitLog` the log is synced if `flushCommitLogLeastPages` pages are dirty, or
if the last thorough flush was `flushCommitLogThoroughInterval` ago.

With the pool, records stay in memory until `commitIntervalCommitLog` has passed and
`commitCommitLogLeastPages` pages wait. Their puts are answered, but readers and replicas do not see
them yet, and killing the process loses them.

Source: `store/.../CommitLog.java` (`FlushRealTimeService`, `GroupCommitService`,
`CommitRealTimeService`).
"""

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

from rmqkit.config import FlushSettings
from rmqkit.runtime.ports import Clock, Disk
from rmqkit.store.log.commit_log import CommitLog

PAGE_SIZE = 4096
Told = Callable[[bool], None]


class LogFlush:
    """The sync state of the commit log.

    `synced()` is called after `offset_synced` has risen, `broken(reason)` after a sync has failed.
    `whole_end()` returns the end of the last complete record. Invariant: everything below
    `offset_synced` is durable.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        log: CommitLog,
        synced: Callable[[], None],
        broken: Callable[[str], None],
        whole_end: Callable[[], int],
    ) -> None:
        self.offset_synced = 0
        #: end of a complete record that is durable. `offset_synced` may be inside a record: a
        #: replica gets its log in pieces
        self.whole_synced = 0
        #: store time (ms) of the last record below `offset_synced`
        self.synced_ms = 0
        self.failed = ""
        self._disk = disk
        self._clock = clock
        self._log = log
        self._synced = synced
        self._broken = broken
        self._whole_end = whole_end
        self._waiting: list[tuple[int, int, Told]] = []
        self._sequence = 0
        #: end offset of the running sync; -1 if none runs
        self._target = -1
        self._target_ms = 0
        self._target_whole = 0
        self._round = 0
        #: during a cut: no sync may start
        self.is_held = False
        self._full_ms = clock.mono_ms
        self._committed_ms = clock.mono_ms
        #: store time (ms) of the last record written
        self.written_ms = 0

    def sync(self, offset: int, then: Told) -> None:
        """Call `then(True)` once everything below `offset` is durable.

        Call `then(False)` if it never will be.
        """
        if self.failed:
            then(False)
        elif offset <= self.offset_synced:
            then(True)
        else:
            self._sequence += 1
            heappush(self._waiting, (offset, self._sequence, then))
            self.begin()

    def begin(self) -> None:
        """Start a sync of everything written, unless one is running."""
        log = self._log
        if self._target >= 0 or self.is_held or self.failed or log.offset_written <= self.offset_synced:
            return
        files = log.files
        self.offset_synced = max(self.offset_synced, files.start)
        # Up to the end of the first unsynced file; the next round covers the rest.
        self._target = min(log.offset_written, files.floor(self.offset_synced) + files.file_size)
        self._target_ms = self.written_ms if self._target == log.offset_written else 0
        self._target_whole = min(self._target, self._whole_end())
        self._round += 1
        self._disk.sync(files.path(self.offset_synced), partial(self._done, self._round))

    def _done(self, sync_round: int, error: OSError | None) -> None:
        if sync_round != self._round or self._target < 0:
            return
        target, self._target = self._target, -1
        if error is not None and target > self._log.offset_min:
            self.fail(f"{self._log.files.path(self.offset_synced)} could not be synced ({error.strerror or error})")
            return
        self.offset_synced = max(self.offset_synced, target)
        self.whole_synced = max(self.whole_synced, self._target_whole)
        self.synced_ms = self._target_ms or self.synced_ms
        waiting = self._waiting
        while waiting and waiting[0][0] <= target:
            heappop(waiting)[2](True)
        self._synced()
        if waiting or self._log.files.floor(target) == target:
            self.begin()

    def fail(self, reason: str) -> None:
        """Stop syncing for good and answer every waiting request with False."""
        if self.failed:
            return
        self.failed = reason
        self._broken(reason)
        waiting, self._waiting = sorted(self._waiting), []
        for _, _, then in waiting:
            then(False)

    def recovered(self, offset: int, store_ms: int) -> None:
        """Start from a recovered log that ends at `offset` and is durable up to there."""
        self.offset_synced = self.whole_synced = offset
        self.synced_ms = self.written_ms = store_ms

    def hold(self, offset: int) -> None:
        """Prepare for a cut of the log to `offset`.

        Ignore the result of a running sync and start none until `release`. Answer the requests for
        offsets behind `offset` with False.
        """
        self._target = -1
        self.is_held = True
        self.offset_synced = min(self.offset_synced, offset)
        self.whole_synced = min(self.whole_synced, offset)
        gone = sorted(waiting for waiting in self._waiting if waiting[0] > offset)
        self._waiting = sorted(waiting for waiting in self._waiting if waiting[0] <= offset)
        for _, _, then in gone:
            then(False)

    def release(self, store_ms: int) -> None:
        """Resume after a cut; the last record was stored at `store_ms`."""
        self.is_held = False
        self.synced_ms = self.written_ms = store_ms
        self.begin()

    # --- by interval ------------------------------------------------------------------------------

    def flush_due(self, settings: FlushSettings) -> int:
        """Start a sync if one is due. Return when to call again, in mono ms."""
        now_ms = self._clock.mono_ms
        dirty = self._log.offset_written - self.offset_synced
        least_pages = settings.flush_commit_log_least_pages
        if now_ms - self._full_ms >= settings.flush_commit_log_thorough_interval_ms:
            self._full_ms = now_ms
            least_pages = 0
        pages = self._log.offset_written // PAGE_SIZE - self.offset_synced // PAGE_SIZE
        if dirty > 0 and pages >= least_pages:
            self.begin()
        return now_ms + max(settings.flush_interval_commit_log_ms, 1)

    def commit_wanted(self, settings: FlushSettings) -> bool:
        """Return whether the pool should be written to the file now."""
        now_ms = self._clock.mono_ms
        log = self._log
        least_pages = settings.commit_commit_log_least_pages
        if now_ms - self._committed_ms >= settings.commit_commit_log_thorough_interval_ms:
            self._committed_ms = now_ms
            least_pages = 0
        pages = log.offset_max // PAGE_SIZE - log.offset_written // PAGE_SIZE
        return log.offset_max > log.offset_written and pages >= least_pages
