"""`OsDisk`: descriptors, mappings, group commit and durability, checked by its system calls."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqkit.shell import disk as disk_module
from rmqkit.shell import osfile
from rmqkit.shell.disk import OsDisk
from tests.shell.conftest import DEADLINE_S, ROOT


def finish(disk: OsDisk, ended: list[Any], count: int) -> None:
    while len(ended) < count:
        assert disk.wait(DEADLINE_S)
        for completion, error in disk.take_completed():
            completion(error)


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[Callable[..., OsDisk]]:
    disks: list[OsDisk] = []

    def make(**how: Any) -> OsDisk:
        disks.append(OsDisk(str(tmp_path / "node"), **how))
        return disks[-1]

    yield make
    for disk in disks:
        disk.close()


class Gate:
    """Holds the disk thread inside each sync until the test releases it; counts syncs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Semaphore(0)
        self.leave = threading.Semaphore(0)
        self.count = 0
        self._real = osfile.sync_file
        monkeypatch.setattr(osfile, "sync_file", self._sync)

    def _sync(self, fd: int) -> None:
        self.count += 1
        self.entered.release()
        assert self.leave.acquire(timeout=DEADLINE_S)
        self._real(fd)

    def wait(self) -> None:
        assert self.entered.acquire(timeout=DEADLINE_S)


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_syncs_asked_for_while_one_runs_become_one(make_disk: Callable[..., OsDisk], monkeypatch: pytest.MonkeyPatch):
    disk = make_disk()
    gate = Gate(monkeypatch)
    ended: list[int] = []
    disk.write("log", 0, [b"0"])
    disk.sync("log", lambda error: ended.append(0))
    gate.wait()
    for number in range(1, 50):
        disk.write("log", number, [b"x"])
        disk.sync("log", lambda error, number=number: ended.append(number))
    for _ in range(2):
        gate.leave.release()
    finish(disk, ended, 50)
    assert ended == list(range(50))
    assert gate.count == 2


def test_a_sync_does_not_join_one_from_before_a_change(make_disk: Callable[..., OsDisk], monkeypatch: pytest.MonkeyPatch):
    disk = make_disk()
    gate = Gate(monkeypatch)
    ended: list[str] = []
    for path in ("a", "b"):
        disk.write(path, 0, [b"x"])
    disk.sync("b", lambda error: ended.append("first b"))
    gate.wait()
    disk.sync("a", lambda error: ended.append("a before"))
    disk.remove("b", lambda error: ended.append("remove b"))
    disk.sync("a", lambda error: ended.append("a after"))
    for _ in range(3):
        gate.leave.release()
    finish(disk, ended, 4)
    assert ended == ["first b", "a before", "remove b", "a after"]
    assert gate.count == 3


def test_a_file_is_not_closed_while_it_is_synced(make_disk: Callable[..., OsDisk], monkeypatch: pytest.MonkeyPatch):
    disk = make_disk(fds_max=2)
    gate = Gate(monkeypatch)
    ended: list[OSError | None] = []
    disk.write("busy", 0, [b"x"])
    disk.sync("busy", ended.append)
    gate.wait()
    for number in range(10):
        disk.write(f"f{number}", 0, [b"x"])
    gate.leave.release()
    finish(disk, ended, 1)
    assert ended == [None]


def test_descriptors_and_mappings_are_bounded(make_disk: Callable[..., OsDisk]):
    disk = make_disk(fds_max=8, mappings_max=4)
    before = open_fds()
    views = []
    for number in range(60):
        disk.create(f"q/{number:03d}", 100_000)
        disk.write(f"q/{number:03d}", 0, [b"%03d" % number])
        views.append(disk.view(f"q/{number:03d}", 0, 3))
    assert [bytes(view) for view in views] == [b"%03d" % number for number in range(60)]
    views.clear()
    assert open_fds() - before <= 8 + 4 + 1
    assert [disk.read(f"q/{number:03d}", 0, 3) for number in range(60)] == [b"%03d" % number for number in range(60)]


def test_reads_of_mapped_files_are_slices_and_small_files_are_copied(make_disk: Callable[..., OsDisk]):
    disk = make_disk()
    disk.create("large", 1 << 20)
    disk.create("small", 4096)
    first, second = disk.view("large", 0, 100), disk.view("large", 4096, 100)
    assert isinstance(first, memoryview)
    assert isinstance(second, memoryview)
    assert first.obj is second.obj
    assert isinstance(disk.view("small", 0, 100), bytes)
    disk.write("large", 0, [b"seen through the old view"])
    assert bytes(first[:4]) == b"seen"


