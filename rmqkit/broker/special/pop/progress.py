"""ReviveProgress: how far the records of the revive queues are finished.

A record is finished if it is an ack, or a checkpoint without open messages. The progress of a queue
is its first record that is not finished. As consumer offset of the revive group it is the last
finished one before that, as upstream: readers begin one behind it.

It is committed only when the log is durable up to the retry messages and acks on which it relies.
It is copied to and from other members with all other consumer offsets.

The offsets that groups pop next are committed with it. A broker that begins to serve learns them
from the records after the progress (`ReviveReader.taken`), so none may be behind the progress:
otherwise messages that are acked long since would be popped again after a takeover or a return.

Source: `broker/.../processor/PopReviveService.java` (`mergeAndRevive`).
"""

from collections.abc import Callable, Mapping

from rmqkit.broker.special.contract import SpecialParts
from rmqkit.broker.special.pop.pending import PopQueue
from rmqkit.broker.tables.offsets import SEPARATOR, OffsetTable
from rmqkit.wire.bodies.pop import REVIVE_GROUP


class ReviveProgress:
    """The progress in all revive queues, and its commits."""

    def __init__(self, parts: SpecialParts, topic: str) -> None:
        self._store = parts.store
        self._offsets = parts.offsets
        self._topics, self._groups = parts.topics, parts.groups
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

    def commit(self, popped: dict[PopQueue, tuple[int, int]], then: Callable[[], None]) -> None:
        """Commit the progress once the log is durable; call `then` in any case.

        `popped` has the queues of all checkpoints that were read since the last commit, as
        `ReviveReader.popped`; those that are committed are removed.
        """
        ends = dict(popped)
        reached = {each: offset for each, offset in self._reached.items() if offset > self._committed(each)}
        if not reached and not ends:
            then()
            return

        def synced(durable: bool) -> None:
            if durable:
                for queue, (pop_ms, end) in ends.items():
                    self._raise_popped(queue, pop_ms, end)
                    if popped.get(queue) == (pop_ms, end):
                        del popped[queue]
                for queue_id, offset in reached.items():
                    # A truncation may have moved it back meanwhile.
                    self._raise(queue_id, min(offset, self._reached.get(queue_id, 0)))
            then()

        self._store.sync(self._store.offset_written, synced)

    def _raise_popped(self, queue: PopQueue, pop_ms: int, end: int) -> None:
        topic, group, queue_id = queue
        if topic not in self._topics.by_name or not self._groups.knows(group) or pop_ms <= reset_ms(self._offsets, queue):
            return
        end = min(end, self._store.queue_range(topic, queue_id).offset_max)
        if end > self._offsets.query(group, topic, queue_id):
            self._offsets.commit(group, topic, queue_id, end)

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


def reset_ms(offsets: OffsetTable, queue: PopQueue) -> int:
    """Return when the group was last reset in a queue (wall time in ms); 0: never."""
    topic, group, queue_id = queue
    return offsets.reset_ms.get(f"{topic}{SEPARATOR}{group}", {}).get(queue_id, 0)
