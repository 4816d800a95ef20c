"""DelayDelivery: puts delayed messages into their topics when they are due.

    on:   a duty reads the queue of each level from its saved offset, puts the due messages, and
          sleeps until the next one is due
    off:  nothing is delivered; puts in flight still count when they end

Destination. `start` gets the destination of the messages (`special/contract.py`). It sets the
limits: puts in flight, the longest retry pause, how soon progress is saved. If the destination is
serial, a level has one put in flight per target queue, so each queue receives its messages in
order, whatever fails. After a failure the level has only one put in flight until that message is
stored.

Waiting. A level's queue is ordered by due time, so the duty waits only for its first message. A
level without messages costs nothing. While messages wait, the duty reads the wall clock every
second, because the clock may be set forward. If a due time is further away than the level's delay,
the clock was set back: the message counts as due now.

Progress. `next` is the first message not yet put, `offset` the first not known to be stored. The
puts in flight are between them, in order. Only `offset` is saved (`progress.py`). So after a kill
the messages delivered since the last save are delivered again, and none is lost.

Failures. A failed put is retried after 100 ms, 200 ms, … up to the destination's limit. Its level
waits for it; other levels continue. A record that cannot be read is skipped and logged.

Limits: messages and bytes per turn, shared by the levels that are due; puts in flight per level.

Source: `broker/.../schedule/ScheduleMessageService.java`.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from rmqkit.broker.special.contract import Destination, SpecialParts
from rmqkit.broker.special.delay.level import Delivery, Level
from rmqkit.broker.special.delay.progress import DelayOffsets
from rmqkit.broker.special.delay.rewrite import due, postponed
from rmqkit.broker.special.delivery_dedup import DeliveryDedup
from rmqkit.errors import CorruptRecord
from rmqkit.store.contract import Entry, Put, PutResult, PutStatus
from rmqkit.wire.bodies import DelayOffsetTable
from rmqkit.wire.record import Record, decode_record
from rmqkit.wire.topic_names import SCHEDULE_TOPIC

DELIVER, SAVE = "delay-deliver", "delay-save"
#: limits of one turn, for all levels together
MESSAGES_PER_TURN = 256
BYTES_PER_TURN = 4_194_304
#: while messages wait, the wall clock is read at this interval
CLOCK_LOOK_MS = 1000
#: pause before a queue is read again whose last messages are not visible yet
INVISIBLE_MS = 100
#: pause before a queue is read again that could not be read
UNREADABLE_MS = 10_000
#: pause before the first retry of a failed put; each further pause is longer by the same time
RETRY_STEP_MS = 100


class DelayDelivery:
    """The special duty of the delay levels (`SpecialDuty`)."""

    def __init__(self, parts: SpecialParts) -> None:
        self._context = parts.context
        self._store = parts.store
        self.offsets = DelayOffsets(parts)
        self.levels: dict[int, Level] = {}
        self._to: Destination | None = None
        self._dedup = DeliveryDedup(parts.context.clock, parts.store)
        #: number of turns; each turn begins with another level, so that no level starves at the
        #: limits
        self._first = 0

    @property
    def levels_ms(self) -> tuple[int, ...]:
        return self._context.config.delay.levels_ms

    # --- on and off -------------------------------------------------------------------------------

    def load(self, *, is_copy: bool) -> None:
        """Read the saved offsets. Raises AtomicFileDamaged if the file cannot be read."""
        self.offsets.load(is_copy=is_copy)

    def start(self, destination: Destination) -> None:
        """Start to deliver, from the current offsets."""
        context = self._context
        self._to = destination
        now_ms = context.clock.mono_ms
        kept_ms = context.config.retention.file_reserved_time_hours * 3_600_000
        if max(self.levels_ms) >= kept_ms:
            context.log.warning(
                "delay-longer-than-kept",
                note="messages of the longest delay levels are deleted before they are due: "
                "raise fileReservedTime or lower messageDelayLevel",
            )
        self.levels = {
            number: Level(number, delay_ms, self.offsets.by_level.get(number, 0))
            for number, delay_ms in enumerate(self.levels_ms, 1)
        }
        for level in self.levels.values():
            level.due_ms = now_ms
        self._dedup.begin(destination.needs_dedup)
        context.duties.add(DELIVER, self._run, now_ms)
        context.duties.add(SAVE, self._save, None)

    def stop(self) -> None:
        """Start no further put. Puts in flight still count as progress, for `save`."""
        self._context.duties.remove(DELIVER)
        self._context.duties.remove(SAVE)
        self._dedup.end()

    @property
    def is_on(self) -> bool:
        return DELIVER in self._context.duties

    def _save(self, now_ms: int) -> None:
        self.offsets.save()

    @property
    def _destination(self) -> Destination:
        assert self._to is not None, "a level exists, so deliveries have started"
        return self._to

    # --- progress --------------------------------------------------------------------------------

    def save(self, then: Callable[[], None] | None = None) -> None:
        self.offsets.save(then)

    @property
    def save_interval_ms(self) -> int:
        return self._context.config.delay.flush_delay_offset_interval_ms

    def snapshot(self) -> DelayOffsetTable:
        return self.offsets.snapshot()

    def merge(self, snapshot: DelayOffsetTable) -> None:
        self.offsets.merge(snapshot)

    def truncate(self, limit: DelayOffsetTable | None) -> None:
        self.offsets.truncate(limit)

    # --- arrivals --------------------------------------------------------------------------------

    def append(self, put: Put, level: int) -> PutResult:
        """Store a message that waits for a delay level above 0."""
        put = postponed(put, level, self.levels_ms, self._context.clock.wall_ms)
        result = self._store.append(put)
        if result.status is PutStatus.PUT_OK:
            self._arrived(put.queue_id + 1, result.queue_offset)
        return result

    def _arrived(self, number: int, queue_offset: int) -> None:
        level = self.levels.get(number)
        if level is not None:
            level.awaited = queue_offset + 1
            if level.due_ms is None and not level.is_full:
                self._wake(level, self._context.clock.mono_ms + min(level.delay_ms, CLOCK_LOOK_MS))

    def _wake(self, level: Level, due_ms: int) -> None:
        if level.due_ms is None or due_ms < level.due_ms:
            level.due_ms = due_ms
            self._context.duties.wake(DELIVER, due_ms)

    # --- deliveries ------------------------------------------------------------------------------

    def _run(self, now_ms: int) -> int | None:
        levels = list(self.levels.values())
        ready = [level for level in levels if level.due_ms is not None and level.due_ms <= now_ms]
        self._first += 1
        share = max(1, MESSAGES_PER_TURN // max(1, len(ready)))
        bytes_left = BYTES_PER_TURN
        for number in range(len(ready)):
            level = ready[(self._first + number) % len(ready)]
            if bytes_left <= 0:
                break
            level.due_ms = None
            due_ms, size = self._serve(level, now_ms, share, bytes_left)
            bytes_left -= size
            if due_ms is not None and (level.due_ms is None or due_ms < level.due_ms):
                level.due_ms = due_ms
        return min([level.due_ms for level in levels if level.due_ms is not None], default=None)

    def _serve(self, level: Level, now_ms: int, count: int, size_max: int) -> tuple[int | None, int]:
        """Deliver the due messages of a level, at most `count` and about `size_max` bytes.

        Returns when to serve the level again (None: an event wakes it), and the bytes delivered.
        """
        if level.again:
            if level.retry_ms > now_ms:
                return level.retry_ms, 0
            return now_ms if self._put_again(level) else None, 0
        store, wall_ms = self._store, self._context.clock.wall_ms
        offset_max = self._corrected(level)
        size = 0
        while count > 0 and level.next < offset_max:
            room = self._in_flight_max(level) - len(level.in_flight)
            if room <= 0:
                level.is_full = True
                return None, size
            entries = store.entries(SCHEDULE_TOPIC, level.queue_id, level.next, min(count, room))
            if not entries:
                self._context.log.warning("delay-queue-unreadable", level=level.number, offset=level.next)
                return now_ms + UNREADABLE_MS, size
            for entry in entries:
                wait_ms = self._due_ms(level, entry, wall_ms) - wall_ms
                if wait_ms > 0:
                    return now_ms + min(wait_ms, CLOCK_LOOK_MS), size
                if not self._deliver(level, entry):
                    level.is_full = True
                    return None, size
                count -= 1
                size += entry.size
                if level.again:
                    return level.retry_ms, size
                if size >= size_max:
                    return now_ms, size
        if level.next < offset_max:
            return now_ms, size
        confirmed = store.offset_confirmed
        # `awaited` may exceed the queue for ever, if a failed write removed its last messages.
        # Then no write is pending.
        is_written = level.awaited <= offset_max or store.offset_written == store.offset_max
        is_visible = is_written and (confirmed is None or confirmed >= store.offset_written)
        look_ms = self._destination.poll_ms if is_visible else INVISIBLE_MS
        return None if look_ms is None else now_ms + look_ms, size

    def _corrected(self, level: Level) -> int:
        """Move a level's offset into its queue's range; return the queue's end."""
        known = self._store.queue_range(SCHEDULE_TOPIC, level.queue_id)
        offset = min(max(level.next, known.offset_min), known.offset_max)
        if offset != level.next:
            self._context.log.warning("delay-offset-corrected", level=level.number, offset=level.next, corrected=offset)
            level.next = offset
            if not level.in_flight:
                level.offset = offset
                self._count(level, 1)
        return known.offset_max

    def _due_ms(self, level: Level, entry: Entry, wall_ms: int) -> int:
        due_ms = entry.tags_code
        if due_ms <= 0 and entry.size:
            # The tags code is no time: a program that does not know delay levels built the entry.
            store_ms = self._store.store_time(SCHEDULE_TOPIC, level.queue_id, entry.queue_offset)
            due_ms = store_ms + level.delay_ms
        return wall_ms if due_ms > wall_ms + level.delay_ms else due_ms

    def _in_flight_max(self, level: Level) -> int:
        destination = self._destination
        if level.failures and destination.is_serial:
            return 1
        limit = destination.in_flight_max
        return self._context.config.delay.pending_max if limit is None else limit

    def _deliver(self, level: Level, entry: Entry) -> bool:
        """Put the message of an entry; return False if a put to the same queue must end first."""
        put = self._source(entry)
        queue = (put.topic, put.queue_id) if isinstance(put, Put) else None
        if self._destination.is_serial and level.has_one_for(queue):
            return False
        level.next = entry.queue_offset + 1
        delivery = Delivery(entry.queue_offset, queue)
        level.in_flight.append(delivery)
        self._put(level, delivery, put)
        return True

    def _put(self, level: Level, delivery: Delivery, put: Put | str) -> None:
        if isinstance(put, str):
            if put:
                self._context.log.error("delayed-message-dropped", level=level.number, offset=delivery.offset, why=put)
            self._ended(level, delivery, PutStatus.PUT_OK)
            return
        origin = f"SCHEDULE:{level.number}:{delivery.offset}"
        self._destination.put(put, origin, partial(self._ended, level, delivery))

    def _put_again(self, level: Level) -> bool:
        """Retry failed puts in order; return whether the level may continue after them."""
        again, level.again = level.again, deque()
        if self._destination.is_serial:
            if level.in_flight_count > len(again):
                level.again = again
                return False
            again, level.again = deque([again[0]]), deque(list(again)[1:])
        for delivery in again:
            entries = self._store.entries(SCHEDULE_TOPIC, level.queue_id, delivery.offset, 1)
            entry = entries[0] if entries else Entry(delivery.offset, -1, 0, 0)
            self._put(level, delivery, self._source(entry))
        return not level.again

    def _source(self, entry: Entry) -> Put | str:
        """Return the message of a queue entry, or the reason why it cannot be delivered.

        The reason is "" if there is nothing to report: the entry is empty, or the message has been
        delivered already.
        """
        if not entry.size:
            return ""
        data = self._store.read_log(entry.phy_offset, entry.size)
        try:
            record = decode_record(data, check_crc=True)
        except CorruptRecord as error:
            return str(error)
        if not isinstance(record, Record) or record.phy_offset != entry.phy_offset or record.topic != SCHEDULE_TOPIC:
            return "its record is no longer in the log"
        put = due(record)
        if isinstance(put, Put) and self._dedup.has(put, entry.tags_code):
            self._context.log.info("delayed-message-there", topic=put.topic, offset=entry.queue_offset)
            return ""
        return put

    def _ended(self, level: Level, delivery: Delivery, status: PutStatus) -> None:
        if self.levels.get(level.number) is not level:
            return
        if status is not PutStatus.PUT_OK:
            self._failed(level, delivery, status)
            return
        delivery.is_done = True
        done = 0
        in_flight = level.in_flight
        while in_flight and in_flight[0].is_done:
            level.offset = in_flight.popleft().offset + 1
            done += 1
        if done:
            level.failures = 0
            self._count(level, done)
        is_serial = self._destination.is_serial
        has_room = level.is_full and (done or is_serial)
        if is_serial and level.again and level.in_flight_count == len(level.again):
            level.retry_ms = self._context.clock.mono_ms
            has_room = True
        if has_room:
            level.is_full = False
            if self.is_on:
                self._wake(level, self._context.clock.mono_ms)

    def _count(self, level: Level, count: int) -> None:
        if not self.is_on and level.offset <= self.offsets.by_level.get(level.number, -1):
            return  # a late answer: the member that delivers now has reported a greater offset
        self.offsets.update(level.number, level.offset, count)
        interval_ms, limit_ms = self.save_interval_ms, self._destination.save_max_ms
        save_ms = interval_ms if limit_ms is None else min(interval_ms, limit_ms)
        self._context.duties.wake(SAVE, self._context.clock.mono_ms + save_ms)

    def _failed(self, level: Level, delivery: Delivery, status: PutStatus) -> None:
        now_ms, destination = self._context.clock.mono_ms, self._destination
        if not level.again or (destination.is_serial and level.retry_ms <= now_ms):
            level.failures += 1
            level.retry_ms = now_ms + min(level.failures * RETRY_STEP_MS, destination.retry_max_ms)
            if level.failures == 1:
                log, why = self._context.log, destination.why
                log.warning("delayed-message-not-stored", level=level.number, status=status.name, why=why)
        level.again.append(delivery)
        if destination.is_serial:
            level.again = deque(sorted(level.again, key=lambda each: each.offset))
        if self.is_on:
            self._wake(level, level.retry_ms)

    # --- state -----------------------------------------------------------------------------------

    @property
    def is_moving(self) -> bool:
        """Whether a put is in flight; a failed put that waits for its retry does not count."""
        return any(level.in_flight_count > len(level.again) for level in self.levels.values())

    def due_count(self) -> int:
        """Return the number of messages that are due and not known to be stored; 0 while off."""
        if not self.is_on:
            return 0
        wall_ms = self._context.clock.wall_ms
        return sum(self._first_not_due(level, wall_ms) - level.offset for level in self.levels.values())

    def _first_not_due(self, level: Level, wall_ms: int) -> int:
        """Return the offset of a level's first message that is not due.

        A binary search, because the queue is ordered by due time.
        """
        store = self._store
        low, high = level.offset, store.queue_range(SCHEDULE_TOPIC, level.queue_id).offset_max
        while low < high:
            middle = (low + high) // 2
            entries = store.entries(SCHEDULE_TOPIC, level.queue_id, middle, 1)
            if entries and self._due_ms(level, entries[0], wall_ms) > wall_ms:
                high = middle
            else:
                low = middle + 1
        return max(low, level.offset)

    def facts(self) -> dict[str, str]:
        """Return `scheduleMessageOffset_<level>`: the delivered offset and the queue's end."""
        store = self._store
        return {
            f"scheduleMessageOffset_{number}": f"{offset},{store.queue_range(SCHEDULE_TOPIC, number - 1).offset_max}"
            for number, offset in sorted(self.offsets.by_level.items())
        }
