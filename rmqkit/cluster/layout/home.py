"""The folders of clusters, and their locks.

    $RMQKIT_HOME/<name>/
        cluster.toml, state.json, lock
        nodes/<node>/           node.toml, store/, log
        tls/                    certificates and client settings of a secure cluster
        access/                 keys of its users
        nodes/container-0/      container.toml (its port), log; for a process of several brokers

Every command that changes a cluster holds the lock file of its folder (`locked`). A purge deletes
the lock file with the folder. So a command that gets the lock checks that the file it has locked
still exists under that name.

`cluster.toml`, `state.json` and `node.toml` are replaced as a whole, never written in place. So a
reader needs no lock.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rmqkit.cluster.errors import ClusterError
from rmqkit.cluster.layout.names import CLUSTER_NAME

DESCRIPTION = "cluster.toml"
STATE = "state.json"
LOCK = "lock"
NODES = "nodes"
TLS = "tls"
ACCESS = "access"
NODE_FILE = "node.toml"
CONTAINER_FILE = "container.toml"
STORE = "store"
LOG = "log"

PRIVATE_MODE = 0o600
LOCK_WAIT_S = 60.0
LOCK_POLL_S = 0.05


def home_folder() -> Path:
    """Return the absolute path of `$RMQKIT_HOME`, by default `~/.rmqkit`."""
    return Path(os.environ.get("RMQKIT_HOME") or "~/.rmqkit").expanduser().absolute()


def cluster_names(home: Path) -> list[str]:
    """Return the names of the clusters in `home` that have a `cluster.toml`, sorted."""
    try:
        entries = sorted(os.listdir(home))
    except OSError:
        return []
    return [name for name in entries if CLUSTER_NAME.fullmatch(name) and (home / name / DESCRIPTION).is_file()]


def write_whole(path: Path, text: str, *, private: bool = False) -> None:
    """Replace a file atomically: a reader sees either the old or the new content.

    A `private` file has mode 0600. Raises ClusterError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        mode = PRIVATE_MODE if private else 0o666  # less the umask
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        advice = "; make room, or set RMQKIT_HOME to another disk" if error.errno == errno.ENOSPC else ""
        raise ClusterError(f"cannot write {path}: {error.strerror}{advice}") from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(folder: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the cluster's lock during the block. Create the folder if it is missing.

    Wait up to `LOCK_WAIT_S` for another command that holds the lock; `note` is called once then.
    Raises ClusterError.
    """
    import fcntl

    deadline_s = time.monotonic() + LOCK_WAIT_S
    is_noted = False
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ClusterError(f"cannot use {folder}: {error.strerror}; set RMQKIT_HOME to a writable folder") from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not is_noted:
                    is_noted = True
                    note(f"waiting for another command on cluster {folder.name}{_holder(lock)}")
                if time.monotonic() > deadline_s:
                    raise ClusterError(f"another command holds cluster {folder.name}{_holder(lock)}") from None
                time.sleep(LOCK_POLL_S)
                continue
            if not _is_still(lock, folder / LOCK):
                continue
            # The pid is only a hint for other commands, and stopping must work on a full disk.
            with contextlib.suppress(OSError):
                os.truncate(lock, 0)
                os.pwrite(lock, str(os.getpid()).encode(), 0)
            yield
            return
        finally:
            os.close(lock)


def _is_still(lock: int, path: Path) -> bool:
    """Whether the open lock file is still the file at `path`."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(lock)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _holder(lock: int) -> str:
    pid = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
    return f" (pid {pid})" if pid else ""
