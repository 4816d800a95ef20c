"""The disk port (`rmqkit.runtime.ports`): one suite for the OS's files and simulated ones."""

import errno
import random
from typing import Any

import pytest

from tests.contract.labs import DiskLab, OsDiskLab, SimDiskLab


class Asked:
    """Collects completions: `asked("x")` returns a completion that records "x" and its error."""

    def __init__(self, lab: DiskLab, disk: Any) -> None:
        self.lab = lab
        self.disk = disk
        self.ended: list[tuple[Any, OSError | None]] = []
        self._open = 0

    def __call__(self, name: Any) -> Any:
        self._open += 1
        return lambda error: self.ended.append((name, error))

    def wait(self) -> list[Any]:
        """Wait until all have completed; return their names in that order."""
        while len(self.ended) < self._open:
            self.lab.wait(self.disk)
        return [name for name, _ in self.ended]

    def errors(self) -> list[OSError | None]:
        self.wait()
        return [error for _, error in self.ended]


def later(lab: DiskLab, disk: Any, method: str, *args: Any) -> OSError | None:
    """Start one asynchronous call, wait for it, and return its error."""
    asked = Asked(lab, disk)
    getattr(disk, method)(*args, asked("it"))
    return asked.errors()[0]


def test_what_was_written_is_read(disks: DiskLab):
    disk = disks.open()
    disk.write("f", 0, [b"abc", bytearray(b"def"), memoryview(b"xghix")[1:4]])
    disk.write("f", 4, [b"EFG"])
    assert disk.read("f", 0, 100) == b"abcdEFGhi"
    assert disk.read("f", 2, 3) == b"cdE"
    assert disk.size("f") == 9


def test_a_write_makes_the_file_and_its_folders(disks: DiskLab):
    disk = disks.open()
    disk.write("a/b/c/f", 3, [b"x"])
    assert disk.read("a/b/c/f", 0, 10) == b"\0\0\0x"
    assert list(disk.folders("a")) == ["b"]
    assert list(disk.folders("")) == ["a"]


def test_more_buffers_than_one_call_takes(disks: DiskLab):
    disk = disks.open()
    pieces = [bytes([number % 251]) * (number % 7) for number in range(5000)]
    disk.write("f", 10, pieces)
    assert disk.read("f", 10, 100_000) == b"".join(pieces)
    disk.write("f", 0, [])
    disk.write("f", 0, [b"", b""])
    assert disk.size("f") == 10 + len(b"".join(pieces))


def test_reading_past_the_end_gives_fewer_bytes(disks: DiskLab):
    disk = disks.open()
    disk.write("f", 0, [b"abc"])
    assert disk.read("f", 2, 10) == b"c"
    assert disk.read("f", 3, 10) == b""
    assert disk.read("f", 99, 1) == b""
    assert bytes(disk.view("f", 1, 10)) == b"bc"
    assert bytes(disk.view("f", 99, 10)) == b""


@pytest.mark.parametrize("method", ["read", "view"])
def test_reading_an_absent_file_is_an_error(disks: DiskLab, method: str):
    disk = disks.open()
    with pytest.raises(FileNotFoundError):
        getattr(disk, method)("f", 0, 1)
    assert disk.size("f") is None
    assert list(disk.list("")) == []


def test_a_folder_has_no_size_and_cannot_be_written(disks: DiskLab):
    disk = disks.open()
    disk.write("a/f", 0, [b"x"])
    assert disk.size("a") is None
    with pytest.raises(IsADirectoryError):
        disk.write("a", 0, [b"x"])
    with pytest.raises(NotADirectoryError):
        disk.write("a/f/g", 0, [b"x"])


def test_create_makes_a_sparse_file_and_never_cuts(disks: DiskLab):
    disk = disks.open()
    disk.create("log/0", 1 << 30)
    assert disk.size("log/0") == 1 << 30
    disk.write("log/0", (1 << 30) - 5, [b"tail!"])
    disk.create("log/0", 100)
    assert disk.size("log/0") == 1 << 30
    assert bytes(disk.view("log/0", (1 << 30) - 6, 100)) == b"\0tail!"
    assert disk.read("log/0", 12_345_678, 4) == b"\0\0\0\0"
    disk.create("small", 10)
    disk.create("small", 20)
    assert disk.size("small") == 20


