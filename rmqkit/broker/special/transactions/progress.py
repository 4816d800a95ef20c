"""The progress of transactions: consumer offsets of CID_RMQ_SYS_TRANS, as in Apache's broker.

    half topic   the first half that is not known to be finished
    op topic     the first op that names a half at or behind that offset

The table of consumer offsets is saved, copied to slaves and merged by a returning master like every
other group's offsets.

Source: `broker/.../transaction/queue/TransactionalMessageBridge.java` (`fetchConsumeOffset`).
"""

from typing import NamedTuple

import msgspec

from rmqkit.broker.tables.offsets import OffsetTable
from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.topic_names import HALF_TOPIC, OP_TOPIC

GROUP = "CID_RMQ_SYS_TRANS"


class HalfProgress(NamedTuple):
    """Offsets in the queues of the half topic and the op topic."""

    half: int = 0
    op: int = 0

    def encode(self) -> bytes:
        return msgspec.json.encode(self._asdict())

    @staticmethod
    def decode(data: bytes) -> "HalfProgress":
        """Return the progress. Raises RemoteProtocolError."""
        try:
            found = msgspec.json.decode(data, type=dict[str, int])
            return HalfProgress(found["half"], found["op"])
        except (msgspec.MsgspecError, KeyError) as error:
            raise RemoteProtocolError(f"transaction offsets: {error}") from None

    def newest(self, other: "HalfProgress") -> "HalfProgress":
        return HalfProgress(max(self.half, other.half), max(self.op, other.op))

    def oldest(self, other: "HalfProgress") -> "HalfProgress":
        return HalfProgress(min(self.half, other.half), min(self.op, other.op))


def committed_progress(offsets: OffsetTable) -> HalfProgress:
    """Return the committed offsets; 0 for one that is missing."""
    return HalfProgress(max(0, offsets.query(GROUP, HALF_TOPIC, 0)), max(0, offsets.query(GROUP, OP_TOPIC, 0)))


def commit(offsets: OffsetTable, progress: HalfProgress) -> None:
    """Set the committed offsets where they differ."""
    known = committed_progress(offsets)
    if progress.half != known.half:
        offsets.commit(GROUP, HALF_TOPIC, 0, progress.half)
    if progress.op != known.op:
        offsets.commit(GROUP, OP_TOPIC, 0, progress.op)
