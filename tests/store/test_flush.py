"""When the log reaches the disk: intervals, group commit, the pool."""

import errno

import pytest

from rmqkit.config import BrokerRole
from rmqkit.store import ENGINES
from rmqkit.store.contract import PutStatus, StoreWriteError
from rmqkit.store.queues import flush as queue_flush
from rmqkit.testing.store_world import StoreWorld, drain, put, store_config

LOG = "/store/commitlog/00000000000000000000"
BIG = {"commit_log": {"mapped_file_size_commit_log": 1 << 20}}


def world_of(**flush) -> StoreWorld:
    world = StoreWorld(ENGINES["mapped"], store_config(flush=flush, **BIG))
    world.start()
    return world


class Syncs:
    """Counts the requested syncs by path."""

    def __init__(self, world: StoreWorld) -> None:
        self.paths: list[str] = []
        self._sync = world.disk.sync
        world.disk.sync = self  # type: ignore[assignment]

    def __call__(self, path, then) -> None:
        self.paths.append(path)
        self._sync(path, then)

    @property
    def of_log(self) -> int:
        return sum("commitlog" in path for path in self.paths)


def test_the_log_is_flushed_when_enough_pages_are_dirty():
    """`CommitLog.FlushRealTimeService`: at each interval if enough pages are dirty; everything at
    each thorough interval."""
    world = world_of(flush_commit_log_least_pages=4, flush_commit_log_thorough_interval_ms=10_000)
    engine = world.engine
    world.run(10_600)  # a thorough flush has just run
    engine.append(put(body=bytes(3 * 4096)))
    world.settle()
    world.run(3000)
    assert engine.offset_synced == 0
    engine.append(put(body=bytes(4096)))
    world.settle()
    world.run(600)
    assert engine.offset_synced == engine.offset_written
    engine.append(put(body=b"little"))
    world.settle()
    world.run(3000)
    assert engine.offset_synced < engine.offset_written
    world.run(7000)
    assert engine.offset_synced == engine.offset_written


def test_the_interval_is_live():
    world = world_of(flush_interval_commit_log_ms=500, flush_commit_log_least_pages=0)
    world.engine.configure(
        store_config(flush={"flush_interval_commit_log_ms": 50, "flush_commit_log_least_pages": 0}, **BIG)
    )
    world.run(600)
    world.engine.append(put())
    world.settle()
    world.run(80, 5)
    assert world.engine.offset_synced == world.engine.offset_written


def test_requests_during_a_sync_share_the_next_one():
    world = world_of()
    world.disk.sync_us = (50_000, 50_001)
    syncs = Syncs(world)
    told = []
    for number in range(30):
        result = world.engine.append(put(body=b"%d" % number))
        world.settle()
        world.engine.sync(result.phy_offset_next, lambda durable, number=number: told.append((number, durable)))
        world.turn()
    world.until(lambda: len(told) == 30)
    assert told == [(number, True) for number in range(30)]
    assert syncs.of_log == 2


def test_a_sync_over_two_files_syncs_both_in_order():
    world = StoreWorld(ENGINES["mapped"])
    world.start()
    syncs = Syncs(world)
    world.engine.append(put(body=bytes(3000)))
    world.engine.append(put(body=bytes(3000)))
    world.settle()
    told = []
    world.engine.sync(world.engine.offset_written, told.append)
    world.until(lambda: told)
    assert told == [True]
    paths = [path.rpartition("/")[2] for path in syncs.paths if "commitlog" in path]
    assert paths == ["00000000000000000000", "00000000000000004096"]


def test_queue_units_reach_their_files_by_interval_and_syncs_by_pages():
    world = StoreWorld(
        ENGINES["mapped"],
        store_config(
            consume_queue={"mapped_file_size_consume_queue": 60_000}, flush={"flush_interval_consume_queue_ms": 300}
        ),
    )
    world.start()
    syncs = Syncs(world)
    path = "/store/consumequeue/T/0/00000000000000000000"
    world.run(400)
    for _ in range(100):
        world.engine.append(put())
    world.settle()
    assert path not in world.folder.files
    world.run(400)
    assert world.folder.files[path].read(99 * 20, 20) != bytes(20)
    assert path not in syncs.paths
    for _ in range(400):
        world.engine.append(put())
    world.settle()
    world.run(400)
    assert path in syncs.paths  # two pages


def test_the_checkpoint_never_runs_ahead_of_the_queues():
    """`logicsPhysicalOffset` moves in a thorough round only, after every queue is synced."""
    world = StoreWorld(ENGINES["mapped"], store_config(flush={"flush_consume_queue_thorough_interval_ms": 5000}))
    engine = world.start()
    for number in range(20):
        engine.append(put("T", number % 4))
    world.settle()
    world.run(4000)
    assert engine.checkpoint.logics_phy_offset == 0
    assert engine.checkpoint.confirm_phy_offset == 0
    world.disk.sync_us = (300_000, 300_001)
    world.run(1100)
    assert engine.checkpoint.logics_phy_offset == 0
    world.run(5000)
    last = engine.table.by_key["T", 3].unit(4)[0]
    assert engine.checkpoint.logics_phy_offset == last
    assert engine.checkpoint.confirm_phy_offset == engine.offset_written


