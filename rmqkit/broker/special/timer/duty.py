"""TimerDuty: the special duty of timer messages (`SpecialDuty`).

    append     takes a message with an arbitrary due time, and stores it in the timer topic
    _run       in each turn: index what is new, then deliver what is due, or skip what the member
               that is on has delivered

The index works always, the delivery between `start` and `stop`. While the duty is off, the progress
is a copy of a peer's, and the wheel follows it: slots that it covers are dropped.

Progress while the duty is on follows from the state: the slot under way, the puts in flight in it,
and the late timers. It is saved `timerFlushIntervalMs` after a change.

Source: `store/.../timer/TimerMessageStore.java`.
"""

from collections.abc import Callable, Sequence
from functools import partial

from rmqkit.broker.special.contract import Destination, SpecialParts
from rmqkit.broker.special.timer.backlog import QUIET_MS, TimerBacklog
from rmqkit.broker.special.timer.counts import TimerCounts
from rmqkit.broker.special.timer.covered_slots import CoveredSlots
from rmqkit.broker.special.timer.delivery import TimerDelivery
from rmqkit.broker.special.timer.index import CUTTING, ENTRIES_PER_TURN, FOLLOWING, SCANNING, WAITING, TimerIndex
from rmqkit.broker.special.timer.late import LateTimers
from rmqkit.broker.special.timer.progress import TimerCheckpoint, TimerProgress
from rmqkit.broker.special.timer.rewrite import waiting
from rmqkit.broker.special.timer.wheel import SLOTS
from rmqkit.store.contract import Put, PutResult, PutStatus
from rmqkit.wire.topic_names import TIMER_TOPIC

#: the default of `timerCongestNumEachSlot`, which no slot reaches
INT_MAX = 0x7FFFFFFF
RUN, SAVE = "timer-run", "timer-save"
#: the wall clock and the timer topic are read at least at this interval
CLOCK_LOOK_MS = 1000
#: pause before the topic is read again whose last messages are not visible yet
INVISIBLE_MS = 100
#: how often a member whose duty is off looks for new timers and new progress
OFF_LOOK_MS = 500
#: pause while the timer log is cut
CUT_LOOK_MS = 10
#: steps by which the data version moves when this broker begins to act for its master. A returning
#: Apache master takes the progress only if its own version is not greater. That version moves once
#: a second, and the copy of it here may be 10 s old
TAKEOVER_STEP = 1_000
#: how often the oldest unit that counts is searched, and the timer log trimmed
TRIM_MS = 30_000