def test_the_end_of_the_data_of_a_sparse_file(disks: DiskLab):
    """Only zeros follow the end of the data; on a disk with holes it is below the file's size."""
    disk = disks.open()
    disk.create("f", 1 << 24)
    assert disk.data_end("f") < 1 << 24
    disk.write("f", 100_000, [b"x" * 10])
    end = disk.data_end("f")
    assert 100_010 <= end < 1 << 20
    disk.write("f", (1 << 24) - 1, [b"x"])
    assert disk.data_end("f") == 1 << 24
    with pytest.raises(FileNotFoundError):
        disk.data_end("absent")


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_a_view_is_the_file_as_it_is(disks: DiskLab, size: int):
    disk = disks.open()
    disk.create("f", size)
    disk.write("f", 10, [b"first"])
    assert bytes(disk.view("f", 10, 5)) == b"first"
    disk.write("f", 10, [b"other"])
    assert bytes(disk.view("f", 10, 5)) == b"other"
    disk.create("f", 2 * size)
    disk.write("f", 2 * size - 3, [b"end"])
    assert bytes(disk.view("f", 2 * size - 3, 50)) == b"end"
    assert disk.view("f", 0, 4) == disk.read("f", 0, 4)


def test_a_view_outlives_its_file_and_its_disk(disks: DiskLab):
    disk = disks.open()
    disk.create("f", 1 << 20)
    disk.write("f", 500, [b"still here"])
    view = disk.view("f", 500, 10)
    assert later(disks, disk, "remove", "f") is None
    assert disk.size("f") is None
    assert bytes(view) == b"still here"
    disk.close()
    assert bytes(view[:5]) == b"still"


def test_files_are_listed_by_name_without_folders(disks: DiskLab):
    disk = disks.open()
    for name in ("00000000000000001024", "00000000000000000000", "b", "a"):
        disk.write(f"q/{name}", 0, [name.encode()])
    disk.write("q/sub2/x", 0, [b"x"])
    disk.write("q/sub1/x", 0, [b"x"])
    listed = disk.list("q")
    assert [(info.name, info.size) for info in listed] == [
        ("00000000000000000000", 20),
        ("00000000000000001024", 20),
        ("a", 1),
        ("b", 1),
    ]
    assert all(info.modified_ms > 0 for info in listed)
    assert list(disk.folders("q")) == ["sub1", "sub2"]
    assert list(disk.list("nowhere")) == []
    assert list(disk.folders("nowhere")) == []


def test_absolute_paths_are_taken_as_they_are(disks: DiskLab):
    disk = disks.open()
    disk.write(f"{disks.outside}/commitlog/0", 0, [b"x"])
    assert disk.read(f"{disks.outside}/commitlog/0", 0, 5) == b"x"
    assert [info.name for info in disk.list(f"{disks.outside}/commitlog")] == ["0"]
    assert list(disk.list("commitlog")) == []


@pytest.mark.parametrize("path", ["../f", "a/../../f", ".."])
def test_a_relative_path_does_not_leave_the_folder(disks: DiskLab, path: str):
    disk = disks.open()
    with pytest.raises(ValueError, match="leaves"):
        disk.write(path, 0, [b"x"])


def test_usage_is_that_of_the_file_system(disks: DiskLab):
    disk = disks.open()
    usage = disk.usage("not/there/yet")
    assert usage.total > 0
    assert 0 <= usage.used <= usage.total
    assert 0 < usage.free <= usage.total


# --- asynchronous calls -----------------------------------------------------------


def test_a_completion_comes_later_never_at_once(disks: DiskLab):
    disk = disks.open()
    asked = Asked(disks, disk)
    disk.write("f", 0, [b"x"])
    disk.sync("f", asked("sync"))
    disk.replace("g", b"1", asked("replace"))
    disk.truncate("f", 0, asked("truncate"))
    disk.remove("f", asked("remove"))
    assert asked.ended == []
    assert asked.wait() == ["sync", "replace", "truncate", "remove"]
    assert asked.errors() == [None] * 4


