"""UnitBatch: the units that one turn adds to the timer log, and what they change.

The wheel and the counts change only once the log is written, so a failed write changes nothing.
Changes are added up by slot, by topic and by delay, because a unit costs less than its own call.
"""

from collections.abc import Sequence

from rmqkit.broker.special.timer.wheel import TimerWheel
from rmqkit.store.timer_log import MAGIC_DELETE, TimerLog


class UnitBatch:
    """The units of one turn."""

    def __init__(self, log: TimerLog, wheel: TimerWheel) -> None:
        self._log = log
        self._wheel = wheel
        #: by slot: positions of its oldest and newest unit, number of units, change of its timers
        self._slots: dict[int, list[int]] = {}
        #: change of the timers that wait, by Java's hash of their topic
        self.topics: dict[int, int] = {}
        #: number of timers by topic and delay in s
        self.delays: dict[tuple[str, int], int] = {}
        #: position of the newest unit; -1: there is none
        self.last_position = -1

    def read(self, topic: str, delay_s: int, times: int) -> None:
        """Count timers that were read, whether or not they get units."""
        key = topic, delay_s
        self.delays[key] = self.delays.get(key, 0) + times

    def add(
        self, slot: int, magic: int, write_ms: int, delay_ms: int, topic_hash: int, records: Sequence[tuple[int, int]]
    ) -> None:
        """Add units of one slot and topic, as `TimerLog.add` does. Raises OSError."""
        known = self._slots.get(slot)
        previous = self._wheel.newest(slot) if known is None else known[1]
        first, self.last_position = self._log.add(previous, magic, write_ms, delay_ms, topic_hash, records)
        count = len(records)
        change = -count if magic & MAGIC_DELETE else count
        if known is None:
            self._slots[slot] = [first, self.last_position, count, change]
        else:
            known[1] = self.last_position
            known[2] += count
            known[3] += change
        self.topics[topic_hash] = self.topics.get(topic_hash, 0) + change

    def write(self) -> None:
        """Write the units, then put them into the wheel. Raises OSError."""
        self._log.flush()
        for slot, (oldest, newest, units, change) in self._slots.items():
            self._wheel.extend(slot, oldest, newest, units, change)
