"""Recovery rebuilds what is derived from the log, however damaged: queues, index, checkpoint."""

from struct import pack

import pytest

from rmqkit.store import ENGINES
from rmqkit.store.contract import PutStatus
from rmqkit.testing.store_world import FOREVER_MS, StoreWorld, body_of, drain, keys, put, store_config

QUEUES = [("A", 0), ("A", 1), ("B", 0)]


def filled(*, stop: bool, ms: int = 2000, **sections) -> tuple[StoreWorld, dict[tuple[str, int], list[bytes]]]:
    """Put sixty messages in three queues over several files; return the world and the records.

    Stop the store in the end, or kill it `ms` later.
    """
    world = StoreWorld(ENGINES["mapped"], store_config(**sections))
    engine = world.start()
    for number in range(60):
        topic, queue_id = QUEUES[number % 3]
        engine.append(put(topic, queue_id, b"%03d" % number * 50, properties=keys(f"id{number}", "all")))
        world.turn(20)
    world.run(ms, 50)
    held = {key: drain(engine, *key) for key in QUEUES}
    if stop:
        world.stop()
        world.begin()
    else:
        world.kill()
    return world, held


def check(world: StoreWorld, held: dict[tuple[str, int], list[bytes]]) -> None:
    engine = world.start()
    assert {key: drain(engine, *key) for key in QUEUES} == held
    world.run(3000, 50)
    for number in (0, 17, 59):
        topic, _ = QUEUES[number % 3]
        hits = engine.query(topic, f"id{number}", count_max=9, begin_ms=0, end_ms=FOREVER_MS)
        assert [body_of(record)[:3] for record in hits.buffers] == [b"%03d" % number]
    assert engine.append(put("A", 0)).queue_offset == 20


def remove(world: StoreWorld, *paths: str) -> None:
    for path in paths:
        world.folder.remove(f"/store/{path}")


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize(
    "paths",
    [
        ["consumequeue"],
        ["consumequeue/A"],
        ["consumequeue/B/0"],
        ["consumequeue/A/1/00000000000000000000"],
        ["consumequeue/A/1/00000000000000000200"],
        ["checkpoint"],
        ["config/consumeQueueEnds.json"],
        ["checkpoint", "config/consumeQueueEnds.json"],
        ["checkpoint", "config/consumeQueueEnds.json", "consumequeue", "index"],
        ["index"],
    ],
)
def test_missing_files_are_rebuilt(paths, stop):
    world, held = filled(stop=stop)
    remove(world, *paths)
    check(world, held)


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("damage", ["short", "garbage", "zeroes", "stale", "long"])
def test_a_queue_file_that_cannot_be_right_is_made_again(damage, stop):
    world, held = filled(stop=stop, ms=61_000 if not stop else 2000)
    file = world.folder.files["/store/consumequeue/A/0/00000000000000000200"]
    if damage == "short":
        file.truncate(90)
    elif damage == "garbage":
        file.write(40, bytes(range(160)))
    elif damage == "zeroes":
        file.write(20, bytes(180))
    elif damage == "stale":
        file.write(100, pack(">qiq", 5, 10, 0) * 5)
    else:
        file.size = 201
    check(world, held)


def test_units_that_point_nowhere_are_not_served():
    """A well-formed unit that points to no record: detected when it is read."""
    world, _ = filled(stop=True)
    world.folder.files["/store/consumequeue/A/0/00000000000000000000"].write(60, pack(">qiq", 2400, 300, 0))
    engine = world.start()
    bodies = [body_of(record)[:3] for record in drain(engine, "A", 0)]
    assert bodies == [b"%03d" % number for number in range(0, 60, 3) if number != 9]


@pytest.mark.parametrize("stop", [True, False])
def test_queue_files_of_another_size_are_made_again(stop):
    world, held = filled(stop=stop)
    world.config = store_config(consume_queue={"mapped_file_size_consume_queue": 400})
    world.begin()
    check(world, held)


INDEX_DAMAGE = ("header", "short", "other size", "one missing", "all")


