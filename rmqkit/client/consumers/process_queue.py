"""ProcessQueue: the messages of one queue that were pulled and are not done with.

The offset that may be committed is that of the first message still here, or one past the last that ever was; a message
that failed and waits for another delivery stays here and holds the offset back.

Concurrent consumption removes messages in any order. Orderly consumption takes them from the front, and either commits or
puts back what it took.

Source: `client/.../impl/consumer/ProcessQueue.java`.
"""

from collections.abc import Sequence

from rmqkit.client.message import MessageExt


class ProcessQueue:
    __slots__ = ("_taken", "_waiting", "count", "offset_last", "size")

    def __init__(self) -> None:
        # Both by queue offset, in rising order: pulls only ever add at the end.
        self._waiting: dict[int, MessageExt] = {}
        self._taken: dict[int, MessageExt] = {}
        self.count = 0
        #: bytes of all bodies as they came
        self.size = 0
        self.offset_last = -1

    def put(self, messages: Sequence[MessageExt]) -> None:
        for message in messages:
            offset = message.queue_offset
            if offset > self.offset_last:
                self.offset_last = offset
                self._waiting[offset] = message
                self.count += 1
                self.size += len(message.record.body)

    @property
    def span(self) -> int:
        """Distance between the first and the last message."""
        first = self._first()
        return 0 if first is None else self.offset_last - first

    def remove(self, messages: Sequence[MessageExt]) -> int:
        """Done with these; the offset to commit, or -1 when nothing was here."""
        if not self.count:
            return -1
        for message in messages:
            self._drop(self._waiting, message)
        return self.offset_done()

    def offset_done(self) -> int:
        first = self._first()
        return self.offset_last + 1 if first is None else first

    def __contains__(self, message: MessageExt) -> bool:
        return message.queue_offset in self._waiting

    # --- orderly

    def take(self, batch_max: int) -> list[MessageExt]:
        """Up to `batch_max` messages from the front."""
        offsets = [offset for offset, _ in zip(self._waiting, range(batch_max), strict=False)]
        taken = [self._waiting.pop(offset) for offset in offsets]
        self._taken |= zip(offsets, taken, strict=True)
        return taken

    def commit(self) -> int:
        """Done with what was taken; the offset to commit, or -1 when nothing was."""
        if not self._taken:
            return -1
        offset_next = max(self._taken) + 1
        for message in list(self._taken.values()):
            self._drop(self._taken, message)
        return offset_next

    def put_back(self) -> None:
        """What was taken comes first again."""
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
