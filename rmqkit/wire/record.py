"""The message record, identical byte for byte in the commit log and in the response to a pull.

    i32 size · i32 magic · i32 body CRC · i32 queue id · i32 flag · i64 queue offset ·
    i64 physical offset · i32 sysFlag · i64 born time · born host · i64 store time · store host ·
    i32 reconsume times · i64 prepared transaction offset · i32 size + body ·
    topic (size i8 in V1, i16 in V2) · i16 size + properties

- All numbers are big-endian. A host has 8 bytes, or 20 if its bit in sysFlag marks it as IPv6.
- V2 is used for topics longer than 127 bytes.
- The body CRC covers the body as stored (perhaps compressed); its sign bit is cleared.
- A blank record (size, magic, arbitrary rest) fills the end of a log file.
- With the property CRC on (`enabledAppendPropCRC`), the last 20 bytes of a record are one more
  property: `__CRC32#`, then the CRC of all bytes before it as ten digits, least significant digit
  first.

`decode_record` returns None if the buffer ends before the record does. Only the owner of the buffer
knows whether that means "read more" or a torn tail. `CorruptRecord` means that no further bytes can
make it a record.

Source: `store/.../MessageExtEncoder.java`, `store/.../CommitLog.java`
(`checkMessageAndReturnSize`), `common/.../message/MessageDecoder.java`.
"""

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from rmqkit.errors import CorruptRecord
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.hosts import HOST_V6_SIZE
from rmqkit.wire.properties import PROPERTIES_SIZE_MAX, PROPERTY_CRC32

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
MAGIC_BLANK = -875286124

# Byte positions in a record. Up to the born host they do not depend on the sizes of the hosts.
POSITION_SIZE = 0
POSITION_MAGIC = 4
POSITION_BODY_CRC = 8
POSITION_QUEUE_ID = 12
POSITION_FLAG = 16
POSITION_QUEUE_OFFSET = 20
POSITION_PHY_OFFSET = 28
POSITION_SYS_FLAG = 36
POSITION_BORN_MS = 40
POSITION_BORN_HOST = 48

#: greatest value of the field `reconsume_times` (int32)
REDELIVERIES_MAX = 0x7FFFFFFF
TOPIC_SIZE_V1_MAX = 127
PROPERTY_CRC_SIZE = 20
BLANK_SIZE_MIN = 8

_V6_BITS = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6
# Indexed by (sysFlag >> 4) & 3: bit 0 is set if the born host is IPv6, bit 1 for the store host.
# The last field is the body size.
_HEADS = tuple(Struct(f">iiiiiqqiq{born}sq{store}siqi") for born, store in ((8, 8), (20, 8), (8, 20), (20, 20)))
_HEAD_V4 = _HEADS[0]
_SIZE_MAGIC = Struct(">ii")
_I16 = Struct(">h")
_PROPERTY_CRC_NAME = PROPERTY_CRC32.encode()

Buffer = bytes | bytearray | memoryview


class Record(NamedTuple):
    """One record.

    Hosts stay packed (`hosts.unpack_host`). `body` is as stored; it is empty if it was not read.
    """

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    phy_offset: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    properties: bytes


class Blank(NamedTuple):
    """Padding at the end of a log file.

    `size` counts the bytes from the start of this record to the end of the file.
    """

    size: int


def body_crc(body: Buffer) -> int:
    """Return the CRC in the form of a record: 31 bits, since Java's int is signed."""
    return crc32(body) & 0x7FFFFFFF


def encode_record(
    *,
    topic: str,
    queue_id: int,
    flag: int,
    queue_offset: int,
    phy_offset: int,
    sys_flag: int,
    born_ms: int,
    born_host: bytes,
    store_ms: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_offset: int,
    body: bytes,
    properties: bytes,
    property_crc: bool = False,
) -> bytes:
    """Return the record as bytes.

    The IPv6 bits of `sys_flag` are set according to the hosts, the version according to the length
    of the topic. Raises ValueError if the topic or the properties are too long for their fields.
    """
    if property_crc:
        properties = _room_for_crc(properties)
    magic, topic_field = _topic_field(topic)
    properties_size = len(properties) + (PROPERTY_CRC_SIZE if property_crc else 0)
    if properties_size > PROPERTIES_SIZE_MAX:
        raise ValueError(f"properties of {properties_size} bytes, more than {PROPERTIES_SIZE_MAX}")
    v6 = (1 if len(born_host) == HOST_V6_SIZE else 0) | (2 if len(store_host) == HOST_V6_SIZE else 0)
    head = _HEADS[v6]
    size = head.size + len(body) + len(topic_field) + 2 + properties_size
    record = b"".join(
        (
            head.pack(
                size,
                magic,
                crc32(body) & 0x7FFFFFFF,
                queue_id,
                flag,
                queue_offset,
                phy_offset,
                (sys_flag & ~_V6_BITS) | v6 << 4,
                born_ms,
                born_host,
                store_ms,
                store_host,
                reconsume_times,
                prepared_offset,
                len(body),
            ),
            body,
            topic_field,
            _I16.pack(properties_size),
            properties,
        )
    )
    return record + _crc_property(crc32(record) & 0x7FFFFFFF) if property_crc else record


