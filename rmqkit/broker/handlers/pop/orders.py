"""PopOrders: ordered pop, where a queue is blocked while one of its messages is with a client.

An ordered pop hands out a batch of a queue. Until every message of the batch is acked, or its
invisible time is over, the queue gives the group nothing more. A message whose time is over comes
again, with all after it. No checkpoint is stored: the committed offset is the first message
without an ack, so nothing is lost with this table.

- A client that repeats a pop with the same `attemptId`, since it got no answer, gets the batch
  again at once, and this does not count as another delivery.
- An ack is valid only with the pop time of the last batch. It moves the committed offset.
- A change of the invisible time moves only the time at which that message blocks no more.

When a queue becomes free, waiting pops are woken (`enableNotifyAfterPopOrderLockRelease`): after an
ack at once, after the end of an invisible time by a duty.

The table is written to consumerOrderInfo.json, in Apache's form, `SAVE_MS` after a change. Written
entries are without topics, groups and queues that are gone, and without those idle for a day.

Limit: at `QUEUES_MAX` entries, pops of queues without an entry get no messages until other entries
are cleaned.

Source: `broker/.../pop/orderly/QueueLevelConsumerManager.java` and
`QueueLevelConsumerOrderInfoLockManager.java`.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.handlers.pop.order_info import OrderInfo, OrderInfoTable
from rmqkit.broker.special.pop.pending import PopQueue
from rmqkit.broker.tables.groups import GroupTable
from rmqkit.broker.tables.topics import TopicTable
from rmqkit.runtime.atomic_file import AtomicFile

FREE, SAVE = "pop-order-free", "pop-order-save"
#: pause between a change and its save
SAVE_MS = 1_000
#: limit of the entries, which are queues of a topic and group
QUEUES_MAX = 100_000
#: entries without a pop for so long are cleaned
IDLE_MS = 24 * 3_600_000
#: while queues are blocked, the wall clock is read at this interval
CLOCK_POLL_MS = 1_000
SEPARATOR = "@"

Freed = Callable[[PopQueue], None]


class PopOrders:
    """The last batch of each queue that is popped in order."""

    def __init__(self, context: BrokerContext, topics: TopicTable, groups: GroupTable, folder: str, freed: Freed) -> None:
        """`freed` is called for each queue that an ordered pop may read again."""
        self._context = context
        self._topics, self._groups = topics, groups
        self._file = AtomicFile(context.disk, f"{folder}/consumerOrderInfo.json")
        self._freed = freed
        self._infos: dict[PopQueue, OrderInfo] = {}
        #: id or address of the client that has the last batch; not saved
        self._clients: dict[PopQueue, str] = {}
        self._is_dirty = False
        #: when blocked queues may become free, in wall ms. `_watched` has the valid entry of a
        #: queue, which is no later than its end
        self._ends: list[tuple[int, PopQueue]] = []
        self._watched: dict[PopQueue, int] = {}
        context.duties.add(FREE, self._free, None)
        context.duties.add(SAVE, self._save_due, None)

    def __iter__(self) -> Iterator[tuple[PopQueue, OrderInfo]]:
        return iter(self._infos.items())

    # --- the file ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file. Raises AtomicFileDamaged if it cannot be read."""
        loaded = self._file.load(OrderInfoTable.decode)
        for key, queues in loaded.table.items() if loaded is not None else ():
            topic, separator, group = key.partition(SEPARATOR)
            for queue_id, info in queues.items():
                if separator and info.places:
                    self._put((topic, group, queue_id), info)

    def save(self, then: Callable[[], None] | None = None) -> None:
        """Write the file if something changed, then call `then`, even after a failure."""
        is_changed, self._is_dirty = self._is_dirty, False
        self._file.save_if(is_changed, lambda: self._cleaned().pretty().encode(), then)

    def _save_due(self, now_ms: int) -> None:
        self.save()

    def _cleaned(self) -> OrderInfoTable:
        wall_ms = self._context.clock.wall_ms
        table: dict[str, dict[int, OrderInfo]] = {}
        for queue, info in list(self._infos.items()):
            topic, group, queue_id = queue
            config = self._topics.get(topic)
            is_known = config is not None and queue_id < config.read_queue_nums and self._groups.knows(group)
            if is_known and wall_ms - info.last_ms <= IDLE_MS:
                table.setdefault(f"{topic}{SEPARATOR}{group}", {})[queue_id] = info
            else:
                del self._infos[queue]
                self._clients.pop(queue, None)
        return OrderInfoTable(table=table)

    def find(self, queue: PopQueue) -> OrderInfo | None:
        """Return the last batch of a queue, None if it is not known."""
        return self._infos.get(queue)

    def client_of(self, queue: PopQueue) -> str:
        """Return the client that has the last batch of a queue, "" if it is unknown."""
        return self._clients.get(queue, "")

    # --- batches ----------------------------------------------------------------------------------

    def is_blocked(self, queue: PopQueue, attempt_id: str | None, invisible_ms: int) -> bool:
        """Return whether a message of the last batch is still with a client.

        `invisible_ms` is the caller's, for entries that lack it. The client that repeats the
        attempt is not blocked.
        """
        info = self._infos.get(queue)
        if info is None:
            return len(self._infos) >= QUEUES_MAX
        if attempt_id is not None and info.attempt_id == attempt_id:
            return False
        return info.invisible_until(invisible_ms) > self._context.clock.wall_ms

    def hand_out(
        self,
        queue: PopQueue,
        offsets: Sequence[int],
        pop_ms: int,
        invisible_ms: int,
        attempt_id: str | None,
        client_id: str,
    ) -> OrderInfo:
        """Note a batch, and count the messages of it that were in the last one."""
        info, last = OrderInfo.of(offsets, pop_ms, invisible_ms, attempt_id), self._infos.get(queue)
        if last is not None:
            counts = last.counts or {}
            if attempt_id is None or attempt_id != last.attempt_id:
                again = set(last.offsets)
                counts = {offset: counts.get(offset, 0) + 1 for offset in offsets if offset in again}
            info.counts = counts
        self._clients[queue] = client_id
        self._put(queue, info)
        self._changed()
        return info

    def ack(self, queue: PopQueue, offset: int, pop_ms: int, committed: int) -> int | None:
        """Mark a message as acked. Return the offset to commit, None if the ack has no effect.

        An ack with an outdated handle has none. In a queue without an entry, only an ack of the
        `committed` offset has one. Raises ValueError if the message is not in the batch.
        """
        info = self._infos.get(queue)
        if info is None:
            # Upstream commits `offset` + 1. But messages before it may have no ack.
            return offset + 1 if offset == committed else None
        if info.pop_ms != pop_ms:
            return None
        info.acked |= 1 << info.offsets.index(offset)
        if info.invisible_until() <= self._context.clock.wall_ms:
            self._freed(queue)
        self._watch(queue, info)
        self._changed()
        return info.next_offset

    def hide(self, queue: PopQueue, offset: int, pop_ms: int, until_ms: int) -> None:
        """Let a message of the batch block its queue until another wall time."""
        info = self._infos.get(queue)
        if info is not None and info.pop_ms == pop_ms and offset in info.offsets:
            info.visible = {**(info.visible or {}), offset: until_ms}
            self._put(queue, info)
            self._changed()

    def clear(self, queue: PopQueue) -> None:
        """Forget a batch, after a reset of the offset."""
        if self._infos.pop(queue, None) is not None:
            self._changed()

    def _put(self, queue: PopQueue, info: OrderInfo) -> None:
        self._infos[queue] = info
        self._watch(queue, info)

    def _changed(self) -> None:
        self._is_dirty = True
        self._context.duties.wake(SAVE, self._context.clock.mono_ms + SAVE_MS)

    # --- the end of invisible times ---------------------------------------------------------------

    def _watch(self, queue: PopQueue, info: OrderInfo) -> None:
        """Look at a queue again when it becomes free, or before."""
        end_ms, watched_ms = info.invisible_until(), self._watched.get(queue)
        if end_ms and (watched_ms is None or end_ms < watched_ms):
            self._watched[queue] = end_ms
            heappush(self._ends, (end_ms, queue))
            self._wake()

    def _wake(self) -> None:
        if self._ends:
            left_ms = self._ends[0][0] - self._context.clock.wall_ms
            self._context.duties.wake(FREE, self._context.clock.mono_ms + min(max(1, left_ms), CLOCK_POLL_MS))

    def _free(self, now_ms: int) -> None:
        wall_ms = self._context.clock.wall_ms
        while self._ends and self._ends[0][0] <= wall_ms:
            end_ms, queue = heappop(self._ends)
            if self._watched.get(queue) != end_ms:
                continue
            del self._watched[queue]
            info = self._infos.get(queue)
            if info is None or not info.invisible_until():
                continue
            if info.invisible_until() > wall_ms:
                self._watch(queue, info)
            elif self._context.config.pop_notices.notify_after_order_release:
                self._freed(queue)
        self._wake()
