"""Hand-made commit-log files and the position of each record in them."""

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from rmqkit.spark.store.scan import Bytes, Filler, Gap, LogFile, RecordSlice, Scan
from rmqkit.wire.hosts import pack_host
from rmqkit.wire.record import encode_blank, encode_record

HOST_V4, HOST_V6 = pack_host("127.0.0.1", 10911), pack_host("::1", 10911)
BORN_MS = 1_700_000_000_000


class Place(NamedTuple):
    """One record: its position and size in bytes, its queue offset and its body."""

    at: int
    size: int
    offset: int
    body: bytes


def log_file(base: int, size: int, bodies: Sequence[bytes], *, blank: bool, **fields) -> tuple[bytearray, list[Place]]:
    """Return a log file of `size` bytes with one record per body, and the records' places.

    With `blank` the file ends with a blank record, as a full file does.
    """
    data, places = bytearray(), []
    for number, body in enumerate(bodies):
        record = encode_record(
            **{
                "topic": "T",
                "queue_id": number % 4,
                "flag": 0,
                "queue_offset": number,
                "phy_offset": base + len(data),
                "sys_flag": 0,
                "born_ms": BORN_MS,
                "born_host": HOST_V6 if number % 5 == 4 else HOST_V4,
                "store_ms": BORN_MS + 1000 * number,
                "store_host": HOST_V6 if number % 7 == 6 else HOST_V4,
                "reconsume_times": number % 3,
                "prepared_offset": 0,
                "body": body,
                "properties": b"KEYS\x01k%d\x02TAGS\x01t%d\x02" % (number, number % 2),
                **fields,
            }
        )
        places.append(Place(len(data), len(record), number, body))
        data += record
    assert len(data) + 8 <= size
    if blank:
        data += encode_blank(size - len(data))
    return data.ljust(size, b"\0"), places


def bodies_of(random: Random, count: int, size_max: int = 300) -> list[bytes]:
    return [random.randbytes(random.choice((0, random.randrange(size_max)))) for _ in range(count)]


def pieces_of(
    path: Path, base: int, *, window_size: int = 4096, full_size: int = 0, is_followed: bool = False, **settings
) -> list[RecordSlice | Gap | Filler]:
    fd = os.open(path, os.O_RDONLY)
    try:
        source = Bytes(fd, window_size)
        file = LogFile(str(path), base, source.size, full_size or source.size, is_followed)
        return list(Scan(source, file, **settings).pieces())
    finally:
        os.close(fd)


def record_places(pieces: Sequence[RecordSlice | Gap | Filler]) -> dict[int, int]:
    """Return the sound records of a scan, by position in the file; the values are sizes in bytes.

    Fails if a record occurs twice.
    """
    found: dict[int, int] = {}
    for piece in pieces:
        if isinstance(piece, RecordSlice) and not piece.damage:
            for start, size in zip(piece.records.starts.tolist(), piece.records.sizes.tolist(), strict=True):
                assert piece.at + start not in found
                found[piece.at + start] = size
    return found
