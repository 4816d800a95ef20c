"""How an option is declared, and the parsers for the kinds of options.

A parser takes the text of an option and returns its value. For the empty text it returns the value
of an option that is not set. It raises ValueError for a wrong text. The error says what is wrong,
and does not name the option.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import msgspec

from rmqkit.errors import ClientError
from rmqkit.spark.source.ranges import Ends, QueueKey

#: Special offsets in JSON, with the numbers that Kafka's source uses.
LATEST, EARLIEST = -1, -2
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_DURATIONS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_QueueIds = Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)]


class Option(NamedTuple):
    """A row of the table of options.

    `parse` is a parser of this module, and `where` has the places where it applies. `default` is
    written as a user would write it, and so is `in_batch`, the default of a batch if that is
    another one; "" means none.
    """

    parse: Callable[[str], Any]
    where: frozenset[str]
    doc: str
    default: str = ""
    in_batch: str = ""
    name: str = ""

    def default_in(self, where: str) -> str:
        return self.in_batch if where == "batch" and self.in_batch else self.default


def option(*given: Any, **named: Any) -> Any:
    """Declare a field of `options.SourceOptions` by the values of an `Option`."""
    return field(metadata={"option": Option(*given, **named)})


def list_of(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def bool_of(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def choice_of(*values: str) -> Callable[[str], str]:
    """Return the parser of an option with these values, which are in lower case."""

    def parse(text: str) -> str:
        if text.lower() not in values:
            raise ValueError(f"{text!r} is not one of {', '.join(values)}")
        return text.lower()

    return parse


def count_of(text: str) -> int:
    if not text:
        return 0
    if not text.isdecimal() or not 0 < int(text) < 2**63:
        raise ValueError(f"{text!r} is not a whole number above 0")
    return int(text)


def size_of(text: str) -> int:
    return _with_unit(text, _SIZES, "bytes, as in 500000, 64m or 1g") if text else 0


def duration_of(text: str) -> int:
    return _with_unit(text, _DURATIONS_MS, "a time, as in 500ms, 30s, 15m or 1h")


def _with_unit(text: str, units: Mapping[str, int], wanted: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    if not found or found[2] not in units or not int(found[1]):
        raise ValueError(f"{text!r} is not {wanted}")
    return int(found[1]) * units[found[2]]


def time_of(text: str) -> int | None:
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


def pattern_of(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a valid regular expression: {error}") from None
    return text


def group_of(text: str) -> str:
    from rmqkit.client.producers.outgoing_message import check_group

    if text:
        try:
            check_group(text)
        except ClientError as error:
            raise ValueError(str(error)) from None
    return text


def _json(text: str, kind: Any, wanted: str) -> Any:
    try:
        return msgspec.json.decode(text, type=dict[str, dict[str, kind]])
    except msgspec.ValidationError as error:
        raise ValueError(f"not of the form {wanted} ({error}): {text}") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"not valid JSON ({error}): {text}") from None


def assignment_of(text: str) -> dict[str, dict[str, tuple[int, ...]]]:
    if not text:
        return {}
    assigned = {
        topic: {broker: tuple(sorted(set(queues))) for broker, queues in brokers.items()}
        for topic, brokers in _json(text, _QueueIds, '{"topic": {"broker": [0, 1]}}').items()
        if brokers
    }
    if not assigned:
        raise ValueError("it names no queue")
    return assigned


def _ends_of(text: str, words: tuple[str, ...], smallest: int) -> str | Ends:
    if text.lower() in words:
        return text.lower()
    if not text.startswith("{"):
        raise ValueError(f"{text!r} is not one of {', '.join(words)}, and not JSON")
    ends: Ends = {}
    for topic, brokers in _json(text, dict[str, Any], '{"topic": {"broker": {"0": 23}}}').items():
        for broker, queues in brokers.items():
            for queue, offset in queues.items():
                if not queue.isdecimal() or type(offset) is not int or offset < smallest:
                    raise ValueError(f"{topic} {broker}: queue {queue!r} with offset {offset!r} is not valid here")
                ends[QueueKey(topic, broker, int(queue))] = offset
    return ends


def start_of(text: str) -> str | Ends:
    return _ends_of(text, ("earliest", "latest", "group"), EARLIEST)


def end_of(text: str) -> str | Ends:
    return _ends_of(text, ("latest",), LATEST)
