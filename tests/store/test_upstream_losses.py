"""Message losses that users of RocketMQ reported, by issue number: none may happen here."""

import pytest

from rmqkit.store import ENGINES
from rmqkit.testing.store_world import FOREVER_MS, StoreWorld, body_of, drain, keys, offset_of, put
from tests.store.crash.check import bytes_of, found_in

LOG = "/store/commitlog/00000000000000000000"
CONFIRMED_AT = 32


def world_with(count: int, *, size: int = 100) -> tuple[StoreWorld, list[int]]:
    """Put `count` messages into two queues, one per turn.

    Return the world, and where each record starts and the last one ends.
    """
    world = StoreWorld(ENGINES["mapped"])
    engine = world.start()
    starts = []
    for number in range(count):
        body = b"%03d" % number + bytes([98]) * size
        starts.append(engine.append(put("T", number % 2, body, properties=keys(f"id{number}", "k"))).phy_offset)
        world.turn()
    return world, [*starts, engine.offset_max]


def cut(world: StoreWorld, offset: int) -> None:
    ended: list[OSError | None] = []
    world.engine.truncate(offset, ended.append)
    world.until(lambda: ended)
    assert ended == [None]


def bodies(world: StoreWorld) -> list[bytes]:
    engine = world.engine
    return sorted(body_of(record) for queue in engine.queues() for record in drain(engine, queue.topic, queue.queue_id))


def end(world: StoreWorld, way: str) -> None:
    if way == "stop":
        world.stop()
        world.begin()
    else:
        getattr(world, way)()


def master_bytes(count: int) -> tuple[StoreWorld, bytes]:
    master, _ = world_with(count)
    return master, bytes_of(master.engine)


# --- #6665: a cut does not reset the confirmed offset, so more and more is cut


@pytest.mark.parametrize("way", ["stop", "kill", "crash"])
def test_6665_a_cut_takes_back_what_was_confirmed(way):
    world, starts = world_with(10)
    world.run(12_000, 100)
    checkpoint = world.folder.files["/store/checkpoint"]

    def confirmed() -> int:
        return int.from_bytes(checkpoint.read(CONFIRMED_AT, 8), "big")

    assert confirmed() == starts[10]
    world.engine.offset_confirmed = starts[10]
    cut(world, starts[6])
    assert confirmed() <= starts[6]
    assert world.engine.offset_confirmed == starts[6]
    for _ in range(3):
        end(world, way)
        engine = world.start()
        checkpoint = world.folder.files["/store/checkpoint"]
        assert engine.offset_max == starts[6], "nothing more is cut"
        assert confirmed() <= starts[6]
        assert len(bodies(world)) == 6
    engine.append(put("T", 0, b"other"))
    world.settle()
    world.kill()
    world.start()
    assert len(bodies(world)) == 7


def test_6665_what_comes_behind_a_cut_is_not_confirmed_by_the_past():
    world, starts = world_with(10)
    world.engine.offset_confirmed = starts[10]
    cut(world, starts[6])
    result = world.engine.append(put("T", 0, b"not yet confirmed"))
    world.settle()
    assert result.phy_offset == starts[6]
    assert len(bodies(world)) == 6
    world.engine.offset_confirmed = world.engine.offset_max
    world.turn()
    assert b"not yet confirmed" in bodies(world)


# --- #10666: a replica cuts its log in memory only, so the tail is valid again after a restart


@pytest.mark.parametrize("way", ["stop", "kill", "crash"])
def test_10666_what_was_cut_off_stays_away(way):
    master, log = master_bytes(10)
    starts = [row[1] for rows in found_in(master.engine).rows.values() for row in rows]
    at = sorted(starts)[6]
    world = StoreWorld(ENGINES["mapped"])
    world.start()
    world.engine.append_log(0, log)
    world.run(3000, 100)
    cut(world, at)
    assert not any(world.folder.files[LOG].read(at, 4096)), "the bytes are gone from the disk, not from memory alone"
    end(world, way)
    engine = world.start()
    assert engine.offset_max == at
    assert len(bodies(world)) == 6
    # The new master's next record has the size of the one cut off: the old tail would follow it.
    other = StoreWorld(ENGINES["mapped"])
    other.start().append_log(0, log[:at])
    other.turn()
    other.engine.append(put("T", 0, b"other".ljust(103), properties=keys("id6", "k")))
    other.settle()
    assert engine.append_log(at, bytes_of(other.engine)[at:])
    world.turn()
    end(world, "kill")
    engine = world.start()
    assert bytes_of(engine) == bytes_of(other.engine)
    assert found_in(engine).rows == found_in(other.engine).rows


