"""Encodes many records by column, with the bytes of the general path.

**A uniform batch** (`uniform_batch.py`). From one record to the next only these fields differ: the
CRC of the body, both offsets, the body, and the own part of the properties. Everything between them
is prepared once per batch:

    constant                     differs per record
    size, magic                  CRC of the body
    queue id, flag               queue offset, physical offset
    sysFlag up to body size      body
    topic, size of properties    own part of the properties
    behind, and the size and magic of the next record

With bodies of one size, one `pack` encodes up to `RECORDS_PER_PACK` records: the layout of that
many records is one cached `Struct`. Its values are a list in which each column has every ninth
place, which takes half the time of `zip` and `chain`. With bodies of different sizes, each record
has a packed head of its own, and one `join` puts the pieces together.

**A run** (`PutRun`) has messages for several queues. Each record has a packed head of its own.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, repeat
from struct import Struct
from typing import Any
from zlib import crc32

from rmqkit.store.contract import Put, PutRun
from rmqkit.store.log.uniform_batch import UniformBatch
from rmqkit.store.queues.consume_queue import ConsumeQueue

#: a layout of that many records takes 37 KiB of memory
RECORDS_PER_PACK = 128
_FIELDS = 9
_FIRST = Struct(">II")
_QUEUE_AND_FLAG = Struct(">ii")
_BODY_SIZE = Struct(">i")
#: the fields of a record before its body, for hosts with IPv4 addresses
_RUN_HEAD = Struct(">IIIiiqqi16sq12sqi").pack
_PROPERTIES_SIZE = Struct(">H").pack


def encode_records(
    batch: UniformBatch,
    put: Put,
    queue: ConsumeQueue,
    *,
    sys_flag: int,
    queue_offset: int,
    phy_offset: int,
    store_ms: int,
    fixed_size: int,
) -> tuple[bytes, Sequence[int], Sequence[int]]:
    """Return the records of a batch that starts at `phy_offset`, end to end.

    Also their offsets in the log and their sizes. `fixed_size` is the size of a record without body
    and properties.
    """
    count, bodies = len(batch), batch.bodies
    behind = batch.properties.behind
    properties_size = batch.properties.own_size + len(behind)
    crcs = [crc32(body) & 0x7FFFFFFF for body in bodies]
    queue_and_flag = _QUEUE_AND_FLAG.pack(put.queue_id, batch.flag)
    queue_offsets = range(queue_offset, queue_offset + count)
    middle = _middle(len(put.born_host), len(put.store_host)).pack(
        sys_flag, put.born_ms, put.born_host, store_ms, put.store_host, put.reconsume_times, 0
    )
    topic = queue.topic_field + properties_size.to_bytes(2, "big")
    if batch.body_size:
        size = fixed_size + batch.body_size + properties_size
        phy_offsets: Sequence[int] = range(phy_offset, phy_offset + count * size, size)
        first = _FIRST.pack(size, queue.magic)
        middle += _BODY_SIZE.pack(batch.body_size)
        last = behind + first
        values: list[Any] = [0, queue_and_flag, 0, 0, middle, b"", topic, b"", last] * count
        values[::_FIELDS], values[2::_FIELDS], values[3::_FIELDS] = crcs, queue_offsets, phy_offsets
        values[5::_FIELDS], values[7::_FIELDS] = bodies, batch.own
        sizes = len(middle), batch.body_size, len(topic), batch.properties.own_size, len(last)
        data = [first]
        for at in range(0, count, RECORDS_PER_PACK):
            here = min(count - at, RECORDS_PER_PACK)
            layout = _layout(here, *sizes, len(behind) if at + here == count else len(last))
            data.append(layout.pack(*values[at * _FIELDS : (at + here) * _FIELDS]))
        return b"".join(data), phy_offsets, [size] * count
    body_sizes = list(map(len, bodies))
    own_size = fixed_size + properties_size
    record_sizes = [own_size + body_size for body_size in body_sizes]
    phy_offsets = list(accumulate(record_sizes[:-1], initial=phy_offset))
    heads = map(
        _head(len(middle)).pack, record_sizes, repeat(queue.magic), crcs, repeat(queue_and_flag), queue_offsets,
        phy_offsets, repeat(middle), body_sizes,
    )  # fmt: skip
    pieces = zip(heads, bodies, repeat(topic), batch.own, repeat(behind))
    return b"".join(chain.from_iterable(pieces)), phy_offsets, record_sizes


def encode_run(
    run: PutRun,
    queues: Sequence[ConsumeQueue],
    queue_offsets: Sequence[int],
    phy_offsets: Sequence[int],
    sizes: Sequence[int],
    store_ms: int,
) -> bytes:
    """Return the records of a run end to end. `sizes` are theirs, `queues` those of the records."""
    magics = [queue.magic for queue in queues]
    queue_ids = [queue.queue_id for queue in queues]
    heads = map(
        _RUN_HEAD, sizes, magics, run.body_crcs, queue_ids, run.flags, queue_offsets, phy_offsets, run.sys_flags, run.born,
        repeat(store_ms), run.stored, repeat(0), map(len, run.bodies),
    )  # fmt: skip
    topics = [queue.topic_field for queue in queues]
    properties_sizes = map(_PROPERTIES_SIZE, map(len, run.properties))
    return b"".join(chain.from_iterable(zip(heads, run.bodies, topics, properties_sizes, run.properties, strict=True)))


@lru_cache(maxsize=32)
def _layout(count: int, middle: int, body: int, topic: int, own: int, last: int, very_last: int) -> Struct:
    """Return the layout of `count` records, without the first two fields of the first one.

    The last record ends with `very_last` bytes of what ends the others.
    """
    record = f"I8sqq{middle}s{body}s{topic}s{own}s"
    return Struct(f">{(record + f'{last}s') * (count - 1)}{record}{very_last}s")


@lru_cache(maxsize=4)
def _middle(born_host: int, store_host: int) -> Struct:
    return Struct(f">iq{born_host}sq{store_host}siq")


@lru_cache(maxsize=4)
def _head(middle: int) -> Struct:
    return Struct(f">III8sqq{middle}si")
