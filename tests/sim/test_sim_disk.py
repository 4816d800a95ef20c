"""What the simulated disk adds to the port: power loss, planned faults, slow syncs, capacity."""

import errno
import random
from collections.abc import Callable
from typing import Any

import pytest

from rmqkit.runtime.ports import Clock
from rmqkit.sim.disk import SimDisk
from rmqkit.sim.folder import PAGE_SIZE, SECTOR_SIZE, SimFile, SimFolder
from rmqkit.sim.world import World


class Lab:
    def __init__(self, seed: Any = 1) -> None:
        self.world = World(seed)
        self.folder = SimFolder("/sim/n")
        self.disk = self.open()

    def open(self) -> SimDisk:
        world = self.world
        return SimDisk(
            self.folder,
            clock=Clock(1, 1000),
            random=random.Random(str(world.seed)),
            after_us=lambda delay_us, function: world.at_us(world.now_us + delay_us, function),
        )

    def later(self, method: str, *args: Any) -> OSError | None:
        ended: list[OSError | None] = []
        getattr(self.disk, method)(*args, ended.append)
        self.wait()
        return ended[0]

    def wait(self) -> None:
        assert self.world.run_until(lambda: self.disk.completed, 100_000)
        self.take()

    def take(self) -> None:
        for completion, error in self.disk.take_completed():
            completion(error)

    def crash(self, dice: random.Random) -> None:
        self.disk.die(dice)
        self.folder.crash(dice)
        self.disk = self.open()


@pytest.mark.parametrize("seed", range(30))
def test_synced_bytes_survive_a_power_loss(seed: int):
    lab, dice = Lab(seed), random.Random(seed)
    lab.disk.create("log", 1 << 20)
    synced = b""
    for _ in range(dice.randrange(1, 8)):
        data = dice.randbytes(dice.randrange(1, 9000))
        lab.disk.write("log", len(synced), [data])
        assert lab.later("sync", "log") is None
        synced += data
    lab.disk.write("log", len(synced), [b"\xff" * dice.randrange(1, 20_000)])
    if dice.random() < 0.5:
        lab.disk.sync("log", lambda error: None)
    lab.crash(dice)
    assert lab.disk.size("log") == 1 << 20
    assert lab.disk.read("log", 0, len(synced)) == synced


def test_unsynced_pages_are_kept_lost_or_torn():
    kept = lost = torn = 0
    for seed in range(60):
        lab, dice = Lab(seed), random.Random(seed)
        lab.disk.write("f", 0, [b"a" * PAGE_SIZE])
        lab.later("sync", "f")
        lab.disk.write("f", 0, [b"b" * PAGE_SIZE])
        lab.crash(dice)
        now = lab.disk.read("f", 0, PAGE_SIZE)
        cut = now.find(b"a")
        kept += cut == -1
        lost += cut == 0
        torn += cut > 0
        if cut > 0:
            assert cut % SECTOR_SIZE == 0
            assert now == b"b" * cut + b"a" * (PAGE_SIZE - cut)
    assert min(kept, lost, torn) > 3
    assert kept + lost + torn == 60


def test_a_file_that_was_never_synced_may_be_gone():
    sizes: dict[int | None, int] = {}
    for seed in range(60):
        lab = Lab(seed)
        lab.disk.write("f", 0, [b"x" * 3 * PAGE_SIZE])
        lab.crash(random.Random(seed))
        size = lab.disk.size("f")
        sizes[size] = sizes.get(size, 0) + 1
    assert sizes[None] > 5
    assert sizes[3 * PAGE_SIZE] > 5


def test_what_survived_one_crash_survives_the_next():
    for seed in range(30):
        lab, dice = Lab(seed), random.Random(seed)
        lab.disk.write("f", 0, [b"x" * 5 * PAGE_SIZE])
        lab.crash(dice)
        size = lab.disk.size("f")
        content = None if size is None else lab.disk.read("f", 0, size)
        lab.crash(dice)
        assert lab.disk.size("f") == size
        assert content is None or lab.disk.read("f", 0, len(content)) == content


