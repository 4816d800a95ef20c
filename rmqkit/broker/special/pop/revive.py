"""PopRevive: the special duty of pop. It reads the revive topic and hands messages out again.

    reading    each revive queue is read from the saved offset on. Checkpoints become pending, acks
               mark their messages as done
    judging    once everything is read, checkpoints whose invisible time has ended are due: their
               messages without an ack go to `RetryPuts`

Judging waits for reading, since an ack may still be unread. After a start, reading takes several
turns (`RECORDS_PER_TURN`).

Span. A checkpoint with a long invisible time would hold back the progress, and make the next start
read everything after it. So if more than `SPAN_MAX` records wait and most of them are finished, the
checkpoint is put once more, with the marks that it has now, and the old record is finished.

Acting. A destination that does not take internal messages is not the log: `is_logging` is false.
Then handlers add what is popped and acked to `ActingPops`. When the master's duty starts with
such checkpoints, it appends them to the revive topic first.

Limit: at `CHECKPOINTS_MAX` pending checkpoints, `has_room` is false and pops get no messages. While
this broker acts, the limit of `ActingPops` counts too.

Source: `broker/.../processor/PopReviveService.java`.
"""

from collections.abc import Callable, Iterable
from functools import partial

from rmqkit.broker.hosts import Hosts
from rmqkit.broker.special.contract import Destination, SpecialParts
from rmqkit.broker.special.pop.acting_pops import CHECKPOINTS_MAX as UNLOGGED_MAX
from rmqkit.broker.special.pop.acting_pops import UNLOGGED, ActingPops, PopProgress
from rmqkit.broker.special.pop.counts import PopCounts
from rmqkit.broker.special.pop.pending import Key, Pending, PendingTable, PopQueue, ReviveQueue, key_of
from rmqkit.broker.special.pop.progress import ReviveProgress
from rmqkit.broker.special.pop.reader import ReviveReader
from rmqkit.broker.special.pop.records import checkpoint_put
from rmqkit.broker.special.pop.redelivery import RetryPuts, items_of
from rmqkit.store.contract import PutStatus
from rmqkit.wire.bodies.pop import PopCheckpoint, revive_topic

REVIVE, SAVE = "pop-revive", "pop-revive-save"
#: limit of pending checkpoints
CHECKPOINTS_MAX = 200_000
#: records read in one turn, all queues together
RECORDS_PER_TURN = 1_024
#: checkpoints that become due in one turn
DUE_PER_TURN = 256
#: messages of due checkpoints that wait for their put
READY_MAX = 10_000
#: unfinished records of one queue, above which a waiting checkpoint moves to its end
SPAN_MAX = 20_000
MOVES_PER_TURN = 32
#: acks at an acting master that wait until the revive topic is read
EARLY_ACKS_MAX = 10_000
#: pause between a change of the progress and its commit
SAVE_MS = 1_000
#: while checkpoints wait, the wall clock is read at this interval
CLOCK_POLL_MS = 1_000


