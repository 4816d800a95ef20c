"""Recovery of a log whose end is torn, damaged or followed by garbage keeps only whole records."""

import copy
from random import Random

import pytest

from rmqkit.errors import RmqkitError
from rmqkit.store import ENGINES
from rmqkit.store.contract import PutStatus
from rmqkit.testing.store_world import StoreWorld, body_of, drain, offset_of, phy_offset_of, put, store_config

LOG = "/store/commitlog/00000000000000000000"
BODIES = [f"message {number} ".encode() * 3 for number in range(9)]


def killed_world(**sections) -> tuple[StoreWorld, list[int]]:
    """Return a store killed after nine messages in two queues; the records' starts, and the end."""
    world = StoreWorld(ENGINES["mapped"], store_config(**sections))
    engine = world.start()
    starts = []
    for number, body in enumerate(BODIES):
        starts.append(engine.append(put("T", number % 2, body, properties=b"KEYS\x01k\x02")).phy_offset)
        world.turn()
    starts.append(engine.offset_max)
    world.kill()
    return world, starts


def again(world: StoreWorld) -> StoreWorld:
    """Return another world with a copy of the files."""
    other = StoreWorld(ENGINES["mapped"], world.config)
    other.folder = copy.deepcopy(world.folder)
    other.begin()
    return other


def all_bodies(world: StoreWorld) -> list[bytes]:
    records = [record for known in world.engine.queues() for record in drain(world.engine, known.topic, known.queue_id)]
    return [body_of(record) for record in sorted(records, key=phy_offset_of)]


def check_goes_on(world: StoreWorld, bodies: list[bytes]) -> None:
    """Check that the store has these bodies, takes more, and has all of it after another kill."""
    engine = world.engine
    assert all_bodies(world) == bodies
    for queue_id in (0, 1):
        records = drain(engine, "T", queue_id)
        assert [offset_of(record) for record in records] == list(range(len(records)))
    assert engine.append(put("T", 0, b"more")).status is PutStatus.PUT_OK
    world.settle()
    world.kill()
    world.start()
    assert all_bodies(world) == [*bodies, b"more"]


def test_every_cut_through_the_last_three_records():
    """The rest of the file is zeroes, like a page that was never written to the platter."""
    world, starts = killed_world()
    for cut in range(starts[-4], starts[-1]):
        torn = again(world)
        torn.folder.files[LOG].write(cut, bytes(starts[-1] - cut))
        engine = torn.start()
        whole = sum(start <= cut for start in starts) - 1
        # If the last byte is zero anyway, nothing is missing.
        if cut + 1 in starts and engine.offset_max == cut + 1:
            whole += 1
        assert engine.offset_max == starts[whole], cut
        check_goes_on(torn, BODIES[:whole])


def test_every_cut_with_garbage_behind_it():
    """Anywhere but in the topic and the properties: upstream's record has no checksum for them."""
    world, starts = killed_world()
    random = Random(5)
    heads_and_bodies = [at for number in (-3, -2) for at in range(starts[number], starts[number + 1] - 11, 2)]
    for cut in [*heads_and_bodies, starts[-1], starts[-1] + 30]:
        torn = again(world)
        torn.folder.files[LOG].write(cut, random.randbytes(4096 - cut))
        engine = torn.start()
        whole = sum(start <= cut for start in starts) - 1
        assert engine.offset_max == starts[whole], cut
        assert not any(torn.folder.files[LOG].read(starts[whole], 4096))
        check_goes_on(torn, BODIES[:whole])


