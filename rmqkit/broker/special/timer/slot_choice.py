"""The slot in which a timer waits: its own, or one on its way.

A timer that is further away than the window waits for the window, or for half of it if it would
then be almost due, and is stored again ("rolled"). So the log need not keep a record for longer
than the window. The window is `timerRollWindowSlot`, but at most 3/4 of `fileReservedTime` and half
of the wheel.

The slot follows from the record and the settings alone, not from the time of indexing. So all
members of a group choose the same slot, and the progress of one means the same to the others.

Source: `store/.../timer/TimerMessageStore.java` (`doEnqueue`).
"""

from rmqkit.broker.special.timer.wheel import SLOTS
from rmqkit.config import NodeConfig

#: slots at the end of the wheel that Apache leaves empty
_BLANK_SLOTS = 60


def window_slots(config: NodeConfig) -> int:
    """Return the number of slots that a timer may wait before it is rolled."""
    slots = config.timers.roll_window_slots
    if not 2 <= slots <= SLOTS - _BLANK_SLOTS:
        slots = SLOTS - _BLANK_SLOTS
    kept_ms = config.retention.file_reserved_time_hours * 3_600_000
    return max(2, min(slots, SLOTS // 2, kept_ms * 3 // 4 // config.timers.precision_ms))


def slot_of(precision_ms: int, slots: int, store_ms: int, out_ms: int) -> tuple[int, bool]:
    """Return the slot (ms) of a timer stored at `store_ms` for `out_ms`; and if it is rolled.

    `slots` are those of the window.
    """
    from_ms = store_ms - store_ms % precision_ms
    beyond_ms = out_ms - from_ms - slots * precision_ms
    if beyond_ms < 0:
        return out_ms - out_ms % precision_ms, False
    is_close = beyond_ms < slots // 3 * precision_ms
    return from_ms + (slots // 2 if is_close else slots) * precision_ms, True