def encode_copy(record: Record, **changes: Any) -> bytes:
    """Return a record with other values of some fields. Its size, magic and CRC are computed."""
    fields = record._asdict() | changes
    for name in ("size", "magic", "body_crc"):
        del fields[name]
    return encode_record(**fields)


def encode_blank(size: int) -> bytes:
    """Return the first 8 bytes of a blank record of `size` bytes."""
    return _SIZE_MAGIC.pack(size, MAGIC_BLANK)


def decode_record(buffer: Buffer, position: int = 0, *, check_crc: bool, read_body: bool = True) -> Record | Blank | None:
    """Return the record at `position`, or None if the buffer ends before the record does.

    `check_crc` compares the body with its CRC, even if `read_body` is false. Raises CorruptRecord.
    """
    left = len(buffer) - position
    if left < 8:
        return None
    size, magic = _SIZE_MAGIC.unpack_from(buffer, position)
    if magic == MAGIC_BLANK:
        if size < BLANK_SIZE_MIN:
            raise CorruptRecord(f"blank record of {size} bytes")
        return Blank(size)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptRecord(f"magic {magic & 0xFFFFFFFF:#010x} is no record's")
    if size < _HEAD_V4.size + 3:
        raise CorruptRecord(f"record of {size} bytes")
    if left < size:
        return None
    fields = _HEAD_V4.unpack_from(buffer, position)
    head_size = _HEAD_V4.size
    v6 = fields[7] >> 4 & 3
    if v6:
        head = _HEADS[v6]
        head_size = head.size
        if size < head_size + 3:
            raise CorruptRecord(f"record of {size} bytes with IPv6 hosts")
        fields = head.unpack_from(buffer, position)
    body_start = position + head_size
    topic, topic_end = _topic_and_end(buffer, body_start + fields[14], body_start, position + size, magic)
    properties = bytes(buffer[topic_end + 2 : position + size])
    if _I16.unpack_from(buffer, topic_end)[0] != len(properties):
        raise CorruptRecord(f"the parts of a record of {size} bytes do not add up to its size")
    body = b""
    if read_body or check_crc:
        body = bytes(buffer[body_start : body_start + fields[14]])
        # Java does not check the CRC of an empty body.
        if check_crc and body and crc32(body) & 0x7FFFFFFF != fields[2]:
            raise CorruptRecord(f"body CRC of the record for physical offset {fields[6]} is wrong")
        if not read_body:
            body = b""
    # Half the cost of Record._make(...).
    return tuple.__new__(Record, (*fields[:14], body, topic, properties))


def _topic_and_end(buffer: Buffer, start: int, body_start: int, end: int, magic: int) -> tuple[str, int]:
    """Return the topic and the position of the properties' size.

    Checks that every position lies inside the record; raises CorruptRecord otherwise.
    """
    size_size = 1 if magic == MAGIC_V1 else 2
    if body_start <= start <= end - size_size - 2:
        if size_size == 1:
            topic_size = buffer[start]
        else:
            topic_size = _I16.unpack_from(buffer, start)[0]
        topic_end = start + size_size + topic_size
        if topic_size >= 0 and topic_end <= end - 2 and (size_size == 2 or topic_size <= TOPIC_SIZE_V1_MAX):
            return _topic_text(bytes(buffer[start + size_size : topic_end])), topic_end
    raise CorruptRecord("a length inside a record reaches past its end")


def iter_records(buffer: Buffer, *, check_crc: bool = False) -> Iterator[Record]:
    """Yield the records in the body of a pull response, one after the other.

    Raises CorruptRecord for damaged and for truncated bytes.
    """
    position, end = 0, len(buffer)
    while position < end:
        record = decode_record(buffer, position, check_crc=check_crc)
        if not isinstance(record, Record):
            raise CorruptRecord("message bytes are cut short" if record is None else "blank record among messages")
        yield record
        position += record.size


def property_crc_is_right(record: Buffer) -> bool:
    """Return whether a whole record ends with the right property CRC (`forceVerifyPropCRC`)."""
    view = memoryview(record)
    return bytes(view[-PROPERTY_CRC_SIZE:]) == _crc_property(crc32(view[:-PROPERTY_CRC_SIZE]) & 0x7FFFFFFF)


def _crc_property(crc: int) -> bytes:
    digits = f"{crc:010d}"[::-1].encode()
    return _PROPERTY_CRC_NAME + b"\x01" + digits + b"\x02"


def _room_for_crc(properties: bytes) -> bytes:
    properties = props.remove(properties, _PROPERTY_CRC_NAME)
    return properties if not properties or properties[-1] == 2 else properties + b"\x02"


@lru_cache(maxsize=4096)
def _topic_field(topic: str) -> tuple[int, bytes]:
    """Return the magic that the topic's length requires, and the topic preceded by its size."""
    data = topic.encode()
    if len(data) <= TOPIC_SIZE_V1_MAX:
        return MAGIC_V1, bytes((len(data),)) + data
    if len(data) > 0x7FFF:
        raise ValueError(f"topic of {len(data)} bytes")
    return MAGIC_V2, _I16.pack(len(data)) + data


@lru_cache(maxsize=4096)
def _topic_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
