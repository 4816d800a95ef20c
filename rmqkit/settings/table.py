"""Defines the rows of the table of settings, and parses text as the value of a row.

Each kind of node has one row for every key that a user may write. Its status says what the key
does:

- `WORKS`: it sets a field of a section (`feeds`, as "section.field"), which declares it
  (`declaration.py`).
- `NO_EFFECT`: there is nothing here that it could change; `text` says why. Logged once if it is
  set.
- `LATER`: the feature is not built yet; `text` names it. Treated as `NO_EFFECT` until then.
- `REFUSED`: only harmless values are accepted; `text` is the promise at stake.

Rows that do not work are in a data file (`upstream.toml`). A `Refusal` lists the values of a row
with which a node does not start.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from rmqkit.errors import ConfigError

Value = bool | int | float | str
Kind = Literal["broker", "nameserver", "controller"]


class Type(StrEnum):
    """The type of a value.

    INT and LONG have Java's range; a PATH may contain `${user.home}`, `${ROCKETMQ_HOME}` and `~/`.
    """

    BOOL = "bool"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STR = "str"
    PATH = "path"
    ENUM = "enum"


class Status(StrEnum):
    """What a key does here; see the head of this module."""

    WORKS = "works"
    NO_EFFECT = "no effect"
    LATER = "later"
    REFUSED = "refused"


INTEGER_RANGES = {Type.INT: (-(1 << 31), (1 << 31) - 1), Type.LONG: (-(1 << 63), (1 << 63) - 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Values with which a node does not start: `values`, or every value outside `unless`.

    `why` is the promise at stake.
    """

    why: str
    values: tuple[Value, ...] = ()
    unless: tuple[Value, ...] | None = None

    def hits(self, value: Value) -> bool:
        return value in self.values or (self.unless is not None and value not in self.unless)


class Row(NamedTuple):
    """One key for one kind of node.

    - `default` is Apache's. None means unset there, or taken from the machine. It may contain
      `${...}` like a PATH.
    - `low` and `high` bound numbers, `pattern` text (`allowed` describes it), `choices` an ENUM.
    - `live` keys can be changed at run time.
    - `convert` makes the field's value from the key's: another unit, an enum, a list.
    - `secret` values are never shown.
    """

    key: str
    type: Type
    default: Value | None
    status: Status
    text: str
    area: str = ""
    feeds: str = ""
    live: bool = False
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    allowed: str = ""
    refusal: Refusal | None = None
    convert: Callable[[Value], object] | None = None
    secret: bool = False


def allowed_text(row: Row) -> str:
    """Return a description of the values that a row accepts."""
    if row.allowed:
        return row.allowed
    if row.type is Type.BOOL:
        return "true or false"
    if row.choices:
        return "one of " + ", ".join(row.choices)
    if row.type in (Type.STR, Type.PATH):
        return "text"
    low, high = row.low, row.high
    noun = "a number" if row.type is Type.DOUBLE else "a whole number"
    if low is not None and high is not None:
        return f"{noun} from {low:g} to {high:g}" if row.type is Type.DOUBLE else f"{noun} from {low:.0f} to {high:.0f}"
    if low is not None:
        return f"{noun}, at least {low:g}"
    return noun


def bad_value(row: Row, value: object, where: str) -> ConfigError:
    """Return the error for a value that a row does not accept."""
    shown = "***" if row.secret else value
    return ConfigError(f"config: {row.key} = {shown!r}{where}: must be {allowed_text(row)}")


def parse(row: Row, raw: object, where: str = "") -> Value:
    """Return the typed value of a text (`.conf`, command line) or of a TOML value.

    Raises ConfigError (one line with key, value and what is allowed).
    """
    value = parse_typed(row, raw) if not isinstance(raw, str) else parse_text(row.type, raw.strip())
    if value is None:
        raise bad_value(row, raw, where)
    if isinstance(value, str):
        if row.choices and value not in row.choices:
            raise bad_value(row, raw, where)
        if row.pattern and not re.fullmatch(row.pattern, value):
            raise bad_value(row, raw, where)
    elif not isinstance(value, bool):
        low, high = INTEGER_RANGES.get(row.type, (None, None))
        for bound in (low, row.low):
            if bound is not None and value < bound:
                raise bad_value(row, raw, where)
        for bound in (high, row.high):
            if bound is not None and value > bound:
                raise bad_value(row, raw, where)
    return value


def parse_text(type_: Type, text: str) -> Value | None:
    """Return the value of a text, None if it has another type.

    Unlike Java, which reads every word except "true" as false.
    """
    if type_ is Type.BOOL:
        return {"true": True, "false": False}.get(text.lower())
    if type_ in INTEGER_RANGES:
        return int(text) if re.fullmatch(r"[+-]?[0-9]{1,20}", text) else None
    if type_ is Type.DOUBLE:
        return float(text) if re.fullmatch(r"[+-]?[0-9]{1,20}(\.[0-9]{1,20})?", text) else None
    return text


def parse_typed(row: Row, raw: object) -> Value | None:
    """Return the value of a TOML value, None if it has another type.

    A list of texts means Java's `a;b`.
    """
    if isinstance(raw, list):
        texts = [item for item in raw if isinstance(item, str)]
        return ";".join(texts) if row.type is Type.STR and len(texts) == len(raw) else None
    if row.type is Type.BOOL:
        return raw if isinstance(raw, bool) else None
    if isinstance(raw, bool):
        return None
    if row.type in INTEGER_RANGES:
        return raw if isinstance(raw, int) else None
    if row.type is Type.DOUBLE:
        return float(raw) if isinstance(raw, int | float) else None
    return None


def show(value: Value) -> str:
    """Return a value as Java prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