# --- #7355, #7599, #467: a crash loses the tail of the consume queues, or a replica's message


@pytest.mark.parametrize("way", ["kill", "crash"])
def test_7355_the_tail_of_the_queues_is_made_again(way):
    """The log is durable, but the units of its last messages never left memory."""
    world, _ = world_with(30)
    told: list[bool] = []
    world.engine.sync(world.engine.offset_max, told.append)
    world.until(lambda: told)
    assert any(queue.tail for queue in world.engine.table)
    held = found_in(world.engine)
    end(world, way)
    world.start()
    assert found_in(world.engine) == held
    numbers = [offset_of(record) for record in drain(world.engine, "T", 0)]
    assert numbers == list(range(15))


@pytest.mark.parametrize("way", ["kill", "crash", "stop"])
@pytest.mark.parametrize("rest", [1, 7, 8, 40, 88, 150, 190])
def test_7599_a_replica_that_ends_within_a_record_loses_no_message(way, rest):
    """It may hold half a record when it dies. It continues at the end of its log and has each of
    the master's messages once."""
    master, log = master_bytes(8)
    at = sorted(row[1] for rows in found_in(master.engine).rows.values() for row in rows)[5]
    world = StoreWorld(ENGINES["mapped"])
    engine = world.start()
    assert engine.append_log(0, log[: at + rest])
    world.turn()
    told: list[bool] = []
    engine.sync(engine.offset_max, told.append)
    world.until(lambda: told)
    end(world, way)
    engine = world.start()
    assert at <= engine.offset_max <= at + rest
    assert bytes_of(engine) == log[: engine.offset_max]
    assert len(bodies(world)) == 5
    assert engine.append_log(engine.offset_max, log[engine.offset_max :])
    world.turn()
    assert bytes_of(engine) == log
    assert found_in(engine).rows == found_in(master.engine).rows


def test_467_units_that_reached_the_disk_without_their_records_are_not_believed():
    """The queue's page was written back, the log's was not. The next record reuses both offsets."""
    world, starts = world_with(10)
    world.engine.write_queues()
    world.disk.die()
    world.folder.kill()
    world.folder.files[LOG].write(starts[7], bytes(4096 - starts[7]))
    world.begin()
    engine = world.start()
    assert len(bodies(world)) == 7
    for number in (7, 8):
        result = engine.append(put("T", number % 2, b"new %d" % number))
        assert result.queue_offset == number // 2
    world.settle()
    world.kill()
    world.start()
    assert {b"new 7", b"new 8"} < set(bodies(world))
    assert len(bodies(world)) == 9


# --- seen on a running 5.5.0: a crash loses the index keys of older log files


@pytest.mark.parametrize("loss", ["the newest file", "all files", "nothing"])
def test_keys_of_all_files_are_found_after_a_crash(loss):
    world, _ = world_with(120, size=20)
    world.run(15_000, 100)
    paths = sorted(path for path in world.folder.files if "/index/" in path)
    assert len(paths) >= 4
    world.crash()
    for path in {"the newest file": paths[-1:], "all files": paths, "nothing": []}[loss]:
        world.folder.remove(path)
    engine = world.start()
    seen = set()
    while engine.index.progress:
        seen.add(engine.facts()["storeProgress"].partition(":")[0])
        world.turn(10)
    assert seen == {"index"}, "the broker tells how far it is"
    for number in range(120):
        hits = engine.query("T", f"id{number}", count_max=8, begin_ms=0, end_ms=FOREVER_MS)
        assert [body_of(record)[:3] for record in hits.buffers] == [b"%03d" % number]
    hits = engine.query("T", "k", count_max=200, begin_ms=0, end_ms=FOREVER_MS)
    assert len(hits.buffers) == world.config.index.max_msgs_num_batch
