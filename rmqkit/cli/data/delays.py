"""Delay levels on the command line: a number, or the time of a level as `messageDelayLevel` names it.

Levels are the brokers': their `messageDelayLevel` is asked for, so that a cluster with levels of its own is understood.
A time that is no level is an error that names the nearest ones, since the broker would have no way to wait that long.
"""

from typing import TYPE_CHECKING, NamedTuple

from rmqkit.cli.errors import Failed, UsageError
from rmqkit.cli.times import parse_span
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
        raise UsageError(f"--delay {text}: must be a level such as 3, or its time such as 10s, 5m, 1h")
    return Delay(text, None, round(time_ms))


def level_of(delay: Delay, namesrv: str) -> int:
    """The level's number at this cluster's brokers. Raises UsageError when it is none of theirs."""
    from rmqkit.cli.admin_session import admin_of

    with admin_of(namesrv) as admin:
        return choose_level(delay, levels_of(admin))


def levels_of(admin: "Admin") -> str:
    """The brokers' `messageDelayLevel`. Raises Failed when they do not agree on it."""
    found = {name: admin.broker_config(name).get("messageDelayLevel", DEFAULT_DELAY_LEVELS) for name in admin.masters()}
    if len(set(found.values())) > 1:
        told = "; ".join(f"{name}: {levels}" for name, levels in found.items())
        raise Failed(f"the brokers have different delay levels, so one number does not mean one time: {told}")
    return next(iter(found.values()), DEFAULT_DELAY_LEVELS)


def choose_level(delay: Delay, levels: str) -> int:
    """Raises UsageError."""
    times = {number: _ms(word) for number, word in enumerate(levels.split(), start=1)}
    words = dict(enumerate(levels.split(), start=1))
    if delay.level is not None:
        if delay.level not in times:
            raise UsageError(f"--delay {delay.level}: the levels are 1 to {len(times)}: {levels}")
        return delay.level
    assert delay.time_ms is not None
    for number, time_ms in times.items():
        if time_ms == delay.time_ms:
            return number
    below = max(
        (number for number, time_ms in times.items() if time_ms < delay.time_ms), default=None, key=times.__getitem__
    )
    above = min(
        (number for number, time_ms in times.items() if time_ms > delay.time_ms), default=None, key=times.__getitem__
    )
    near = " and ".join(f"{words[number]} (level {number})" for number in (below, above) if number is not None)
    raise UsageError(f"--delay {delay.text}: no delay level lasts that long; the nearest: {near}")


def _ms(word: str) -> int:
    found = parse_span(word)
    return -1 if found is None else round(found)
