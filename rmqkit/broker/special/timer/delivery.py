"""TimerDelivery: puts the timers of the slots that have passed into their topics.

Slots are read one after the other, each only when the wall clock is past it, so nothing is
delivered early. The timers of a slot are put in the order in which they were sent, many at a time.
The next slot begins when every put of this one has ended.

Failures. A timer that could not be put becomes late (`late.py`), and the slot continues: one topic
that accepts no message must not delay the others. A late timer is retried after 100 ms, 200 ms, …
up to the destination's limit, without end. Timers for the queue of a late timer become late without
an attempt, which keeps their order. While `LATE_MAX` timers are late, slots wait. Apache drops a
message after three attempts.

A serial destination gets one put at a time for each queue, and one retry at a time.

A timer is left out if

- its record cannot be read, or is no timer; that is logged,
- a delete marker of its slot names its unique key,
- the log has it already: another member, or this broker before it was killed, has delivered it
  (`DeliveryDedup`).

Limits: messages and bytes per turn, units per turn, bytes put together, puts in flight.

Source: `store/.../timer/TimerMessageStore.java` (`dequeue`, `doPut`).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from rmqkit.broker.special.contract import Destination, SpecialParts
from rmqkit.broker.special.delivery_dedup import DeliveryDedup
from rmqkit.broker.special.timer import rewrite
from rmqkit.broker.special.timer.index import TimerIndex
from rmqkit.broker.special.timer.late import LateTimer, LateTimers
from rmqkit.broker.special.timer.plain_timers import DueTimers, due_timers
from rmqkit.broker.special.timer.progress import LATE_MAX
from rmqkit.broker.special.timer.slot import TimerSlot
from rmqkit.errors import CorruptRecord
from rmqkit.store.contract import Put, PutStatus
from rmqkit.store.timer_log import MAGIC_ROLL, NONE
from rmqkit.wire import properties as props
from rmqkit.wire.record import Record, decode_record
from rmqkit.wire.topic_names import TIMER_TOPIC

#: bytes of the records that are put together. Buffers of more than 128 KiB would be new memory each
#: time, which costs more than the copy into them
RUN_SIZE = 65_536
#: limits of one turn
MESSAGES_PER_TURN = 512
BYTES_PER_TURN = 4_194_304
UNITS_PER_TURN = 8_192
#: puts in flight, if the destination has no limit of its own
IN_FLIGHT_MAX = 2_000
#: pause before the first retry of a failed put; each further pause is longer by the same time
RETRY_STEP_MS = 100

#: messages per queue among which delivered timers are searched: a burst may have put many since the
#: last copy of the progress. They take about 0.2 s to read, once per queue
LOOK_MAX = 20_000

_UNIQUE_KEY = props.PROPERTY_UNIQ_KEY.encode()
#: results after which a put cannot succeed (`TimerMessageStore.doPut`)
_HOPELESS = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)


class TimerDelivery:
    """The slot under way, the late timers, and the puts in flight."""

    def __init__(self, parts: SpecialParts, index: TimerIndex, late: LateTimers) -> None:
        self._context = parts.context
        self._store = parts.store
        self._index = index
        self.late = late
        stamps = rewrite.ENQUEUED, rewrite.DEQUEUED
        self.dedup = DeliveryDedup(parts.context.clock, parts.store, ignored=stamps, look_max=LOOK_MAX)
        self.slot: TimerSlot | None = None
        #: topic and queue id of the puts in flight, by the timer's offset
        self.in_flight: dict[int, tuple[str, int]] = {}
        #: offset of the failed timer that is retried, for a serial destination; -1: none
        self._retried = -1
        #: puts that ended before the index was rebuilt do not count
        self._life = 0
        self._messages_left = self._bytes_left = 0
        #: whether all timers of this turn were plain so far, and none of them was refused
        self._takes_some = True
        #: timers that were put since the start, by topic
        self.delivered: Counter[str] = Counter()
        #: called after puts that ended, with their offsets; timers whose put failed are late
        self.on_ended: Callable[[Sequence[int]], None] = lambda offsets: None

    def forget(self) -> None:
        """Forget everything: the index is rebuilt."""
        self._life += 1
        self._retried = -1
        self.slot = None
        self.in_flight.clear()

    @property
    def due_count(self) -> int:
        """The number of timers that are due in slots under way, or late."""
        return len(self.late) + (self.slot.left + len(self.slot.in_flight) if self.slot is not None else 0)

    # --- a turn -----------------------------------------------------------------------------------

    def run(self, to: Destination, now_ms: int) -> bool:
        """Put what is due, within the limits of a turn. Return whether more is due at once."""
        self._messages_left, self._bytes_left = MESSAGES_PER_TURN, BYTES_PER_TURN
        self._takes_some = True
        if self.late or self.late.markers:
            self._put_late(to, now_ms)
        wall_ms = self._context.clock.wall_ms
        due = wall_ms // self._index.precision_ms
        units_left = UNITS_PER_TURN
        while self._has_room(to):
            slot = self.slot or self._open(due)
            if slot is None:
                return False
            if not slot.is_collected:
                units_left -= self._collect(slot, units_left)
                if units_left <= 0:
                    return True
                continue
            if slot.left:
                if not self._put_some(to, slot) and not self._put_next(to, slot):
                    return False
            elif slot.in_flight:
                return False
            else:
                self._index.wheel.clear(slot.number, slot.units)
                self.slot = None
        return self._messages_left <= 0 or self._bytes_left <= 0

    def _has_room(self, to: Destination) -> bool:
        in_flight_max = IN_FLIGHT_MAX if to.in_flight_max is None else to.in_flight_max
        return (
            len(self.in_flight) < in_flight_max
            and len(self.late) < LATE_MAX
            and self._messages_left > 0
            and self._bytes_left > 0
        )

    def _open(self, due: int) -> TimerSlot | None:
        """Begin with the next slot before `due` that has timers."""
        wheel = self._index.wheel
        number = wheel.next_used(wheel.first, due)
        if number >= due:
            wheel.first = max(wheel.first, due)
            return None
        self.slot = TimerSlot(number, wheel.newest(number))
        # From now on the slot takes no more timers: one that is sent for it is late.
        wheel.first = number + 1
        return self.slot

    def _collect(self, slot: TimerSlot, count_max: int) -> int:
        if slot.position == NONE:
            # The markers come after the whole chain, each costs as much as a timer.
            count = min(len(slot.markers), max(1, count_max // 16))
            for _ in range(count):
                unit = self._index.log.read(slot.markers.pop())
                key = None if unit is None else self._deleted_key(unit.phy_offset, unit.size)
                if key is not None:
                    slot.deleted.add(key)
            return 16 * count
        positions, units, slot.position = self._index.chain(slot.position, count_max)
        slot.collect(positions, units)
        self._index.drop(units)
        return len(units)

    def _deleted_key(self, phy_offset: int, size: int) -> bytes | None:
        record = self._record(phy_offset, size)
        return None if isinstance(record, str) else props.find(record.properties, rewrite.DELETE)

    # --- puts -------------------------------------------------------------------------------------

    def _put_some(self, to: Destination, slot: TimerSlot) -> int:
        """Put the slot's next timers together as far as they are plain; return how many.

        They need no judgement: no marker names one of them, and no other member has delivered any.
        """
        if not self._takes_some:
            return 0
        index, slot_ms = self._index, slot.number * self._index.precision_ms
        if self.late or to.is_serial or slot.deleted or slot_ms <= index.progress.read_ms or self.dedup.is_needed(slot_ms):
            return 0
        room = (IN_FLIGHT_MAX if to.in_flight_max is None else to.in_flight_max) - len(self.in_flight)
        first = index.log.read(slot.next())
        if first is None:
            return 0
        count = min(self._messages_left, room, RUN_SIZE // max(1, first.size) + 1)
        units = index.log.read_many(slot.peek(count))
        due = due_timers(self._store, units, slot.offset_next, self._context.clock.wall_ms, self._bytes_left)
        if due is None:
            self._takes_some = False
            return 0
        life = self._life
        count = to.put_run(due.run, lambda status: self._run_ended(to, life, slot, put, status))
        put = due if count == len(due.offsets) else due.first(count)
        # Where single timers are between plain ones, reading many for each few would cost too much.
        self._takes_some = count == len(units)
        if count:
            slot.take_some(count)
            slot.offset_next = put.offsets[-1] + 1
            slot.in_flight.update(dict.fromkeys(put.offsets))
            self.in_flight.update(zip(put.offsets, put.run.queues, strict=True))
            self._messages_left -= count
            self._bytes_left -= sum([unit.size for unit in put.units])
        return count

    def _run_ended(self, to: Destination, life: int, slot: TimerSlot, due: DueTimers, status: PutStatus) -> None:
        if life != self._life:
            return
        if status is PutStatus.PUT_OK:
            self.delivered.update([topic for topic, _ in due.run.queues])
            for offset in due.offsets:
                del self.in_flight[offset]
                slot.in_flight.pop(offset, None)
                self.late.remove(offset)  # it may have become late meanwhile
            self.on_ended(due.offsets)
            return
        for offset, unit, queue in zip(due.offsets, due.units, due.run.queues, strict=True):
            timer = LateTimer(offset, unit.phy_offset, unit.size, unit.slot_ms, is_roll=False)
            timer.enqueued_ms, timer.queue = unit.write_ms, queue
            self._ended(to, life, timer, queue[0], status)

    def _put_next(self, to: Destination, slot: TimerSlot) -> bool:
        """Put the slot's next timer; return False if a put to the same queue must end first."""
        unit = self._index.log.read(slot.next())
        if unit is None:
            slot.take()
            return True
        is_roll = bool(unit.magic & MAGIC_ROLL)
        record = self._record(unit.phy_offset, unit.size)
        if isinstance(record, str):
            self._context.log.error("timer-dropped", phy_offset=unit.phy_offset, why=record)
            slot.take()
            self._messages_left -= 1
            return True
        if record.queue_offset < slot.offset_next:
            # Apache indexes its last second again after a kill.
            slot.take()
            return True
        timer = LateTimer(record.queue_offset, unit.phy_offset, unit.size, unit.slot_ms, is_roll=is_roll)
        timer.enqueued_ms = unit.write_ms
        put = self._message(timer, record, slot.deleted, slot.rolled)
        if isinstance(put, Put):
            queue = put.topic, put.queue_id
            if self.late and any(each.queue == queue for each in self.late):
                timer.queue = queue
                self.late.add(timer)
                put = ""
            elif to.is_serial and queue in self.in_flight.values():
                return False
        slot.take()
        slot.offset_next = timer.offset + 1
        self._messages_left -= 1
        if isinstance(put, Put):
            slot.in_flight[timer.offset] = None
            self._put(to, timer, put)
        return True

    def _put_late(self, to: Destination, now_ms: int) -> None:
        """Put late timers that are due."""
        late, wall_ms, precision_ms = self.late, self._context.clock.wall_ms, self._index.precision_ms
        for marker in late.markers:
            key = self._deleted_key(marker.phy_offset, marker.size)
            if key is not None:
                late.deleted.add((marker.slot_ms, key))
        late.markers.clear()
        waiting: set[tuple[str, int] | None] = set()
        for timer in list(late):
            is_due = timer.retry_ms <= now_ms and timer.slot_ms + precision_ms <= wall_ms
            if timer.offset in self.in_flight or not is_due or timer.queue in waiting:
                waiting.add(timer.queue)
                continue
            if to.is_serial and timer.failures and self._retried not in (-1, timer.offset):
                continue
            if len(self.in_flight) >= (to.in_flight_max or IN_FLIGHT_MAX) or self._messages_left <= 0:
                return
            self._messages_left -= 1
            record = self._record(timer.phy_offset, timer.size)
            deleted = {key for slot_ms, key in late.deleted if slot_ms == timer.slot_ms}
            put = record if isinstance(record, str) else self._message(timer, record, deleted, None)
            if isinstance(put, str):
                if put:
                    self._context.log.error("timer-dropped", offset=timer.offset, why=put)
                late.remove(timer.offset)
                continue
            queue = put.topic, put.queue_id
            if to.is_serial and queue in self.in_flight.values():
                continue
            if timer.failures:
                self._retried = timer.offset
                waiting.add(queue)
            self._put(to, timer, put)

    def _put(self, to: Destination, timer: LateTimer, put: Put) -> None:
        self._bytes_left -= timer.size
        timer.queue = put.topic, put.queue_id
        self.in_flight[timer.offset] = timer.queue
        topic = put.topic
        if timer.is_roll:
            topic = (props.find(put.properties, rewrite.REAL_TOPIC) or b"").decode("utf-8", "replace")
        to.put(put, f"TIMER:{timer.offset}", partial(self._ended, to, self._life, timer, topic))

    def _ended(self, to: Destination, life: int, timer: LateTimer, topic: str, status: PutStatus) -> None:
        if life != self._life:
            return
        offset = timer.offset
        del self.in_flight[offset]
        if self._retried == offset:
            self._retried = -1
        if status is PutStatus.PUT_OK or status in _HOPELESS:
            self.late.remove(offset)
            if status is PutStatus.PUT_OK:
                self.delivered[topic] += 1
            else:
                self._context.log.error("timer-dropped", offset=offset, why=status.name)
        else:
            now_ms = self._context.clock.mono_ms
            timer.failures += 1
            timer.retry_ms = now_ms + min(timer.failures * RETRY_STEP_MS, to.retry_max_ms)
            if timer.failures == 1:
                self._context.log.warning("timer-not-stored", offset=offset, status=status.name, why=to.why)
            self.late.add(timer)
        if self.slot is not None:
            self.slot.in_flight.pop(offset, None)
        self.on_ended((offset,))

    # --- messages ---------------------------------------------------------------------------------

    def _record(self, phy_offset: int, size: int) -> Record | str:
        """Return a timer's record, or the reason why it cannot be delivered."""
        try:
            record = decode_record(self._store.read_log(phy_offset, size), check_crc=True)
        except CorruptRecord as error:
            return str(error)
        if not isinstance(record, Record) or record.phy_offset != phy_offset or record.topic != TIMER_TOPIC:
            return "its record is no longer in the log"
        return record

    def _message(self, timer: LateTimer, record: Record, deleted: set[bytes], rolled: set[bytes] | None) -> Put | str:
        """Return what has to be put, or why nothing has; "" if there is nothing to report."""
        if self._index.progress.covers(timer.slot_ms, timer.offset):
            return ""
        properties = record.properties
        is_marker = rewrite.DELETE in properties and props.find(properties, rewrite.DELETE) is not None
        enqueued_ms = rewrite.NEVER_MS if timer.enqueued_ms < 0 else timer.enqueued_ms
        wall_ms = self._context.clock.wall_ms
        if timer.is_roll:
            return rewrite.rolled(record, enqueued_ms, wall_ms)
        if is_marker:
            return ""
        if deleted and (key := props.find(properties, _UNIQUE_KEY)) is not None:
            topic = props.find(properties, rewrite.REAL_TOPIC) or b""
            if key in deleted or topic + b"+" + key in deleted:
                return ""
        if rolled is not None and rewrite.ROLLED in properties:
            key = props.find(properties, _UNIQUE_KEY)
            if key in rolled:
                return ""
            if key is not None:
                rolled.add(key)
        put = rewrite.delivered(record, enqueued_ms, wall_ms)
        return "" if isinstance(put, Put) and self.dedup.has(put, timer.slot_ms) else put
