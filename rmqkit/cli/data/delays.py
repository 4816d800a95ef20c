"""When a message is delivered, on the command line: a delay level, a time span, or a point in time.

The levels are requested from the brokers, so a cluster with its own levels works too. A span that
is the time of a level becomes that level, which every broker has. Any other span, and a point in
time, becomes a timer message: its broker needs timerWheelEnable=true.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.cli.errors import Failed, UsageError
from rmqkit.cli.times import parse_span, parse_time
from rmqkit.settings.broker_sections import DEFAULT_DELAY_LEVELS

if TYPE_CHECKING:
    from rmqkit import Admin


class Delay(NamedTuple):
    """The value of `--delay`: a level's number, or a time in ms. `text` is the value as written."""

    text: str
    level: int | None
    time_ms: int | None


def parse_delay(text: str) -> Delay:
    """Return the delay that an option's value means. Raises UsageError."""
    if text.isdigit() and int(text) > 0:
        return Delay(text, int(text), None)
    time_ms = parse_span(text)
    if not time_ms:
        raise UsageError(f"--delay {text}: must be a level such as 3, or a time such as 10s, 90s, 1.5h")
    return Delay(text, None, round(time_ms))


def parse_at(text: str, now_ms: int) -> int:
    """Return the Unix time of `--at` in ms. Raises UsageError for a bad or a past time."""
    found = None if parse_span(text.removeprefix("-")) is not None else parse_time(text, now_ms)
    if found is None:
        raise UsageError(f"--at {text}: must be a time such as '2026-12-01 09:00', or Unix time in ms; --delay takes 90s")
    if found <= now_ms:
        raise UsageError(f"--at {text}: that time has passed")
    return found


def delay_fields(delay: Delay, namesrv: str) -> dict[str, Any]:
    """Return the fields of a `Message` for `--delay`.

    Raises UsageError if the brokers have no such level.
    """
    from rmqkit.cli.admin_session import admin_of

    with admin_of(namesrv) as admin:
        level = choose_level(delay, levels_of(admin))
    return {"delay_level": level} if level else {"delay_ms": delay.time_ms}


def levels_of(admin: "Admin") -> str:
    """Return the brokers' `messageDelayLevel`. Raises Failed if they differ."""
    found = {name: admin.broker_config(name).get("messageDelayLevel", DEFAULT_DELAY_LEVELS) for name in admin.masters()}
    if len(set(found.values())) > 1:
        each = "; ".join(f"{name}: {levels}" for name, levels in found.items())
        raise Failed(f"the brokers have different delay levels, so a level has no single time: {each}")
    return next(iter(found.values()), DEFAULT_DELAY_LEVELS)


def choose_level(delay: Delay, levels: str) -> int:
    """Return the number of the level in `levels`; 0 if no level has the time.

    Raises UsageError if there is no level of this number.
    """
    times = {number: _ms(word) for number, word in enumerate(levels.split(), start=1)}
    if delay.level is not None:
        if delay.level not in times:
            raise UsageError(f"--delay {delay.level}: must be a level from 1 to {len(times)}: {levels}")
        return delay.level
    return next((number for number, time_ms in times.items() if time_ms == delay.time_ms), 0)


def _ms(word: str) -> int:
    found = parse_span(word)
    return -1 if found is None else round(found)
