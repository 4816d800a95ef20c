"""DelayOffsets: how far each delay level has been delivered, and delayOffset.json.

The offset of a level is the offset of the first message in its queue that is not known to be
delivered. As in Apache, the data version increases once per `delayOffsetUpdateVersionStep`
deliveries.

The file must never count a delivery that a power loss could undo, or the message would be lost. So
a save takes a copy of the offsets, syncs the log up to its end, and only then writes the copy.

Source: `broker/.../schedule/ScheduleMessageService.java` (`updateOffset`, `encode`),
`DelayOffsetSerializeWrapper.java`.
"""

from collections.abc import Callable

from rmqkit.broker.special.contract import SpecialParts
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.wire.bodies import DataVersion, DelayOffsetTable
from rmqkit.wire.topic_names import SCHEDULE_TOPIC


class DelayOffsets:
    """The delivered offsets of all delay levels, their data version, and the file."""

    def __init__(self, parts: SpecialParts) -> None:
        self._context = parts.context
        self._store = parts.store
        self.by_level: dict[int, int] = {}
        self.version = DataVersion(timestamp=self._context.clock.wall_ms)
        self.dirty = False
        self._updates = 0
        self._file = AtomicFile(self._context.disk, f"{parts.folder}/delayOffset.json")

    def load(self, *, is_copy: bool) -> None:
        """Read the file. `is_copy`: it was copied from a master.

        Raises AtomicFileDamaged if the file cannot be read.
        """
        loaded = self._file.load(DelayOffsetTable.decode)
        if loaded is not None:
            self.by_level.update(loaded.offset_table)
            self.version = loaded.data_version
        if is_copy and not self.version.counter:
            # This version was drawn at this start. It would not be older than the master's,
            # although the table has no content.
            self.version = DataVersion()

    def update(self, level: int, offset: int, count: int = 1) -> None:
        """Set the delivered offset of a level, after `count` more deliveries."""
        self.by_level[level] = offset
        self.dirty = True
        step = max(1, self._context.config.delay.delay_offset_update_version_step)
        steps_before, self._updates = self._updates // step, self._updates + count
        for _ in range(self._updates // step - steps_before):
            self.version = self.version.next_version(self._context.clock.wall_ms)

    def merge(self, theirs: DelayOffsetTable) -> None:
        """Take over a peer's offsets where they are greater. The log must hold the deliveries
        already.

        An offset never decreases, and never exceeds the end of its level's queue: a log that
        starts in the middle of the master's log may have only a part of a queue, or none of it.
        Such a partial copy does not take the peer's version, because a returning Apache master
        replaces its own table by one of the same version.
        """
        is_whole = True
        for level, offset in theirs.offset_table.items():
            end = self._store.queue_range(SCHEDULE_TOPIC, level - 1).offset_max
            if offset > end:
                is_whole, offset = False, end
            if offset > self.by_level.get(level, -1):
                self.by_level[level] = offset
                self.dirty = True
        if is_whole and theirs.data_version.newer_than(self.version):
            self.version = theirs.data_version
            self.dirty = True

    def truncate(self, limit: DelayOffsetTable | None) -> None:
        """Limit the offsets to the ends of the queues, and to the master's offsets if known."""
        for level, offset in list(self.by_level.items()):
            end = self._store.queue_range(SCHEDULE_TOPIC, level - 1).offset_max
            if limit is not None:
                end = min(end, max(0, limit.offset_table.get(level, 0)))
            if offset > end:
                self.update(level, end, 0)

    def snapshot(self) -> DelayOffsetTable:
        return DelayOffsetTable(data_version=self.version, offset_table=dict(sorted(self.by_level.items())))

    def save(self, then: Callable[[], None] | None = None) -> None:
        """Write changed offsets once the log is durable. Call `then` in any case."""
        if not (self.dirty or self._file.busy or self._file.error is not None):
            if then is not None:
                then()
            return
        self.dirty = False
        content = self.snapshot().pretty().encode()

        def synced(durable: bool) -> None:
            if durable:
                self._file.save(lambda: content, then)
            elif then is not None:
                then()

        self._store.sync(self._store.offset_written, synced)
