"""Declares each key once: as the default of the field that it sets.

    pending_max: int = key("scheduleAsyncDeliverMaxPendingLimit", 2000, "deliveries …", low=1)

is a field of a frozen dataclass with the default 2000, and a row of the table of settings (`Row`).

- `name` is RocketMQ's name, `default` is Apache's default, `text` is the meaning that
  `docs/settings.md` and `rmqkit config explain` show.
- The type of the key follows from the default; `type` names another one.
- `convert` makes the field's value from the key's: another unit, a list.
- `unset` is the field's default in a section that code creates directly, if the key's default
  depends on the machine or on another key. Without `unset` the caller must pass such a field.

`section` declares a section in `Sections` (`sections.py`): its heading in `docs/settings.md`, and
the kinds of node that have its keys.
"""

from collections.abc import Callable
from dataclasses import MISSING, field, fields
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from rmqkit.settings.table import Kind, Refusal, Row, Status, Type, Value

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Section = TypeVar("Section", bound="DataclassInstance")


class Options(TypedDict, total=False):
    """Optional fields of a row (`table.Row`).

    `only` names the one kind of node that has the key.
    """

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
    secret: bool


@overload
def key(name: str, default: None, text: str, **options: Unpack[Options]) -> Any: ...
@overload
def key(name: str, default: T, text: str, **options: Unpack[Options]) -> T: ...
@overload
def key(
    name: str,
    default: Value | None,
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
    """Declare a field of a section, and the key that sets it."""
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


def section(make: type[Section], area: str, *kinds: Kind) -> Section:
    """Declare a section of a node's configuration; `area` is its heading in `docs/settings.md`."""
    is_whole = all(each.default is not MISSING or each.default_factory is not MISSING for each in fields(make))
    default: Any = make() if is_whole else MISSING
    made: Section = field(default=default, metadata={"make": make, "area": area, "kinds": kinds})
    return made


# --- values of fields


def parts(value: Value) -> tuple[str, ...]:
    """Return the parts of a list such as `a;b` or `a, b`."""
    return tuple(part.strip() for part in str(value).replace(",", ";").split(";") if part.strip())


def within(low: int, high: int) -> Callable[[Value], int]:
    """Return a converter that clamps a number to the bounds, as Apache does silently."""
    return lambda value: max(low, min(int(value), high))