@pytest.mark.parametrize(
    ("damage", "stop"),
    [*((damage, stop) for damage in INDEX_DAMAGE for stop in (True, False)), ("entry", False), ("slot", False)],
)
def test_a_damaged_index_is_made_again(damage, stop):
    """The whole index is rebuilt; upstream begins at its newest file (seen on a running 5.5.0).

    After a clean stop entries and slots are trusted. A damaged one then finds nothing, or a record
    with another key, which the query skips.
    """
    world, held = filled(stop=stop, ms=15_000)
    paths = sorted(path for path in world.folder.files if "/index/" in path)
    last = world.folder.files[paths[-1]]
    if damage == "header":
        last.write(36, pack(">i", 1 << 30))
    elif damage == "entry":
        last.write(40 + 50 * 4 + 3 * 20 + 16, pack(">i", 999))
    elif damage == "slot":
        for slot in range(50):
            last.write(40 + slot * 4, pack(">i", 39))
    elif damage == "short":
        last.truncate(500)
    elif damage == "other size":
        world.config = store_config(index={"max_hash_slot_num": 60, "max_index_num": 70})
        world.begin()
    elif damage == "one missing":
        world.folder.remove(paths[-1])
    else:
        for path in paths:
            world.folder.files[path].write(0, bytes(40))
    check(world, held)


def test_an_index_that_is_switched_off_is_left_alone():
    world, _ = filled(stop=True)
    before = {path: file.read(0, 5000) for path, file in world.folder.files.items() if "/index/" in path}
    world.config = store_config(index={"message_index_enable": False})
    world.begin()
    engine = world.start()
    engine.append(put("A", 0, properties=keys("id60")))
    world.run(2000, 50)
    assert not engine.query("A", "id0", count_max=1, begin_ms=0, end_ms=FOREVER_MS).buffers
    world.stop()
    assert {path: file.read(0, 5000) for path, file in world.folder.files.items() if "/index/" in path} == before
    world.config = store_config()
    world.begin()
    engine = world.start()
    world.run(2000, 50)
    for key in ("id0", "id60"):
        assert len(engine.query("A", key, count_max=9, begin_ms=0, end_ms=FOREVER_MS).buffers) == 1


def test_no_put_is_accepted_while_recovering():
    world, _ = filled(stop=False)
    world.engine.start()
    assert not world.engine.ready
    assert world.engine.append(put()).status is PutStatus.SERVICE_NOT_AVAILABLE
    seen = set()
    while not world.engine.ready:
        seen.add(world.engine.progress.partition(":")[0].partition(" of ")[0])
        world.turn()
    assert "commit log" in seen
    assert world.engine.progress == ""


def test_a_stop_while_recovering_changes_nothing():
    world, held = filled(stop=False)
    world.engine.start()
    world.turn()
    world.stop()
    assert "/store/abort" in world.folder.files
    world.begin()
    check(world, held)


def test_an_unsynced_stop_leaves_abort():
    """`abort` is removed only once everything is durable."""
    world = StoreWorld(ENGINES["mapped"])
    world.start()
    world.engine.append(put())
    world.settle()
    world.disk.fail("sync", "/store/commitlog")
    world.stop()
    assert "/store/abort" in world.folder.files
    assert world.engine.failed


def test_the_schedule_topics_units_hold_delivery_times():
    """Store time + delay of the level. A level above the last counts as the last.

    Source: `CommitLog.checkMessageAndReturnSize`.
    """
    world = StoreWorld(ENGINES["mapped"])
    engine = world.start()
    for level in (b"1", b"3", b"99", b"0", b"x"):
        engine.append(put("SCHEDULE_TOPIC_XXXX", 0, properties=b"DELAY\x01" + level + b"\x02TAGS\x01TagA\x02"))
    engine.append(put("T", 0, properties=b"DELAY\x013\x02TAGS\x01TagA\x02"))
    stored_ms = world.clock.wall_ms
    world.settle()
    world.kill()
    engine = world.start()
    codes = [engine.table.by_key["SCHEDULE_TOPIC_XXXX", 0].unit(offset)[2] for offset in range(5)]
    assert codes == [stored_ms + 1000, stored_ms + 10_000, stored_ms + 7_200_000, 2598919, 2598919]
    assert engine.table.by_key["T", 0].unit(0)[2] == 2598919


