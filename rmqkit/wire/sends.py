"""The binary header of a send, read fast: what Apache's benchmark and many producers put on the wire most.

A Java producer writes the fields of SEND_MESSAGE_V2 in one order, a to n. From one message to the next only e (queue), g
(born time) and i (properties) differ, so the bytes before e and those after i are looked up whole in a bounded table of
what they were read as before; a miss reads them field by field. Anything that is not as expected gives None and the
header is read the general way, which also words the errors.

Gain: 3 µs instead of 14 µs a header on the machine this was made on.

Source: `remoting/.../header/SendMessageRequestHeaderV2.java` (`encode`), `RocketMQSerializable.java`.
"""

from struct import Struct
from struct import error as PackError

import msgspec

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.schema import from_ext
from rmqkit.wire.schemas.send import SendMessageRequestV2

#: the table is emptied when it holds so many beginnings, and one of them when it has so many ends
SEEN_MAX = 4096
ENDS_MAX = 64
#: a header longer than this is not worth remembering parts of
PART_SIZE_MAX = 1024

_HEAD = Struct(">hbhiiii")
_FIRST = _HEAD.size
_I16 = Struct(">H")
_I32 = Struct(">i")
_E, _F, _G, _H = (b"\x00\x01%b\x00\x00\x00" % name for name in (b"e", b"f", b"g", b"h"))
_I = b"\x00\x01i"

#: by the bytes before e and the bytes after the properties: a value of which a send is a copy with five fields changed
_patterns: dict[bytes, dict[bytes, SendMessageRequestV2]] = {}


class SendHead(msgspec.Struct, gc=False):
    code: int
    ext: SendMessageRequestV2
    flag: int
    opaque: int
    version: int
    language: int


def read_send(header: bytes) -> SendHead | None:
    """The head of a binary SEND_MESSAGE_V2, or None when it is written in another way."""
    size = len(header)
    if size < _FIRST:
        return None
    code, language, version, opaque, flag, remark_size, ext_size = _HEAD.unpack_from(header)
    at = header.find(_E, _FIRST)
    if remark_size or at < 0 or ext_size != size - _FIRST:
        return None
    try:
        position = at + 7 + header[at + 6]
        queue_id = header[at + 7 : position]
        start = position + 7
        sys_flag = header[start : (end := start + header[start - 1])]
        is_plain = header[position : start - 1] == _F
        start = end + 7
        born_ms = header[start : (position := start + header[start - 1])]
        is_plain = is_plain and header[end : start - 1] == _G
        start = position + 7
        flag_bits = header[start : (end := start + header[start - 1])]
        is_plain = is_plain and header[position : start - 1] == _H
        # Nine digits are within 32 bits for sure; longer numbers, and negative ones, are checked by the general way.
        if not (is_plain and queue_id.isdigit() and sys_flag.isdigit() and born_ms.isdigit() and flag_bits.isdigit()):
            return None
        if len(queue_id) > 9 or len(sys_flag) > 9 or len(flag_bits) > 9 or len(born_ms) > 18:
            return None
        properties: str | None = None
        if header[end : end + 3] == _I:
            start = end + 7
            end = start + _I32.unpack_from(header, end + 3)[0]
            if end < start:
                return None
            properties = header[start:end].decode()
    except (IndexError, PackError, UnicodeDecodeError):
        return None
    before, after = header[_FIRST:at], header[end:]
    known = _patterns.get(before)
    pattern = known.get(after) if known is not None else None
    if pattern is None:
        pattern = _read_pattern(before, after)
        if pattern is None or end > size:
            return None
    ext: SendMessageRequestV2 = pattern.__copy__()  # type: ignore[attr-defined]
    ext.queue_id = int(queue_id)
    ext.sys_flag = int(sys_flag)
    ext.born_timestamp = int(born_ms)
    ext.flag = int(flag_bits)
    ext.properties = properties
    return SendHead(code, ext, flag, opaque, version, language)


def _read_pattern(before: bytes, after: bytes) -> SendMessageRequestV2 | None:
    """What a send with these bytes around its changing fields says in them; None unless both are whole fields."""
    first, last = _fields(before), _fields(after)
    if first is None or last is None or list(first) != ["a", "b", "c", "d"] or not set(last) <= set("jklmn"):
        return None
    try:
        pattern = from_ext(SendMessageRequestV2, {**first, **last, "e": "0", "f": "0", "g": "0", "h": "0"})
    except RemoteProtocolError:
        return None
    if len(before) + len(after) <= PART_SIZE_MAX:
        if len(_patterns) >= SEEN_MAX:
            _patterns.clear()
        ends = _patterns.setdefault(before, {})
        if len(ends) >= ENDS_MAX:
            ends.clear()
        ends[after] = pattern
    return pattern


def _fields(part: bytes) -> dict[str, str] | None:
    """Whole key-value pairs that fill the part to its last byte, else None."""
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
