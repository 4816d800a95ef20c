"""Times as people write them on a command line, as Unix milliseconds.

1767225600000          Unix time in ms (13 digits)
2026-01-01T12:30:00    local time; the time of day, seconds and a fraction may be left out, Z or +02:00 may follow
-10m                   so long ago: ms, s, m, h, d
"""

import re
import time
from datetime import datetime

from rmqkit.cli.errors import UsageError

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


#: what a time may be, for help texts and errors
TIME_WORDS = "such as 2026-01-31, 2026-01-31T12:30, 10m (ago), or Unix time in ms"


def time_of(option: str, text: str, expected: str = "a time") -> int:
    """Return the time that an option has. Raises UsageError."""
    found = parse_time(text, time.time_ns() // 1_000_000)
    if found is None:
        raise UsageError(f"{option} {text}: must be {expected}, {TIME_WORDS}")
    return found


def parse_span(text: str) -> float | None:
    """The milliseconds of `10s` or `1.5m`; None when it is no such text."""
    found = SPAN.fullmatch(text)
    return float(found[1]) * UNITS_MS[found[2]] if found else None


def parse_time(text: str, now_ms: int) -> int | None:
    """None when it is not a time."""
    text = text.strip()
    if re.fullmatch(r"\d{13}", text):
        return int(text)
    if (ago_ms := parse_span(text.removeprefix("-"))) is not None:
        return now_ms - round(ago_ms)
    if not re.match(r"\d{4}-\d\d-\d\d", text):
        return None
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def show_time(time_ms: int) -> str:
    """Local time with milliseconds; - for none."""
    if time_ms <= 0:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000).isoformat(sep=" ", timespec="milliseconds")
