"""When a message is delivered, on the command line: a delay level, a span, or a point in time.

Levels are the brokers': their `messageDelayLevel` is asked for, so that a cluster with levels of its own is understood.
A span that is the time of a level becomes that level, which every broker knows; any other one, and a point in time,
becomes a timer message, whose broker needs timerWheelEnable=true.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.cli.errors import Failed, UsageError
from rmqkit.cli.times import parse_span, parse_time
from rmqkit.settings.broker_sections import DEFAULT_DELAY_LEVELS

if TYPE_CHECKING:
    from rmqkit import Admin


class Delay(NamedTuple):
    """What `--delay` says: a level's number, or a time. `text` is as it was written."""

    text: str
    level: int | None
    time_ms: int | None


def parse_delay(text: str) -> Delay:
    """Raises UsageError."""
    if text.isdigit() and int(text) > 0:
        return Delay(text, int(text), None)
    time_ms = parse_span(text)
    if not time_ms:
        raise UsageError(f"--delay {text}: must be a level such as 3, or a time such as 10s, 90s, 1.5h")
    return Delay(text, None, round(time_ms))


def parse_at(text: str, now_ms: int) -> int:
    """The Unix time in ms of `--at`. Raises UsageError for what is no time, or has passed."""
    found = None if parse_span(text.removeprefix("-")) is not None else parse_time(text, now_ms)
    if found is None:
        raise UsageError(f"--at {text}: must be a time such as '2026-12-01 09:00', or Unix time in ms; --delay takes 90s")
    if found <= now_ms:
        raise UsageError(f"--at {text}: that time has passed")
    return found


def delay_fields(delay: Delay, namesrv: str) -> dict[str, Any]:
    """The fields of a `Message` for `--delay`. Raises UsageError for a level that the brokers do not have."""
    from rmqkit.cli.admin_session import admin_of

    with admin_of(namesrv) as admin:
        level = choose_level(delay, levels_of(admin))
    return {"delay_level": level} if level else {"delay_ms": delay.time_ms}


def levels_of(admin: "Admin") -> str:
    """The brokers' `messageDelayLevel`. Raises Failed when they do not agree on it."""
    found = {name: admin.broker_config(name).get("messageDelayLevel", DEFAULT_DELAY_LEVELS) for name in admin.masters()}
    if len(set(found.values())) > 1:
        told = "; ".join(f"{name}: {levels}" for name, levels in found.items())
        raise Failed(f"the brokers have different delay levels, so one number does not mean one time: {told}")
    return next(iter(found.values()), DEFAULT_DELAY_LEVELS)


def choose_level(delay: Delay, levels: str) -> int:
    """The level of this number or time; 0 for a time that is no level's. Raises UsageError for a number."""
    times = {number: _ms(word) for number, word in enumerate(levels.split(), start=1)}
    if delay.level is not None:
        if delay.level not in times:
            raise UsageError(f"--delay {delay.level}: the levels are 1 to {len(times)}: {levels}")
        return delay.level
    return next((number for number, time_ms in times.items() if time_ms == delay.time_ms), 0)


def _ms(word: str) -> int:
    found = parse_span(word)
    return -1 if found is None else round(found)
