"""Ext: the typed form of the extFields of a remoting command.

Every request and response code with ext fields has a subclass of `Ext` in `rmqkit.wire.schemas`:
Python names in snake_case, wire names in Java's camelCase, and a type per field. On the wire all
values are JSON strings; a field that is None is left out.

- `to_ext` writes strings only. In a response any other JSON type would be ignored by the C++
  client, and would make the Go client reject the whole frame.
- `from_ext` reads a mapping of any JSON types, since ali-ons and the C++ client send numbers and
  bools.

A field is mandatory only if Java marks it `@CFNotNull` and the request cannot be answered without
it. Unknown fields are ignored, as in Java.

Source: `remoting/.../protocol/RemotingCommand.java` (`makeCustomHeaderToNet`,
`decodeCommandCustomHeaderDirectly`).
"""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import astuple

from rmqkit.errors import RemoteProtocolError

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Ext(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=False):
    """Base of all ext-field schemas.

    A subclass repeats `kw_only=True`, since msgspec does not inherit it.
    """


class NoFields(Ext, kw_only=True):
    """The schema of codes that carry no ext fields."""


E = TypeVar("E", bound=Ext)


class _Field(NamedTuple):
    attribute: str
    wire_name: str
    kind: type  # str, int, float or bool


def to_ext(ext: Ext) -> dict[str, str]:
    """Return the extFields of a schema value.

    All values are strings, bool is "true" or "false", and None is left out.
    """
    out: dict[str, str] = {}
    for wire_name, value in zip(ext.__struct_encode_fields__, astuple(ext), strict=True):
        kind = value.__class__
        if value is None:
            continue
        if kind is str:
            out[wire_name] = value
        elif kind is int:
            out[wire_name] = str(value)
        elif kind is bool:
            out[wire_name] = "true" if value else "false"
        else:
            out[wire_name] = str(value)
    return out


def from_ext(schema: type[E], mapping: Mapping[str, Any]) -> E:
    """Return the schema value for extFields of any JSON types.

    Raises RemoteProtocolError, which names the schema and the field.
    """
    try:
        return msgspec.convert(mapping, schema, strict=False)
    except (msgspec.ValidationError, RecursionError):
        pass
    try:
        return msgspec.convert(_as_java_reads(schema, mapping), schema, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"{schema.__name__}: {error}") from None
    except RecursionError:
        raise RemoteProtocolError(f"{schema.__name__}: fields nested too deep") from None


def _as_java_reads(schema: type[Ext], mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values as Java does.

    Java first turns each value into a string and then parses it by the type of the header's field.
    """
    read: dict[str, Any] = {}
    for _, wire_name, kind in _fields(schema):
        value = mapping.get(wire_name)
        if value is None:
            continue
        if kind is str:
            read[wire_name] = _text(value)
            continue
        if isinstance(value, str):
            value = value.strip()
            if kind is bool:
                value = value.lower() in ("true", "1")
            elif not value:
                continue
            elif value[0] == "+":
                value = value[1:]
        read[wire_name] = value
    return read


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return msgspec.json.encode(value).decode()


@cache
def _fields(schema: type[Ext]) -> tuple[_Field, ...]:
    return tuple(_Field(field.name, field.encode_name, _kind(field.type)) for field in msgspec.structs.fields(schema))


def _kind(annotation: Any) -> type:
    """Return the str, int, float or bool inside `Annotated` and `| None`."""
    if isinstance(annotation, type):
        return annotation
    parts = [p for p in getattr(annotation, "__args__", ()) if p is not type(None)]
    return _kind(parts[0])