def test_short_writes_are_continued(make_disk: Callable[..., OsDisk], monkeypatch: pytest.MonkeyPatch):
    disk = make_disk()
    real = os.pwritev

    def short(fd: int, buffers: Any, position: int) -> int:
        return real(fd, [b"".join(buffers)[:1000]], position)

    monkeypatch.setattr(os, "pwritev", short)
    pieces = [bytes([number]) * (number * 13) for number in range(200)]
    disk.write("f", 5, pieces)
    assert disk.read("f", 5, 1 << 20) == b"".join(pieces)


def test_a_write_that_cannot_go_on_is_an_error(make_disk: Callable[..., OsDisk], monkeypatch: pytest.MonkeyPatch):
    disk = make_disk()
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, position: 0)
    with pytest.raises(OSError) as caught:
        disk.write("f", 0, [b"x"])
    assert caught.value.errno == errno.ENOSPC


def test_a_file_size_limit_is_an_error_and_no_signal(tmp_path: Path):
    code = (
        "import resource, sys\n"
        "from rmqkit.shell.disk import OsDisk\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "disk = OsDisk(sys.argv[1])\n"
        "disk.write('f', 0, [b'x' * 50_000])\n"
        "try:\n"
        "    disk.write('f', 50_000, [b'y' * 30_000, b'z' * 50_000])\n"
        "except OSError as error:\n"
        "    print(error.errno, disk.size('f') <= 100_000, disk.read('f', 49_999, 2)[:1])\n"
        "disk.write('f', 50_000, [b'after'])\n"
        "disk.close()\n"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, timeout=30, check=True)
    assert run.stdout.split() == [b"%d" % errno.EFBIG, b"True", b"b'x'"]


def test_sparse_files_take_no_room(make_disk: Callable[..., OsDisk]):
    disk = make_disk()
    disk.create("log/0", 1 << 30)
    disk.write("log/0", 1 << 29, [b"x"])
    assert disk.read("log/0", 1 << 29, 1) == b"x"
    found = os.stat(f"{disk.root}/log/0")
    assert found.st_size == 1 << 30
    assert found.st_blocks * 512 < 1 << 20


def test_the_first_sync_of_a_new_file_covers_its_folders(make_disk: Callable[..., OsDisk], monkeypatch: pytest.MonkeyPatch):
    disk = make_disk()
    synced: list[str] = []
    real = osfile.sync_folder
    monkeypatch.setattr(osfile, "sync_folder", lambda path: (synced.append(os.path.relpath(path, disk.root)), real(path)))
    ended: list[OSError | None] = []
    disk.write("a/b/f", 0, [b"x"])
    disk.sync("a/b/f", ended.append)
    finish(disk, ended, 1)
    assert synced == ["a/b", "a", "."]
    disk.write("a/b/f", 0, [b"y"])
    disk.sync("a/b/f", ended.append)
    finish(disk, ended, 2)
    assert synced == ["a/b", "a", "."]
    disk.remove("a/b/f", ended.append)
    disk.replace("c/kept", b"x", ended.append)
    finish(disk, ended, 4)
    assert synced == ["a/b", "a", ".", "a/b", "c", "."]
    assert ended == [None] * 4


def test_replace_always_leaves_a_whole_file(make_disk: Callable[..., OsDisk], monkeypatch: pytest.MonkeyPatch):
    """A crash between any two of its calls leaves `path` complete, old or new, and durable."""
    disk = make_disk()
    path = f"{disk.root}/config/kept"
    ended: list[OSError | None] = []
    disk.replace("config/kept", b"old", ended.append)
    finish(disk, ended, 1)
    seen: list[tuple[str, bytes]] = []

    def watched(name: str, real: Any) -> Any:
        def call(*args: Any) -> Any:
            seen.append((name, Path(path).read_bytes()))
            result = real(*args)
            seen.append((name, Path(path).read_bytes()))
            return result

        return call

    for module, name in ((os, "link"), (os, "replace"), (osfile, "sync_file"), (osfile, "sync_folder")):
        monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
    disk.replace("config/kept", b"new", ended.append)
    finish(disk, ended, 2)
    assert {content for _, content in seen} == {b"old", b"new"}
    names = [name for name, _ in seen]
    assert names.index("sync_file") < names.index("replace") < names.index("sync_folder")
    assert Path(f"{path}.bak").read_bytes() == b"old"


