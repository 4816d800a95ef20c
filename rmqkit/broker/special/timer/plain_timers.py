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
from operator import add, lt
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from rmqkit.broker.special.timer.rewrite import DELETE, DELIVERED, OUT, REAL_QUEUE_ID, REAL_TOPIC, ROLLED
from rmqkit.store.contract import Entry, PutRun, StorageEngine
from rmqkit.store.timer_log import MAGIC_DEFAULT, TimerUnit
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.javahash import tags_code, tags_code_of
from rmqkit.wire.record import MAGIC_V1
from rmqkit.wire.topic_names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

#: bytes of the commit log that are read at once, if the timers in them are close to each other
WINDOW_SIZE = 262_144
#: tails of properties that are remembered
TAILS_MAX = 4_096
#: the fields of a record before its body: size, magic, CRC, flag, offset, log offset, sysFlag,
#: birth time and host, store host and reconsume times, size of the body. A copy has others of its
#: own
COPIED = Struct(">iiI4xiqqi16s8x12s8xi")
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
#: names, or parts of names, of properties that no plain timer has. The first is a part of
#: TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS
_NOT_PLAIN = (b"QUEUE_MS\x01", ROLLED, DELETE, props.PROPERTY_CRC32.encode())


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
        if size < COPIED.size or len(window) < end:
            found.append(None)
            continue
        record_size, magic, record_at, sys_flag, born_ms, store_ms, body_size = unpack(window, at)
        topic_at = at + COPIED.size + body_size
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

    offsets: Sequence[int]
    units: Sequence[TimerUnit]
    run: PutRun

    def first(self, count: int) -> "DueTimers":
        return DueTimers(self.offsets[:count], self.units[:count], self.run.part(0, count))


def due_timers(
    store: StorageEngine, units: Sequence[TimerUnit | None], offset_next: int, wall_ms: int, size_max: int
) -> DueTimers | None:
    """Return the first of these timers up to one that is not plain, in their delivered form.

    None if already the first one is not. Their offsets are at least `offset_next`, their records
    take `size_max` bytes, or one more. The form is that of `rewrite.delivered`.
    """
    taken: list[TimerUnit] = []
    for unit in units:
        if unit is None or unit.magic != MAGIC_DEFAULT or size_max <= 0:
            break
        taken.append(unit)
        size_max -= unit.size
    records = _records(store, taken)
    found = _delivered(records, taken[: len(records)], offset_next, wall_ms) if records else None
    if found is None:
        # Those before the first one that is not plain: `low` are plain, `high` are not.
        low, high = 0, len(records)
        while high - low > 1:
            middle = (low + high) // 2
            tried = _delivered(records[:middle], taken[:middle], offset_next, wall_ms)
            if tried is None:
                high = middle
            else:
                low, found = middle, tried
    return found


def _records(store: StorageEngine, units: Sequence[TimerUnit]) -> list[bytes]:
    """Return the bytes of these units' records, up to one that cannot be read."""
    records: list[bytes] = []
    if not units:
        return records
    window, base = b"", 0
    last = units[-1]
    ahead = dense_end(units[0].phy_offset, last.phy_offset + last.size, sum([unit.size for unit in units]))
    for _, _, _, _, phy_offset, size, _ in units:
        at = phy_offset - base
        if at < 0 or at + size > len(window):
            window = bytes(store.read_log(phy_offset, max(size, min(ahead - phy_offset, WINDOW_SIZE))))
            base, at = phy_offset, 0
            if size < COPIED.size or len(window) < size:
                break
        records.append(window[at : at + size])
    return records


def _delivered(records: Sequence[bytes], units: Sequence[TimerUnit], offset_next: int, wall_ms: int) -> DueTimers | None:
    """Return timers in their delivered form, by column; None if one of them is not plain."""
    columns = _columns(records)
    sizes, magics, crcs, flags, offsets, places, sys_flags, born, stored, body_sizes, bodies, topics, sent = columns
    _, _, write_ms, _, phy_offsets, unit_sizes, _ = zip(*units, strict=True)
    if (
        sizes != unit_sizes or places != phy_offsets or set(magics) != {MAGIC_V1} or min(body_sizes) < 0
        or any(each & V6_FLAGS for each in set(sys_flags)) or offsets[0] < offset_next
        or not all(map(lt, offsets, offsets[1:]))
    ):  # fmt: skip
        return None
    tails = [properties[properties.rfind(TAIL) :] for properties in sent]
    waits = {tail: wait_of(tail) for tail in set(tails)}
    queues = {tail: wait[1:3] for tail, wait in waits.items() if wait is not None}
    every = b"".join(sent)
    if (
        len(queues) != len(waits)
        or set(topics) != {TOPIC_FIELD}
        or any(name in every for name in _NOT_PLAIN)
        or [crc32(body) & 0x7FFFFFFF for body in bodies] != list(crcs)
    ):
        return None
    codes = [0] * len(sent)
    if _TAGS in every:
        codes = [tags_code_of(props.find(properties, _TAGS[:-1])) for properties in sent]
    stamps = {each: DELIVERED % (each, wall_ms) for each in set(write_ms)}
    properties = list(map(add, sent, map(stamps.__getitem__, write_ms)))
    run = PutRun(list(map(queues.__getitem__, tails)), flags, sys_flags, born, stored, crcs, bodies, properties, codes)
    return DueTimers(offsets, units, run)


def _columns(records: Sequence[bytes]) -> Sequence[Sequence[Any]]:
    """Return the columns of records: those of `COPIED`, then bodies, topics, and properties."""
    size, body_size = len(records[0]), int.from_bytes(records[0][COPIED.size - 4 : COPIED.size], "big")
    if set(map(len, records)) == {size} and 0 <= body_size < size - COPIED.size - BETWEEN_SIZE:
        columns = list(zip(*_layout(size, body_size).iter_unpack(b"".join(records)), strict=True))
        if set(columns[-4]) == {body_size}:
            return columns
    columns = list(zip(*map(COPIED.unpack_from, records), strict=True))
    topics_at = [COPIED.size + max(0, size) for size in columns[-1]]
    places = [(record, at, at + len(TOPIC_FIELD)) for record, at in zip(records, topics_at, strict=True)]
    return (
        *columns,
        [record[COPIED.size : at] for record, at, _ in places],
        [record[at:end] for record, at, end in places],
        [record[end + 2 :] for record, _, end in places],
    )


@lru_cache(maxsize=64)
def _layout(size: int, body_size: int) -> Struct:
    """Return the layout of records of this size: `COPIED`, body, topic, properties."""
    properties_size = size - COPIED.size - body_size - BETWEEN_SIZE
    return Struct(f"{COPIED.format}{body_size}s{len(TOPIC_FIELD)}s2x{properties_size}s")


def dense_end(begin: int, end: int, used_size: int) -> int:
    """Return up to which log offset it pays to read ahead for records between `begin` and `end`.

    0, for none, if less than half of the bytes are theirs (`used_size`).
    """
    return end if end - begin <= 2 * used_size else 0
