"""Retention: removes old log files, then the queue and index files that pointed into them.

It checks every `cleanResourceInterval`, first after a minute, by Apache's rules:

- During an hour of `deleteWhen`, or if the disk is used above `diskMaxUsedSpaceRatio`, it removes
  log files not written for `fileReservedTime`. The oldest goes first, the last file never. One
  check removes at most `deleteFileBatchMax` files, `deleteCommitLogFilesInterval` apart.
- Above the forced level (85 %) it removes files before their time (`cleanFileForciblyEnable`).
- Above the warning level (90 %) the engine also refuses puts until usage is down to the forced
  level.
- After the log's minimum has risen, it removes the first files of queues whose last record is gone,
  and index files whose records are all gone, but never the last file of either. It also raises the
  minimum offsets of the queues.

Source: `store/.../DefaultMessageStore.java` (`CleanCommitLogService`),
`store/.../queue/ConsumeQueueStore.java` (`CleanConsumeQueueService`, `CorrectLogicOffsetService`).
"""

from datetime import datetime
from typing import TYPE_CHECKING

from rmqkit.config import RetentionSettings
from rmqkit.store.queues.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from rmqkit.store.mapped import MappedEngine

FIRST_MS = 60_000
_QUEUES_PER_RUN = 256
#: how many checks' worth of files one manual request may remove
#: (`CleanCommitLogService.MAX_MANUAL_DELETE_FILE_TIMES`)
_MANUAL_CHECKS = 20
_HOUR_MS = 3_600_000


class Retention:
    """Removes expired files of one engine. The engine calls `run` as a duty."""

    def __init__(self, engine: "MappedEngine") -> None:
        self._engine = engine
        self._check_ms = 0
        #: log files that may still be removed before the next check
        self._files_left = 0
        self._is_forced = False
        self._is_full = False
        self._phy_min = -1
        self._queues: list[ConsumeQueue] = []
        #: queue files removed since the last flush round, which saves the queues' first offsets
        self._dropped = 0

    def clean_log(self) -> None:
        """Remove expired log files from the next run on, regardless of the hour."""
        self._files_left = _MANUAL_CHECKS * max(self._engine.config.retention.delete_file_batch_max, 1)

    def clean_queues(self) -> None:
        """Check all queues for expired files in the next runs."""
        self._phy_min = -1

    def run(self, now_ms: int) -> int:
        """Do a bounded part of the work. Return when to run next, in mono ms."""
        settings = self._engine.config.retention
        if now_ms >= self._check_ms:
            self._check_ms = now_ms + max(settings.clean_resource_interval_ms, 1)
            self._check(settings)
        if self._files_left and self._remove_first(settings):
            self._files_left -= 1
        else:
            self._files_left = 0
        if self._follow():
            return now_ms
        return now_ms + settings.delete_commit_log_files_interval_ms if self._files_left else self._check_ms

    def _check(self, settings: RetentionSettings) -> None:
        is_over = self._measure(settings)
        hour = datetime.fromtimestamp(self._engine.ports.clock.wall_ms / 1000).hour
        if is_over or is_time(settings.delete_when, hour):
            self._files_left = max(settings.delete_file_batch_max, 1)
        if is_over and len(self._engine.log.files) <= 1:
            self._engine.ports.log.warning("disk-nearly-full", note="the last commit-log file is never removed")

    def _measure(self, settings: RetentionSettings) -> bool:
        """Measure disk usage and act on it. Return whether to remove expired files at any hour."""
        engine = self._engine
        warning = min(max(settings.disk_space_warning_level_ratio, 35), 90)
        forced = min(max(settings.disk_space_clean_forcibly_ratio, 30), 85)
        used = max(self.used_percent(engine.log.files.folder), self.used_percent(engine.table.folder))
        self._is_forced = settings.clean_file_forcibly_enable and used > forced
        # Hysteresis: a full disk counts as full until usage is back at the forced level.
        self._is_full = used > (forced if self._is_full else warning)
        reason = f"the disk is {used} % full; puts are accepted again at {forced} %" if self._is_full else ""
        engine.refuse("disk", reason)
        return used > min(forced, settings.disk_max_used_space_ratio)

    def used_percent(self, path: str) -> int:
        """Return the used percentage of the space available to us, rounded up like Apache."""
        usage = self._engine.disk.usage(path)
        room = usage.used + usage.free
        return -(-100 * usage.used // room) if room else 0

    def _remove_first(self, settings: RetentionSettings) -> bool:
        """Remove the oldest log file if it may be removed. Return whether it was."""
        engine = self._engine
        files = engine.log.files
        if len(files) <= 1 or engine.offset_synced <= files.start + files.file_size:
            # Some durable part of the log must remain, or a power loss could leave none of it.
            return False
        path = files.path(files.start)
        name = path.rpartition("/")[2]
        modified_ms = next((info.modified_ms for info in engine.disk.list(files.folder) if info.name == name), 0)
        reserved_ms = settings.file_reserved_time_hours * _HOUR_MS
        if not self._is_forced and modified_ms + reserved_ms > engine.ports.clock.wall_ms:
            return False
        engine.ports.log.info("log-file-removed", path=path, forced=self._is_forced)
        files.remove_first(self._removed)
        return True

    def _removed(self, error: OSError | None) -> None:
        if error is not None:
            self._engine.ports.log.warning("log-file-not-removed", error=str(error))

    def _follow(self) -> bool:
        """Adapt queues and index to the log's minimum. Return whether more queues are left."""
        engine = self._engine
        phy_min = engine.log.offset_min
        if phy_min != self._phy_min:
            self._phy_min = phy_min
            self._queues = list(engine.table)
            engine.index.drop_expired(phy_min)
            engine.queue_flush.expire(phy_min)
        for queue in self._queues[:_QUEUES_PER_RUN]:
            self._dropped += queue.drop_expired(phy_min)
            queue.correct_min(phy_min)
        del self._queues[:_QUEUES_PER_RUN]
        if self._dropped and not self._queues:
            # The saved ends still name the removed files; a recovery would take them for missing.
            self._dropped = 0
            engine.queue_flush.begin_round()
        return bool(self._queues)


def is_time(hours: str, hour: int) -> bool:
    """Return whether `hours`, the setting `deleteWhen` ("04", "04;16"), contains the hour."""
    return any(part.strip().isdigit() and int(part) == hour for part in hours.split(";"))