@pytest.mark.parametrize("record", [-2, -3, -4])
def test_a_flipped_bit_never_makes_a_wrong_body_or_loses_what_is_before(record):
    """Flip one bit of every byte of a record.

    Only the body has a checksum. A flip elsewhere may go unnoticed, but must not change a body.
    """
    world, starts = killed_world()
    first, end = starts[record], starts[record + 1]
    for at in range(first, end):
        damaged = again(world)
        file = damaged.folder.files[LOG]
        file.write(at, bytes([file.read(at, 1)[0] ^ 1 << at % 8]))
        damaged.start()
        bodies = all_bodies(damaged)
        assert set(bodies) <= set(BODIES)
        before = BODIES[: len(starts) + record]
        assert [body for body in bodies if body in before] == before, at - first
        body_at = first + 88
        if body_at <= at < body_at + len(BODIES[record]):
            assert bodies == before, "a record with a damaged body ends the log"


def test_bytes_of_an_older_life_are_never_taken_for_records():
    """Upstream leaves them behind a cut (#10666). New records of equal size would run into them."""
    world = StoreWorld(ENGINES["mapped"])
    engine = world.start()
    starts = []
    for number in range(8):
        starts.append(engine.append(put("T", 0, b"old %d" % number)).phy_offset)
        world.turn()
    world.kill()
    file = world.folder.files[LOG]
    file.write(starts[3] + 88, b"X")  # the fourth body is damaged, four whole records follow it
    engine = world.start()
    assert engine.offset_max == starts[3]
    engine.append(put("T", 0, b"new 3"))
    world.settle()
    world.kill()
    world.start()
    assert all_bodies(world) == [b"old 0", b"old 1", b"old 2", b"new 3"]


def test_a_refused_put_is_not_found_by_a_recovery():
    """The write was done, but the disk reported an error."""
    world = StoreWorld(ENGINES["mapped"])
    engine = world.start()
    engine.append(put("T", 0, b"kept"))
    world.settle()
    written = world.folder.files[LOG].read(0, 4096)
    result = engine.append(put("T", 0, b"refused"))
    world.disk.fail("write", times=2)  # the put, and the first try to clean up
    with pytest.raises(Exception, match="could not be written"):
        engine.settle()
    other = StoreWorld(ENGINES["mapped"])
    other.start()
    other.append = other.engine.append
    other.engine.append(put("T", 0, b"kept"))
    other.engine.append(put("T", 0, b"refused"))
    other.settle()
    world.folder.files[LOG].write(0, other.folder.files[LOG].read(0, 4096))
    assert engine.append(put("T", 0, b"next")).phy_offset == result.phy_offset
    world.settle()
    end = engine.offset_max
    assert world.folder.files[LOG].read(0, result.phy_offset) == written[: result.phy_offset]
    assert not any(world.folder.files[LOG].read(end, 4096))
    world.kill()
    world.start()
    assert all_bodies(world) == [b"kept", b"next"]


# --- files


def rolled_world(*, stop: bool) -> StoreWorld:
    """Return a store of five files, all synced, part of them covered by the checkpoint."""
    world = StoreWorld(ENGINES["mapped"])
    engine = world.start()
    for number in range(40):
        engine.append(put("T", 0, b"%04d" % number * 100))
        world.turn(100)
    world.run(15_000)
    if stop:
        world.stop()
        world.begin()
    else:
        world.kill()
    return world


def rename(world: StoreWorld, old: str, new: str) -> None:
    world.folder.files[f"/store/commitlog/{new}"] = world.folder.files.pop(f"/store/commitlog/{old}")
    entries = world.folder.entries["/store/commitlog"]
    entries[new] = entries.pop(old)


WAYS = ("hole", "short", "long", "stranger", "odd", "last gone", "all gone")


