"""A slave's copy of its master's progress in special duties: when it counts, and when it is saved.

What the master has delivered into its log counts here once this log has it, or a takeover would leave messages out. While
this log lags, the oldest progress that waits is kept.
"""

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.special.contract import Progress
from rmqkit.broker.special.duties import SpecialDuties
from rmqkit.store.contract import StorageEngine


class ProgressCopy:
    def __init__(self, context: BrokerContext, store: StorageEngine, special: SpecialDuties) -> None:
        self._context = context
        self._store = store
        self._special = special
        #: progress, and where this log has to reach before it counts; -1: it counts when the next one comes
        self._waiting: tuple[int, Progress] | None = None
        self._save_due_ms = 0

    def forget(self) -> None:
        """What waits is of a log that may have lost what was delivered."""
        self._waiting = None

    def take(self, log_end: int, progress: Progress) -> None:
        """A master of ours: `log_end` is where its log ended when the progress was so."""
        for waiting in (self._waiting, (log_end, progress)):
            if waiting is not None and waiting[0] <= self._store.offset_written:
                self._special.merge(waiting[1])
                self._waiting = None
            elif waiting is not None and self._waiting is None:
                self._waiting = waiting

    def take_later(self, progress: Progress) -> None:
        """Apache's master, which does not say where its log ends: what it has delivered has arrived a round later."""
        if self._waiting is not None:
            self._special.merge(self._waiting[1])
        self._waiting = (-1, progress)

    def save(self) -> None:
        """A special duty that is on saves its progress itself; here it is off."""
        now_ms = self._context.clock.mono_ms
        if now_ms >= self._save_due_ms:
            self._save_due_ms = now_ms + self._special.save_interval_ms
            self._special.save()