def test_replace_works_without_hard_links(make_disk: Callable[..., OsDisk], monkeypatch: pytest.MonkeyPatch):
    disk = make_disk()

    def no_links(*args: Any) -> None:
        raise PermissionError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    ended: list[OSError | None] = []
    for content in (b"1", b"2", b"3"):
        disk.replace("kept", content, ended.append)
    finish(disk, ended, 3)
    assert ended == [None] * 3
    assert (disk.read("kept", 0, 9), disk.read("kept.bak", 0, 9)) == (b"3", b"2")
    assert [info.name for info in disk.list("")] == ["kept", "kept.bak"]


def test_files_with_secrets_are_for_their_user_only(make_disk: Callable[..., OsDisk], tmp_path: Path):
    disk, ended = make_disk(), []
    folder = tmp_path / "node/config"
    folder.mkdir(parents=True)
    (folder / "access.json.tmp").touch(mode=0o644)
    for number, content in enumerate((b"1", b"2"), 1):
        disk.replace("config/access.json", content, ended.append)
        finish(disk, ended, number)
    assert ended == [None, None]
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == {"access.json": 0o600, "access.json.bak": 0o600}


def test_leftovers_of_a_crashed_replace_do_no_harm(make_disk: Callable[..., OsDisk]):
    disk = make_disk()
    for name in ("kept.tmp", "kept.bak.tmp"):
        disk.write(name, 0, [b"left over from before"])
    disk.write("kept", 0, [b"old"])
    ended: list[OSError | None] = []
    disk.replace("kept", b"new", ended.append)
    finish(disk, ended, 1)
    assert (disk.read("kept", 0, 99), disk.read("kept.bak", 0, 99)) == (b"new", b"old")
    assert [info.name for info in disk.list("")] == ["kept", "kept.bak"]


def test_the_lock_survives_reading_and_many_open_files(make_disk: Callable[..., OsDisk]):
    """A POSIX lock ends when any descriptor of its file is closed, so none may be closed."""
    disk = make_disk(fds_max=4)
    disk.lock("lock", b"lock")
    for number in range(20):
        disk.write(f"f{number}", 0, [b"x"])
        assert disk.read("lock", 0, 4) == b"lock"
    code = (
        "import sys\n"
        "from rmqkit.shell.disk import OsDisk\n"
        "try:\n"
        "    OsDisk(sys.argv[1]).lock('lock', b'lock')\n"
        "except BlockingIOError:\n"
        "    print('taken')\n"
    )
    run = subprocess.run([sys.executable, "-c", code, disk.root], cwd=ROOT, capture_output=True, timeout=30, check=True)
    assert run.stdout == b"taken\n"


def test_java_sees_the_same_lock(make_disk: Callable[..., OsDisk]):
    """Java's FileChannel.tryLock(0, 1, false) is an exclusive fcntl lock on byte 0.

    Source: `BrokerStartup`, `DefaultMessageStore`.
    """
    disk = make_disk()
    disk.lock("lock", b"lock")
    code = (
        "import fcntl, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR)\n"
        "fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1)\n"
        "try:\n"
        "    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "except OSError:\n"
        "    print('byte 0 is taken, byte 1 is not')\n"
    )
    run = subprocess.run([sys.executable, "-c", code, f"{disk.root}/lock"], capture_output=True, timeout=30, check=True)
    assert run.stdout == b"byte 0 is taken, byte 1 is not\n"


def test_files_without_write_permission_can_be_read(make_disk: Callable[..., OsDisk], monkeypatch: pytest.MonkeyPatch):
    disk = make_disk()
    path = f"{disk.root}/f"
    Path(path).write_bytes(b"old log")
    real = os.open

    def guarded(name: str, flags: int, *args: Any) -> int:
        if name == path and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return real(name, flags, *args)

    monkeypatch.setattr(disk_module.os, "open", guarded)
    assert disk.read("f", 0, 100) == b"old log"
    with pytest.raises(PermissionError):
        disk.write("f", 0, [b"x"])


def test_close_closes_everything(tmp_path: Path):
    before = open_fds()
    disk = OsDisk(str(tmp_path))
    disk.lock("lock", b"lock")
    for number in range(10):
        disk.create(f"f{number}", 100_000)
        disk.view(f"f{number}", 0, 10)
        disk.sync(f"f{number}", lambda error: None)
    disk.close()
    assert open_fds() == before
    assert not [thread for thread in threading.enumerate() if thread.name == "rmqkit-disk"]