def test_a_log_that_grows_fast_is_vouched_for_before_the_interval_has_passed(monkeypatch):
    """A recovery reads the log from there on. Without growth the interval counts."""
    monkeypatch.setattr(queue_flush, "ROUND_SIZE", 1500)
    world = StoreWorld(ENGINES["mapped"], store_config(flush={"flush_consume_queue_thorough_interval_ms": 60_000}))
    engine = world.start()
    for _ in range(20):
        engine.append(put())
    world.settle()
    grown = engine.offset_written
    assert 1500 <= grown < 3000
    world.run(4500)
    assert engine.checkpoint.logics_phy_offset == 0
    world.run(2000)
    vouched = engine.checkpoint.logics_phy_offset
    assert engine.table.by_key["T", 0].unit(19)[0] == vouched
    engine.append(put())
    world.settle()
    world.run(20_000)
    assert engine.checkpoint.logics_phy_offset == vouched


# --- the transient store pool


def pool_world(**flush) -> StoreWorld:
    return world_of(transient_store_pool_enable=True, **flush)


def test_with_the_pool_puts_are_answered_before_they_can_be_read():
    world = pool_world(commit_interval_commit_log_ms=200, commit_commit_log_thorough_interval_ms=200)
    engine = world.engine
    result = engine.append(put(body=b"x"))
    assert not world.settle()
    assert engine.offset_written == result.phy_offset_next
    assert engine.queue_range("T", 0).offset_max == 0
    assert len(engine.read_log(0, 100)) == 0
    assert LOG not in world.folder.files
    world.run(400)
    assert [arrival.queue_offset for arrival in world.arrivals] == [0]
    assert len(drain(engine, "T", 0)) == 1
    assert len(engine.read_log(0, 1000)) == engine.offset_written


def test_the_pool_waits_for_enough_pages():
    world = pool_world(commit_commit_log_least_pages=4, commit_commit_log_thorough_interval_ms=5000)
    world.run(4900)
    engine = world.engine
    world.run(300)
    engine.append(put(body=bytes(2 * 4096)))
    world.run(1000)
    assert engine.log.offset_written == 0
    engine.append(put(body=bytes(3 * 4096)))
    world.run(300)
    assert engine.log.offset_written == engine.offset_max


def test_the_pool_is_lost_by_a_kill_and_kept_by_a_stop():
    for kept in (True, False):
        world = pool_world()
        world.engine.append(put())
        world.settle()
        if kept:
            engine = world.restart()
        else:
            world.kill()
            engine = world.start()
        assert len(drain(engine, "T", 0)) == int(kept)


def test_a_sync_commits_the_pool_first():
    world = pool_world()
    result = world.engine.append(put())
    world.settle()
    told = []
    world.engine.sync(result.phy_offset_next, told.append)
    world.until(lambda: told)
    assert told == [True]
    assert world.engine.offset_synced == result.phy_offset_next
    world.crash()
    assert len(drain(world.start(), "T", 0)) == 1


def test_a_pool_that_cannot_be_written_refuses_puts_until_it_can():
    world = pool_world()
    engine = world.engine
    engine.append(put(body=b"kept"))
    world.settle()
    world.disk.fail("write", "/store/commitlog", code=errno.ENOSPC, times=2)
    world.run(250)
    assert "No space left" in engine.failed
    assert engine.append(put()).status is PutStatus.SERVICE_NOT_AVAILABLE
    world.run(1000)
    assert engine.failed == ""
    assert len(drain(engine, "T", 0)) == 1
    assert engine.append(put()).queue_offset == 1


def test_the_pool_is_ignored_on_a_slave():
    """`DefaultMessageStore.isTransientStorePoolEnable`."""
    world = StoreWorld(
        ENGINES["mapped"],
        store_config(flush={"transient_store_pool_enable": True}, identity={"broker_role": BrokerRole.SLAVE}),
    )
    world.start()
    other = world_of()
    other.engine.append(put())
    other.settle()
    assert world.engine.append_log(0, bytes(other.engine.read_log(0, 1000)))
    world.settle()
    assert len(drain(world.engine, "T", 0)) == 1


# --- full and broken disks


def test_a_full_disk_refuses_the_turn_and_recovers():
    world = world_of()
    engine = world.engine
    engine.append(put(body=bytes(1000)))
    world.settle()
    world.folder.capacity = world.folder.used + 4096
    for _ in range(2):
        engine.append(put(body=bytes(1000)))
        world.settle()
    for _ in range(5):
        engine.append(put(body=bytes(2000)))
    with pytest.raises(StoreWriteError, match="No space left"):
        world.settle()
    stored = engine.queue_range("T", 0).offset_max
    world.folder.capacity = 1 << 30
    assert engine.append(put(body=b"again")).queue_offset == stored
    world.settle()
    assert len(drain(engine, "T", 0)) == stored + 1
    world.kill()
    assert len(drain(world.start(), "T", 0)) == stored + 1


def test_queues_that_cannot_be_written_stay_readable_and_are_written_later():
    world = world_of()
    engine = world.engine
    for _ in range(50):
        engine.append(put())
    world.settle()
    world.disk.fail("write", "/store/consumequeue", times=3)
    world.disk.fail("create", "/store/consumequeue", times=3)
    world.run(2500)
    assert len(drain(engine, "T", 0)) == 50
    world.run(8000)
    assert "/store/consumequeue/T/0/00000000000000000000" in world.folder.files
    assert engine.append(put()).status is PutStatus.PUT_OK


def test_a_queue_sync_that_failed_is_the_end_as_well():
    world = StoreWorld(ENGINES["mapped"], store_config(flush={"flush_consume_queue_thorough_interval_ms": 2000}))
    engine = world.start()
    engine.append(put())
    world.settle()
    world.disk.fail("sync", "/store/consumequeue")
    world.run(5000)
    assert "consumequeue" in engine.failed
    assert engine.append(put()).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert engine.checkpoint.logics_phy_offset == 0
