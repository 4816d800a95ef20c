"""Finds the commit-log files of a store folder, and whether a broker has the store open.

A path is a store folder (it contains `commitlog/`) or a folder of commit-log files. Several paths
are separated by commas, as in Apache's `storePathCommitLog`, and form one log. A file is named by
the physical offset of its first byte. All files have one size, the one that most of them have.
Whatever breaks this chain is a `LogFile` too, with a `problem`: a missing file between two others,
or a file that does not belong there.

A running broker, ours or Apache's, holds a lock on the first byte of the file `lock`. The lock is
tried and released at once. The file `abort` alone proves nothing: a killed broker leaves it.
"""

import os
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rmqkit.errors import ConfigError, RmqkitError
from rmqkit.spark.store.scan import Bytes, LogFile

LOG_FOLDER = "commitlog"
NAME_DIGITS = 20
FILES_MAX = 100_000


class StoreInUse(RmqkitError):
    """A running broker has the store folder open."""


def log_folders(path: str) -> list[Path]:
    """Return the folders with commit-log files that `path` names.

    Raises ConfigError if a part of the path is not such a folder.
    """
    folders = []
    for part in path.split(","):
        named = Path(_local(part.strip()))
        if not part.strip() or not named.is_dir():
            raise ConfigError(
                f"path: {part.strip() or path!r} is not a folder; name a store folder, or one with commit-log files"
            )
        inner = named / LOG_FOLDER
        folder = inner if inner.is_dir() else named
        if folder is named and not any(_is_name(name) for name in os.listdir(folder)):
            raise ConfigError(f"path: {named} contains neither {LOG_FOLDER}/ nor commit-log files")
        folders.append(folder.resolve())
    return folders


def _local(path: str) -> str:
    """Return the path without its URL form: tables pass `file:/a%20b`."""
    return unquote(urlsplit(path).path) if path.startswith("file:") else path


def check_not_in_use(folders: Sequence[Path]) -> None:
    """Raise StoreInUse if a broker has one of these stores open."""
    for folder in folders:
        for lock in (folder / "lock", folder.parent / "lock"):
            if _is_locked(lock):
                raise StoreInUse(
                    f"a broker runs on {lock.parent}: stop it or copy the folder, or set allowRunning=true to read the "
                    "messages that are complete now"
                )


def log_files(folders: Sequence[Path], patterns: Sequence[str] = ()) -> list[LogFile]:
    """Return the log's files in order, then files that do not belong to it.

    `patterns` (with `*` and `?`), if given, select by name. Raises ConfigError if two files are the
    same part of the log, if there are more than FILES_MAX, or if no name matches.
    """
    found: dict[int, Path] = {}
    strange = []
    for path in (path for folder in folders for path in sorted(folder.iterdir())):
        if path.name.startswith(".") or not path.is_file():
            continue
        if not _is_name(path.name):
            why = "does not belong in a folder of commit-log files"
            strange.append(LogFile(str(path), -1, path.stat().st_size, 0, False, why))
        elif (other := found.setdefault(int(path.name), path)) is not path:
            raise ConfigError(f"path: {other} and {path} are the same part of a log; pass only one")
    if len(found) > FILES_MAX:
        raise ConfigError(f"{len(found)} commit-log files exceed the limit of {FILES_MAX}: select some with option files")
    files = _chain(found) + strange
    if not patterns:
        return files
    chosen = [file for file in files if any(fnmatchcase(Path(file.path).name, pattern) for pattern in patterns)]
    if not chosen:
        raise ConfigError(f"files: no commit-log file is named {' or '.join(patterns)}")
    return chosen


def _chain(found: dict[int, Path]) -> list[LogFile]:
    sizes = {base: path.stat().st_size for base, path in found.items()}
    common = Counter(size for size in sizes.values() if size).most_common()
    full_size = max((size for size, count in common if count == common[0][1]), default=0)
    files: list[LogFile] = []
    is_followed, after = False, -1
    for base in sorted(found, reverse=True):
        end = base + full_size
        if full_size and end < after:
            size, why = after - end, "missing, with all files up to the next one"
            files.append(LogFile(str(found[base].with_name(f"{end:0{NAME_DIGITS}d}")), end, size, size, True, why))
        files.append(LogFile(str(found[base]), base, sizes[base], full_size, is_followed))
        is_followed, after = is_followed or _holds_anything(found[base]), base
    return files[::-1]


def _holds_anything(path: Path) -> bool:
    with path.open("rb", buffering=0) as log:
        if any(log.read(8)):
            return True
        try:
            if hasattr(os, "SEEK_DATA"):
                log.seek(0, os.SEEK_DATA)
        except OSError:
            return False  # the whole file is a hole
        return Bytes(log.fileno()).data_end > 0


def _is_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def _is_locked(path: Path) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: no broker runs there
        return False
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
    except (BlockingIOError, PermissionError):
        return True
    finally:
        os.close(fd)  # releases the lock
    return False
