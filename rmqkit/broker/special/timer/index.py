"""TimerIndex: the timer log and the wheel, kept up to date with the timer topic.

The states:

    waiting    ->  scanning
    scanning   ->  cutting
    cutting    ->  following, scanning
    following  ->  scanning

    waiting    the store is not ready yet
    scanning   reads the timer log from the oldest unit that counts, and fills the wheel
    cutting    removes what is behind the last unit, or points behind the end of the commit log
    following  adds a unit for each new entry of the timer topic

Members of a group index the same topic, each for itself, whether their duties are on or not. So a
slave that starts to act has its index.

Limits: units and entries per turn. A timer log that cannot be written delays the index; sends are
accepted meanwhile.

Source: `store/.../timer/TimerMessageStore.java` (`recover`, `enqueue`, `doEnqueue`).
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple

from rmqkit.broker.special.contract import SpecialParts
from rmqkit.broker.special.timer.late import LateTimer, LateTimers
from rmqkit.broker.special.timer.plain_timers import plain_waits
from rmqkit.broker.special.timer.progress import TimerProgress
from rmqkit.broker.special.timer.rewrite import DELETE, OUT, REAL_TOPIC
from rmqkit.broker.special.timer.slot_choice import slot_of, window_slots
from rmqkit.broker.special.timer.unit_batch import UnitBatch
from rmqkit.broker.special.timer.wheel import NONE, SLOTS, TimerWheel
from rmqkit.errors import CorruptRecord
from rmqkit.metrics.histogram import HistogramTable
from rmqkit.runtime.states import Moves, StateMachine
from rmqkit.store.contract import Entry
from rmqkit.store.timer_log import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, UNIT_SIZE, TimerLog, TimerUnit
from rmqkit.wire import properties as props
from rmqkit.wire.javahash import tags_code as java_hash
from rmqkit.wire.record import Record, decode_record
from rmqkit.wire.topic_names import TIMER_TOPIC

#: magic and hash of the topic of a unit; a call into C
_kind_of = itemgetter(TimerUnit._fields.index("magic"), TimerUnit._fields.index("topic_hash"))
#: limits of one turn
SCAN_PER_TURN = 16_384
ENTRIES_PER_TURN = 512
#: after a failed write of the timer log
RETRY_MS = 1000


class IndexState(StrEnum):
    WAITING = "waiting"
    SCANNING = "scanning"
    CUTTING = "cutting"
    FOLLOWING = "following"


WAITING, SCANNING, CUTTING, FOLLOWING = IndexState

MOVES = Moves(
    {
        WAITING: (SCANNING,),
        SCANNING: (CUTTING,),
        CUTTING: (FOLLOWING, SCANNING),
        FOLLOWING: (SCANNING,),
    }
)

#: upper bounds of the buckets for delays, in s
DELAY_BOUNDS_S = (60, 600, 3_600, 43_200, 86_400, 259_200)


class TimerKind(NamedTuple):
    """What timers share that are added together. `delay_s` is from their birth to their slot."""

    topic: str
    topic_hash: int
    delay_s: int
    slot_ms: int
    is_roll: bool


class TimerIndex(StateMachine[IndexState]):
    """The units of the timer topic. `next` is the first offset of the topic that has none."""

    def __init__(self, parts: SpecialParts, late: LateTimers) -> None:
        """`late` gets the timers whose slot has passed."""
        super().__init__(MOVES)
        self._context = parts.context
        self._store = parts.store
        self._late = late
        config = parts.context.config.timers
        self.precision_ms = config.precision_ms
        self.log = TimerLog(parts.context.disk, "timerlog", config.mapped_file_size)
        self.wheel = TimerWheel()
        self.next = 0
        #: timers that wait, by Java's hash of their topic
        self.by_topic: dict[int, int] = {}
        #: timers that were indexed since the start, by topic
        self.indexed: Counter[str] = Counter()
        #: the time from a timer's birth to its slot in s, by topic
        self.delays_s: HistogramTable[str] = HistogramTable(DELAY_BOUNDS_S)
        #: the timers that it covers are not indexed
        self.progress = TimerProgress()
        #: records before this log offset have an offset below the one of `progress`
        self._covered_to = 0
        self._position = 0
        self._last: TimerUnit | None = None
        #: position of the newest unit
        self._last_position = 0
        #: a second scan is needed, because the commit log was cut during the first
        self._is_stale = False
        self._retry_ms = 0

    def validate(self) -> None:
        assert self.state in (FOLLOWING, CUTTING) or not self.log.end or self.log.end >= self.log.start
        assert self.wheel.units >= 0

    # --- the scan ---------------------------------------------------------------------------------

    def restart(self, progress: TimerProgress, first: int) -> None:
        """Read the timer log again, for timers that this progress does not cover.

        The wheel begins at slot `first`.
        """
        self.cover(progress)
        if self.state is CUTTING:
            self._is_stale = True
        elif self.state is not SCANNING:
            self.move(SCANNING)
        self.wheel.reset(first)
        self.by_topic.clear()
        self._late.clear()
        self._last = None
        self.log.discard()
        position = progress.log_position
        self._position = position if self.log.read(position) is not None else self.log.start
        self.log.end = self._position

    def cover(self, progress: TimerProgress) -> None:
        """From now on leave out the timers that this progress covers."""
        self.progress = progress
        entries = self._store.entries(TIMER_TOPIC, 0, progress.offset, 1) if progress.offset else ()
        self._covered_to = entries[0].phy_offset if entries else 0

    def covers(self, unit: TimerUnit) -> bool:
        """Whether the progress covers this unit."""
        progress = self.progress
        if unit.slot_ms < progress.read_ms and unit.phy_offset < self._covered_to and not progress.late:
            return True
        if unit.slot_ms > progress.read_ms:
            return False
        offset = self.offset_of(unit)
        return offset < 0 or progress.covers(unit.slot_ms, offset)

    def scan(self) -> None:
        """Read the next units; after the last one cut the log there."""
        wheel, precision_ms, end = self.wheel, self.precision_ms, self._store.offset_written
        units, position_next, is_end = self.log.units(self._position, SCAN_PER_TURN)
        position = self._position
        for unit in units:
            if unit.phy_offset >= end:
                is_end, position_next = True, position
                break
            self._last, self._last_position = unit, position
            slot = unit.slot_ms // precision_ms
            if wheel.holds(slot):
                wheel.extend(slot, position, position, 1, -1 if unit.magic & MAGIC_DELETE else 1)
                self._count(unit, 1)
            elif slot < wheel.first and not self.covers(unit):
                self.make_late(unit)
            position += UNIT_SIZE
        self._position = position_next
        if is_end:
            self.move(CUTTING)
            self.log.cut(position_next, self._scanned)

    def _scanned(self) -> None:
        if self._is_stale:
            self._is_stale = False
            self.move(SCANNING)
            return
        self.move(FOLLOWING)
        # Without a readable unit, every timer that the topic still has is indexed, except those
        # that the progress covers.
        self.next = 0 if self._last is None else self.offset_of(self._last) + 1
        for each in self.progress.late:
            entries = self._store.entries(TIMER_TOPIC, 0, each, 1)
            if entries and entries[0].size:
                self._add_late(entries[0])

    def _add_late(self, entry: Entry) -> None:
        timer = self._timer_of(entry)
        if timer is not None:
            self._late.add(timer)

    def slot_ms_of(self, offset: int) -> int | None:
        """Return the slot of the timer at this offset, None if it cannot be read."""
        entries = self._store.entries(TIMER_TOPIC, 0, offset, 1)
        timer = self._timer_of(entries[0]) if entries and entries[0].queue_offset == offset else None
        return None if timer is None else timer.slot_ms

    def _timer_of(self, entry: Entry) -> LateTimer | None:
        """Return the timer of an entry, None if it cannot be read."""
        record = self._record(entry.phy_offset, entry.size)
        out = None if record is None else _number(props.find(record.properties, OUT))
        if record is None or out is None:
            return None
        slot_ms, is_roll = slot_of(self.precision_ms, window_slots(self._context.config), record.store_ms, out)
        is_delete = props.find(record.properties, DELETE) is not None
        return LateTimer(entry.queue_offset, entry.phy_offset, entry.size, slot_ms, is_roll=is_roll, is_delete=is_delete)

    def make_late(self, unit: TimerUnit) -> None:
        """Hand over a unit whose slot has passed and that was not delivered."""
        offset = self.offset_of(unit)
        if offset >= 0:
            is_roll, is_delete = bool(unit.magic & MAGIC_ROLL), bool(unit.magic & MAGIC_DELETE)
            self._late.add(
                LateTimer(offset, unit.phy_offset, unit.size, unit.slot_ms, is_roll=is_roll, is_delete=is_delete)
            )

    def oldest(self) -> int:
        """Return a position behind which the timer log has every unit that still counts.

        At the position there is a unit.
        """
        return self.wheel.oldest(self._last_position)

    def offset_of(self, unit: TimerUnit) -> int:
        """Return the offset of a unit's record in the timer topic, -1 if it cannot be read."""
        record = self._record(unit.phy_offset, unit.size)
        return -1 if record is None else record.queue_offset

    def _record(self, phy_offset: int, size: int) -> Record | None:
        """Return the timer at this position without its body, None if it cannot be read."""
        try:
            record = (
                decode_record(self._store.read_log(phy_offset, size), check_crc=False, read_body=False) if size else None
            )
        except CorruptRecord:
            return None
        if not isinstance(record, Record) or record.topic != TIMER_TOPIC:
            return None
        return record if (record.phy_offset, record.size) == (phy_offset, size) else None

    # --- new entries ------------------------------------------------------------------------------

    def follow(self, now_ms: int) -> int:
        """Add units for the next entries of the timer topic; return how many entries there were."""
        if now_ms < self._retry_ms:
            return 0
        known = self._store.queue_range(TIMER_TOPIC, 0)
        self.next = min(max(self.next, known.offset_min), known.offset_max)
        if self.next == known.offset_max:
            return 0
        entries = self._store.entries(TIMER_TOPIC, 0, self.next, ENTRIES_PER_TURN)
        if not entries:
            self._retry_ms = now_ms + RETRY_MS
            return 0
        batch = UnitBatch(self.log, self.wheel)
        try:
            self._add(entries, batch)
            batch.write()
        except OSError as error:
            self.log.discard()
            self._retry_ms = now_ms + RETRY_MS
            self._context.log.error("timer-log-not-written", error=str(error))
            return 0
        for topic_hash, change in batch.topics.items():
            self.by_topic[topic_hash] = self.by_topic.get(topic_hash, 0) + change
        if batch.last_position >= 0:
            self._last_position = batch.last_position
        for (topic, delay_s), times in batch.delays.items():
            self.indexed[topic] += times
            self.delays_s.add(topic, delay_s, times)
        self.next = entries[-1].queue_offset + 1
        return len(entries)

    def _add(self, entries: Sequence[Entry], batch: UnitBatch) -> None:
        """Add the units of these entries to the batch. Raises OSError."""
        wheel, precision_ms, slots = self.wheel, self.precision_ms, window_slots(self._context.config)
        first_ms, end_ms = wheel.first * precision_ms, wheel.end * precision_ms
        asked, slot_ms, is_roll = (-1, -1), 0, False
        run: list[tuple[int, int]] = []
        kind = TimerKind("", 0, 0, 0, False)
        for entry, found in zip(entries, plain_waits(self._store, entries), strict=True):
            if found is not None:
                (out_ms, topic, _, topic_hash), born_ms, store_ms = found
                if asked != (store_ms, out_ms):
                    # Many timers of a turn are stored and due at the same time.
                    asked = store_ms, out_ms
                    slot_ms, is_roll = slot_of(precision_ms, slots, store_ms, out_ms)
                if first_ms <= slot_ms < end_ms:
                    its = topic, topic_hash, max(0, out_ms - born_ms) // 1000, slot_ms, is_roll
                    if its != kind:
                        self._add_run(kind, run, batch)
                        kind, run = TimerKind._make(its), []
                    run.append(entry[1:3])
                    continue
            self._add_run(kind, run, batch)
            run = []
            self._add_decoded(entry, batch, slots)
        self._add_run(kind, run, batch)

    def _add_run(self, kind: TimerKind, records: Sequence[tuple[int, int]], batch: UnitBatch) -> None:
        """Add the units of timers of one kind, if there are any. Raises OSError."""
        if records:
            topic, topic_hash, delay_s, slot_ms, is_roll = kind
            write_ms, magic = self._write_ms(), MAGIC_DEFAULT | MAGIC_ROLL if is_roll else MAGIC_DEFAULT
            batch.read(topic, delay_s, len(records))
            batch.add(slot_ms // self.precision_ms, magic, write_ms, slot_ms - write_ms, topic_hash, records)

    def _write_ms(self) -> int:
        wall_ms = self._context.clock.wall_ms
        return wall_ms - wall_ms % self.precision_ms

    def _add_decoded(self, entry: Entry, batch: UnitBatch, slots: int) -> None:
        """Add the unit of any entry; `slots` are those of the window. Raises OSError."""
        wheel, precision_ms, write_ms = self.wheel, self.precision_ms, self._write_ms()
        record = self._record(entry.phy_offset, entry.size)
        out = None if record is None else _number(props.find(record.properties, OUT))
        if record is None or out is None:
            self._context.log.error("timer-skipped", offset=entry.queue_offset, why="no record, or no TIMER_OUT_MS")
            return
        topic = (props.find(record.properties, REAL_TOPIC) or b"").decode("utf-8", "replace")
        batch.read(topic, max(0, out - record.born_ms) // 1000, 1)
        slot_ms, is_roll = slot_of(precision_ms, slots, record.store_ms, out)
        slot = slot_ms // precision_ms
        if slot >= wheel.end:
            # The clocks differ by days: wait for half a wheel, and look again.
            slot, is_roll = wheel.first + SLOTS // 2, True
            slot_ms = slot * precision_ms
        if slot < wheel.first:
            if not self.progress.covers(slot_ms, entry.queue_offset):
                self._add_late(entry)
            return
        magic = MAGIC_DEFAULT | MAGIC_ROLL if is_roll else MAGIC_DEFAULT
        if props.find(record.properties, DELETE) is not None:
            magic |= MAGIC_DELETE
        batch.add(slot, magic, write_ms, slot_ms - write_ms, java_hash(topic), [(entry.phy_offset, entry.size)])

    # --- slots that end ---------------------------------------------------------------------------

    def chain(self, position: int, count_max: int) -> tuple[list[int], list[TimerUnit], int]:
        """Return up to `count_max` units from `position` backwards.

        Their positions, the units, and the next position.
        """
        positions, units, position = self.log.read_chain(position, count_max)
        if position != NONE and len(units) < count_max:
            self._context.log.error("timer-log-unreadable", position=position)
            position = NONE
        return positions, units, position

    def drop(self, units: Sequence[TimerUnit]) -> None:
        """Count these units as no longer waiting."""
        for (magic, key), count in Counter(map(_kind_of, units)).items():
            self.by_topic[key] = self.by_topic.get(key, 0) + (count if magic & MAGIC_DELETE else -count)

    def _count(self, unit: TimerUnit, change: int) -> None:
        if unit.magic & MAGIC_DELETE:
            change = -change
        key = unit.topic_hash
        self.by_topic[key] = self.by_topic.get(key, 0) + change


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) < 19 else None
