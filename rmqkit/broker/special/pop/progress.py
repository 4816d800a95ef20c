"""ReviveProgress: how far the records of the revive queues are finished.

A record is finished if it is an ack, or a checkpoint without open messages. The progress of a queue
is its first record that is not finished. As consumer offset of the revive group it is the last
finished one before that, as upstream: readers begin one behind it.

It is committed only when the log is durable up to the retry messages and acks on which it relies.
It is copied to and from other members with all other consumer offsets.

Source: `broker/.../processor/PopReviveService.java` (`mergeAndRevive`).
"""

from collections.abc import Callable, Mapping

from rmqkit.broker.special.contract import SpecialParts
from rmqkit.wire.bodies.pop import REVIVE_GROUP


class ReviveProgress:
    """The progress in all revive queues, and its commits."""

    def __init__(self, parts: SpecialParts, topic: str) -> None:
        self._store = parts.store
        self._offsets = parts.offsets
        self._topic = topic
        #: the first unfinished record of each queue, as far as this broker knows
        self._reached: dict[int, int] = {}

    def next(self, queue_id: int) -> int:
        """Return the first unfinished record of a queue."""
        return max(self._reached.get(queue_id, 0), self._committed(queue_id))

    def _committed(self, queue_id: int) -> int:
        return self._offsets.query(REVIVE_GROUP, self._topic, queue_id) + 1

    def note(self, finished: Mapping[int, int]) -> None:
        """Note how far the queues are finished."""
        for queue_id, offset in finished.items():
            if offset > self._reached.get(queue_id, 0):
                self._reached[queue_id] = offset

    def commit(self, then: Callable[[], None]) -> None:
        """Commit the progress once the log is durable; call `then` in any case."""
        reached = {each: offset for each, offset in self._reached.items() if offset > self._committed(each)}
        if not reached:
            then()
            return

        def synced(durable: bool) -> None:
            if durable:
                for queue_id, offset in reached.items():
                    # A truncation may have moved it back meanwhile.
                    self._raise(queue_id, min(offset, self._reached.get(queue_id, 0)))
            then()

        self._store.sync(self._store.offset_written, synced)

    def _raise(self, queue_id: int, offset: int) -> None:
        if offset > self._committed(queue_id):
            self._offsets.commit(REVIVE_GROUP, self._topic, queue_id, offset - 1)

    def snapshot(self, queue_count: int) -> dict[int, int]:
        """Return the progress of all queues, without zeros."""
        offsets = {queue_id: self.next(queue_id) for queue_id in range(queue_count)}
        return {queue_id: offset for queue_id, offset in offsets.items() if offset}

    def merge(self, offsets: Mapping[int, int]) -> None:
        """Take over a peer's progress where it is further, within this log."""
        for queue_id, offset in sorted(offsets.items()):
            known = min(offset, self._store.queue_range(self._topic, queue_id).offset_max)
            if known > self.next(queue_id):
                self._reached[queue_id] = known
                self._raise(queue_id, known)

    def truncate(self, limits: Mapping[int, int] | None, queue_count: int) -> None:
        """Move back to the end of this log, and to the master's progress if it is known."""
        for queue_id in range(queue_count):
            end = self._store.queue_range(self._topic, queue_id).offset_max
            if limits is not None:
                end = min(end, max(0, limits.get(queue_id, 0)))
            if self.next(queue_id) > end:
                self._reached[queue_id] = end
                self._offsets.commit(REVIVE_GROUP, self._topic, queue_id, end - 1)
