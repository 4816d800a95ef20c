"""The checkpoint file: 4096 bytes, six i64 and zeroes, written in place and synced once a second when it changed.

    0 physicMsgTimestamp     store time of the last record known to be on the platter
    8 logicsMsgTimestamp     store time of the last record whose queue unit is
    16 indexMsgTimestamp     end time of the last index file that is full and on the platter
    24 masterFlushedOffset   a slave's: how far its master had flushed
    32 confirmPhyOffset      the log is on the platter up to there; upstream keeps its confirm offset here
    40 logicsPhysicalOffset  where the last record starts whose queue unit is on the platter

Recovery begins there: what a field says must already be true on disk when the file says it. So fields only move after
the syncs they speak of, and move back, synced, before anything is cut.

Source: `store/.../StoreCheckpoint.java` (5.5.0 added the sixth field).
"""

from collections.abc import Callable
from struct import Struct

from rmqkit.runtime.ports import Completion, Disk

CHECKPOINT_SIZE = 4096
_FIELDS = Struct(">6q")
#: upstream's margin: queue units of records this much older than the times are taken for granted
_MARGIN_MS = 3000


class Checkpoint:
    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self.physic_ms = 0
        self.logics_ms = 0
        self.index_ms = 0
        self.master_flushed_offset = 0
        self.confirm_phy_offset = 0
        self.logics_phy_offset = 0
        self._disk = disk
        self._saved = b""
        self._saving: bytes | None = None
        self._waiting: list[Completion] = []

    @property
    def values(self) -> tuple[int, int, int, int, int, int]:
        return (
            self.physic_ms,
            self.logics_ms,
            self.index_ms,
            self.master_flushed_offset,
            self.confirm_phy_offset,
            self.logics_phy_offset,
        )

    @property
    def ms_min(self) -> int:
        """Upstream's `getMinTimestamp`: records stored before it have their queue units on disk."""
        return max(min(self.physic_ms, self.logics_ms) - _MARGIN_MS, 0)

    def load(self) -> bool:
        """Whether there is one with anything in it. A short or impossible one counts as none."""
        size = self._disk.size(self.path) or 0
        content = self._disk.read(self.path, 0, _FIELDS.size) if size >= _FIELDS.size else b""
        if len(content) < _FIELDS.size:
            return False
        values = _FIELDS.unpack(content)
        if any(value < 0 for value in values) or not any(values):
            return False
        (
            self.physic_ms,
            self.logics_ms,
            self.index_ms,
            self.master_flushed_offset,
            self.confirm_phy_offset,
            self.logics_phy_offset,
        ) = values
        return True

    def lower(self, phy_offset: int) -> None:
        """Take back what is said about records at or after `phy_offset`: recovery then looks at all of their file."""
        self.confirm_phy_offset = min(self.confirm_phy_offset, phy_offset)
        self.index_ms = 0
        if self.logics_phy_offset >= phy_offset:
            self.logics_phy_offset = 0
            self.logics_ms = 0

    def save(self, then: Callable[[OSError | None], None] | None = None) -> None:
        """Write and sync when something changed; `then` hears when the values of now are on the platter."""
        content = _FIELDS.pack(*self.values).ljust(CHECKPOINT_SIZE, b"\0")
        if content == self._saved and self._saving is None:
            if then is not None:
                then(None)
            return
        if then is not None:
            self._waiting.append(then)
        if self._saving is not None:
            return
        try:
            self._disk.write(self.path, 0, [content])
        except OSError as error:
            self._end(error)
            return
        self._saving = content
        self._disk.sync(self.path, self._synced)

    def _synced(self, error: OSError | None) -> None:
        saved, self._saving = self._saving, None
        if error is not None:
            self._end(error)
            return
        self._saved = saved or b""
        if self._waiting and self._saved[: _FIELDS.size] != _FIELDS.pack(*self.values):
            self.save()
            return
        self._end(None)

    def _end(self, error: OSError | None) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then(error)
