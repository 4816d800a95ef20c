"""Times and durations on the command line; times become Unix milliseconds.

1767225600000          Unix time in ms (13 digits)
2026-01-01T12:30:00    local time; the time of day, the seconds and a fraction are optional;
                       Z or +02:00 may follow
10m, -10m              10 minutes ago; units: ms, s, m, h, d
"""

import re
import time
from datetime import datetime

from rmqkit.cli.errors import UsageError

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


#: the forms of a time, for help texts and errors
TIME_WORDS = "such as 2026-01-31, 2026-01-31T12:30, 10m (ago), or Unix time in ms"


def time_of(option: str, text: str, expected: str = "a time") -> int:
    """Return the Unix milliseconds of an option's value. Raises UsageError for any other text."""
    found = parse_time(text, time.time_ns() // 1_000_000)
    if found is None:
        raise UsageError(f"{option} {text}: must be {expected}, {TIME_WORDS}")
    return found


def parse_span(text: str) -> float | None:
    """Return the milliseconds of a duration such as `10s` or `1.5m`, None for any other text."""
    found = SPAN.fullmatch(text)
    return float(found[1]) * UNITS_MS[found[2]] if found else None


def parse_time(text: str, now_ms: int) -> int | None:
    """Return the Unix milliseconds of a time, None for any other text."""
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
    """Return local time with milliseconds, or - if there is no time (0 or below)."""
    if time_ms <= 0:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000).isoformat(sep=" ", timespec="milliseconds")
