"""How an option is declared, and the kinds of options: types of values with their parsers.

A parser takes the text of an option and returns its value. For the empty text it returns the value
of an option that is not set. For a wrong text it raises ValueError or RmqkitError. The message says
what is wrong, and `options.parse` adds the name of the option.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import msgspec

from rmqkit.spark.source.ranges import Ends, QueueKey, flat

#: Special offsets in JSON, with the numbers that Kafka's source uses.
LATEST, EARLIEST = -1, -2
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_DURATIONS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_QueueIds = Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)]


class Option(NamedTuple):
    """A row of the table of options.

    `where` has the places where it applies. `default` is written as a user would write it, and so
    is `in_batch`, the default of a batch if that is another one; "" means none. `name` and `parse`
    follow from the field that the option is declared as.
    """

    where: frozenset[str]
    doc: str
    default: str = ""
    in_batch: str = ""
    name: str = ""
    parse: Callable[[str], Any] = str

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
    return lambda text: _one_of(values, text)


def _one_of(values: tuple[str, ...], text: str, otherwise: str = "") -> str:
    if text.lower() not in values:
        raise ValueError(f"{text!r} is not one of {', '.join(values)}{otherwise}")
    return text.lower()


def _with_unit(text: str, units: Mapping[str, int], wanted: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    if not found or found[2] not in units or not 0 < int(found[1]) < 2**63:
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
        check_group(text)
    return text


def tags_in(text: str) -> tuple[str, ...]:
    from rmqkit.wire.bodies.subscription import tags_of

    return tuple(tags_of(text))


def _json(text: str, kind: Any, wanted: str) -> Any:
    try:
        return msgspec.json.decode(text, type=dict[str, dict[str, kind]])
    except msgspec.ValidationError as error:
        raise ValueError(f"not of the form {wanted} ({error}): {text}") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"not valid JSON ({error}): {text}") from None


def assignment_of(text: str) -> frozenset[QueueKey]:
    named = _json(text, _QueueIds, '{"topic": {"broker": [0, 1]}}') if text else {}
    keys = frozenset(
        QueueKey(topic, broker, queue)
        for topic, brokers in named.items()
        for broker, queues in brokers.items()
        for queue in queues
    )
    if text and not keys:
        raise ValueError("it names no queue")
    return keys


def _ends_of(text: str, words: tuple[str, ...], smallest: int) -> str | Ends:
    if not text.startswith("{"):
        return _one_of(words, text, ", and not JSON")
    return flat(_json(text, dict[str, Any], '{"topic": {"broker": {"0": 23}}}'), smallest)


def name_servers_of(text: str) -> tuple[str, ...]:
    from rmqkit.api.identity import name_servers

    return tuple(str(address) for address in name_servers(text or None))


Texts = Annotated[tuple[str, ...], list_of]
NameServers = Annotated[tuple[str, ...], name_servers_of]
Pattern = Annotated[str, pattern_of]
Tags = Annotated[tuple[str, ...], tags_in]
Group = Annotated[str, group_of]
Switch = Annotated[bool, bool_of]
Count = Annotated[int, lambda text: _with_unit(text, {"": 1}, "a whole number above 0") if text else 0]
Size = Annotated[int, lambda text: _with_unit(text, _SIZES, "bytes, as in 500000, 64m or 1g") if text else 0]
Duration = Annotated[int, lambda text: _with_unit(text, _DURATIONS_MS, "a time, as in 500ms, 30s, 15m or 1h")]
Time = Annotated[int | None, time_of]
Assignment = Annotated[frozenset[QueueKey], assignment_of]
#: A word, or an offset per queue, which may be LATEST, and at the start EARLIEST.
Start = Annotated[str | Ends, lambda text: _ends_of(text, ("earliest", "latest", "group"), EARLIEST)]
End = Annotated[str | Ends, lambda text: _ends_of(text, ("latest",), LATEST)]