def test_completions_come_in_the_order_asked_for(disks: DiskLab):
    disk = disks.open()
    asked = Asked(disks, disk)
    for number in range(40):
        path = f"f{number % 3}"
        if number % 4 == 0:
            disk.replace(f"kept{number}", b"x", asked(number))
        else:
            disk.write(path, number, [b"x"])
            disk.sync(path, asked(number))
    order = asked.wait()
    changes = [number for number in order if number % 4 == 0]
    assert changes == sorted(changes)
    for path in range(3):
        syncs = [number for number in order if number % 4 and number % 3 == path]
        assert syncs == sorted(syncs)
    # A sync may complete together with an earlier one of its path, but never before a change that
    # was requested earlier.
    for place, number in enumerate(order):
        assert all(change in order[:place] for change in range(0, number, 4)), f"{number} is too early in {order}"
    assert asked.errors() == [None] * 40


def test_a_sync_of_an_absent_file_fails(disks: DiskLab):
    disk = disks.open()
    assert isinstance(later(disks, disk, "sync", "nope"), FileNotFoundError)


def test_a_failed_sync_fails_all_its_waiters_and_all_later_syncs(disks: DiskLab):
    disk = disks.open()
    disk.write("f", 0, [b"x"])
    disk.write("other", 0, [b"x"])
    disks.break_sync("f")
    asked = Asked(disks, disk)
    disk.sync("f", asked(1))
    disk.sync("f", asked(2))
    disk.sync("f", asked(3))
    assert [error and error.errno for error in asked.errors()] == [errno.EIO] * 3
    disk.write("f", 0, [b"again"])
    assert later(disks, disk, "sync", "f").errno == errno.EIO
    assert later(disks, disk, "sync", "other") is None
    # Only a new file of that name can be synced again.
    assert later(disks, disk, "remove", "f") is None
    disk.write("f", 0, [b"new"])
    assert later(disks, disk, "sync", "f") is None


def test_replace_keeps_the_last_content_as_backup(disks: DiskLab):
    disk = disks.open()
    assert later(disks, disk, "replace", "config/topics.json", b"one") is None
    assert [info.name for info in disk.list("config")] == ["topics.json"]
    assert later(disks, disk, "replace", "config/topics.json", b"two, longer") is None
    assert later(disks, disk, "replace", "config/topics.json", b"3") is None
    assert disk.read("config/topics.json", 0, 100) == b"3"
    assert disk.read("config/topics.json.bak", 0, 100) == b"two, longer"
    assert [info.name for info in disk.list("config")] == ["topics.json", "topics.json.bak"]


def test_replace_takes_no_backup_of_an_empty_file(disks: DiskLab):
    disk = disks.open()
    later(disks, disk, "replace", "f", b"good")
    later(disks, disk, "replace", "f", b"")
    later(disks, disk, "replace", "f", b"new")
    assert disk.read("f", 0, 10) == b"new"
    assert disk.read("f.bak", 0, 10) == b"good"


def test_replace_after_the_file_was_read_shows_the_new_content(disks: DiskLab):
    disk = disks.open()
    content = b"a" * 100_000
    disk.write("f", 0, [content])
    assert disk.read("f", 0, 1) == b"a"
    assert bytes(disk.view("f", 0, 1)) == b"a"
    later(disks, disk, "replace", "f", b"b" * 100_000)
    assert disk.read("f", 0, 1) == b"b"
    assert bytes(disk.view("f", 99_999, 1)) == b"b"
    disk.write("f", 0, [b"c"])
    assert disk.read("f.bak", 0, 1) == b"a"


def test_remove_takes_files_and_whole_folders(disks: DiskLab):
    disk = disks.open()
    for path in ("t/0/a", "t/0/b", "t/1/a", "tt/0/a"):
        disk.write(path, 0, [b"x"])
    assert later(disks, disk, "remove", "t/0/a") is None
    assert [info.name for info in disk.list("t/0")] == ["b"]
    assert later(disks, disk, "remove", "t") is None
    assert list(disk.folders("")) == ["tt"]
    assert disk.size("t/1/a") is None
    assert later(disks, disk, "remove", "t") is None
    assert later(disks, disk, "remove", "t/1/a") is None
    disk.write("t/0/a", 0, [b"new"])
    assert disk.read("t/0/a", 0, 10) == b"new"


