"""Delay levels on the command line: the number of a level, or its time in `messageDelayLevel`.

The levels are requested from the brokers, so a cluster with its own levels works too. If no level
has the given time, the error names the closest ones: the broker could not wait that long.
"""

from typing import TYPE_CHECKING, NamedTuple

from rmqkit.cli.errors import Failed, UsageError
from rmqkit.cli.times import parse_span
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
        raise UsageError(f"--delay {text}: must be a level such as 3, or its time such as 10s, 5m, 1h")
    return Delay(text, None, round(time_ms))


def level_of(delay: Delay, namesrv: str) -> int:
    """Return the number of the level at this cluster's brokers.

    Raises UsageError if there is none.
    """
    from rmqkit.cli.admin_session import admin_of

    with admin_of(namesrv) as admin:
        return choose_level(delay, levels_of(admin))


def levels_of(admin: "Admin") -> str:
    """Return the brokers' `messageDelayLevel`. Raises Failed if they differ."""
    found = {name: admin.broker_config(name).get("messageDelayLevel", DEFAULT_DELAY_LEVELS) for name in admin.masters()}
    if len(set(found.values())) > 1:
        each = "; ".join(f"{name}: {levels}" for name, levels in found.items())
        raise Failed(f"the brokers have different delay levels, so a level has no single time: {each}")
    return next(iter(found.values()), DEFAULT_DELAY_LEVELS)


def choose_level(delay: Delay, levels: str) -> int:
    """Return the number of the level in `levels`. Raises UsageError if there is none."""
    times = {number: _ms(word) for number, word in enumerate(levels.split(), start=1)}
    words = dict(enumerate(levels.split(), start=1))
    if delay.level is not None:
        if delay.level not in times:
            raise UsageError(f"--delay {delay.level}: must be a level from 1 to {len(times)}: {levels}")
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
    raise UsageError(f"--delay {delay.text}: no delay level has this time; the closest: {near}")


def _ms(word: str) -> int:
    found = parse_span(word)
    return -1 if found is None else round(found)
