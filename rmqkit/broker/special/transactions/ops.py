"""OpBatch: decided halves whose op is not written yet.

They are written together when

- the first of them has waited for `transactionOpBatchInterval`,
- their offsets fill an op of `transactionOpMsgMaxSize` bytes, or
- the duty stops.

A kill loses the batch. `search.py` then finds the committed messages; a rolled-back half is
checked again. Only a master writes ops, through the destination that is its own store: an acting
master keeps its decisions in `decisions.py`.

Source: `broker/.../transaction/queue/TransactionalMessageServiceImpl.java` (`deletePrepareMessage`,
`getOpMessage`).
"""

from functools import partial

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.special.contract import Destination
from rmqkit.broker.special.transactions import rewrite
from rmqkit.store.contract import PutStatus

DUTY = "transaction-ops"


class OpBatch:
    """Collects decided halves and writes their ops between `start` and `stop`."""

    def __init__(self, context: BrokerContext, host: bytes) -> None:
        self._context = context
        self._host = host
        self._to: Destination | None = None
        #: offsets of decided halves, in order
        self.waiting: dict[int, None] = {}
        #: their bytes in the body of an op
        self._size = 0

    def start(self, destination: Destination) -> None:
        self._to = destination
        self._context.duties.add(DUTY, self._write, self._context.clock.mono_ms if self.waiting else None)

    def stop(self) -> None:
        """Write what waits, and no more after that."""
        if DUTY in self._context.duties:
            self._write(self._context.clock.mono_ms)
            self._context.duties.remove(DUTY)

    def add(self, offset: int) -> None:
        """Add a decided half."""
        if offset in self.waiting:
            return
        config, now_ms = self._context.config.transactions, self._context.clock.mono_ms
        is_first = not self.waiting
        self.waiting[offset] = None
        self._size += len(str(offset)) + 1
        if self._size >= config.op_msg_max_size:
            self._context.duties.wake(DUTY, now_ms)
        elif is_first:
            self._context.duties.wake(DUTY, now_ms + config.op_batch_interval_ms)

    def forget(self) -> None:
        """Drop the halves that wait: the log that has them was truncated."""
        self.waiting.clear()
        self._size = 0

    def _write(self, now_ms: int) -> None:
        assert self._to is not None, "ops are written between start and stop"
        # All are taken first: a put that fails at once adds its halves again.
        batches = list(iter(self._take, []))
        for offsets in batches:
            put = rewrite.op(offsets, self._host, self._context.clock.wall_ms)
            self._to.put(put, f"OP:{offsets[0]}", partial(self._ended, offsets))

    def _take(self) -> list[int]:
        """Return the halves of the next op, and take them out of the batch."""
        limit = self._context.config.transactions.op_msg_max_size
        taken: list[int] = []
        size = 0
        for offset in self.waiting:
            size += len(str(offset)) + 1
            if taken and size > limit:
                break
            taken.append(offset)
        for offset in taken:
            del self.waiting[offset]
            self._size -= len(str(offset)) + 1
        return taken

    def _ended(self, offsets: list[int], status: PutStatus) -> None:
        if status is not PutStatus.PUT_OK:
            for offset in offsets:
                self.add(offset)
