"""Which files make up a store folder's log, and whether a broker has them open."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmqkit.errors import ConfigError
from rmqkit.spark.store.files import StoreInUse, check_not_in_use, log_files, log_folders

SIZE = 4096


def store(folder: Path, *numbers: int, data: bytes = b"\1") -> Path:
    log = folder / "commitlog"
    log.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (log / f"{number * SIZE:020d}").write_bytes(data.ljust(SIZE, b"\0"))
    return folder


def files_of(path: Path, *patterns: str):
    return log_files(log_folders(str(path)), patterns)


def test_a_store_folder_or_a_folder_of_files(tmp_path):
    store(tmp_path, 2, 0, 1)
    found = files_of(tmp_path)
    assert [(file.base, file.size, file.full_size, file.problem) for file in found] == [
        (number * SIZE, SIZE, SIZE, "") for number in range(3)
    ]
    assert found == files_of(tmp_path / "commitlog") == log_files(log_folders(f"file://{tmp_path}"))


def test_files_without_content_do_not_follow_others(tmp_path):
    """Apache's broker creates the next two files in advance."""
    store(tmp_path, 0, 1)
    store(tmp_path, 2, 3, data=b"")
    assert [file.is_followed for file in files_of(tmp_path)] == [True, False, False, False]
    path = tmp_path / "commitlog" / f"{2 * SIZE:020d}"
    path.write_bytes(bytes(SIZE - 1) + b"x")
    assert [file.is_followed for file in files_of(tmp_path)] == [True, True, False, False]


def test_a_missing_file_and_an_unknown_file_are_reported(tmp_path):
    store(tmp_path, 1, 2, 5)
    (tmp_path / "commitlog" / "notes.txt").write_text("hello")
    (tmp_path / "commitlog" / ".hidden").write_text("hello")
    found = files_of(tmp_path)
    assert [(file.base, file.size, file.problem) for file in found] == [
        (SIZE, SIZE, ""),
        (2 * SIZE, SIZE, ""),
        (3 * SIZE, 2 * SIZE, "missing, with all files up to the next one"),
        (5 * SIZE, SIZE, ""),
        (-1, 5, "does not belong in a folder of commit-log files"),
    ]


def test_files_are_chosen_by_name(tmp_path):
    store(tmp_path, 0, 1, 2)
    assert [file.base for file in files_of(tmp_path, "*8192", f"{0:020d}")] == [0, 2 * SIZE]
    # Whether a file is followed by another is known even if the other was not chosen.
    assert [file.is_followed for file in files_of(tmp_path, "*4096")] == [True]
    with pytest.raises(ConfigError, match=r"no commit-log file is named 7\*"):
        files_of(tmp_path, "7*")


def test_several_folders_are_one_log(tmp_path):
    first, second = store(tmp_path / "a", 0, 2), store(tmp_path / "b", 1)
    found = log_files(log_folders(f"{first}, {second}/commitlog"))
    assert [file.base for file in found] == [0, SIZE, 2 * SIZE]
    store(tmp_path / "b", 2)
    with pytest.raises(ConfigError, match="are the same part of a log"):
        log_files(log_folders(f"{first},{second}"))


def test_a_path_that_is_no_store_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="contains neither commitlog/ nor commit-log files"):
        log_folders(str(tmp_path))
    with pytest.raises(ConfigError, match="is not a folder; name a store folder"):
        log_folders(str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="is not a folder"):
        log_folders("")
    (tmp_path / "commitlog").mkdir()
    assert files_of(tmp_path) == []


def test_the_size_of_a_file_that_was_cut_short_is_that_of_the_others(tmp_path):
    store(tmp_path, 0, 1, 2)
    os.truncate(tmp_path / "commitlog" / f"{2 * SIZE:020d}", 100)
    assert [(file.size, file.full_size) for file in files_of(tmp_path)] == [(SIZE, SIZE), (SIZE, SIZE), (100, SIZE)]


def test_a_store_that_a_broker_has_open_is_refused(tmp_path):
    """The lock is the one that Java's FileChannel takes: bytes [0, 1).

    A lock file that no process has locked is the leftover of a dead broker.
    """
    folders = log_folders(str(store(tmp_path, 0)))
    check_not_in_use(folders)
    (tmp_path / "lock").write_text("lock")
    (tmp_path / "abort").write_text("1")
    check_not_in_use(folders)
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX, 1, 0); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(
            StoreInUse, match=f"a broker runs on {tmp_path}: stop it or copy the folder, or set allowRunning"
        ):
            check_not_in_use(folders)
        holder.stdin.close()
    check_not_in_use(folders)
