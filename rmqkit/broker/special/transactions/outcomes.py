"""Outcomes: which halves are decided.

Ops in the log name decided halves. They are read in order, from the committed op offset on. A half
that is decided here counts at once; `ops.py` writes its op.

`finished` has only offsets at or behind the first unfinished half, so it is as small as the number
of halves that wait for that one. An op is used up when each half that it names lies before.

Source: `broker/.../transaction/queue/TransactionalMessageServiceImpl.java` (`fillOpRemoveMap`,
`calculateOpOffset`).
"""

from collections import deque

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.special.transactions.rewrite import op_offsets
from rmqkit.errors import CorruptRecord
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.record import Record, decode_record
from rmqkit.wire.topic_names import OP_TOPIC

#: ops read in one turn
OPS_PER_TURN = 256


class Outcomes:
    """The decided halves at or behind the first unfinished one, and the ops of some of them."""

    def __init__(self, context: BrokerContext, store: StorageEngine) -> None:
        self._context = context
        self._store = store
        #: decided halves, by their offset in the half queue
        self.finished: set[int] = set()
        #: next op to read
        self._next = 0
        #: ops that were read and are not used up: op offset, greatest half offset that it names
        self._ops: deque[tuple[int, int]] = deque()

    def begin(self, op_offset: int, finished: set[int]) -> None:
        """Start to read ops at this offset. `finished` are decided and have no op yet."""
        self.finished = finished
        self._next = op_offset
        self._ops.clear()

    def read(self, head: int) -> bool:
        """Read ops, at most `OPS_PER_TURN`. Return whether all were read."""
        store = self._store
        known = store.queue_range(OP_TOPIC, 0)
        self._next = min(max(self._next, known.offset_min), known.offset_max)
        if self._next >= known.offset_max:
            return True
        entries = store.entries(OP_TOPIC, 0, self._next, OPS_PER_TURN)
        if not entries:
            self._context.log.warning("transaction-op-unreadable", offset=self._next)
            self._next += 1
            return False
        for entry in entries:
            offsets = self._offsets(entry.phy_offset, entry.size) if entry.size else []
            self.finished.update(offset for offset in offsets if offset >= head)
            self._ops.append((entry.queue_offset, max(offsets, default=-1)))
            self._next = entry.queue_offset + 1
        return self._next >= known.offset_max

    def _offsets(self, phy_offset: int, size: int) -> list[int]:
        try:
            record = decode_record(self._store.read_log(phy_offset, size), check_crc=False)
        except CorruptRecord:
            record = None
        if not isinstance(record, Record) or record.topic != OP_TOPIC:
            self._context.log.warning("transaction-op-unreadable", phy_offset=phy_offset)
            return []
        return op_offsets(bytes(record.body))

    def op_offset(self, head: int) -> int:
        """Return the offset of the first op that is not used up, if `head` is the first half."""
        while self._ops and self._ops[0][1] < head:
            self._ops.popleft()
        return self._ops[0][0] if self._ops else self._next
