"""The events of logs: `rmqkit explain EVENT`, or a whole line of a log.

The table is `explain/events.toml`. `rmqkit/shell/log.py` describes the lines.
"""

import re
from functools import cache
from typing import NamedTuple

from rmqkit.cli.explain.codes import load

#: what precedes the event in a line of text
_LINE_HEAD = re.compile(r"^.*? (?:INFO|WARNING|ERROR) \S+ ")
_JSON_EVENT = re.compile(r'"event":"([^"]*)"')


class LogEvent(NamedTuple):
    """`event` is the name in the table, in which `{}` stands for a part that varies."""

    event: str
    meaning: str


@cache
def events() -> tuple[LogEvent, ...]:
    return tuple(LogEvent(*row) for row in load("events.toml").items())


def find_event(text: str) -> LogEvent | None:
    """Return the event that a text is, or that a line of a log begins with."""
    in_json = _JSON_EVENT.search(text)
    said = in_json[1] if in_json else _LINE_HEAD.sub("", text)
    found = [row for row in events() if _pattern(row).fullmatch(said)]
    return max(found, key=lambda row: len(row.event), default=None)


def _pattern(row: LogEvent) -> re.Pattern[str]:
    name = r"[a-z-]+".join(map(re.escape, row.event.split("{}")))
    return re.compile(rf"{name}(?: \w+=.*)?", re.IGNORECASE | re.DOTALL)