def test_a_cut_says_nothing_of_index_entries_that_are_not_synced():
    """The second file's header must not be written before the first file's.

    Otherwise a power loss could lose all keys of the first file.
    """
    world = StoreWorld(ENGINES["mapped"])
    engine = world.start()
    ends = []
    for number in range(30):
        ends.append(engine.append(put("A", 0, b"x", properties=keys(f"id{number}", "k"))).phy_offset)
        world.turn()
    world.until(lambda: len(engine.index.files.files) == 2 and engine.index.files.files[1].count > 10)
    first, second = (file.path for file in engine.index.files.files)
    assert not any(world.folder.files[first].read(0, 40)), "nothing was synced yet"
    ended = []
    engine.truncate(ends[-3], ended.append)
    while not ended:
        said = any(world.folder.files[second].read(0, 40))
        assert not said or any(world.folder.files[first].read(0, 40))
        world.turn()
    assert any(world.folder.files[second].read(0, 40))


def test_what_is_copied_to_where_the_log_was_cut_gets_its_own_queue_entries():
    """Regression: the record read last began at the cut. It was dispatched again, none after it."""
    masters = []
    for queue_id in (0, 1):  # the same first record, then different ones at the same offset
        master = StoreWorld(ENGINES["mapped"])
        engine = master.start()
        at = [engine.append(put("A", queue, b"x" * size)).phy_offset for queue, size in ((0, 9), (queue_id, 9 + queue_id))]
        master.settle()
        masters.append(bytes(engine.read_log(0, 10_000)))
    world = StoreWorld(ENGINES["mapped"])
    engine = world.start()
    for data in (masters[0][: at[1]], masters[0][at[1] :]):
        engine.append_log(engine.offset_max, data)
        world.settle()
    assert engine.queue_range("A", 0).offset_max == 2
    ended = []
    engine.truncate(at[1], ended.append)
    world.until(lambda: ended == [None])
    engine.append_log(at[1], masters[1][at[1] :])
    world.settle()
    assert [engine.queue_range("A", queue).offset_max for queue in (0, 1)] == [1, 1]


def log_of_three() -> tuple[bytes, list[int]]:
    """Return a log with three records, and where they end."""
    master = StoreWorld(ENGINES["mapped"])
    engine = master.start()
    ends = [engine.append(put("A", 0, b"x" * 100)).phy_offset_next for _ in range(3)]
    master.settle()
    return bytes(engine.read_log(0, 10_000)), ends


def test_a_cut_in_front_of_half_a_record_needs_no_dispatch_of_the_records_before():
    """Regression: a slave that copies in pieces could not cut its log, and never followed again.

    Its records were not confirmed, so they waited for dispatch, and no whole record began there.
    """
    log, ends = log_of_three()
    world = StoreWorld(ENGINES["mapped"])
    engine = world.start()
    engine.offset_confirmed = 0
    engine.append_log(0, log[: ends[1] + 20])
    world.settle()
    assert engine.queue_range("A", 0).offset_max == 0
    ended = []
    engine.truncate(ends[0] + 7, ended.append)
    world.until(lambda: ended)
    assert "no record starts at" in str(ended[0])
    engine.truncate(ends[1], ended.append)
    world.until(lambda: len(ended) == 2)
    assert ended[1] is None
    assert engine.offset_written == ends[1]


def test_a_sync_that_ends_inside_a_record_vouches_for_the_records_before_it():
    """Regression: a slave whose power was cut refused to start.

    The sync had covered half a record. The record was whole when the sync ended, so the checkpoint
    named the offset inside it, and the end of the log, which the cut took back, was before that.
    """
    log, ends = log_of_three()
    world = StoreWorld(ENGINES["mapped"])
    engine = world.start()
    engine.append_log(0, log[: ends[1] + 20])
    world.settle()
    world.disk.sync_us = (500_000, 500_000)
    synced = []
    engine.sync(engine.offset_written, synced.append)
    engine.append_log(ends[1] + 20, log[ends[1] + 20 :])
    world.until(lambda: synced)
    assert engine.queue_range("A", 0).offset_max == 3
    assert engine.checkpoint.confirm_phy_offset == ends[1]
