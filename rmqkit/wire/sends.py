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
from typing import Any, NamedTuple

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.schema import from_ext
from rmqkit.wire.schemas.send import SendMessageRequestV2

#: tables are emptied when they hold so many entries
SEEN_MAX = 4096
#: a header longer than this is not worth remembering parts of
PART_SIZE_MAX = 1024

_HEAD = Struct(">hbhiiii")
_FIRST = _HEAD.size
_I16 = Struct(">H")
_I32 = Struct(">i")
_E, _F, _G, _H = (b"\x00\x01%b\x00\x00\x00" % name for name in (b"e", b"f", b"g", b"h"))
_I = b"\x00\x01i"

_before: dict[bytes, tuple[str, str, str, int]] = {}
_after: dict[bytes, tuple[int | None, bool | None, int | None, bool | None, str | None]] = {}


class SendHead(NamedTuple):
    code: int
    ext: SendMessageRequestV2
    flag: int
    opaque: int
    version: int
    language: int


def read_send(header: bytes) -> SendHead | None:
    """The head of a binary SEND_MESSAGE_V2, or None when it is written in another way."""
    if len(header) < _FIRST:
        return None
    code, language, version, opaque, flag, remark_size, ext_size = _HEAD.unpack_from(header)
    at = header.find(_E, _FIRST)
    if remark_size or at < 0 or ext_size != len(header) - _FIRST:
        return None
    part = header[_FIRST:at]
    before = _before.get(part) or _read_before(part)
    position = at + 7 + header[at + 6]
    queue_id = header[at + 7 : position]
    if not queue_id.isdigit():
        return None
    numbers = []
    for key in (_F, _G, _H):
        start = position + 7
        if header[position : start - 1] != key or start > len(header):
            return None
        position = start + header[start - 1]
        number = header[start:position]
        if not number.isdigit():
            return None
        numbers.append(number)
    properties: str | None = None
    try:
        if header[position : position + 3] == _I:
            start = position + 7
            position = start + _I32.unpack_from(header, position + 3)[0]
            if position < start:
                return None
            properties = header[start:position].decode()
        part = header[position:]
        after = _after.get(part) or _read_after(part)
        if before is None or after is None or position > len(header):
            return None
        group, topic, default_topic, default_nums = before
        reconsume_times, unit_mode, max_reconsume_times, batch, broker_name = after
        ext = SendMessageRequestV2(
            producer_group=group,
            topic=topic,
            default_topic=default_topic,
            default_topic_queue_nums=default_nums,
            queue_id=int(queue_id),
            sys_flag=int(numbers[0]),
            born_timestamp=int(numbers[1]),
            flag=int(numbers[2]),
            properties=properties,
            reconsume_times=reconsume_times,
            unit_mode=unit_mode,
            max_reconsume_times=max_reconsume_times,
            batch=batch,
            broker_name=broker_name,
        )
    except (PackError, ValueError):
        return None
    # Nine digits are within 32 bits for sure; longer numbers, and negative ones, are checked by the general way.
    if len(queue_id) > 9 or len(numbers[0]) > 9 or len(numbers[2]) > 9 or len(numbers[1]) > 18:
        return None
    return SendHead(code, ext, flag, opaque, version, language)


def _read_before(part: bytes) -> tuple[str, str, str, int] | None:
    fields = _fields(part)
    if fields is None or set(fields) != {"a", "b", "c", "d"}:
        return None
    try:
        ext = from_ext(SendMessageRequestV2, {**fields, "e": "0", "f": "0", "g": "0", "h": "0"})
    except RemoteProtocolError:
        return None
    found = (ext.producer_group, ext.topic, ext.default_topic, ext.default_topic_queue_nums)
    _remember(_before, part, found)
    return found


def _read_after(part: bytes) -> tuple[int | None, bool | None, int | None, bool | None, str | None] | None:
    fields = _fields(part)
    if fields is None or set(fields) & {"a", "b", "c", "d", "e", "f", "g", "h", "i"}:
        return None
    needed = {"a": "", "b": "", "c": "", "d": "0", "e": "0", "f": "0", "g": "0", "h": "0"}
    try:
        ext = from_ext(SendMessageRequestV2, {**needed, **fields})
    except RemoteProtocolError:
        return None
    found = (ext.reconsume_times, ext.unit_mode, ext.max_reconsume_times, ext.batch, ext.broker_name)
    _remember(_after, part, found)
    return found


def _remember(table: dict[bytes, Any], part: bytes, found: Any) -> None:
    if len(part) <= PART_SIZE_MAX:
        if len(table) >= SEEN_MAX:
            table.clear()
        table[part] = found


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
