"""Walking the log record by record, in windows.

`LogWalk.next` gives the record at `position` and steps over it, following blank records into the next file. It gives None
where no whole valid record stands: the end of the log, a record not yet complete (a replica), or damage.
"""

from collections.abc import Mapping

from rmqkit.runtime.connection import Buffer
from rmqkit.store.log.commit_log import CommitLog
from rmqkit.store.log.scan import BLANK, BLANK_SIZE, DELAY_LEVELS, ScanResult, scan

_WINDOW = 1_048_576


class LogWalk:
    """`check_crc` as in `scan`. The walk reads what `log.view` gives: written bytes."""

    def __init__(
        self,
        log: CommitLog,
        position: int,
        *,
        check_crc: bool = False,
        delay_levels: Mapping[int, int] = DELAY_LEVELS,
    ) -> None:
        self.position = position
        self._log = log
        self._check_crc = check_crc
        self._delay_levels = delay_levels
        self._window: Buffer = b""
        self._window_at = -1

    def next(self) -> ScanResult | None:
        # What retention has taken away is passed over.
        self.position = max(self.position, self._log.files.start)
        while True:
            at = self.position - self._window_at
            found = None
            if 0 <= at < len(self._window):
                found = self._scan(at)
            if found is None and at != 0:
                # The record may go on behind the window.
                found = self._refill()
            if found is None:
                self._window_at = -1
                return None
            if found is not BLANK:
                self.position += found.size
                return found
            file_size = self._log.files.file_size
            self.position += file_size - self.position % file_size

    def forget(self) -> None:
        """The log was cut: what was read of it may be gone, or be something else by now."""
        self._window, self._window_at = b"", -1

    def _refill(self) -> ScanResult | None:
        size = _WINDOW
        while True:
            self._window = self._log.view(self.position, size)
            self._window_at = self.position
            if len(self._window) < BLANK_SIZE:
                return None
            found = self._scan(0)
            wanted = int.from_bytes(self._window[:4], "big")
            if found is not None or wanted <= len(self._window) or len(self._window) < size:
                return found
            size = wanted

    def _scan(self, at: int) -> ScanResult | None:
        found = scan(
            self._window,
            at,
            self.position,
            check_crc=self._check_crc,
            delay_levels=self._delay_levels,
        )
        if found is BLANK:
            rest = self._log.files.file_size - self.position % self._log.files.file_size
            return found if int.from_bytes(self._window[at : at + 4], "big") == rest else None
        return found
