"""Retention: old log files go, and what pointed into them follows.

A look every `cleanResourceInterval` (the first after a minute), upstream's rules:

- In an hour of `deleteWhen`, or when the disk is used above `diskMaxUsedSpaceRatio`, files not written for
  `fileReservedTime` are removed, oldest first, never the last, at most `deleteFileBatchMax` a look,
  `deleteCommitLogFilesInterval` apart.
- Above the forced level (85 %) files go before their time (`cleanFileForciblyEnable`); above the warning level (90 %) puts
  are refused as well, until use is down at the forced level.
- When the log's minimum has risen: queues' first files whose last record is gone, index files whose records are all
  gone, never the last of either; the queues' minima.

Source: `store/.../DefaultMessageStore.java` (`CleanCommitLogService`), `store/.../queue/ConsumeQueueStore.java`
(`CleanConsumeQueueService`, `CorrectLogicOffsetService`).
"""

from datetime import datetime
from typing import TYPE_CHECKING

from rmqkit.config import RetentionSettings
from rmqkit.store.queues.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from rmqkit.store.mapped import MappedEngine

FIRST_MS = 60_000
_QUEUES_PER_RUN = 256
#: looks whose files one request may remove (`CleanCommitLogService.MAX_MANUAL_DELETE_FILE_TIMES`)
_MANUAL_LOOKS = 20
_HOUR_MS = 3_600_000


class Retention:
    def __init__(self, engine: "MappedEngine") -> None:
        self._engine = engine
        self._look_ms = 0
        #: files this look may still remove
        self._files_left = 0
        self._is_forced = False
        self._is_full = False
        self._phy_min = -1
        self._queues: list[ConsumeQueue] = []
        #: queue files removed since the saved ends were last told
        self._dropped = 0

    def clean_log(self) -> None:
        """Files whose time is over go from the next run on, whatever the hour."""
        self._files_left = _MANUAL_LOOKS * max(self._engine.config.retention.delete_file_batch_max, 1)

    def clean_queues(self) -> None:
        """The next run looks at all queues again."""
        self._phy_min = -1

    def run(self, now_ms: int) -> int:
        """One look, or a part of its work; when to come back, in mono ms."""
        settings = self._engine.config.retention
        if now_ms >= self._look_ms:
            self._look_ms = now_ms + max(settings.clean_resource_interval_ms, 1)
            self._look(settings)
        if self._files_left and self._remove_first(settings):
            self._files_left -= 1
        else:
            self._files_left = 0
        if self._follow():
            return now_ms
        return now_ms + settings.delete_commit_log_files_interval_ms if self._files_left else self._look_ms

    def _look(self, settings: RetentionSettings) -> None:
        is_over = self._measure(settings)
        hour = datetime.fromtimestamp(self._engine.ports.clock.wall_ms / 1000).hour
        if is_over or is_time(settings.delete_when, hour):
            self._files_left = max(settings.delete_file_batch_max, 1)
        if is_over and len(self._engine.log.files) <= 1:
            self._engine.ports.log.warning("disk-nearly-full", note="the last commit-log file is never removed")

    def _measure(self, settings: RetentionSettings) -> bool:
        """Set what follows from the disk's use; whether expired files should go at any hour."""
        engine = self._engine
        warning = min(max(settings.disk_space_warning_level_ratio, 35), 90)
        forced = min(max(settings.disk_space_clean_forcibly_ratio, 30), 85)
        used = max(self.used_percent(engine.log.files.folder), self.used_percent(engine.table.folder))
        self._is_forced = settings.clean_file_forcibly_enable and used > forced
        # What was said to be full is full until use is back at the forced level.
        self._is_full = used > (forced if self._is_full else warning)
        reason = f"the disk is {used} % full, puts are taken again at {forced} %" if self._is_full else ""
        engine.refuse("disk", reason)
        return used > min(forced, settings.disk_max_used_space_ratio)

    def used_percent(self, path: str) -> int:
        """Used share of what the file system has for us, rounded up as upstream does."""
        usage = self._engine.disk.usage(path)
        room = usage.used + usage.free
        return -(-100 * usage.used // room) if room else 0

    def _remove_first(self, settings: RetentionSettings) -> bool:
        """Remove the oldest log file when it may go."""
        engine = self._engine
        files = engine.log.files
        if len(files) <= 1 or engine.offset_synced <= files.start + files.file_size:
            # Something of the log has to be on the platter, or a power loss would leave none of it.
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
        """Let queues and index follow the log's minimum; whether there is more to do now."""
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
            # The saved ends know of the files that went: a recovery would miss them.
            self._dropped = 0
            engine.queue_flush.begin_round()
        return bool(self._queues)


def is_time(hours: str, hour: int) -> bool:
    """Whether the hour is one of `deleteWhen` ("04", "04;16")."""
    return any(part.strip().isdigit() and int(part) == hour for part in hours.split(";"))