@pytest.mark.parametrize(("what", "stop"), [*((what, stop) for what in WAYS for stop in (True, False)), ("record", False)])
def test_a_damaged_log_is_refused_in_one_line_and_left_alone(what, stop):
    world = rolled_world(stop=stop)
    folder = world.folder
    path = "/store/commitlog/00000000000000008192"
    if what == "hole":
        folder.remove(path)
    elif what == "short":
        folder.files[path].truncate(4000)
    elif what == "long":
        folder.files[path].size = 5000
    elif what == "stranger":
        rename(world, "00000000000000008192", "0000000000000008192x")
    elif what == "odd":
        rename(world, "00000000000000008192", "00000000000000008193")
    elif what == "record":
        folder.files[path].write(0, b"gone")
    elif what == "last gone":
        folder.remove("/store/commitlog/00000000000000016384")
    else:
        folder.remove("/store/commitlog")
    before = {name: (file.size, file.read(0, 1 << 20)) for name, file in folder.files.items() if "commitlog" in name}
    with pytest.raises(RmqkitError, match="commit log is damaged") as raised:
        world.start()
    assert "\n" not in str(raised.value)
    assert "/store/commitlog" in str(raised.value)
    after = {name: (file.size, file.read(0, 1 << 20)) for name, file in folder.files.items() if "commitlog" in name}
    assert after == before


def test_an_empty_last_file_is_removed():
    world = rolled_world(stop=True)
    world.folder.make_file("/store/commitlog/00000000000000020480")
    engine = world.start()
    assert len(drain(engine, "T", 0)) == 40
    assert engine.append(put("T", 0, bytes(3000))).status is PutStatus.PUT_OK


def test_a_file_of_zeroes_behind_the_log_is_no_damage():
    """Apache's broker allocates files ahead."""
    world = rolled_world(stop=False)
    world.folder.make_file("/store/commitlog/00000000000000020480").size = 4096
    engine = world.start()
    assert len(drain(engine, "T", 0)) == 40
    for _ in range(10):
        engine.append(put("T", 0, bytes(1000)))
    world.settle()
    assert len(drain(engine, "T", 0)) == 50


def test_a_store_in_use_is_refused():
    world = StoreWorld(ENGINES["mapped"])
    world.start()
    other = StoreWorld(ENGINES["mapped"])
    other.folder = world.folder
    other.begin()
    with pytest.raises(RmqkitError, match="in use by another process"):
        other.start()


def test_several_log_folders_are_refused():
    config = store_config(paths={"store_path_commit_log": "/a/commitlog,/b/commitlog"})
    with pytest.raises(RmqkitError, match="several folders"):
        StoreWorld(ENGINES["mapped"], config).start()


def test_a_damaged_record_is_not_served():
    world = rolled_world(stop=True)
    engine = world.start()
    unit = engine.table.by_key["T", 0].unit(5)
    path = f"/store/commitlog/{unit[0] - unit[0] % 4096:020d}"
    world.folder.files[path].write(unit[0] % 4096 + 4, b"\0\0\0\0")
    assert engine.record(unit[0]) is None
    read = engine.read("T", 0, 0, count_max=32, size_max=1 << 20)
    records = drain(engine, "T", 0)
    assert [offset_of(record) for record in records] == [*range(5), *range(6, 40)]
    assert read.status.name == "FOUND"
    assert engine.read("T", 0, 5, count_max=1, size_max=100).offset_next == 7


@pytest.mark.parametrize("stop", [True, False])
def test_damage_in_front_of_the_last_known_record_is_refused(stop):
    """Recovery does not rebuild the queue units of these records.

    Unless it checked the records, it would serve the damaged bytes.
    """
    world = rolled_world(stop=stop)
    file = world.folder.files["/store/commitlog/00000000000000012288"]
    at = 300
    file.write(at, bytes([file.read(at, 1)[0] ^ 4]))
    with pytest.raises(
        RmqkitError, match="commit log is damaged: /store/commitlog/00000000000000012288 holds no valid record"
    ):
        world.start()


def test_a_truncation_is_logged_before_it_is_made():
    """The warning is logged first, so a process killed while it clears the bytes has logged it."""
    world, starts = killed_world()
    world.folder.files[LOG].write(starts[3] + 88, b"X")
    engine = world.engine
    engine.start()
    while any(world.folder.files[LOG].read(starts[3], 8)):
        assert not engine.ready
        world.turn()
    assert ("warning", "commit-log-cut", {"offset": starts[3], "files_behind": False}) in world.notes.lines
