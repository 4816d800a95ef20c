"""Where clusters live: `$RMQKIT_HOME/<name>/{cluster.toml,state.json,lock,nodes/<node>/{node.toml,store/,log}}`, and for
a process of several brokers `nodes/container-0/{container.toml,log}` with its port and what it says besides them.

Every command that changes a cluster holds the lock file of its folder (`locked`). The file goes with the folder when
a cluster is purged, so whoever gets the lock looks whether the file it has locked is still the one of that name.
`cluster.toml`, `state.json` and `node.toml` are replaced whole, never written in place: a reader needs no lock.
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
NODE_FILE = "node.toml"
CONTAINER_FILE = "container.toml"
STORE = "store"
LOG = "log"

LOCK_WAIT_S = 60.0
LOCK_POLL_S = 0.05


def home_folder() -> Path:
    """`$RMQKIT_HOME`, else `~/.rmqkit`; absolute."""
    return Path(os.environ.get("RMQKIT_HOME") or "~/.rmqkit").expanduser().absolute()


def cluster_names(home: Path) -> list[str]:
    """Clusters that have a folder there, sorted."""
    try:
        entries = sorted(os.listdir(home))
    except OSError:
        return []
    return [name for name in entries if CLUSTER_NAME.fullmatch(name) and (home / name / DESCRIPTION).is_file()]


def write_whole(path: Path, text: str) -> None:
    """Give a file new content at once: a reader sees the old or the new one. Raises ClusterError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
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
    """Hold the cluster's lock; waits for another command that has it, saying so once. Makes the folder."""
    import fcntl

    deadline_s = time.monotonic() + LOCK_WAIT_S
    told = False
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ClusterError(f"cannot use {folder}: {error.strerror}; set RMQKIT_HOME to a folder of yours") from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    told = True
                    note(f"waiting for another command on cluster {folder.name}{_holder(lock)}")
                if time.monotonic() > deadline_s:
                    raise ClusterError(f"another command holds cluster {folder.name}{_holder(lock)}") from None
                time.sleep(LOCK_POLL_S)
                continue
            if not _is_still(lock, folder / LOCK):
                continue
            with contextlib.suppress(OSError):  # only a note for others, and stopping must work on a full disk
                os.truncate(lock, 0)
                os.pwrite(lock, str(os.getpid()).encode(), 0)
            yield
            return
        finally:
            os.close(lock)


def _is_still(lock: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(lock)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _holder(lock: int) -> str:
    pid = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
    return f" (pid {pid})" if pid else ""
