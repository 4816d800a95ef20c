"""The checkpoint file: what is durable, so that recovery knows where to begin.

It is 4096 bytes: six i64, then zeroes. It is written in place and synced, once a second if it
changed.

    0 physicMsgTimestamp     store time of the last durable record
    8 logicsMsgTimestamp     store time of the last record whose queue unit is durable
    16 indexMsgTimestamp     end time of the last full and durable index file
    24 masterFlushedOffset   on a slave: the offset up to which its master had flushed
    32 confirmPhyOffset      the log is durable up to this offset (Apache: its confirm offset)
    40 logicsPhysicalOffset  start of the last record whose queue unit is durable

Recovery trusts these fields, so each must already be true on disk when the file states it. A field
therefore rises only after the syncs that it vouches for. Before a truncation the fields are lowered
and the file is synced.

Source: `store/.../StoreCheckpoint.java` (5.5.0 added the sixth field).
"""

from collections.abc import Callable
from struct import Struct

from rmqkit.runtime.ports import Completion, Disk

CHECKPOINT_SIZE = 4096
_FIELDS = Struct(">6q")
#: Apache's margin in ms: records at least this much older than both timestamps have durable units
_MARGIN_MS = 3000


class Checkpoint:
    """The fields of the checkpoint file; times in ms. Changes reach the disk with `save`."""

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
        """Records stored before this time have durable queue units. Apache: `getMinTimestamp`."""
        return max(min(self.physic_ms, self.logics_ms) - _MARGIN_MS, 0)

    def load(self) -> bool:
        """Read the file. Return False if it is missing, too short, invalid or all zeroes."""
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
        """Stop vouching for records at or after `phy_offset`, which will be cut.

        The next recovery then reads the log from an earlier record and checks the last index file.
        """
        self.confirm_phy_offset = min(self.confirm_phy_offset, phy_offset)
        self.index_ms = 0
        if self.logics_phy_offset >= phy_offset:
            self.logics_phy_offset = 0
            self.logics_ms = 0

    def save(self, then: Callable[[OSError | None], None] | None = None) -> None:
        """Write and sync the file if a field changed.

        `then` is called once the current values are durable, or with the OSError.
        """
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
