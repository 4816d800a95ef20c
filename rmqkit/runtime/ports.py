"""Ports: what the driver provides to a node in place of the operating system.

`rmqkit.shell` and `rmqkit.sim` implement them; `tests/contract` runs one suite over both.

**The disk.** Paths are POSIX strings relative to the node's folder
("commitlog/00000000000000000000"), or absolute if a setting says so.

Synchronous calls only reach the page cache; the caller limits their size. Operations that must be
durable or change a name complete later: the caller passes a `Completion`, and the driver calls it
through `Node.done` in the first phase of a later turn, with the OSError or None.

- Completions of one disk arrive in the order of the requests, with one exception: syncs of a path
  that are requested during a sync of that path are combined into one more sync (group commit).
- A sync covers every write to its path that was made before the request.
- `write` writes everything or raises OSError (a full disk is ENOSPC, never a signal). After an
  error the content of the requested range is undefined, and the caller does not advance its
  position.
- `view` is a read-only slice of the current file: bytes, or mapped memory that stays valid after
  the file is closed or removed.
- Reading past the end of a file returns fewer bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from rmqkit.runtime.connection import Buffer

Completion = Callable[[OSError | None], None]


class Clock:
    """The time of the current turn. The driver sets it; it stays constant until the turn ends.

    `wall_ms` is Unix time in ms, for stored timestamps only; it may jump. `mono_ms` is for
    deadlines and intervals; it never goes back.
    """

    __slots__ = ("mono_ms", "wall_ms")

    def __init__(self, mono_ms: int = 0, wall_ms: int = 0) -> None:
        self.mono_ms = mono_ms
        self.wall_ms = wall_ms


class FileInfo(NamedTuple):
    name: str
    size: int
    modified_ms: int


class DiskUsage(NamedTuple):
    total: int
    used: int
    free: int


class Entropy(Protocol):
    """Random numbers; `random.Random` fits. The driver seeds it."""

    def randrange(self, stop: int, /) -> int: ...
    def random(self) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...


#: names of files that hold secrets: the shell creates them for the node's own user only
PRIVATE_FILES = frozenset(("access.json",))


class Disk(Protocol):
    """The files of a node; the module describes the guarantees."""

    # --- synchronous: reaches the page cache
    def create(self, path: str, size: int) -> None:
        """Create a sparse file of exactly `size` bytes, with its folders.

        An existing file is extended, never truncated.
        """

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers one after the other from `position` on.

        Creates the file and its folders if they are missing.
        """

    def read(self, path: str, position: int, size: int) -> bytes:
        """Return the bytes. Raises FileNotFoundError if the file is missing."""

    def view(self, path: str, position: int, size: int) -> Buffer:
        """Return the bytes like `read`, but without a copy where possible.

        Only for files made with `create`, whose size stays.
        """

    def size(self, path: str) -> int | None:
        """Return the size in bytes, or None if the file is missing."""

    def data_end(self, path: str) -> int:
        """Return a position from which on the file reads as zeroes.

        This is where the hole at the end of a sparse file begins, or later. It is the file's size
        if the disk cannot tell. Raises FileNotFoundError if the file is missing.
        """

    def list(self, folder: str) -> Sequence[FileInfo]:
        """Return the files of a folder sorted by name, without sub-folders.

        Empty if the folder is missing.
        """

    def folders(self, folder: str) -> Sequence[str]:
        """Return the names of sub-folders, sorted."""

    def usage(self, path: str) -> DiskUsage:
        """Return the usage of the file system that holds `path`."""

    def lock(self, path: str, content: bytes) -> None:
        """Take the exclusive lock on byte 0 of the file; it is held until the process ends.

        Raises BlockingIOError if another process holds it.
        """

    # --- asynchronous: ends with a completion
    def sync(self, path: str, then: Completion) -> None: ...

    def replace(self, path: str, content: bytes, then: Completion) -> None:
        """Replace the content, keep the old one as `path.bak`; completes once both are durable."""

    def remove(self, path: str, then: Completion) -> None:
        """Remove a file, or a folder with its content. A missing one is no error."""

    def truncate(self, path: str, size: int, then: Completion) -> None: ...

    def close(self) -> None:
        """Release the files and the lock, after the pending operations have completed."""


class Log(Protocol):
    """Structured log lines of a node: an event name and fields. Never called per message."""

    def info(self, event: str, **fields: Any) -> None: ...
    def warning(self, event: str, **fields: Any) -> None: ...
    def error(self, event: str, **fields: Any) -> None: ...


#: returns path -> content of the files of ACL 1.0 that exist; raises OSError
ReadFiles = Callable[[], Mapping[str, bytes]]


class Ports(NamedTuple):
    """Everything that a driver provides to a node."""

    clock: Clock
    disk: Disk
    entropy: Entropy
    log: Log
    #: memory of the machine in bytes
    memory_size: int = 8 << 30
    #: the files of ACL 1.0, which others write: not on the node's disk, whose open files are kept
    read_acl: ReadFiles = dict