def test_a_process_kill_loses_nothing_and_makes_nothing_durable():
    lost = 0
    for seed in range(40):
        lab, dice = Lab(seed), random.Random(seed)
        lab.disk.write("f", 0, [b"old"])
        lab.later("sync", "f")
        lab.disk.write("f", 0, [b"new"])
        lab.disk.sync("f", lambda error: None)
        lab.disk.die()
        lab.folder.kill()
        lab.disk = lab.open()
        assert lab.disk.read("f", 0, 3) == b"new"
        lab.crash(dice)
        lost += lab.disk.read("f", 0, 3) == b"old"
    assert lost > 5


def test_a_sync_covers_what_was_written_before_it_began_and_no_more():
    lost = 0
    for seed in range(40):
        lab, dice = Lab(seed), random.Random(seed)
        lab.disk.write("f", 0, [b"first "])
        ended: list[OSError | None] = []
        lab.disk.sync("f", ended.append)
        lab.disk.write("f", 6, [b"second"])
        lab.wait()
        assert ended == [None]
        lab.crash(dice)
        assert lab.disk.read("f", 0, 6) == b"first "
        lost += lab.disk.read("f", 6, 6) != b"second"
    assert lost > 5


def test_pages_of_a_failed_sync_stay_in_danger():
    """The kernel marks them clean, so a later sync cannot write them. The port keeps failing."""
    lost = 0
    for seed in range(40):
        lab, dice = Lab(seed), random.Random(seed)
        lab.disk.write("f", 0, [b"old"])
        lab.later("sync", "f")
        lab.disk.write("f", 0, [b"new"])
        lab.disk.fail("sync", "f")
        assert lab.later("sync", "f").errno == errno.EIO
        assert lab.later("sync", "f").errno == errno.EIO
        lab.crash(dice)
        lost += lab.disk.read("f", 0, 3) == b"old"
    assert lost > 5


@pytest.mark.parametrize("seed", range(20))
def test_a_kept_file_is_whole_after_any_crash(seed: int):
    lab, dice = Lab(seed), random.Random(seed)
    for number in range(1, 4):
        lab.later("replace", "kept", b"%d" % number * 5000)
    lab.disk.replace("kept", b"4" * 5000, lambda error: None)
    lab.world.run_for(dice.randrange(2))
    lab.crash(dice)
    content = lab.disk.read("kept", 0, 10_000)
    assert content in (b"3" * 5000, b"4" * 5000)
    assert lab.disk.read("kept.bak", 0, 10_000) == (b"2" if content[:1] == b"3" else b"3") * 5000


CALLS: dict[str, Callable[[Lab], Any]] = {
    "write": lambda lab: lab.disk.write("log/1", 0, [b"x"]),
    "create": lambda lab: lab.disk.create("log/1", 10),
    "read": lambda lab: lab.disk.read("log/0", 0, 1),
    "view": lambda lab: lab.disk.view("log/0", 0, 1),
}


@pytest.mark.parametrize("method", CALLS)
def test_planned_faults_of_synchronous_calls(method: str):
    lab = Lab()
    lab.disk.write("log/0", 0, [b"x"])
    lab.disk.fail(method, "log/", code=errno.EIO, times=2)
    lab.disk.write("elsewhere", 0, [b"x"])
    for _ in range(2):
        with pytest.raises(OSError) as caught:
            CALLS[method](lab)
        assert caught.value.errno == errno.EIO
    CALLS[method](lab)


@pytest.mark.parametrize("method", ["sync", "replace", "remove", "truncate"])
def test_planned_faults_of_later_calls(method: str):
    lab = Lab()
    lab.disk.write("f", 0, [b"x"])
    lab.disk.fail(method, "f", code=errno.EIO)
    args = {"replace": (b"new",), "truncate": (0,)}.get(method, ())
    assert lab.later(method, "f", *args).errno == errno.EIO
    assert lab.disk.read("f", 0, 10) == b"x"


