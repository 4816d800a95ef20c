"""TimerWheel: where the units of each slot are, for the slots of the next seven days.

A slot holds the timers that are due in one unit of `timerPrecisionMs`. The wheel keeps per slot the
positions of its newest and its oldest unit in the timer log, and a count. The timers themselves
are only on disk, so a million of them cost no memory here; the wheel costs 12 MB, once there is a
timer.

    first <= slot < end      slots that take timers; `first` only moves forward

Slots are numbers: due time in ms // precision. Slot n uses place n % SLOTS. The slot before `first`
may be under way: it keeps its place until it is cleared, so `end` leaves some places free.

Source: `store/.../timer/TimerWheel.java`; there it is a file of 38.7 MB.
"""

from array import array

#: seven days at a precision of one second
SLOTS = 604_800
#: places that stay free
_FREE = 60
NONE = -1
_NEVER = 1 << 62


class TimerWheel:
    """The slots, from `first` on."""

    def __init__(self) -> None:
        #: the first slot that may hold a timer
        self.first = 0
        #: units in all slots
        self.units = 0
        #: timers in all slots: a unit that deletes another one counts -1
        self.count = 0
        self._newest = array("q")
        self._oldest = array("q")
        self._counts = array("i")

    def reset(self, first: int) -> None:
        """Empty the wheel; it begins at slot `first`."""
        self.first = first
        self.units = self.count = 0
        self._newest, self._oldest, self._counts = array("q"), array("q"), array("i")

    @property
    def end(self) -> int:
        """The first slot that is too far away."""
        return self.first + SLOTS - _FREE

    def holds(self, slot: int) -> bool:
        """Whether the wheel has a place for this slot."""
        return self.first <= slot < self.end

    def newest(self, slot: int) -> int:
        """Return the position of the newest unit of a slot that has its place, or NONE."""
        return self._newest[slot % SLOTS] if self.units else NONE

    def count_of(self, slot: int) -> int:
        """Return the number of timers in a slot."""
        is_held = self.units and 0 <= slot - self.first < SLOTS - _FREE
        return self._counts[slot % SLOTS] if is_held else 0

    def extend(self, slot: int, oldest: int, newest: int, units: int, change: int) -> None:
        """Note units of one slot that were added to the timer log, between these positions.

        `change` is that of the number of timers: a unit that deletes another one counts -1.
        """
        if not self._newest:
            self._newest = array("q", [NONE]) * SLOTS
            self._oldest = array("q", [_NEVER]) * SLOTS
            self._counts = array("i", [0]) * SLOTS
        place = slot % SLOTS
        self._newest[place] = newest
        if oldest < self._oldest[place]:
            self._oldest[place] = oldest
        self._counts[place] += change
        self.count += change
        self.units += units

    def clear(self, slot: int, units: int) -> None:
        """Empty a slot that had so many units."""
        if self.units:
            place = slot % SLOTS
            self.count -= self._counts[place]
            self.units -= units
            self._newest[place], self._oldest[place], self._counts[place] = NONE, _NEVER, 0

    def next_used(self, slot: int, end: int) -> int:
        """Return the first slot from `slot` on that holds a unit, or `end` if none before it."""
        if not self.units:
            return end
        newest = self._newest
        while slot < end and newest[slot % SLOTS] == NONE:
            slot += 1
        return slot

    def count_until(self, end: int) -> int:
        """Return the number of timers in the slots before `end`."""
        return self.count_between(self.first, end)

    def count_between(self, first: int, end: int) -> int:
        """Return the number of timers in the slots from `first` to before `end`."""
        if not self.units:
            return 0
        first, end = max(first, self.first), min(end, self.end)
        if first >= end:
            return 0
        begin, stop, counts = first % SLOTS, (end - 1) % SLOTS + 1, self._counts
        return sum(counts[begin:stop]) if begin < stop else sum(counts[begin:]) + sum(counts[:stop])

    def oldest(self, default: int) -> int:
        """Return the position of the oldest unit of all slots. Takes some milliseconds."""
        return min(self._oldest) if self.units else default
