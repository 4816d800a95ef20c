"""TimerBacklog: timers that this broker has stored and not indexed yet.

The index follows when the broker has time for it: once no timer has arrived for `QUIET_MS`. While
timers arrive without a pause, their senders wait for answers, and the index needs a fifth of the
time of a timer. No caller waits for the index, until

- a slot comes near that has a timer of the backlog (`SOON_MS`),
- the backlog has `BACKLOG_MAX` timers, about 0.2 s of work, or
- its first timer is `BACKLOG_MAX_MS` old: the counts that tools show follow the index.

Then the index works in each turn until it has caught up. It waits for nothing if
`timerCongestNumEachSlot` limits the slots, because that limit counts what is indexed.
"""

#: pause after the last timer
QUIET_MS = 10
#: before a slot is due, that all timers of the backlog are indexed
SOON_MS = 1_500
BACKLOG_MAX = 65_536
BACKLOG_MAX_MS = 5_000


class TimerBacklog:
    """The arrivals since the index had caught up."""

    def __init__(self, precision_ms: int) -> None:
        self._precision_ms = precision_ms
        self.is_empty = True
        #: when the first and the last timer arrived (monotonic)
        self._first_ms = self._last_ms = 0
        #: the first slot of its timers (ms, wall time)
        self._slot_ms = 0

    def add(self, now_ms: int, slot_ms: int) -> bool:
        """Note a timer for this slot; return whether it is the first one."""
        self._last_ms = now_ms
        if self.is_empty:
            self.is_empty, self._first_ms, self._slot_ms = False, now_ms, slot_ms
            return True
        if slot_ms < self._slot_ms:
            self._slot_ms = slot_ms
        return False

    def may_wait(self, now_ms: int, wall_ms: int, count: int) -> bool:
        """Return whether the index need not follow yet. `count` timers are not indexed."""
        return (
            not self.is_empty
            and now_ms - self._last_ms < QUIET_MS
            and now_ms - self._first_ms < BACKLOG_MAX_MS
            and wall_ms + SOON_MS < self._slot_ms + self._precision_ms
            and count < BACKLOG_MAX
        )

    def clear(self) -> None:
        """Forget it: the index has caught up."""
        self.is_empty = True
