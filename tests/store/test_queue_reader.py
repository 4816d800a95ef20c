"""What one pull gets: `DefaultMessageStore.getMessage`, its bounds, statuses and next offsets."""

from random import Random

import pytest

from rmqkit.config import BrokerRole
from rmqkit.store import ENGINES, queue_reader
from rmqkit.store.contract import EngineParts, GetStatus
from rmqkit.testing.store_world import StoreWorld, body_of, drain, fill, put, records_of, store_config

MEMORY_SIZE = 10_000


def small_memory(parts: EngineParts):
    """Return an engine on a machine whose cache share, 40 % of the memory, is `MEMORY_SIZE`."""
    return ENGINES["mapped"](parts._replace(memory_size=MEMORY_SIZE * 100 // 40))


def world_of(make=ENGINES["mapped"], **sections) -> StoreWorld:
    world = StoreWorld(make, store_config(**sections))
    world.start()
    return world


@pytest.mark.parametrize(("size", "expected"), [(1, [5]), (5000, [3, 2])])
def test_neighbours_come_as_one_slice_and_others_are_joined_if_they_are_small(size, expected):
    world = world_of(commit_log={"mapped_file_size_commit_log": 1 << 20})
    for number in range(6):
        world.engine.append(put("T", 0 if number != 3 else 1, b"%d" % number * size))
    world.settle()
    read = world.engine.read("T", 0, 0, count_max=32, size_max=1 << 20)
    assert [len(records_of([buffer])) for buffer in read.buffers] == expected
    assert read.message_count == 5


@pytest.mark.parametrize("seed", range(12))
def test_a_run_is_read_as_its_messages_one_by_one(seed, monkeypatch):
    """The same bytes, counts and offsets, also for damaged records and for filters by tags."""
    random = Random(seed)
    queues = {"mapped_file_size_consume_queue": 2000}
    world = world_of(commit_log={"mapped_file_size_commit_log": 1 << 17}, consume_queue=queues)
    for _ in range(20):
        size = random.randrange(1, 300)
        for _ in range(random.randrange(1, 12)):
            body = bytes(size if random.random() < 0.7 else random.randrange(1, 6000))
            world.engine.append(put("T", random.randrange(3), body, tags_code=random.randrange(2)))
        world.settle()
        if random.random() < 0.2:
            world.run(1500)
    files = world.engine.log.files
    for at in (3, 7, 35) * (seed % 3):  # the last bytes of size, magic and physical offset
        damaged = random.choice(world.engine.entries("T", random.randrange(3), 0, 1000)).phy_offset + at
        world.disk.write(files.path(damaged), damaged % files.file_size, [b"\xff"])
    asked = []
    for _ in range(200):
        queue_id = random.randrange(3)
        offset = random.randrange(world.engine.queue_range("T", queue_id).offset_max)
        tag_match = random.choice([None, {0}.__contains__, {0, 1}.__contains__])
        limits = {"count_max": random.choice([1, 2, 6, 32]), "size_max": random.choice([100, 3000, 1 << 20])}
        asked.append(lambda q=queue_id, o=offset, m=tag_match, x=limits: world.engine.read("T", q, o, tag_match=m, **x))
    whole = []
    read_run = queue_reader._read_run
    monkeypatch.setattr(queue_reader, "_read_run", lambda *parts: whole.append(read_run(*parts)) or whole[-1])
    as_runs = [read() for read in asked]
    assert sum(run is not None and run.message_count > 1 for run in whole) > 10
    monkeypatch.setattr(queue_reader, "_read_run", lambda *_: None)
    for run, loop in zip(as_runs, [read() for read in asked], strict=True):
        assert b"".join(run.buffers) == b"".join(loop.buffers)
        assert run._replace(buffers=()) == loop._replace(buffers=())


def test_a_filter_reads_a_bounded_number_of_entries():
    """max(maxFilterMessageSize, maxMsgNums × 20) / 20 entries."""
    world = world_of(pull={"max_filter_message_size": 100})
    fill(world, 40)
    read = world.engine.read("T", 0, 0, count_max=2, size_max=10_000, tag_match=lambda code: False)
    assert (read.status, read.offset_next) == (GetStatus.NO_MATCHED_MESSAGE, 5)
    read = world.engine.read("T", 0, 0, count_max=8, size_max=10_000, tag_match=lambda code: False)
    assert read.offset_next == 8


def test_what_is_in_memory_and_what_is_on_disk_have_bounds_of_their_own():
    """`isTheBatchFull`: limits of messages and bytes per reply depend on how far behind the log's
    end the record is."""
    pull = {
        "max_transfer_count_on_message_in_memory": 6,
        "max_transfer_bytes_on_message_in_memory": 100_000,
        "max_transfer_count_on_message_in_disk": 2,
        "max_transfer_bytes_on_message_in_disk": 100_000,
    }
    world = world_of(small_memory, pull=pull)
    fill(world, 100, size=200)
    engine = world.engine
    record_size = engine.read("T", 0, 0, count_max=1, size_max=1).size
    assert engine.read("T", 0, 0, count_max=32, size_max=100_000).message_count == 2
    recent = 100 - (MEMORY_SIZE // 2) // record_size
    assert engine.read("T", 0, recent, count_max=32, size_max=100_000).message_count == 6
    assert engine.queue_is_in_memory("T", 0, recent)
    assert not engine.queue_is_in_memory("T", 0, 0)
    by_bytes = {**pull, "max_transfer_count_on_message_in_disk": 32, "max_transfer_bytes_on_message_in_disk": 700}
    engine.configure(store_config(pull=by_bytes))
    assert engine.read("T", 0, 0, count_max=32, size_max=100_000).message_count == 700 // record_size


def test_a_slaves_miss_keeps_the_offset_that_was_asked_for():
    """`nextOffsetCorrection`: the slave's queue may be behind the master's."""
    world = world_of(identity={"broker_role": BrokerRole.SLAVE})
    fill(world, 3)
    for offset, status in [(7, GetStatus.OFFSET_OVERFLOW_BADLY), (-1, GetStatus.OFFSET_TOO_SMALL)]:
        read = world.engine.read("T", 0, offset, count_max=1, size_max=100)
        assert (read.status, read.offset_next) == (status, offset)
    assert world.engine.read("none", 0, 9, count_max=1, size_max=100).offset_next == 9


def test_entries_whose_record_has_left_the_log_are_passed_over():
    world = world_of()
    for number in range(30):
        world.engine.append(put("T", 0, b"%02d" % number * 200))
        world.turn()
    world.until(lambda: world.engine.offset_synced == world.engine.offset_written)
    # Retention has removed the file but has not updated the queue yet.
    world.engine.log.files.remove_first(lambda error: None)
    read = world.engine.read("T", 0, 0, count_max=32, size_max=4000)
    bodies = [body_of(record)[:2] for record in records_of(read.buffers)]
    assert read.status is GetStatus.FOUND
    assert bodies[0] == b"08"
    assert read.offset_next == int(bodies[-1]) + 1


def test_a_read_goes_on_from_the_files_into_the_tail():
    world = world_of()
    fill(world, 12)
    world.run(1500)
    fill(world, 5)
    queue = world.engine.table.by_key["T", 0]
    assert (queue.offset_written, queue.offset_max) == (12, 17)
    assert world.engine.read("T", 0, 3, count_max=32, size_max=1 << 20).message_count == 14
    assert len(drain(world.engine, "T", 0)) == 17


def test_what_was_read_stays_when_its_file_is_removed():
    world = world_of()
    fill(world, 30, size=400)
    read = world.engine.read("T", 0, 0, count_max=3, size_max=1 << 20)
    before = b"".join(map(bytes, read.buffers))
    world.engine.log.files.remove_first(lambda error: None)
    world.run(100)
    assert b"".join(map(bytes, read.buffers)) == before
