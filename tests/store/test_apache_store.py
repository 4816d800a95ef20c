"""Opens store folders written by Apache's broker; what we derive or write has the same bytes."""

import pytest

from rmqkit.store import ENGINES
from rmqkit.store.contract import Put, PutStatus
from rmqkit.store.log.scan import DELAY_LEVELS, queue_tags_code
from rmqkit.testing.store_world import FOREVER_MS, StoreWorld, drain, offset_of, store_config
from rmqkit.wire.record import Record, decode_record
from tests.store.apache_store import SIZES, files_of, messages_of, world_of

STORES = ("clean", "killed")


def log_end(name: str) -> int:
    last = messages_of(name)[-1]
    return last["offset"] + last["size"]


def content(world: StoreWorld, path: str) -> bytes:
    file = world.folder.files[f"/store/{path}"]
    return file.read(0, file.size)


@pytest.mark.parametrize("name", STORES)
def test_every_message_is_where_apache_has_it(name):
    world = world_of(name)
    engine = world.start()
    assert engine.offset_max == log_end(name)
    expected: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for message in messages_of(name):
        record = engine.record(message["offset"])
        assert record is not None
        assert len(record) == message["size"]
        expected.setdefault((message["topic"], message["queue_id"]), []).append((message["queue_offset"], message["size"]))
        unique = message["properties"].get("UNIQ_KEY")
        if unique:
            hits = engine.query(message["topic"], unique, count_max=64, begin_ms=0, end_ms=FOREVER_MS)
            assert record in hits.buffers
    found = {
        (known.topic, known.queue_id): [
            (offset_of(record), len(record)) for record in drain(engine, known.topic, known.queue_id)
        ]
        for known in engine.queues()
    }
    assert found == expected
    assert not [event for event in world.notes.events if "damaged" in event]


@pytest.mark.parametrize("name", STORES)
def test_queues_and_index_made_from_the_log_are_apaches_byte_for_byte(name):
    world = world_of(name, without=("consumequeue", "index", "checkpoint"))
    world.start()
    world.run(3000)
    world.stop()
    for path, data in files_of(name).items():
        if path.startswith("consumequeue/"):
            assert content(world, path) == data, path
        if path.startswith("index/"):
            (ours,) = [known for known in world.folder.files if known.startswith("/store/index/")]
            assert world.folder.files[ours].read(0, 1 << 20) == data, path


@pytest.mark.parametrize("name", STORES)
def test_messages_put_here_make_apaches_log_byte_for_byte(name):
    world = StoreWorld(ENGINES["mapped"], store_config(**SIZES))
    engine = world.start()
    data = b"".join(files_of(name)[path] for path in sorted(files_of(name)) if path.startswith("commitlog/"))
    for message in messages_of(name):
        at = message["offset"]
        record = data[at : at + message["size"]]
        world.clock.wall_ms = message["store_ms"]
        result = engine.append(put_of(record))
        assert (result.status, result.phy_offset, result.queue_offset) == (PutStatus.PUT_OK, at, message["queue_offset"])
        world.settle()
    assert engine.offset_max == log_end(name)
    world.stop()
    ours = b"".join(content(world, path) for path in sorted(files_of(name)) if path.startswith("commitlog/"))
    assert ours == data


def put_of(data: bytes) -> Put:
    """Return the put that produces a recorded message."""
    record = decode_record(data, check_crc=True)
    assert isinstance(record, Record)
    return Put(
        topic=record.topic,
        queue_id=record.queue_id,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_ms=record.born_ms,
        born_host=record.born_host,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_offset=record.prepared_offset,
        body=bytes(record.body),
        properties=bytes(record.properties),
        tags_code=queue_tags_code(record.topic, record.properties, record.store_ms, DELAY_LEVELS),
    )
