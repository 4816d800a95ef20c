"""Removal of expired files: `DefaultMessageStore.CleanCommitLogService`, then queues and index."""

import pytest

from rmqkit.store import ENGINES
from rmqkit.store.contract import PutStatus
from rmqkit.store.retention import is_time
from rmqkit.testing.store_world import FOREVER_MS, START_MS, StoreWorld, drain, keys, offset_of, put, store_config

HOUR_MS = 3_600_000
MIB = 1 << 20


def world_of(files: int, **retention) -> StoreWorld:
    """Return a world with `files` log files, each with one big message of queue T-0.

    Its clock is two seconds before the first retention check.
    """
    world = StoreWorld(ENGINES["mapped"], store_config(retention={"delete_when": "", **retention}))
    engine = world.start()
    for number in range(files):
        engine.append(put("T", 0, bytes(3500), properties=keys(f"id{number}")))
        engine.append(put("U", number % 2, b"u"))
        world.turn(1000)
    world.run(59_000 - world.clock.mono_ms, 200)
    return world


def names(world: StoreWorld, folder: str = "commitlog") -> list[int]:
    before = f"/store/{folder}/"
    return sorted(int(path[len(before) :]) for path in world.folder.files if path.startswith(before))


def now_hour(world: StoreWorld) -> str:
    from datetime import datetime

    return str(datetime.fromtimestamp(world.clock.wall_ms / 1000).hour)


def every_hour() -> str:
    return ";".join(map(str, range(24)))


def test_expired_files_go_at_once_when_asked():
    """`executeDeleteFilesManually`: at any hour, but only expired files, and never the last one."""
    world = world_of(6, file_reserved_time_hours=2)
    world.engine.clean_log()
    world.run(3_000, 100)
    assert len(names(world)) == 6
    world.clock.wall_ms += 2 * HOUR_MS
    world.run(20_000, 100)
    assert len(names(world)) == 6, "an hour that is not deleteWhen's"
    world.engine.clean_log()
    world.run(3_000, 100)
    assert names(world) == [5 * 4096]
    before = world.engine.queue_range("T", 0)
    world.engine.clean_queues()
    world.run(1_000, 100)
    assert world.engine.queue_range("T", 0) == before


@pytest.mark.parametrize(("hours", "hour", "due"), [("04", 4, True), ("4;16", 16, True), ("04", 5, False), ("", 4, False)])
def test_the_hours(hours, hour, due):
    """`UtilAll.isItTimeToDo`."""
    assert is_time(hours, hour) is due


def test_files_go_when_their_time_is_over_and_the_hour_has_come():
    world = world_of(6, delete_when=every_hour(), file_reserved_time_hours=2)
    world.run(5_000, 100)
    assert len(names(world)) == 6
    # A file began each second; each was last written when the next began. The next check is in 7 s.
    world.clock.wall_ms = START_MS + 2 * HOUR_MS - 3_000
    world.run(10_000, 100)
    assert names(world)[0] == 3 * 4096
    world.clock.wall_ms += HOUR_MS
    world.run(20_000, 100)
    assert names(world) == [5 * 4096]  # never the last
    assert world.engine.offset_min == 5 * 4096


def test_other_hours_are_left_alone():
    world = world_of(4, file_reserved_time_hours=1)
    hour = int(now_hour(world))
    world.engine.configure(store_config(retention={"delete_when": f"{(hour + 5) % 24:02d}", "file_reserved_time_hours": 1}))
    world.clock.wall_ms += 2 * HOUR_MS
    world.run(70_000, 1000)
    assert len(names(world)) == 4


def test_a_check_removes_a_batch_one_file_at_a_time():
    world = world_of(
        9,
        delete_when=every_hour(),
        file_reserved_time_hours=0,
        delete_file_batch_max=3,
        clean_resource_interval_ms=10_000,
        delete_commit_log_files_interval_ms=100,
    )
    world.run(5_000, 100)
    assert len(names(world)) == 9 - 3
    world.run(10_000, 100)
    assert len(names(world)) == 9 - 6


def fill_disk(world: StoreWorld, percent: int) -> None:
    world.folder.capacity = world.folder.used * 100 // percent