class PopRevive:
    """The special duty of pop (`SpecialDuty`), and the pending checkpoints of this broker."""

    def __init__(self, parts: SpecialParts) -> None:
        self._context = parts.context
        self._store = parts.store
        self._topics, self._offsets = parts.topics, parts.offsets
        identity = parts.context.config.identity
        self.topic = revive_topic(identity.broker_cluster_name)
        self._host = Hosts(parts.context.address).store_host
        self.pending = PendingTable()
        self.counts = PopCounts()
        self.progress = ReviveProgress(parts, self.topic)
        self.unlogged = ActingPops(
            parts.context.clock, parts.context.disk, parts.folder, parts.context.config.identity.broker_name
        )
        self.reader = ReviveReader(parts, self.topic, self.unlogged, self.counts)
        self.redelivery = RetryPuts(parts, self._done, self._wake, self.counts)
        self._to: Destination | None = None
        #: unlogged checkpoints that are being appended
        self._logging: dict[Key, None] = {}
        #: acks at an acting master whose checkpoints may be unread
        self._early_acks: list[tuple[Key, tuple[int, ...]]] = []
        #: called when the master's progress has replaced what this broker knew from acting
        self.on_replaced: Callable[[], None] = lambda: None

    @property
    def queue_count(self) -> int:
        """The number of revive queues: those that the topic has, and those that pops use."""
        config = self._topics.get(self.topic)
        return max(self._context.config.pop.revive_queue_num, config.read_queue_nums if config else 0)

    # --- on and off -------------------------------------------------------------------------------

    def load(self, *, is_copy: bool) -> None:
        """Read what was popped while this broker acted; the rest of the progress is an offset."""
        self.unlogged.load()

    def start(self, destination: Destination) -> None:
        self._note()
        self._to = destination
        self.pending = PendingTable()
        self.reader.start(self.pending)
        for queue_id in range(self.queue_count):
            known = self._store.queue_range(self.topic, queue_id).offset_max
            # Progress from a member with a longer log must not skip records that come here.
            self.pending.revive_queues[queue_id] = ReviveQueue(queue_id, min(self.progress.next(queue_id), known), known)
        self._logging.clear()
        self._early_acks.clear()
        if not self.is_logging:
            self.unlogged.begin(self._context.clock.wall_ms)
        for each in self.unlogged:
            each.is_due = False
            self.pending.add(each)
        self.redelivery.start(destination)
        self._context.duties.add(REVIVE, self._run, self._context.clock.mono_ms)
        self._context.duties.add(SAVE, self._save, None)

    def stop(self) -> None:
        self._context.duties.remove(REVIVE)
        self._context.duties.remove(SAVE)
        self.redelivery.stop()
        if not self.is_logging:
            self.unlogged.end()

    @property
    def is_logging(self) -> bool:
        """Whether checkpoints and acks go into the log of this broker."""
        return self._to is None or self._to.takes_internal

    @property
    def is_on(self) -> bool:
        return REVIVE in self._context.duties

    def _wake(self, due_ms: int) -> None:
        self._context.duties.wake(REVIVE, due_ms)

    # --- work -------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether a pop may add checkpoints."""
        limit = 0 if self.is_logging else UNLOGGED_MAX - 1
        return self.is_on and len(self.unlogged) <= limit and len(self.pending) < CHECKPOINTS_MAX

    @property
    def is_reading(self) -> bool:
        """Whether records are unread, so that an unknown key may still be a pending one."""
        return any(queue.next < max(queue.awaited, self._end(queue)) for queue in self.pending.revive_queues.values())

    def appended(self, queue_id: int, offset: int, client_id: str = "") -> None:
        """Read the record that this broker has put into a revive queue, if it is visible.

        `client_id` is who popped, if the record is a checkpoint.
        """
        queue = self.pending.revive_queues.get(queue_id)
        if queue is None or not self.is_on:
            return
        queue.awaited = max(queue.awaited, offset + 1)
        if client_id and offset >= queue.next:
            self.reader.clients[queue_id, offset] = client_id
        elif offset in queue.open:
            queue.open[offset].client_id = client_id
        self._read(queue, RECORDS_PER_TURN)
        self._wake(self._context.clock.mono_ms + self._wait_ms())

    def acked(self, pending: Pending, offset: int, messages: Iterable[int]) -> None:
        """Apply an ack of `messages` that this broker has put at `offset` of a revive queue.

        If the record is the next one and is visible, it need not be read.
        """
        queue = self.pending.revive_queues.get(pending.revive_queue)
        if queue is None or not self.is_on or queue.next != offset or offset >= self._end(queue):
            self.appended(pending.revive_queue, offset)
            return
        queue.next = offset + 1
        self.reader.apply_ack(queue, pending.key, messages)
        self._changed()

    def pop_unlogged(self, checkpoint: PopCheckpoint, revive_queue: int, client_id: str, ended: Callable[[], None]) -> None:
        """Add the checkpoint of a pop that an acting master serves.

        `ended` is called once all its messages are acked or handed out again.
        """
        key = key_of(checkpoint, self._context.config.identity.broker_name)
        pending = Pending(checkpoint, key, revive_queue, UNLOGGED, checkpoint.pop_ms + checkpoint.invisible_ms)
        pending.client_id = client_id
        self.unlogged.add(pending, ended)
        self.pending.add(pending)
        self._changed()
        self._wake(self._context.clock.mono_ms + self._wait_ms())

    def ack_unlogged(self, key: Key, offsets: Iterable[int]) -> None:
        """Ack messages of one checkpoint at an acting master; without effect for an unknown one."""
        if key not in self.pending.by_key and self.is_reading and len(self._early_acks) < EARLY_ACKS_MAX:
            self._early_acks.append((key, tuple(offsets)))
            return
        pending = self.pending.by_key.get(key)
        if pending is None:
            return
        for offset in offsets:
            index = pending.index(offset)
            if index >= 0:
                self._done(pending, index)

    def _apply_early_acks(self) -> None:
        """Apply acks that came before their checkpoint was read."""
        early, self._early_acks = self._early_acks, []
        for key, offsets in early:
            self.ack_unlogged(key, offsets)

    def _log_unlogged(self, wall_ms: int) -> None:
        """Append checkpoints that an acting master has served to the revive topic."""
        assert self._to is not None, "the duty is on"
        for pending in self.unlogged:
            if pending.is_done:
                self.unlogged.drop(pending.key)
            elif pending.key not in self._logging and len(self._logging) < MOVES_PER_TURN:
                self._logging[pending.key] = None
                put = checkpoint_put(pending.marked, self.topic, pending.revive_queue, wall_ms, self._host)
                self._to.put(put, f"POP:{pending.revive_queue}:{pending.place}", partial(self._logged, pending.key))

    def _logged(self, key: Key, status: PutStatus) -> None:
        if self._logging.pop(key, key) is None and status is PutStatus.PUT_OK:
            self.unlogged.drop(key)
            self._changed()
            self._wake(self._context.clock.mono_ms)

    def _run(self, now_ms: int) -> int:
        assert self._to is not None, "the duty is on"
        left = RECORDS_PER_TURN
        for queue in self.pending.revive_queues.values():
            left -= self._read(queue, left)
            if left <= 0:
                return now_ms
        if self.is_reading:
            return now_ms + CLOCK_POLL_MS  # a record cannot be read now
        wall_ms = self._context.clock.wall_ms
        self._apply_early_acks()
        if self.is_logging and len(self.unlogged):
            self._log_unlogged(wall_ms)
            return now_ms + CLOCK_POLL_MS  # the end of each put wakes the duty
        for _ in range(DUE_PER_TURN):
            pending = self.pending.take_due(wall_ms) if len(self.redelivery.ready) < READY_MAX else None
            if pending is None:
                break
            self.redelivery.add(pending)
        else:
            self._wake(now_ms)
        if not self._to.is_serial:
            self._move_waiting(wall_ms)
        again_ms = self.redelivery.run(now_ms)
        due_ms = now_ms + self._wait_ms()
        return due_ms if again_ms is None else min(again_ms, due_ms)

    def _wait_ms(self) -> int:
        """Return how long the duty may sleep."""
        poll_ms = self._to.poll_ms if self._to is not None else None
        if poll_ms is None:
            # Not only this duty appends: a timer releases checkpoints of an Apache broker.
            poll_ms = self._context.config.pop.revive_interval_ms
        wait_ms = poll_ms
        due_ms = self.pending.next_due_ms()
        if due_ms is not None and len(self.redelivery.ready) < READY_MAX:
            wait_ms = min(wait_ms, CLOCK_POLL_MS, max(1, due_ms - self._context.clock.wall_ms))
        return wait_ms

    def _end(self, queue: ReviveQueue) -> int:
        return self._store.queue_range(self.topic, queue.queue_id).offset_max

    def _read(self, queue: ReviveQueue, count: int) -> int:
        read = self.reader.read(queue, count)
        if read:
            self._changed()
        return read

    def _done(self, pending: Pending, index: int) -> None:
        self.pending.done(pending, 1 << index)
        if not self.is_logging or pending.record < 0:
            self.unlogged.note(pending)
        self._changed()

    def _move_waiting(self, wall_ms: int) -> None:
        """Put checkpoints once more that hold back the progress of their queue."""
        assert self._to is not None, "the duty is on"
        for queue in self.pending.revive_queues.values():
            span = queue.next - queue.finished
            if span <= SPAN_MAX or 2 * len(queue.open) > span:
                continue
            for pending in list(queue.open.values())[:MOVES_PER_TURN]:
                if pending.is_due or pending.key in self.reader.moving:
                    break
                self.reader.moving[pending.key] = None
                put = checkpoint_put(pending.marked, self.topic, queue.queue_id, wall_ms, self._host)
                self._to.put(put, f"POP:{queue.queue_id}:{pending.record}", partial(self._moved, pending.key))

    def _moved(self, key: Key, status: PutStatus) -> None:
        if status is not PutStatus.PUT_OK:
            self.reader.moving.pop(key, None)

    # --- progress ---------------------------------------------------------------------------------

    def _changed(self) -> None:
        limit_ms = self._to.save_max_ms if self._to is not None else None
        save_ms = SAVE_MS if limit_ms is None else min(SAVE_MS, limit_ms)
        self._context.duties.wake(SAVE, self._context.clock.mono_ms + save_ms)

    def _note(self) -> None:
        self.progress.note({queue_id: queue.finished for queue_id, queue in self.pending.revive_queues.items()})

    def _prune(self) -> None:
        """Forget what the log and the committed offsets know by now."""
        finished = {queue_id: queue.finished for queue_id, queue in self.pending.revive_queues.items()}
        self.unlogged.prune(finished, self._committed)

    def _committed(self, queue: PopQueue) -> int:
        topic, group, queue_id = queue
        return self._offsets.query(group, topic, queue_id)

    def _save(self, now_ms: int) -> None:
        self._note()
        self._prune()
        self.progress.commit(self.reader.popped, self.unlogged.save)

    def save(self, then: Callable[[], None] | None = None) -> None:
        self._note()
        self.progress.commit(self.reader.popped, lambda: self._offsets.save(lambda: self.unlogged.save(then)))

    @property
    def save_interval_ms(self) -> int:
        return self._context.config.offsets.flush_consumer_offset_interval_ms

    def snapshot(self) -> PopProgress:
        self._note()
        if not self.is_on and not self.is_logging:
            self.unlogged.note_sent()
        return self.unlogged.fill(PopProgress(offsets=self.progress.snapshot(self.queue_count)))

    def merge(self, snapshot: PopProgress) -> None:
        self.progress.merge(snapshot.offsets)
        if not self._topics.is_copy:
            self.unlogged.merge(snapshot)
        elif not self.is_on and self.unlogged.follow(snapshot):  # a slave whose duty is on acts
            self.on_replaced()

    def truncate(self, limit: PopProgress | None) -> None:
        self._note()
        # What was read may be gone: the next start reads it again.
        self.pending = PendingTable()
        self.progress.truncate(None if limit is None else limit.offsets, self.queue_count)
        queues = range(self.queue_count)
        self.unlogged.truncate({each: self._store.queue_range(self.topic, each).offset_max for each in queues})

    # --- state ------------------------------------------------------------------------------------

    @property
    def is_moving(self) -> bool:
        return self.redelivery.is_moving

    def due_count(self) -> int:
        """Return the number of messages that are due and not known to be stored; 0 while off."""
        wall_ms = self._context.clock.wall_ms
        return items_of(each for each in self.pending if each.due_ms <= wall_ms) if self.is_on else 0

    def facts(self) -> dict[str, str]:
        """Return how many checkpoints wait, and how many messages are popped without an ack."""
        on = self.is_on
        return {
            "popCheckpoints": str(len(self.pending) if on else 0),
            "popInFlight": str(sum(self.pending.in_flight.values()) if on else 0),
            "popRevived": str(self.redelivery.count),
        }