class TimerDuty:
    """The timers of one broker."""

    def __init__(self, parts: SpecialParts) -> None:
        self._context = parts.context
        self._store = parts.store
        self._checkpoint = TimerCheckpoint(parts)
        late = LateTimers()
        self.index = TimerIndex(parts, late)
        self.delivery = TimerDelivery(parts, self.index, late)
        self.delivery.on_ended = self._ended
        self.progress = TimerProgress()
        self._to: Destination | None = None
        #: whether the progress follows from this broker's own deliveries
        self._is_own = False
        #: whether the progress has changed since it was saved, and by own deliveries
        self._is_dirty = self._is_moved = False
        #: one past the last message that this broker appended
        self._awaited = 0
        self._backlog = TimerBacklog(self.index.precision_ms)
        self._trim_ms = 0
        self._covered = CoveredSlots(self.index, self.delivery)
        self.counts = TimerCounts(parts, self.index, self.delivery)

    # --- on and off -------------------------------------------------------------------------------

    @property
    def is_enabled(self) -> bool:
        return self._context.config.timers.wheel_enable

    def load(self, *, is_copy: bool) -> None:
        """Read the progress and find the timer log.

        Raises AtomicFileDamaged or RmqkitError if they cannot be read.
        """
        self.progress = self._checkpoint.load()
        if self.is_enabled:
            self.index.log.load()
            self._context.duties.add(RUN, self._run, self._context.clock.mono_ms)
            self.counts.topics.load()
            self._context.duties.add(SAVE, self._save_regularly, None)

    def start(self, destination: Destination) -> None:
        """Start to deliver, from the current progress."""
        self._to = destination
        self._is_own = True
        if destination.needs_dedup:
            version = self.progress.version.next_version(self._context.clock.wall_ms, steps=TAKEOVER_STEP)
            self.progress = self.progress._replace(version=version)
        self.index.cover(self.progress)
        self.delivery.dedup.begin(True)
        self._trim_ms = self._context.clock.mono_ms + TRIM_MS
        self._wake(0)

    def stop(self) -> None:
        """Start no further put. Puts in flight still count as progress."""
        self._to = None
        self.delivery.dedup.end()

    @property
    def is_on(self) -> bool:
        return self._to is not None

    def _wake(self, wait_ms: int) -> None:
        self._context.duties.wake(RUN, self._context.clock.mono_ms + wait_ms)

    # --- arrivals ---------------------------------------------------------------------------------

    def is_crowded(self, out_ms: int) -> bool:
        """Whether a slot takes no more timers (`timerCongestNumEachSlot`).

        Between the limit and its double Apache refuses by chance, the more the closer to the limit;
        this broker refuses above the limit.
        """
        index, limit = self.index, self._context.config.timers.congest_num_each_slot
        return limit < INT_MAX and index.wheel.count_of(out_ms // index.precision_ms) > limit

    def append(self, put: Put, out_ms: int) -> PutResult:
        """Store a message that waits for the slot `out_ms`."""
        result = self._store.append(waiting(put, out_ms))
        if result.status is PutStatus.PUT_OK:
            self._awaited = result.queue_offset + 1
            if self._backlog.add(self._context.clock.mono_ms, out_ms):
                self._wake(QUIET_MS)
        return result

    # --- turns ------------------------------------------------------------------------------------

    def _run(self, now_ms: int) -> int:
        index = self.index
        if index.state is WAITING:
            if not self._store.ready:
                return now_ms + INVISIBLE_MS
            self._restart()
        if index.state is SCANNING:
            index.scan()
            return now_ms
        if index.state is CUTTING:
            return now_ms + CUT_LOOK_MS
        config = self._context.config.timers
        added = self._follow(now_ms)
        if added:
            self.counts.indexed.add(added, now_ms)
            self._changed()
        to = self._to
        if to is None or config.stop_dequeue:
            has_more = self._covered.run()
        else:
            has_more = self._covered.run() or self.delivery.run(to, now_ms)
            self._follow_state()
        if now_ms >= self._trim_ms:
            self._trim_ms = now_ms + TRIM_MS
            index.log.trim(self._store.offset_min)
            if self.delivery.slot is None and not self.delivery.late:
                # What was due before the start is done. The search would keep what it has read.
                self.delivery.dedup.end()
            # Takes milliseconds. An older position is as good, but a start reads more.
            self.progress = self.progress._replace(log_position=index.oldest())
        return self._next_ms(now_ms, added == ENTRIES_PER_TURN or has_more)

    def _follow(self, now_ms: int) -> int:
        """Index what is new, unless it may wait; return how many timers there were."""
        backlog, config = self._backlog, self._context.config.timers
        if config.stop_enqueue:
            return 0
        # A limit of a slot counts what is indexed.
        is_limited = config.congest_num_each_slot < INT_MAX
        count = self._awaited - self.index.next
        if not is_limited and backlog.may_wait(now_ms, self._context.clock.wall_ms, count):
            return 0
        added = self.index.follow(now_ms)
        if added < ENTRIES_PER_TURN:
            backlog.clear()
        return added

    def _restart(self) -> None:
        """Rebuild the index for the timers that the progress does not cover."""
        precision_ms = self.index.precision_ms
        now_slot = self._context.clock.wall_ms // precision_ms
        # Timers that are older than half the wheel become late.
        first = max(self.progress.read_ms // precision_ms, now_slot - SLOTS // 2)
        self.delivery.forget()
        self._covered.forget()
        self.index.restart(self.progress, first)

    def _follow_state(self) -> None:
        """Derive the progress from the state of the delivery."""
        index, slot = self.index, self.delivery.slot
        if not self._is_own or index.state is not FOLLOWING:
            return
        precision_ms = index.precision_ms
        read, slot_offset = (index.wheel.first, 0) if slot is None else (slot.number, slot.done_offset)
        read_ms = read * precision_ms
        base = index.progress
        if read_ms < base.read_ms:
            return
        if read_ms == base.read_ms:
            slot_offset = max(slot_offset, base.slot_offset)
        self.progress = self.progress._replace(
            read_ms=read_ms, offset=index.next, slot_offset=slot_offset, late=self.delivery.late.offsets()
        )

    def _ended(self, offsets: Sequence[int]) -> None:
        """React to the end of puts of the timers at these offsets."""
        self.counts.put.add(len(offsets), self._context.clock.mono_ms)
        self._changed()
        if self._is_own:
            self._follow_state()
        elif self.progress.late:
            # A peer's progress may name late timers that this broker has never put.
            stored = {each for each in offsets if each not in self.delivery.late.by_offset}
            left = tuple(each for each in self.progress.late if each not in stored)
            self.progress = self.progress._replace(late=left)
        if self.is_on:
            self._wake(0)

    def _next_ms(self, now_ms: int, has_more: bool) -> int:
        """Return when to run next."""
        if has_more:
            return now_ms
        to = self._to
        if to is None:
            return now_ms + OFF_LOOK_MS
        # Timers that other groups roll or escape come by plain sends, and do not wake the duty.
        waits = [CLOCK_LOOK_MS]
        if to.poll_ms is not None:
            waits.append(to.poll_ms)
        if self.index.next < self._awaited:
            waits.append(INVISIBLE_MS)
        if not self._backlog.is_empty and not self._context.config.timers.stop_enqueue:
            waits.append(QUIET_MS)
        if self.index.wheel.units or self.delivery.late:
            precision_ms = self.index.precision_ms
            waits.append(precision_ms - self._context.clock.wall_ms % precision_ms)
        retries = [timer.retry_ms for timer in self.delivery.late if timer.failures and timer.retry_ms > now_ms]
        if retries:
            waits.append(min(retries) - now_ms)
        return now_ms + min(waits)

    # --- progress ---------------------------------------------------------------------------------

    @property
    def save_interval_ms(self) -> int:
        return self._context.config.timers.flush_interval_ms

    def _changed(self) -> None:
        self._is_dirty = True
        self._is_moved |= self._is_own
        limit_ms = None if self._to is None else self._to.save_max_ms
        wait_ms = self.save_interval_ms if limit_ms is None else min(self.save_interval_ms, limit_ms)
        self._context.duties.wake(SAVE, self._context.clock.mono_ms + wait_ms)

    def save(self, then: Callable[[], None] | None = None) -> None:
        """Write changed progress once the logs are durable. Call `then` in any case."""
        self._save(then, is_urgent=True)

    def _save_regularly(self, now_ms: int) -> int | None:
        again_ms = self.counts.topics.save_due_ms
        self._save(None, is_urgent=False)
        return again_ms

    def _save(self, then: Callable[[], None] | None, *, is_urgent: bool) -> None:
        if self.is_enabled:
            then = partial(self.counts.topics.save, then, is_urgent=is_urgent)
        if not (self._is_dirty or self._checkpoint.is_pending):
            if then is not None:
                then()
            return
        self._is_dirty = False
        if self._is_moved:
            self._is_moved = False
            version = self.progress.version.next_version(self._context.clock.wall_ms)
            self.progress = self.progress._replace(version=version)
        self._checkpoint.save(self.progress, self.index.log, then)

    def snapshot(self) -> TimerProgress:
        return self.progress._replace(log_position=0)

    def merge(self, snapshot: TimerProgress) -> None:
        """Take over a peer's progress where it is further. While the duty is on, nothing is."""
        joined = self.progress.joined(snapshot, self.index.slot_ms_of)
        if self.is_on or joined == self.progress:
            return
        self.progress = joined
        self._is_own = False
        self._is_dirty = True
        self.index.cover(joined)
        self._covered.leave_slot()
        for timer in list(self.delivery.late):
            if joined.covers(timer.slot_ms, timer.offset) and timer.offset not in self.delivery.in_flight:
                self.delivery.late.remove(timer.offset)

    def truncate(self, limit: TimerProgress | None) -> None:
        """Move progress back after the log was truncated, and rebuild the index."""
        end = self._store.queue_range(TIMER_TOPIC, 0).offset_max
        progress = self.progress.limited(limit, end)
        if progress != self.progress._replace(log_position=0):
            self._is_dirty = True
        self.progress = progress
        if self.index.state is not WAITING:
            self._restart()
            self._wake(0)

    # --- state ------------------------------------------------------------------------------------

    @property
    def is_moving(self) -> bool:
        """Whether a put is in flight; a late timer that waits for its retry does not count."""
        return bool(self.delivery.in_flight)

    def due_count(self) -> int:
        """Return the number of timers that are due and not known to be stored; 0 while off."""
        if not self.is_on:
            return 0
        due = self._context.clock.wall_ms // self.index.precision_ms
        return self.delivery.due_count + max(0, self.index.wheel.count_until(due))

    @property
    def behind_ms(self) -> int:
        """How far the delivery is behind the clock; 0 while no timer waits."""
        read_ms = self.progress.read_ms
        return max(0, self._context.clock.wall_ms - read_ms) if read_ms and self.counts.waiting else 0

    def facts(self) -> dict[str, str]:
        """Return the fields of code 28, with upstream's names."""
        return {
            "timerReadBehind": str(self.behind_ms // 1000),
            "timerIndex": self.index.state.value if self.is_enabled else "off",
            **self.counts.facts(self._context.clock.mono_ms),
        }
