"""How an option is declared, and the parsers for the kinds of options.

A parser takes the text of an option and the allowed values of a choice, and returns the value. The
empty text yields the value of an option that is not set. Each raises ValueError, whose text says
what is wrong but does not name the option.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rmqkit.errors import ClientError
from rmqkit.spark.source.ranges import Ends, QueueKey


class Option(NamedTuple):
    """A row of the table of options.

    `where` has the places where it applies. `kind` is a key of `KINDS`. `default` is written as a
    user would write it, and so is `in_batch`, the default of a batch if that is another one; ""
    means none.
    """

    kind: str
    where: frozenset[str]
    doc: str
    default: str = ""
    #: The allowed values of kind `choice`, in lower case.
    values: tuple[str, ...] = ()
    in_batch: str = ""
    name: str = ""

    def default_in(self, where: str) -> str:
        return self.in_batch if where == "batch" and self.in_batch else self.default


def option(*given: Any, **named: Any) -> Any:
    """Declare a field of `options.SourceOptions` by the values of an `Option`."""
    return field(metadata={"option": Option(*given, **named)})


#: Special offsets in JSON, with the numbers that Kafka's source uses.
LATEST, EARLIEST = -1, -2


def _text(text: str, values: tuple[str, ...]) -> str:
    return text


def _list(text: str, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _bool(text: str, values: tuple[str, ...]) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _choice(text: str, values: tuple[str, ...]) -> str:
    if text.lower() not in values:
        raise ValueError(f"{text!r} is not one of {', '.join(values)}")
    return text.lower()


def _count(text: str, values: tuple[str, ...]) -> int:
    if not text:
        return 0
    if not text.isdecimal() or not 0 < int(text) < 2**63:
        raise ValueError(f"{text!r} is not a whole number above 0")
    return int(text)


_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_DURATIONS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def _size(text: str, values: tuple[str, ...]) -> int:
    return _with_unit(text, _SIZES, "bytes, as in 500000, 64m or 1g") if text else 0


def _duration(text: str, values: tuple[str, ...]) -> int:
    return _with_unit(text, _DURATIONS_MS, "a time, as in 500ms, 30s, 15m or 1h")


def _with_unit(text: str, units: Mapping[str, int], wanted: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    if not found or found[2] not in units or not int(found[1]):
        raise ValueError(f"{text!r} is not {wanted}")
    return int(found[1]) * units[found[2]]


def _time(text: str, values: tuple[str, ...]) -> int | None:
    if not text:
        return None
    if text.isdecimal():
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither Unix ms nor ISO 8601 (2026-01-31T12:00:00Z)") from None
    if when.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone: add Z or an offset")
    return round((when - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)


def _pattern(text: str, values: tuple[str, ...]) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a valid regular expression: {error}") from None
    return text


def _group(text: str, values: tuple[str, ...]) -> str:
    from rmqkit.client.producers.outgoing_message import check_group

    if text:
        try:
            check_group(text)
        except ClientError as error:
            raise ValueError(str(error)) from None
    return text


def _json(text: str, wanted: str) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not valid JSON ({error}): {text}") from None
    if not isinstance(found, dict) or not all(isinstance(brokers, dict) for brokers in found.values()):
        raise ValueError(f"not of the form {wanted}: {text}")
    return found


def _assignment(text: str, values: tuple[str, ...]) -> dict[str, dict[str, tuple[int, ...]]]:
    wanted = '{"topic": {"broker": [0, 1]}}'
    assigned: dict[str, dict[str, tuple[int, ...]]] = {}
    for topic, brokers in _json(text, wanted).items() if text else ():
        for broker, queues in brokers.items():
            if not isinstance(queues, list) or not queues or not all(type(each) is int and each >= 0 for each in queues):
                raise ValueError(f"queues of {topic} {broker} are not of the form {wanted}")
            assigned.setdefault(topic, {})[broker] = tuple(sorted(set(queues)))
    if text and not assigned:
        raise ValueError("it names no queue")
    return assigned


def _place(text: str, words: tuple[str, ...], smallest: int) -> str | Ends:
    if text.lower() in words:
        return text.lower()
    if not text.startswith("{"):
        raise ValueError(f"{text!r} is not one of {', '.join(words)}, and not JSON")
    wanted = '{"topic": {"broker": {"0": 23}}}'
    ends: Ends = {}
    for topic, brokers in _json(text, wanted).items():
        for broker, queues in brokers.items():
            if not isinstance(queues, dict):
                raise ValueError(f"offsets of {topic} {broker} are not of the form {wanted}")
            for queue, offset in queues.items():
                if not queue.isdecimal() or type(offset) is not int or offset < smallest:
                    raise ValueError(f"{topic} {broker}: queue {queue!r} with offset {offset!r} is not valid here")
                ends[QueueKey(topic, broker, int(queue))] = offset
    return ends


KINDS: dict[str, Callable[[str, tuple[str, ...]], Any]] = {
    "text": _text,
    "list": _list,
    "bool": _bool,
    "choice": _choice,
    "count": _count,
    "size": _size,
    "duration": _duration,
    "time": _time,
    "pattern": _pattern,
    "group": _group,
    "assignment": _assignment,
    "start": lambda text, values: _place(text, ("earliest", "latest", "group"), EARLIEST),
    "end": lambda text, values: _place(text, ("latest",), LATEST),
}