@pytest.mark.parametrize(("percent", "gone", "refused"), [(70, False, False), (80, True, False), (95, True, True)])
def test_a_filling_disk_lets_expired_files_go_at_any_hour(percent, gone, refused):
    """75 % (diskMaxUsedSpaceRatio): expired files go at any hour; 90 %: puts are refused."""
    world = world_of(3, file_reserved_time_hours=0, clean_file_forcibly_enable=False)
    fill_disk(world, percent)
    world.run(3000, 10)
    assert bool(world.engine.failed) is refused
    if refused:
        assert "% full" in world.engine.failed
        assert world.engine.append(put()).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert (len(names(world)) < 3) is gone


def test_above_the_forced_level_files_go_before_their_time():
    world = world_of(6, file_reserved_time_hours=72)
    fill_disk(world, 87)
    world.run(12_000, 100)
    assert 1 <= len(names(world)) < 6


def test_forcing_can_be_switched_off():
    world = world_of(6, file_reserved_time_hours=72, clean_file_forcibly_enable=False)
    fill_disk(world, 87)
    world.run(60_000, 100)
    assert len(names(world)) == 6


def test_puts_are_taken_again_only_at_the_forced_level():
    """Set above 90 %, cleared at 85 % (`runningFlags.getAndMakeDiskOK`)."""
    world = world_of(3, file_reserved_time_hours=72, clean_file_forcibly_enable=False)
    engine = world.engine
    for percent, refused in [(89, False), (92, True), (88, True), (86, True), (84, False), (88, False)]:
        fill_disk(world, percent)
        world.run(10_000, 500)
        assert bool(engine.failed) is refused, percent
    assert engine.append(put()).status is PutStatus.PUT_OK


def test_queues_and_index_follow_the_log():
    world = world_of(40, delete_when=every_hour(), file_reserved_time_hours=0, delete_file_batch_max=25)
    engine = world.engine
    assert len(names(world, "consumequeue/T/0")) == 4
    world.run(9_000, 100)
    assert engine.offset_min == 25 * 4096
    assert names(world, "consumequeue/T/0") == [400, 600]
    assert engine.queue_range("T", 0).offset_min == 25
    assert [offset_of(record) for record in drain(engine, "T", 0)] == list(range(25, 40))
    assert not engine.query("T", "id3", count_max=1, begin_ms=0, end_ms=FOREVER_MS).buffers
    assert engine.query("T", "id30", count_max=1, begin_ms=0, end_ms=FOREVER_MS).buffers
    engine = world.restart()
    assert engine.queue_range("T", 0) == ("T", 0, 25, 40)


def test_a_queue_whose_records_are_all_gone_keeps_its_numbers():
    """`ConsumeQueue.correctMinOffset`: min = max."""
    world = StoreWorld(
        ENGINES["mapped"],
        store_config(retention={"delete_when": every_hour(), "file_reserved_time_hours": 0, "delete_file_batch_max": 99}),
    )
    engine = world.start()
    for _ in range(3):
        engine.append(put("old", 0))
    world.settle()
    for _ in range(5):
        engine.append(put("T", 0, bytes(3500)))
        world.turn(1000)
    world.run(70_000, 100)
    assert engine.queue_range("old", 0) == ("old", 0, 3, 3)
    read = engine.read("old", 0, 0, count_max=1, size_max=100)
    assert (read.status.name, read.offset_next) == ("OFFSET_TOO_SMALL", 3)
    engine = world.restart()
    assert engine.queue_range("old", 0) == ("old", 0, 3, 3)
    assert engine.append(put("old", 0)).queue_offset == 3


def test_nothing_goes_while_nothing_behind_it_is_durable():
    world = world_of(3, delete_when=every_hour(), file_reserved_time_hours=0)
    world.engine.flush.offset_synced = 100
    world.engine.flush.is_held = True
    world.run(60_000, 1000)
    assert len(names(world)) == 3


def test_the_memory_engine_drops_its_oldest_files():
    size_max = 64 * MIB
    config = store_config(commit_log={"mapped_file_size_commit_log": 1 << 30, "memory_engine_size_max": size_max})
    world = StoreWorld(ENGINES["memory"], config)
    engine = world.start()
    for number in range(300):
        assert engine.append(put("T", 0, bytes(MIB // 2), properties=keys(f"id{number}"))).status is PutStatus.PUT_OK
        world.turn(20)
    assert engine.disk.usage("").used <= size_max
    known = engine.queue_range("T", 0)
    assert 0 < known.offset_min < known.offset_max == 300
    assert [offset_of(record) for record in drain(engine, "T", 0)] == list(range(known.offset_min, 300))
    assert engine.query("T", "id299", count_max=1, begin_ms=0, end_ms=FOREVER_MS).buffers
