"""RateMeter: how often something happened per second, over the last ten seconds."""

WINDOW_MS = 10_000


class RateMeter:
    """Counts in two windows: the current one, and the one before it."""

    def __init__(self) -> None:
        self._begin_ms = 0
        self._count = 0
        self._before = 0

    def add(self, count: int, now_ms: int) -> None:
        self._turn(now_ms)
        self._count += count

    def text(self, now_ms: int) -> str:
        """Return the rate as code 28 shows it."""
        self._turn(now_ms)
        share = 1 - (now_ms - self._begin_ms) / WINDOW_MS
        return f"{(self._count + self._before * share) * 1000 / WINDOW_MS:.1f}"

    def _turn(self, now_ms: int) -> None:
        passed = (now_ms - self._begin_ms) // WINDOW_MS
        if passed > 0:
            self._before = self._count if passed == 1 else 0
            self._count = 0
            self._begin_ms += passed * WINDOW_MS
