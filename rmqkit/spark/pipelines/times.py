"""Times of a lake: bounds that a caller gives, and the names of hours."""

from __future__ import annotations

import time
from datetime import UTC, datetime

HOUR_MS = 3_600_000
#: the hour of rows without a store time
NO_HOUR = "none"

#: a time: ms since 1970, or a datetime (UTC if it names no zone)
Time = int | datetime


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def millis(moment: Time) -> int:
    if isinstance(moment, int):
        return moment
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def hour_name(time_ms: int) -> str:
    """Return the hour in UTC, such as `2026-11-22-13`; names sort in the order of time."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%d-%H")
