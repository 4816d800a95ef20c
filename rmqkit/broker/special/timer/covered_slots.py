"""CoveredSlots: drops the slots that the copied progress covers.

A member whose duty is off indexes all timers and delivers none. Its wheel follows the progress of
the member that is on: timers that were delivered there are dropped here. A timer whose slot has
passed and that the progress does not cover becomes late; it is put if this member takes over.
"""

from rmqkit.broker.special.timer.delivery import TimerDelivery
from rmqkit.broker.special.timer.index import TimerIndex

#: units that are dropped per turn
UNITS_PER_TURN = 8_192
#: no slot is under way
_IDLE = -2


class CoveredSlots:
    """The slots from the wheel's first one to the read time of the copied progress."""

    def __init__(self, index: TimerIndex, delivery: TimerDelivery) -> None:
        self._index = index
        self._delivery = delivery
        #: position of the next unit in the slot under way
        self._position = _IDLE

    def forget(self) -> None:
        """Forget the slot under way: the index is rebuilt."""
        self._position = _IDLE

    def run(self) -> bool:
        """Drop slots that the copied progress covers; return whether there is more to do."""
        index, wheel = self._index, self._index.wheel
        goal = index.progress.read_ms // index.precision_ms
        units_left = UNITS_PER_TURN
        while wheel.first < goal and units_left > 0:
            number = wheel.next_used(wheel.first, goal)
            if number >= goal:
                wheel.first = goal
                break
            if self._position == _IDLE:
                self._position = wheel.newest(number)
            _, units, self._position = index.chain(self._position, units_left)
            units_left -= len(units)
            index.drop(units)
            for unit in units:
                if not index.covers(unit):
                    index.make_late(unit)
            if self._position < 0:
                wheel.clear(number, 0)
                wheel.first = number + 1
                self._position = _IDLE
            wheel.units -= len(units)
        return wheel.first < goal

    def leave_slot(self) -> None:
        """Give up the current slot, if a peer has continued it."""
        slot, index = self._delivery.slot, self._index
        if slot is None or slot.number * index.precision_ms > index.progress.read_ms:
            return
        self._delivery.slot = None
        position = index.wheel.newest(slot.number)
        while position >= 0:
            _, units, position = index.chain(position, UNITS_PER_TURN)
            for unit in units:
                if not index.covers(unit):
                    index.make_late(unit)
        index.wheel.clear(slot.number, slot.units)
