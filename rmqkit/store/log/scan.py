"""Parses one log record: the fields that recovery, dispatch of replicated bytes and the index need.

`scan` parses the bytes where a record should start and returns one of

- a `ScanResult`: the sizes add up, the record's own physical offset is the one where it was found,
  and its CRC matches (if checked);
- `BLANK`: the filler at the end of a file; the log continues in the next file;
- None: no complete valid record starts there.

Unlike Apache, `scan` requires the right physical offset, so leftover bytes from an earlier use of
the file are no record. The tags code is the one that the queue entry must hold: Java's hash of
TAGS, or for the schedule topic the delivery time.

Source: `store/.../CommitLog.java` (`checkMessageAndReturnSize`),
`store/.../DefaultMessageStore.java` (`computeDeliverTimestamp`).
"""

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from rmqkit.runtime.connection import Buffer
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.javahash import tags_code_of
from rmqkit.wire.properties import PROPERTY_DELAY_TIME_LEVEL, PROPERTY_TAGS, find
from rmqkit.wire.topic_names import SCHEDULE_TOPIC

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
#: bytes of a blank record (i32 size, i32 magic); every file reserves this many for one
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
#: 16 zero bytes in a row never occur in text: they mark a lost page
_HOLE = bytes(16)
_DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
#: delay level -> ms (`messageDelayLevel`)
DELAY_LEVELS: Mapping[int, int] = {level: seconds * 1000 for level, seconds in enumerate(_DELAYS_S, 1)}


class ScanResult(NamedTuple):
    """The fields of one record. `size` is its length in the log in bytes."""

    size: int
    topic: str
    queue_id: int
    queue_offset: int
    phy_offset: int
    sys_flag: int
    store_ms: int
    tags_code: int
    properties: bytes


#: result of `scan` for the filler at the end of a file
BLANK = ScanResult(0, "", 0, 0, 0, 0, 0, 0, b"")


def is_queued(sys_flag: int) -> bool:
    """Return whether a record gets a queue entry.

    Prepared and rolled-back transactional messages do not.
    """
    return not sys_flag & MessageSysFlag.TRANSACTION_PREPARED


def scan(
    buffer: Buffer,
    at: int,
    phy_offset: int,
    *,
    check_crc: bool = True,
    delay_levels: Mapping[int, int] = DELAY_LEVELS,
) -> ScanResult | None:
    """Parse the record at `buffer[at:]`, which is at `phy_offset` in the log."""
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
    # skip store time, store host, reconsume times and prepared offset
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
    # Like Apache, do not check the CRC of an empty body.
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
    """Return whether the properties contain zeroes as a lost page would leave them.

    No checksum covers the properties. Such a record still counts as complete if another record
    follows.
    """
    return record.properties.endswith(b"\0") or _HOLE in record.properties


def queue_tags_code(topic: str, properties: bytes, store_ms: int, delay_levels: Mapping[int, int]) -> int:
    """Return the tags code for the queue entry of a record."""
    if topic == SCHEDULE_TOPIC:
        level_text = find(properties, PROPERTY_DELAY_TIME_LEVEL.encode())
        if level_text is not None:
            try:
                level = min(int(level_text), max(delay_levels, default=0))
            except ValueError:
                level = 0
            if level > 0:
                return store_ms + delay_levels.get(level, 1000)
    return tags_code_of(find(properties, PROPERTY_TAGS.encode()))


def store_ms_of(record: Buffer) -> int:
    """Return the store timestamp of a complete record in ms."""
    sys_flag = int.from_bytes(record[36:40], "big")
    at = _START_SIZE + (20 if sys_flag & MessageSysFlag.BORN_HOST_V6 else 8)
    return int(_STORE_MS.unpack_from(record, at)[0])
