"""TimerSlot: the work of one slot, from its chain of units to the last put.

    collecting   reads the chain, newest unit first
    putting      hands out the timers in the order in which they were sent

Delete markers are known before the first timer is handed out, because the chain is read to its
end first. A marker that only waits for its next turn of the wheel is handed out like a timer.
"""

from array import array
from collections.abc import Sequence

from rmqkit.store.timer_log import MAGIC_DELETE, MAGIC_ROLL, NONE, TimerUnit

#: a unit that has only the first of these bits deletes another one
_MARKER = MAGIC_DELETE | MAGIC_ROLL


class TimerSlot:
    """One slot that is due. The wheel keeps its place until the slot is finished."""

    def __init__(self, number: int, newest: int) -> None:
        self.number = number
        #: position of the next unit to collect; NONE: all are collected
        self.position = newest
        self.units = 0
        #: positions of the timers, newest first; they are taken from the end
        self._timers = array("q")
        #: positions of delete markers whose keys were not read yet
        self.markers = array("q")
        #: keys of the messages that are recalled
        self.deleted: set[bytes] = set()
        #: unique keys of rolled timers that were handed out: a takeover may have rolled them twice
        self.rolled: set[bytes] = set()
        #: offsets of the timers in flight, in order
        self.in_flight: dict[int, None] = {}
        #: one past the offset of the last timer that was handed out
        self.offset_next = 0

    @property
    def is_collected(self) -> bool:
        return self.position == NONE and not self.markers

    @property
    def left(self) -> int:
        """The number of timers that were not handed out."""
        return len(self._timers)

    @property
    def done_offset(self) -> int:
        """All timers of this slot below this offset are done."""
        return next(iter(self.in_flight), self.offset_next)

    def collect(self, positions: Sequence[int], units: Sequence[TimerUnit]) -> None:
        """Take the next units of the chain, with their positions."""
        self.units += len(units)
        if {unit.magic & _MARKER for unit in units} & {MAGIC_DELETE}:
            for position, unit in zip(positions, units, strict=True):
                (self.markers if unit.magic & _MARKER == MAGIC_DELETE else self._timers).append(position)
        else:
            self._timers.extend(positions)

    def next(self) -> int:
        """Return the position of the next timer; `take` removes it."""
        return self._timers[-1]

    def take(self) -> None:
        self._timers.pop()

    def peek(self, count: int) -> list[int]:
        """Return the positions of the next timers, at most `count`; `take_some` removes them."""
        return self._timers[-count:].tolist()[::-1]

    def take_some(self, count: int) -> None:
        del self._timers[len(self._timers) - count :]
