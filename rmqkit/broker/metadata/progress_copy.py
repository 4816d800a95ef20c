"""ProgressCopy: a slave's copy of its master's progress in special duties.

The progress covers messages that the master delivered into its log. It takes effect here only once
this log holds those deliveries; otherwise a takeover would lose messages. While this log lags, the
oldest pending progress is kept, because it takes effect first.
"""

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.special.contract import Progress
from rmqkit.broker.special.duties import SpecialDuties
from rmqkit.store.contract import StorageEngine


class ProgressCopy:
    """Applies copied progress once this broker's log holds the deliveries."""

    def __init__(self, context: BrokerContext, store: StorageEngine, special: SpecialDuties) -> None:
        self._context = context
        self._store = store
        self._special = special
        #: pending progress, and the log end from which it takes effect; -1: it takes effect when
        #: the next progress arrives
        self._waiting: tuple[int, Progress] | None = None
        self._save_due_ms = 0

    def forget(self) -> None:
        """Discard the pending progress: the master's log may have lost the deliveries."""
        self._waiting = None

    def take(self, log_end: int, progress: Progress) -> None:
        """Take the progress of an rmqkit master, whose log ended at `log_end` at that time."""
        for waiting in (self._waiting, (log_end, progress)):
            if waiting is not None and waiting[0] <= self._store.offset_written:
                self._special.merge(waiting[1])
                self._waiting = None
            elif waiting is not None and self._waiting is None:
                self._waiting = waiting

    def take_later(self, progress: Progress) -> None:
        """Take the progress of an Apache master, which does not report the end of its log.

        It takes effect one round later: by then the deliveries have arrived.
        """
        if self._waiting is not None:
            self._special.merge(self._waiting[1])
        self._waiting = (-1, progress)

    def save(self) -> None:
        """Save the progress, at most once per save interval.

        On a slave the special duties are off, so they do not save it themselves.
        """
        now_ms = self._context.clock.mono_ms
        if now_ms >= self._save_due_ms:
            self._save_due_ms = now_ms + self._special.save_interval_ms
            self._special.save()
