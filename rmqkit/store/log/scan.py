"""Reading the log record by record: what recovery, dispatch of replicated bytes and the index need of a record.

`scan` looks at the bytes where a record should start and answers with

- a `ScanResult` record: sizes add up, the record says that it stands where it was found, its CRC fits (when asked for);
- `BLANK`: the filler at the end of a file; the log goes on in the next file;
- None: no whole valid record there.

Unlike upstream it wants the record's own physical offset to be right: bytes of an older life of the file are no record.
The tags code is what the queue entry must hold: Java's hash of TAGS, or for the schedule topic the delivery time.

Source: `store/.../CommitLog.java` (`checkMessageAndReturnSize`), `store/.../DefaultMessageStore.java`
(`computeDeliverTimestamp`).
"""

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from rmqkit.runtime.connection import Buffer
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.javahash import tags_code
from rmqkit.wire.properties import PROPERTY_DELAY_TIME_LEVEL, PROPERTY_TAGS, find
from rmqkit.wire.topic_names import SCHEDULE_TOPIC

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
#: i32 size and i32 magic of a blank record; so many bytes stay free in every file
BLANK_SIZE = 8
#: the smallest record: V1, IPv4, empty body, topic and properties
RECORD_SIZE_MIN = 91
#: `__CRC32#` \x01 ten digits \x02, at the very end of the properties
CRC_PROPERTY_SIZE = 20

#: size, magic, body CRC, queue id, flag, queue offset, physical offset, sysFlag, born time
_START = Struct(">IIIiiqqiq")
_STORE_MS = Struct(">q")
_BODY_SIZE = Struct(">i")
_SHORT = Struct(">h")
_BLANK = Struct(">II")
_START_SIZE = 48
#: no text has so many in a row
_HOLE = bytes(16)
_DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
#: delay level -> ms (`messageDelayLevel`)
DELAY_LEVELS: Mapping[int, int] = {level: seconds * 1000 for level, seconds in enumerate(_DELAYS_S, 1)}


class ScanResult(NamedTuple):
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    phy_offset: int
    sys_flag: int
    store_ms: int
    tags_code: int
    properties: bytes


#: what `scan` answers for the filler at a file's end
BLANK = ScanResult(0, "", 0, 0, 0, 0, 0, 0, b"")


def is_queued(sys_flag: int) -> bool:
    """Whether a record gets a queue entry: prepared and rolled back transactions do not."""
    return not sys_flag & MessageSysFlag.TRANSACTION_PREPARED


def scan(
    buffer: Buffer,
    at: int,
    phy_offset: int,
    *,
    check_crc: bool = True,
    delay_levels: Mapping[int, int] = DELAY_LEVELS,
) -> ScanResult | None:
    """The record at `buffer[at:]`, which is at `phy_offset` in the log."""
    limit = len(buffer) - at
    if limit < BLANK_SIZE:
        return None
    size, magic = _BLANK.unpack_from(buffer, at)
    if magic == MAGIC_BLANK:
        return BLANK if size >= BLANK_SIZE else None
    if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_SIZE_MIN <= size <= limit:
        return None
    _, _, body_crc, queue_id, _, queue_offset, phy, sys_flag, _ = _START.unpack_from(buffer, at)
    if phy != phy_offset or queue_offset < 0 or queue_id < 0:
        return None
    end = at + size
    position = at + _START_SIZE + (20 if sys_flag & MessageSysFlag.BORN_HOST_V6 else 8)
    if position + 8 > end:
        return None
    store_ms = _STORE_MS.unpack_from(buffer, position)[0]
    # past the store time, the store host, reconsume times and the prepared offset
    position += 8 + (20 if sys_flag & MessageSysFlag.STORE_HOST_V6 else 8) + 12
    if position + 4 > end:
        return None
    body_size = _BODY_SIZE.unpack_from(buffer, position)[0]
    position += 4
    body_end = position + body_size
    topic_at = body_end + (1 if magic == MAGIC_V1 else 2)
    if body_size < 0 or topic_at > end:
        return None
    topic_size = buffer[body_end] if magic == MAGIC_V1 else _SHORT.unpack_from(buffer, body_end)[0]
    topic_end = topic_at + topic_size
    if topic_size < 0 or topic_end + 2 > end or (magic == MAGIC_V1 and topic_size > 127):
        return None
    properties_at = topic_end + 2
    if _SHORT.unpack_from(buffer, topic_end)[0] != end - properties_at:
        return None
    properties = bytes(buffer[properties_at:end])
    # As upstream does, the CRC of an empty body is left alone.
    if check_crc and body_size and crc32(buffer[position:body_end]) & 0x7FFFFFFF != body_crc:
        return None
    try:
        topic = str(buffer[topic_at:topic_end], "utf-8")
    except UnicodeDecodeError:
        return None
    if "\0" in topic:
        return None
    code = queue_tags_code(topic, properties, store_ms, delay_levels)
    return ScanResult(size, topic, queue_id, queue_offset, phy, sys_flag, store_ms, code, properties)


def may_be_torn(record: ScanResult) -> bool:
    """Whether zeroes stand in the properties as a lost page would leave them: no checksum covers them. A record like that
    is whole when another one follows it."""
    return record.properties.endswith(b"\0") or _HOLE in record.properties


def queue_tags_code(topic: str, properties: bytes, store_ms: int, delay_levels: Mapping[int, int]) -> int:
    """What the queue entry of a record holds as its tags code."""
    if topic == SCHEDULE_TOPIC:
        level_text = find(properties, PROPERTY_DELAY_TIME_LEVEL.encode())
        if level_text is not None:
            try:
                level = min(int(level_text), max(delay_levels, default=0))
            except ValueError:
                level = 0
            if level > 0:
                return store_ms + delay_levels.get(level, 1000)
    tags = find(properties, PROPERTY_TAGS.encode())
    return tags_code(tags.decode("utf-8", "replace")) if tags else 0


def store_ms_of(record: Buffer) -> int:
    """Store timestamp of a whole record."""
    sys_flag = int.from_bytes(record[36:40], "big")
    at = _START_SIZE + (20 if sys_flag & MessageSysFlag.BORN_HOST_V6 else 8)
    return int(_STORE_MS.unpack_from(record, at)[0])
