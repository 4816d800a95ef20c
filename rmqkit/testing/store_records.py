"""Puts, reads and takes apart records, for tests of storage engines."""

from typing import Any

from rmqkit.runtime.connection import Buffer
from rmqkit.store.contract import GetStatus, PutStatus, StorageEngine
from rmqkit.testing.store_world import StoreWorld, put

#: ms; a time that no message reaches
FOREVER_MS = 1 << 60


def body_of(record: Buffer) -> bytes:
    """Return the body of a record with IPv4 hosts."""
    size = int.from_bytes(record[84:88], "big")
    return bytes(record[88 : 88 + size])


def records_of(buffers: Any) -> list[bytes]:
    """Split the joined buffers into whole records."""
    whole = b"".join(buffers)
    records = []
    while whole:
        size = int.from_bytes(whole[:4], "big")
        records.append(whole[:size])
        whole = whole[size:]
    return records


def offset_of(record: Buffer) -> int:
    return int.from_bytes(record[20:28], "big")


def phy_offset_of(record: Buffer) -> int:
    return int.from_bytes(record[28:36], "big")


def keys(*names: str) -> bytes:
    return b"UNIQ_KEY\x01" + names[0].encode() + b"\x02KEYS\x01" + " ".join(names[1:]).encode() + b"\x02"


def fill(world: StoreWorld, count: int, *, topic: str = "T", queue_id: int = 0, size: int = 100, ms: int = 1) -> None:
    """Append `count` messages, one per turn of `ms`.

    The bodies are `T-0-<number>`, padded to `size` bytes.
    """
    for number in range(count):
        body = f"{topic}-{queue_id}-{number}".encode().ljust(size, b".")
        assert world.engine.append(put(topic, queue_id, body)).status is PutStatus.PUT_OK
        world.turn(ms)


def drain(engine: StorageEngine, topic: str, queue_id: int) -> list[bytes]:
    """Return every record of a queue, read with pulls as a consumer does."""
    offset = engine.queue_range(topic, queue_id).offset_min
    records: list[bytes] = []
    while True:
        read = engine.read(topic, queue_id, offset, count_max=32, size_max=262_144)
        if read.status is not GetStatus.FOUND:
            return records
        found = records_of(read.buffers)
        assert read.message_count == len(found)
        assert read.size == sum(map(len, found))
        records += found
        offset = read.offset_next
