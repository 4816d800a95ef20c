"""DelayOffsets: how far each delay level has been delivered, and delayOffset.json.

The offset of a level is that of the first message of its queue that is not known to be delivered. The data version moves
once per `delayOffsetUpdateVersionStep` deliveries, as upstream's.

The file must never say more than what would survive a power cut: a message that is counted as delivered and whose
delivered copy is lost would be gone. So a save takes the offsets as they are, has the log synced up to its end, and only
then writes them.

Source: `broker/.../schedule/ScheduleMessageService.java` (`updateOffset`, `encode`), `DelayOffsetSerializeWrapper.java`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rmqkit.runtime.kept import KeptFile
from rmqkit.wire.bodies import DataVersion, DelayOffsetTable
from rmqkit.wire.topic_names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker


class DelayOffsets:
    def __init__(self, broker: "Broker", folder: str) -> None:
        self._broker = broker
        self.by_level: dict[int, int] = {}
        self.version = DataVersion(timestamp=broker.clock.wall_ms)
        self.dirty = False
        self._updates = 0
        self._file = KeptFile(broker.ports.disk, f"{folder}/delayOffset.json")

    def load(self) -> None:
        """Raises KeptFileDamaged."""
        loaded = self._file.load(DelayOffsetTable.decode)
        if loaded is not None:
            self.by_level.update(loaded.offset_table)
            self.version = loaded.data_version

    def update(self, level: int, offset: int, count: int = 1) -> None:
        """The level is delivered up to `offset`, `count` messages more than before."""
        self.by_level[level] = offset
        self.dirty = True
        step = max(1, self._broker.config.delay.delay_offset_update_version_step)
        steps_before, self._updates = self._updates // step, self._updates + count
        for _ in range(self._updates // step - steps_before):
            self.version = self.version.next_version(self._broker.clock.wall_ms)

    def merge(self, told: DelayOffsetTable) -> None:
        """Take over what a peer has delivered; the log has to have the deliveries already.

        An offset never goes back, and never passes the end of its level's queue: a log that begins in the
        middle of its master's may have less of a queue, or none. Such a copy does not take the peer's
        version: an Apache master that returns replaces its own table by one of the same version.
        """
        is_whole = True
        for level, offset in told.offset_table.items():
            end = self._broker.store.queue_range(SCHEDULE_TOPIC, level - 1).offset_max
            if offset > end:
                is_whole, offset = False, end
            if offset > self.by_level.get(level, -1):
                self.by_level[level] = offset
                self.dirty = True
        if is_whole and told.data_version.newer_than(self.version):
            self.version = told.data_version
            self.dirty = True

    def snapshot(self) -> DelayOffsetTable:
        return DelayOffsetTable(data_version=self.version, offset_table=dict(sorted(self.by_level.items())))

    def save(self, then: Callable[[], None] | None = None) -> None:
        """Write what changed since the last save, once the log is durable; `then` is called in any case."""
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

        store = self._broker.store
        store.sync(store.offset_written, synced)