def test_a_full_disk_takes_what_fits_and_has_room_after_a_removal():
    lab = Lab()
    lab.folder.capacity = 10 * PAGE_SIZE
    lab.disk.write("a", 0, [b"x" * 6 * PAGE_SIZE])
    with pytest.raises(OSError) as caught:
        lab.disk.write("b", 0, [b"y" * 6 * PAGE_SIZE])
    assert caught.value.errno == errno.ENOSPC
    assert lab.disk.usage("a").free == 0
    lab.disk.write("a", 0, [b"z" * PAGE_SIZE])
    assert lab.later("remove", "a") is None
    assert lab.disk.usage("a") == (10 * PAGE_SIZE, 4 * PAGE_SIZE, 6 * PAGE_SIZE)
    lab.disk.write("b", 0, [b"y" * 6 * PAGE_SIZE])


def test_a_slow_disk_completes_late():
    lab = Lab()
    lab.disk.sync_us = (5_000_000, 5_000_001)
    lab.disk.write("f", 0, [b"x"])
    lab.disk.sync("f", lambda error: None)
    lab.world.run_for(4_999)
    assert not lab.disk.completed
    lab.world.run_for(2)
    assert lab.disk.completed


def test_syncs_asked_for_while_one_runs_become_one():
    lab = Lab()
    lab.disk.sync_us = (1000, 1001)
    ended: list[int] = []
    for number in range(50):
        lab.disk.write("f", number, [b"x"])
        lab.disk.sync("f", lambda error, number=number: ended.append(number))
    lab.world.run_for(3)
    lab.take()
    assert ended == list(range(50))


def test_the_disk_of_a_dead_process_is_no_longer_used():
    lab = Lab()
    lab.disk.die()
    with pytest.raises(AssertionError, match="process that has ended"):
        lab.disk.write("f", 0, [b"x"])


def test_sparse_files_take_only_their_pages():
    lab = Lab()
    lab.disk.create("f", 1 << 30)
    lab.disk.write("f", 1 << 29, [b"x"])
    assert lab.disk.usage("").used == PAGE_SIZE
    assert lab.disk.read("f", (1 << 29) - 2, 4) == b"\0\0x\0"


def test_cutting_a_page_clears_its_rest():
    file = SimFile()
    file.write(0, b"x" * 6000)
    file.truncate(5000)
    file.truncate(6000)
    assert file.read(0, 9999) == b"x" * 5000 + b"\0" * 1000


def test_a_write_that_fails_leaves_nothing_all_or_a_part():
    left = set()
    for seed in range(40):
        lab = Lab(seed)
        lab.disk.create("f", 10)
        lab.disk.fail("write", "f")
        with pytest.raises(OSError):
            lab.disk.write("f", 0, [b"0123456789"])
        kept = lab.disk.read("f", 0, 10).rstrip(b"\0")
        assert b"0123456789".startswith(kept)
        left.add(len(kept))
    assert {0, 10} < left


def test_a_flipped_bit_is_one_bit_of_what_was_written():
    lab = Lab()
    lab.disk.write("log/a", 0, [b"a" * 5000])
    lab.disk.write("other", 0, [b"b" * 5000])
    lab.later("sync", "log/a")
    path, position = lab.folder.flip(random.Random(3), lab.folder.full("log"))
    assert path == lab.folder.full("log/a")
    found = lab.disk.read("log/a", 0, 5000)
    assert [at for at in range(5000) if found[at] != ord("a")] == [position]
    assert (found[position] ^ ord("a")).bit_count() == 1
    assert lab.disk.read("other", 0, 5000) == b"b" * 5000
    lab.crash(random.Random(1))
    assert lab.disk.read("log/a", 0, 5000) == found, "the platter has it so"
    with pytest.raises(ValueError, match="nothing was written"):
        lab.folder.flip(random.Random(3), lab.folder.full("nowhere"))
