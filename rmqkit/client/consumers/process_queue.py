"""ProcessQueue: the messages of one queue that were pulled but not yet consumed.

The offset that may be committed is the offset of the first message still here. If none is left, it
is one past the last message that ever was here. A failed message that waits for redelivery stays
here and so holds the offset back.

Concurrent consumption removes messages in any order. Orderly consumption takes them from the front,
and then either commits them or puts them back.

Source: `client/.../impl/consumer/ProcessQueue.java`.
"""

from collections.abc import Sequence

from rmqkit.client.message import MessageExt


class ProcessQueue:
    """The messages of one queue that are held. Invariant: `count` and `size` include taken
    messages.
    """

    __slots__ = ("_taken", "_waiting", "count", "offset_last", "size")

    def __init__(self) -> None:
        # Both are keyed by queue offset, in ascending order, because pulls only append.
        self._waiting: dict[int, MessageExt] = {}
        self._taken: dict[int, MessageExt] = {}
        self.count = 0
        #: Bytes of all bodies, as received.
        self.size = 0
        self.offset_last = -1

    def put(self, messages: Sequence[MessageExt]) -> None:
        """Append pulled messages. Messages below the last offset are skipped as duplicates."""
        for message in messages:
            offset = message.queue_offset
            if offset > self.offset_last:
                self.offset_last = offset
                self._waiting[offset] = message
                self.count += 1
                self.size += len(message.record.body)

    @property
    def span(self) -> int:
        """The distance between the offsets of the first and the last message."""
        first = self._first()
        return 0 if first is None else self.offset_last - first

    def remove(self, messages: Sequence[MessageExt]) -> int:
        """Remove consumed messages. Returns the offset to commit, or -1 if the queue was empty."""
        if not self.count:
            return -1
        for message in messages:
            self._drop(self._waiting, message)
        return self.offset_done()

    def offset_done(self) -> int:
        """Return the offset up to which all messages are consumed."""
        first = self._first()
        return self.offset_last + 1 if first is None else first

    def __contains__(self, message: MessageExt) -> bool:
        return message.queue_offset in self._waiting

    # --- orderly

    def take(self, batch_max: int) -> list[MessageExt]:
        """Take up to `batch_max` messages from the front."""
        offsets = [offset for offset, _ in zip(self._waiting, range(batch_max), strict=False)]
        taken = [self._waiting.pop(offset) for offset in offsets]
        self._taken |= zip(offsets, taken, strict=True)
        return taken

    def commit(self) -> int:
        """Remove the taken messages. Returns the offset to commit, or -1 if none were taken."""
        if not self._taken:
            return -1
        offset_next = max(self._taken) + 1
        for message in list(self._taken.values()):
            self._drop(self._taken, message)
        return offset_next

    def put_back(self) -> None:
        """Put the taken messages back to the front."""
        self._waiting = self._taken | self._waiting
        self._taken = {}

    def _first(self) -> int | None:
        for part in (self._taken, self._waiting):
            if part:
                return next(iter(part))
        return None

    def _drop(self, part: dict[int, MessageExt], message: MessageExt) -> None:
        if part.pop(message.queue_offset, None) is not None:
            self.count -= 1
            self.size -= len(message.record.body)
