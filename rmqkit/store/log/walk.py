"""Reads the log record by record, in windows of 1 MiB.

`LogWalk.next` returns the record at `position` and advances past it. Blank records lead it to the
next file. It returns None if no complete valid record starts there: at the end of the log, at a
record that a replica has received only in part, or at damage.
"""

from collections.abc import Mapping

from rmqkit.runtime.connection import Buffer
from rmqkit.store.log.commit_log import CommitLog
from rmqkit.store.log.scan import BLANK, BLANK_SIZE, DELAY_LEVELS, ScanResult, scan

_WINDOW = 1_048_576


class LogWalk:
    """A cursor over the log's written bytes. `check_crc` and `delay_levels` as in `scan`."""

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
        """Return the record at `position` and advance, or return None and stay."""
        # Skip what retention has removed.
        self.position = max(self.position, self._log.files.start)
        while True:
            at = self.position - self._window_at
            found = None
            if 0 <= at < len(self._window):
                found = self._scan(at)
            if found is None and at != 0:
                # The record may extend beyond the window.
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
        """Drop the window: after a cut its bytes are stale."""
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
