"""How sections declare keys: each key once, as the default of the field that it feeds.

    pending_max: int = key("scheduleAsyncDeliverMaxPendingLimit", 2000, "deliveries that …", low=1, live=True)

is a field of an ordinary frozen dataclass with the default 2000, and a row of the table of settings. The name is
RocketMQ's, the default Apache's, the text is what `docs/settings.md` and `rmqkit config explain` show. The type of the
key follows from the default; `type` names another one. `convert` makes the field's value of the key's (a unit, a
list). `unset` is the field's value without a machine and without other keys; a field whose default needs either and
that has no `unset` must be given.

`Sections` (`sections.py`) lists the sections with `section`, which says where their keys stand and which nodes have them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, field, fields
from enum import StrEnum
from functools import partial
from typing import Any, TypedDict, TypeVar, Unpack, overload

from rmqkit.settings.table import Kind, Refusal, Row, Status, Type, Value

T = TypeVar("T")


class Options(TypedDict, total=False):
    """The rest of a row, see `table.Row`; `only` is the kind of node that has the key, of a section that both have."""

    type: Type
    area: str
    only: Kind
    live: bool
    low: float
    high: float
    choices: tuple[str, ...]
    pattern: str
    allowed: str
    refusal: Refusal


@overload
def key(name: str, default: None, text: str, **options: Unpack[Options]) -> Any: ...
@overload
def key(name: str, default: T, text: str, **options: Unpack[Options]) -> T: ...
@overload
def key(
    name: str,
    default: Value,
    text: str,
    *,
    convert: Callable[[Value], T],
    unset: T = ...,
    **options: Unpack[Options],
) -> T: ...
@overload
def key(name: str, default: Value | None, text: str, *, unset: T, **options: Unpack[Options]) -> T: ...
def key(
    name: str,
    default: Any,
    text: str,
    *,
    convert: Callable[[Value], Any] | None = None,
    unset: Any = MISSING,
    **options: Any,
) -> Any:
    """A field of a section that is fed by a key."""
    if isinstance(default, StrEnum):
        convert = convert or type(default)
        options["choices"] = tuple(map(str, type(default)))
        default = str(default)
    if unset is MISSING and default is not None and "${" not in str(default):
        unset = convert(default) if convert else default
    options.setdefault("type", _type_of(default, "choices" in options))
    area, only = options.pop("area", ""), options.pop("only", None)
    row = partial(Row, key=name, default=default, text=text, convert=convert, status=Status.WORKS, **options)
    return field(default=unset, metadata={"row": row, "area": area, "only": only})


def _type_of(default: Value | None, is_choice: bool) -> Type:
    if isinstance(default, bool):
        return Type.BOOL
    if isinstance(default, int):
        return Type.INT
    return Type.ENUM if is_choice else Type.STR


def section(make: type[T], area: str, *kinds: Kind) -> T:
    """A section of a node's configuration; `area` is the heading of its keys in `docs/settings.md`."""
    is_whole = all(each.default is not MISSING or each.default_factory is not MISSING for each in fields(make))  # type: ignore[arg-type]
    default: Any = make() if is_whole else MISSING
    made: T = field(default=default, metadata={"make": make, "area": area, "kinds": kinds})
    return made


# --- values of fields


def parts(value: Value) -> tuple[str, ...]:
    """The parts of a list `a;b`, or `a, b`."""
    return tuple(part.strip() for part in str(value).replace(",", ";").split(";") if part.strip())


def within(low: int, high: int) -> Callable[[Value], int]:
    """Hold a number within bounds, as Apache does silently."""
    return lambda value: max(low, min(int(value), high))
