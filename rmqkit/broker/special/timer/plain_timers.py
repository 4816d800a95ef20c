"""Reads stored timers without decoding them, as most timers need no judgement.

A plain timer is a record of the timer topic as `rewrite.waiting` stores it: V1, with hosts of IPv4,
and with TIMER_OUT_MS, REAL_TOPIC and REAL_QID as its last three properties. So its slot, its topic
and its queue are one piece of bytes, which is the same in many timers. It is decoded once
(`wait_of`).

What is not plain goes the general way: `TimerIndex._add_decoded`, `TimerDelivery._put_next`.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from rmqkit.broker.special.timer.rewrite import DELETE, DELIVERED, OUT, REAL_QUEUE_ID, REAL_TOPIC, ROLLED
from rmqkit.store.contract import Entry, Put, StorageEngine
from rmqkit.store.timer_log import MAGIC_DEFAULT, TimerUnit
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.javahash import tags_code
from rmqkit.wire.record import MAGIC_V1
from rmqkit.wire.topic_names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

#: bytes of the commit log that are read at once, if the timers in them are close to each other
WINDOW_SIZE = 262_144
#: tails of properties that are remembered
TAILS_MAX = 4_096
#: the fields of a record before its body
HEAD = Struct(">iiiiiqqiq8sq8siqi")
HEAD_SIZE = HEAD.size
#: of these: size, magic, log offset, sysFlag, born time, store time, size of the body
PLACES = Struct(">ii20xqiq8xq20xi")
V6_FLAGS = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6
#: the topic of a record with its size
TOPIC_FIELD = bytes((len(TIMER_TOPIC),)) + TIMER_TOPIC.encode()
#: bytes between the body and the properties
BETWEEN_SIZE = len(TOPIC_FIELD) + 2
#: where the tail begins
TAIL = b"\x02%b\x01" % OUT
_TAIL = re.compile(
    rb"\x02%b\x01(\d{1,18})\x02%b\x01([^\x01\x02]+)\x02%b\x01(\d{1,9})\x02" % (OUT, REAL_TOPIC, REAL_QUEUE_ID)
)
_TAGS = props.PROPERTY_TAGS.encode() + b"\x01"
_CRC = props.PROPERTY_CRC32.encode()
#: part of the names TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS
_STAMPS = b"QUEUE_MS\x01"
_new = tuple.__new__


class Wait(NamedTuple):
    """What the tail of a plain timer says."""

    out_ms: int
    topic: str
    queue_id: int
    topic_hash: int


@lru_cache(maxsize=TAILS_MAX)
def wait_of(tail: bytes) -> Wait | None:
    """Return what the properties from TIMER_OUT_MS on say; None if they are not plain."""
    found = _TAIL.fullmatch(tail)
    if found is None:
        return None
    try:
        topic = found[2].decode()
    except UnicodeDecodeError:
        return None
    if topic in (HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC):
        return None
    return Wait(int(found[1]), topic, int(found[3]), tags_code(topic))


def plain_waits(store: StorageEngine, entries: Sequence[Entry]) -> list[tuple[Wait, int, int] | None]:
    """Return tail, born time and store time (ms) of each timer; None for one that is not plain.

    A timer that takes another one back is not plain.
    """
    found: list[tuple[Wait, int, int] | None] = []
    end = entries[-1].phy_offset + entries[-1].size
    ahead = dense_end(entries[0].phy_offset, end, sum([each.size for each in entries]))
    window, base = b"", 0
    unpack = PLACES.unpack_from
    for _, phy_offset, size, *_ in entries:
        at = phy_offset - base
        if at < 0 or at + size > len(window):
            window = bytes(store.read_log(phy_offset, max(size, min(ahead - phy_offset, WINDOW_SIZE))))
            base, at = phy_offset, 0
        end = at + size
        if size < HEAD_SIZE or len(window) < end:
            found.append(None)
            continue
        record_size, magic, record_at, sys_flag, born_ms, store_ms, body_size = unpack(window, at)
        topic_at = at + HEAD_SIZE + body_size
        tail_at = window.rfind(TAIL, topic_at, end) if body_size >= 0 else -1
        wait = wait_of(window[tail_at:end]) if tail_at >= 0 else None
        if (
            wait is None or record_size != size or record_at != phy_offset or magic != MAGIC_V1 or sys_flag & V6_FLAGS
            or not window.startswith(TOPIC_FIELD, topic_at) or window.find(DELETE, topic_at, tail_at) >= 0
        ):  # fmt: skip
            found.append(None)
        else:
            found.append((wait, born_ms, store_ms))
    return found


class DueTimers(NamedTuple):
    """Plain timers of one slot in their order: offsets in the timer topic, units, and messages."""

    offsets: list[int]
    units: list[TimerUnit]
    puts: list[Put]


def due_timers(
    store: StorageEngine, units: Sequence[TimerUnit | None], offset_next: int, wall_ms: int, size_max: int
) -> DueTimers:
    """Return the first of these timers up to one that is not plain, in their delivered form.

    Their offsets are at least `offset_next`, their records take `size_max` bytes, or one more. The
    form is that of `rewrite.delivered`.
    """
    offsets: list[int] = []
    taken: list[TimerUnit] = []
    puts: list[Put] = []
    window, base, stamp_ms, stamps = b"", 0, -1, b""
    first, last = units[0], units[-1]
    if first is None or last is None:
        return DueTimers(offsets, taken, puts)
    used_size = sum([0 if unit is None else unit.size for unit in units])
    ahead = dense_end(first.phy_offset, last.phy_offset + last.size, used_size)
    unpack = HEAD.unpack_from
    for unit in units:
        if unit is None or unit.magic != MAGIC_DEFAULT or size_max <= 0:
            break
        _, _, write_ms, _, phy_offset, size, _ = unit
        at = phy_offset - base
        if at < 0 or at + size > len(window):
            window = bytes(store.read_log(phy_offset, max(size, min(ahead - phy_offset, WINDOW_SIZE))))
            base, at = phy_offset, 0
            if size < HEAD_SIZE or len(window) < size:
                break
        (
            record_size, magic, crc, _, flag, offset, record_at, sys_flag, born_ms, born_host, _, store_host,
            reconsume_times, _, body_size,
        ) = unpack(window, at)  # fmt: skip
        body_at, end = at + HEAD_SIZE, at + size
        topic_at = body_at + body_size
        begin = topic_at + BETWEEN_SIZE
        if (
            record_size != size or record_at != phy_offset or magic != MAGIC_V1 or sys_flag & V6_FLAGS
            or not body_at <= topic_at < begin < end or not window.startswith(TOPIC_FIELD, topic_at)
            or offset < offset_next
        ):  # fmt: skip
            break
        body, properties = window[body_at:topic_at], window[begin:end]
        wait = wait_of(properties[properties.rfind(TAIL) :])
        if (
            wait is None or crc32(body) & 0x7FFFFFFF != crc or _STAMPS in properties or ROLLED in properties
            or DELETE in properties or _CRC in properties
        ):  # fmt: skip
            break
        code = 0
        if _TAGS in properties and (tags := props.find(properties, _TAGS[:-1])):
            code = tags_code(tags.decode("utf-8", "replace"))
        if write_ms != stamp_ms:
            stamp_ms, stamps = write_ms, DELIVERED % (write_ms, wall_ms)
        offset_next = offset + 1
        size_max -= size
        offsets.append(offset)
        taken.append(unit)
        puts.append(
            _new(
                Put,
                (
                    wait[1], wait[2], flag, sys_flag, born_ms, born_host, store_host, reconsume_times, 0, body,
                    properties + stamps, code,
                ),
            )
        )  # fmt: skip
    return DueTimers(offsets, taken, puts)


def dense_end(begin: int, end: int, used_size: int) -> int:
    """Return up to which log offset it pays to read ahead for records between `begin` and `end`.

    0, for none, if less than half of the bytes are theirs (`used_size`).
    """
    return end if end - begin <= 2 * used_size else 0