def test_truncate_cuts_and_extends(disks: DiskLab):
    disk = disks.open()
    disk.write("f", 0, [b"x" * 10_000])
    disk.view("f", 0, 10_000)
    assert later(disks, disk, "truncate", "f", 5_000) is None
    assert disk.size("f") == 5_000
    assert disk.read("f", 4_990, 100) == b"x" * 10
    assert later(disks, disk, "truncate", "f", 6_000) is None
    assert disk.read("f", 4_999, 100) == b"x" + b"\0" * 99
    assert isinstance(later(disks, disk, "truncate", "nope", 0), FileNotFoundError)


def test_the_lock_is_taken_once(disks: DiskLab):
    disk = disks.open()
    disk.lock("lock", b"lock")
    assert disk.read("lock", 0, 10) == b"lock"
    other = disks.open()
    with pytest.raises(BlockingIOError):
        other.lock("lock", b"lock")
    with pytest.raises(BlockingIOError):
        disk.lock("lock", b"lock")
    other.close()
    third = disks.open()
    with pytest.raises(BlockingIOError):
        third.lock("lock", b"lock")
    disk.close()
    third.lock("lock", b"lock")


def test_a_full_disk_is_an_error_and_not_the_end(disks: DiskLab):
    disk = disks.open()
    disk.write("before", 0, [b"x" * 4096])
    path = disks.full()
    with pytest.raises(OSError) as caught:
        disk.write(path, 0, [b"x" * 5000, b"y" * 50_000])
    assert caught.value.errno == errno.ENOSPC
    assert disk.read("before", 0, 2) == b"xx"
    disk.write("before", 0, [b"zz"])
    assert disk.read("before", 0, 3) == b"zzx"


def test_close_waits_for_what_was_asked(disks: DiskLab):
    disk = disks.open()
    disk.write("f", 0, [b"x"])
    for number in range(20):
        disk.replace("kept", b"%d" % number, lambda error: None)
    disk.close()
    again = disks.open()
    assert again.read("kept", 0, 10) == b"19"
    assert again.read("kept.bak", 0, 10) == b"18"
    assert again.read("f", 0, 10) == b"x"


# --- the same random calls on both ------------------------------------------------

PATHS = ("a", "b", "d/a", "d/e/a", "d", "d/e", "a/x")


def random_story(lab: DiskLab, seed: int, steps: int = 250) -> list[Any]:
    """Make random calls and return the disk's answers."""
    dice = random.Random(seed)
    disk: Any = lab.open()
    told: list[Any] = []
    for _ in range(steps):
        path = dice.choice(PATHS)
        position, size = dice.choice((0, 1, 4095, 4096, 70_000, dice.randrange(200_000))), dice.randrange(12_000)
        step = dice.choice(("write", "write", "read", "view", "create", "size", "list", "folders", *LATER_STEPS))
        told.append((step, path, position, size, _answer(lab, disk, step, path, position, size)))
    return told


LATER_STEPS = ("sync", "replace", "remove", "truncate")


def _answer(lab: DiskLab, disk: Any, step: str, path: str, position: int, size: int) -> Any:
    content = bytes([size % 256]) * size
    calls = {
        "write": lambda: disk.write(path, position, [content[:100], content[100:]]),
        "read": lambda: disk.read(path, position, size),
        "view": lambda: bytes(disk.view(path, position, size)),
        "create": lambda: disk.create(path, position),
        "size": lambda: disk.size(path),
        "list": lambda: [(info.name, info.size) for info in disk.list(path)],
        "folders": lambda: list(disk.folders(path)),
        "sync": lambda: later(lab, disk, "sync", path),
        "replace": lambda: later(lab, disk, "replace", path, content),
        "remove": lambda: later(lab, disk, "remove", path),
        "truncate": lambda: later(lab, disk, "truncate", path, position),
    }
    try:
        answer = calls[step]()
    except OSError as error:
        answer = error
    return type(answer).__name__ if isinstance(answer, OSError) else answer


@pytest.mark.parametrize("seed", range(6))
def test_both_disks_give_the_same_results(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, seed: int):
    real = OsDiskLab(tmp_path, monkeypatch)
    try:
        told = random_story(real, seed)
    finally:
        real.close()
    assert random_story(SimDiskLab(), seed) == told
