"""Fast decoder for the binary header of a send.

This is the most frequent request of Apache's benchmark and of many producers. A Java producer
writes the fields of SEND_MESSAGE_V2 in one order, a to n. Between two messages of a queue only g
(born time) and i (properties) differ. So the bytes before g and the bytes after i are looked up as
a whole in a bounded table of earlier results; on a miss they are decoded field by field. For any
deviation `split_send` and `read_send` return None, and the header is decoded by the general path,
which also produces the error messages.

Measured on the development machine: 1.4 µs per header instead of 6 µs.

Source: `remoting/.../header/SendMessageRequestHeaderV2.java` (`encode`),
`RocketMQSerializable.java`.
"""

from collections.abc import Callable
from struct import Struct
from struct import error as PackError

import msgspec

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.schema import from_ext
from rmqkit.wire.schemas.send import SendMessageRequestV2

#: entries (producer group, topic, queue, and the other fixed fields); a full table is emptied
SEEN_MAX = 16_384
#: bytes of the fixed fields; headers with more are not cached
PARTS_SIZE_MAX = 512

_HEAD = Struct(">hbhiiii")
_FIRST = _HEAD.size
_OPAQUE_AT = 5
_I16 = Struct(">H")
_I32 = Struct(">i")
#: `_BORN`: field g with a value of 13 digits (Unix ms of the years 2001 to 2286).
#: `_FLAG_0`: field h (the flag) with the value 0, then the name of field i
_BORN = b"\x00\x01g\x00\x00\x00\x0d"
_FLAG_0 = b"\x00\x01h\x00\x00\x00\x010\x00\x01i"
_BORN_AT = len(_BORN)
_FLAG_AT = _BORN_AT + 13
_TEXT_AT = _FLAG_AT + len(_FLAG_0) + 4
#: from the value of g on: born time, `_FLAG_0`, size of the properties
_MIDDLE = Struct(f">13s{len(_FLAG_0)}sI").unpack_from


class SendPattern:
    """What the sends of one producer to one queue share: `ext` without born time and properties.

    Their header is a copy of `ext` with these two fields replaced. `ext` must not be changed.
    """

    __slots__ = ("ext",)

    def __init__(self, ext: SendMessageRequestV2) -> None:
        self.ext = ext


#: code, pattern, born time (Unix ms), properties, opaque, flag, client version, client language
SendParts = tuple[int, SendPattern, int, bytes, int, int, int, int]

#: key: the bytes before g and the bytes after the properties
_patterns: dict[tuple[bytes, bytes], SendPattern] = {}


class SendHead(msgspec.Struct, gc=False):
    """The decoded header of a send, with the fields of `headers.TypedHead`."""

    code: int
    ext: SendMessageRequestV2
    flag: int
    opaque: int
    version: int
    language: int


def split_send(header: bytes) -> SendParts | None:
    """Return the parts of a binary header of a send; the properties may be no valid UTF-8.

    Returns None if the header has another layout.
    """
    size = len(header)
    at = header.find(_BORN, _FIRST)
    start = at + _TEXT_AT
    if at < 0 or start > size:
        return None
    born_ms, flag_0, text_size = _MIDDLE(header, at + _BORN_AT)
    code, language, version, opaque, flag, remark_size, ext_size = _HEAD.unpack_from(header)
    end = start + text_size
    if flag_0 != _FLAG_0 or remark_size or ext_size != size - _FIRST or end > size or not born_ms.isdigit():
        return None
    around = header[_FIRST:at], header[end:]
    pattern = _patterns.get(around)
    if pattern is None:
        ext = _read_pattern(*around)
        if ext is None:
            return None
        pattern = SendPattern(ext)
        if at + size - end <= PARTS_SIZE_MAX:
            if len(_patterns) >= SEEN_MAX:
                _patterns.clear()
            _patterns[around] = pattern
    return code, pattern, int(born_ms), header[start:end], opaque, flag, version, language


def send_layout(header: bytes, before: int, size: int) -> Callable[[bytes], tuple[bytes, ...]]:
    """Return a function that splits a header like this one, which `split_send` has split, in seven.

    They are: the bytes before the opaque, the opaque, those before the born time, the born time,
    those before the unique id, the unique id, and the rest. The id has `size` bytes. In the
    properties there are `before` bytes in front of it. The function takes any header of this size.
    """
    born_at = header.find(_BORN, _FIRST) + _BORN_AT
    id_at = born_at - _BORN_AT + _TEXT_AT + before
    sizes = (_OPAQUE_AT, 4, born_at - _OPAQUE_AT - 4, 13, id_at - born_at - 13, size, len(header) - id_at - size)
    return Struct("".join([f"{each}s" for each in sizes])).unpack


def whole_send(parts: SendParts) -> SendHead | None:
    """Return the header with these parts; None if its properties are no valid UTF-8."""
    code, pattern, born_ms, properties, opaque, flag, version, language = parts
    try:
        text = properties.decode()
    except UnicodeDecodeError:
        return None
    ext: SendMessageRequestV2 = pattern.ext.__copy__()  # type: ignore[attr-defined]  # msgspec.Struct has it, its stub not
    ext.born_timestamp = born_ms
    ext.properties = text
    return SendHead(code, ext, flag, opaque, version, language)


def read_send(header: bytes) -> SendHead | None:
    """Return the decoded header of a binary SEND_MESSAGE_V2.

    Returns None if the header has another layout.
    """
    parts = split_send(header)
    return None if parts is None else whole_send(parts)


def _read_pattern(before: bytes, after: bytes) -> SendMessageRequestV2 | None:
    """Decode the fields around the two changing ones.

    Returns None unless both parts consist of whole fields in the expected order.
    """
    first, last = whole_fields(before), whole_fields(after)
    if first is None or last is None or list(first) != list("abcdef") or not set(last) <= set("jklmn"):
        return None
    try:
        return from_ext(SendMessageRequestV2, {**first, **last, "g": "0", "h": "0"})
    except RemoteProtocolError:
        return None


def whole_fields(part: bytes) -> dict[str, str] | None:
    """Return the key-value pairs of a part, or None if they do not end exactly at its last byte."""
    fields: dict[str, str] = {}
    position, end = 0, len(part)
    try:
        while position < end:
            start = position + 2
            position = start + _I16.unpack_from(part, position)[0]
            key = part[start:position].decode()
            start = position + 4
            position = start + _I32.unpack_from(part, position)[0]
            if position < start or position > end:
                return None
            fields[key] = part[start:position].decode()
    except (PackError, UnicodeDecodeError):
        return None
    return fields
