"""Decides how many replicated records a turn dispatches to the queues.

A slave reports the end of its written log, and its master waits for that report. Dispatch takes
several times longer than the write, so it must not delay the next report:

- **Copying**: the log ends below `copy_end`, where the master's log ended when the copy began. The
  queues may fall behind by that much, and no further. A turn with new bytes dispatches
  `WHILE_COPYING` records. A turn without new bytes dispatches `IN_A_GAP`. After `PAUSE_MS` without
  bytes it dispatches `PER_TURN`.
- **Following**: everything else. A turn that brought `LARGE_TURN_SIZE` bytes dispatches
  `WHILE_COPYING` records, and the next turn dispatches `PER_TURN`. So the queues are at most about
  a turn behind.

Readers see dispatched records alone: the queues end before the others. The size of the others is
`dispatchBehindBytes` in the runtime info (code 28).
"""

#: records per turn: the bound of every turn
PER_TURN = 4096
#: in a turn whose report must not wait
WHILE_COPYING = 8
#: in a turn of a copy for which the master has sent nothing, about 3 ms
IN_A_GAP = 256
#: replicated bytes of one turn, and ms
LARGE_TURN_SIZE = 32_768
PAUSE_MS = 20


class DispatchLimit:
    """The limit of one engine. `copied_size` counts the replicated bytes of the current turn."""

    __slots__ = ("_copied_ms", "copied_size", "copy_end")

    def __init__(self) -> None:
        self.copied_size = 0
        self.copy_end = 0
        #: mono ms of the last turn with replicated bytes
        self._copied_ms = -PAUSE_MS

    def at_write(self, offset_written: int, now_ms: int) -> int:
        """End the bytes of this turn, which have just been written.

        Return how many records to dispatch now. The duty dispatches the rest.
        """
        size, self.copied_size = self.copied_size, 0
        if size:
            self._copied_ms = now_ms
            if offset_written < self.copy_end or size >= LARGE_TURN_SIZE:
                return WHILE_COPYING
        return PER_TURN

    def at_duty(self, offset_written: int, now_ms: int) -> int:
        """Return how many of the remaining records a turn may dispatch before it writes."""
        if offset_written >= self.copy_end:
            return PER_TURN
        if self.copied_size:
            return 0
        return PER_TURN if now_ms - self._copied_ms >= PAUSE_MS else IN_A_GAP
