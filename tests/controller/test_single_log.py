"""The log for one controller: the contract, and what its files do when they are torn or damaged."""

import errno
from collections.abc import Callable

import pytest

from rmqkit.controller.contract import ControllerLogFault, LogOutcome
from rmqkit.controller.single_log import make_single
from rmqkit.sim.folder import SimFile
from rmqkit.testing import ControllerLogContract
from rmqkit.testing.controller_logs import SNAPSHOT_ENTRIES, LogTable, LogWorld


class TestSingle(ControllerLogContract):
    make = make_single


def filled(entries: int) -> LogWorld:
    """Return a controller that was killed after it has committed some entries."""
    world = LogWorld(make_single, 1)
    for number in range(entries):
        world.commit(b"entry %d" % number)
    for _ in range(50):
        world.turn()
    world.nodes[0].kill()
    return world


def log_path(world: LogWorld) -> str:
    names = [each.name for each in world.nodes[0].disk.list("log") if each.name.startswith("log-")]
    assert len(names) == 1
    return f"log/{names[0]}"


def file_of(world: LogWorld, path: str) -> SimFile:
    folder = world.nodes[0].folder
    return folder.find(folder.full(path))


def change(world: LogWorld, path: str, change_bytes: Callable[[bytearray], None]) -> None:
    """Change the bytes of a file, as a torn write or a damaged disk leaves them."""
    file = file_of(world, path)
    data = bytearray(file.read(0, file.size))
    change_bytes(data)
    file.truncate(0)
    file.write(0, bytes(data))


def cut_to(size: int) -> Callable[[bytearray], None]:
    return lambda data: data.__delitem__(slice(size, None))


def test_a_torn_end_is_cut_off_at_every_byte():
    """Whatever is left of the last frame: its entry was never committed, those before it were."""
    world = filled(3)
    node, path = world.nodes[0], log_path(world)
    whole = file_of(world, path).read(0, file_of(world, path).size)
    for size in range(whole.rindex(b"RKL1"), len(whole)):
        change(world, path, lambda data: data.__setitem__(slice(None), whole))
        change(world, path, cut_to(size))
        node.start()
        assert world.lead().table.entries == [b"entry 0", b"entry 1"]
        world.commit(b"after")
        node.kill()
        node.start()
        assert world.lead().table.entries == [b"entry 0", b"entry 1", b"after"]
        node.kill()


def test_zeroes_behind_the_end_are_cut_off():
    """A file's size may survive a power cut without its pages."""
    world = filled(2)
    change(world, log_path(world), lambda data: data.extend(bytes(5000)))
    world.nodes[0].start()
    assert world.lead().table.entries == [b"entry 0", b"entry 1"]
    assert "controller-log-cut" in world.nodes[0].notes.events


def test_damage_in_the_middle_is_refused():
    world = filled(3)
    path = log_path(world)

    def flip(data: bytearray) -> None:
        data[data.index(b"entry 1")] ^= 1

    change(world, path, flip)
    with pytest.raises(ControllerLogFault, match=f"{path} is damaged at byte .*committed entries follow"):
        world.nodes[0].start()


def test_a_damaged_snapshot_is_refused():
    world = filled(SNAPSHOT_ENTRIES + 1)
    change(world, "log/snapshot", lambda data: data.__setitem__(20, data[20] ^ 1))
    with pytest.raises(ControllerLogFault, match="log/snapshot is damaged"):
        world.nodes[0].start()


def test_a_full_disk_fails_the_entries_of_its_turn_only():
    world = LogWorld(make_single, 1)
    node = world.lead()
    outcomes: list[LogOutcome] = []
    node.disk.fail("write", code=errno.ENOSPC)
    node.log.propose(b"1", outcomes.append)
    world.until(lambda: outcomes, "an outcome")
    assert outcomes == [LogOutcome.FAILED]
    assert node.log.leadership.is_self
    world.commit(b"2")
    node.kill()
    node.start()
    assert world.lead().table.entries == [b"2"]


def test_a_lost_snapshot_is_no_empty_table():
    world = filled(2 * SNAPSHOT_ENTRIES)
    world.nodes[0].folder.remove(world.nodes[0].folder.full("log/snapshot"))
    with pytest.raises(ControllerLogFault, match="the snapshot is lost or old"):
        world.nodes[0].start()


def test_an_entry_that_contradicts_the_table_stops_the_start(monkeypatch: pytest.MonkeyPatch):
    def refuse(self: LogTable, entry: bytes) -> None:
        raise ControllerLogFault(f"{entry.decode()} contradicts")

    world = filled(3)
    monkeypatch.setattr(LogTable, "apply", refuse)
    with pytest.raises(ControllerLogFault, match=r"log/log-0+: entry 1 cannot be applied: entry 0 contradicts; restore"):
        world.nodes[0].start()


def test_several_controllers_need_another_log():
    with pytest.raises(ControllerLogFault, match="controllerType=single is for one controller"):
        LogWorld(make_single, 3)
