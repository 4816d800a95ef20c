"""The progress of transactions: consumer offsets of CID_RMQ_SYS_TRANS, as in Apache's broker.

    half topic   the first half that is not known to be finished
    op topic     the first op that names a half at or behind that offset

The table of consumer offsets is saved, copied to slaves and merged by a returning master like every
other group's offsets. The snapshot on the wire also has the entries of `decisions.py`, for which
Apache's broker has no place. Its request code is rmqkit's own. A broker that does not know the code
is left out, and gets the offsets alone.

Source: `broker/.../transaction/queue/TransactionalMessageBridge.java` (`fetchConsumeOffset`).
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from rmqkit.broker.tables.offsets import OffsetTable
from rmqkit.errors import RemoteProtocolError
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.topic_names import HALF_TOPIC, OP_TOPIC

GROUP = "CID_RMQ_SYS_TRANS"
#: request code of the snapshot; no code of Apache's
CODE = 46_037


class _Offsets(msgspec.Struct):
    """The snapshot as JSON."""

    half: int
    op: int
    commits: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()


class HalfProgress(NamedTuple):
    """Offsets in the queues of the half topic and the op topic.

    `commits` and `finished` are offsets of halves that were decided while the master was away.
    """

    half: int = 0
    op: int = 0
    commits: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()

    def encode(self) -> bytes:
        return msgspec.json.encode(self._asdict())

    @staticmethod
    def decode(data: bytes) -> "HalfProgress":
        """Return the progress. Raises RemoteProtocolError."""
        try:
            found = msgspec.json.decode(data, type=_Offsets)
        except msgspec.MsgspecError as error:
            raise RemoteProtocolError(f"transaction offsets: {error}") from None
        return HalfProgress(found.half, found.op, found.commits, found.finished)

    def newest(self, other: "HalfProgress") -> "HalfProgress":
        """Return the greater offsets, with this object's decisions."""
        return self._replace(half=max(self.half, other.half), op=max(self.op, other.op))

    def oldest(self, other: "HalfProgress") -> "HalfProgress":
        """Return the smaller offsets, with this object's decisions."""
        return self._replace(half=min(self.half, other.half), op=min(self.op, other.op))


class ProgressMark:
    """The committed progress, and newer progress that waits for a sync of the log."""

    def __init__(self, offsets: OffsetTable, store: StorageEngine) -> None:
        self._offsets = offsets
        self._store = store
        #: progress that is not committed; None: all is
        self._waiting: HalfProgress | None = None
        #: the log offset up to which the log must be durable before
        self._safe_at = 0

    @property
    def committed(self) -> HalfProgress:
        """The committed offsets; 0 for one that is missing."""
        query = self._offsets.query
        return HalfProgress(max(0, query(GROUP, HALF_TOPIC, 0)), max(0, query(GROUP, OP_TOPIC, 0)))

    def newest(self) -> HalfProgress:
        """Return the progress, committed or not."""
        return self.committed if self._waiting is None else self.committed.newest(self._waiting)

    def reached(self, progress: HalfProgress, safe_at: int) -> None:
        """Note progress. A power loss cannot undo it once the log is durable up to `safe_at`."""
        self._safe_at = max(self._safe_at, safe_at)
        self._waiting = progress
        if self._safe_at <= self._store.offset_synced:
            self.commit()

    def merge(self, progress: HalfProgress) -> None:
        """Commit a peer's progress where it is further."""
        self._set(self.committed.newest(progress))

    def move_back(self, limit: HalfProgress) -> None:
        self._waiting = None
        self._set(self.committed.oldest(limit))

    def commit(self, then: Callable[[], None] | None = None) -> None:
        """Commit the progress once the log is durable. Call `then` in any case."""
        progress = self._waiting

        def synced(durable: bool) -> None:
            if durable and progress is not None and self._waiting is not None:
                self._set(self.committed.newest(progress))
                if self._waiting is progress:
                    self._waiting = None
            if then is not None:
                then()

        if progress is None or self._safe_at <= self._store.offset_synced:
            synced(True)
        else:
            self._store.sync(self._safe_at, synced)

    def _set(self, progress: HalfProgress) -> None:
        known = self.committed
        if progress.half != known.half:
            self._offsets.commit(GROUP, HALF_TOPIC, 0, progress.half)
        if progress.op != known.op:
            self._offsets.commit(GROUP, OP_TOPIC, 0, progress.op)
