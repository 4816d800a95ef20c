"""UnitBatch: the units that one turn adds to the timer log, and what they change.

The wheel and the counts change only once the log is written, so a failed write changes nothing.
Changes are added up by slot, by topic and by delay, because a unit costs less than its own call.
"""

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

    def read(self, topic: str, delay_s: int) -> None:
        """Count a timer that was read, whether or not it gets a unit."""
        key = topic, delay_s
        self.delays[key] = self.delays.get(key, 0) + 1

    def add(self, slot: int, magic: int, write_ms: int, delay_ms: int, phy_offset: int, size: int, topic_hash: int) -> None:
        """Add a unit to the log. `write` writes it. Raises OSError."""
        known = self._slots.get(slot)
        previous = self._wheel.newest(slot) if known is None else known[1]
        position = self._log.add(previous, magic, write_ms, delay_ms, phy_offset, size, topic_hash)
        self.last_position = position
        change = -1 if magic & MAGIC_DELETE else 1
        if known is None:
            self._slots[slot] = [position, position, 1, change]
        else:
            known[1] = position
            known[2] += 1
            known[3] += change
        self.topics[topic_hash] = self.topics.get(topic_hash, 0) + change

    def write(self) -> None:
        """Write the units, then put them into the wheel. Raises OSError."""
        self._log.flush()
        for slot, (oldest, newest, units, change) in self._slots.items():
            self._wheel.extend(slot, oldest, newest, units, change)
