"""Ports: what a node is given instead of the operating system. Two drivers implement them: `rmqkit.shell` and
`rmqkit.sim`; `tests/contract` runs one suite over both.

The disk. Paths are posix strings relative to the node's folder ("commitlog/00000000000000000000"), or absolute when a
setting said so. Synchronous calls mean the page cache and are bounded by their caller; what must reach the platter or
change a name completes later: the caller passes a `Completion`, the driver hands it back through `Node.done` in the first
phase of a later turn, with the OSError or None. Completions of one disk come back in the order asked for, except that
syncs of one path asked for while a sync of it runs are answered together by one more sync (group commit).
A sync covers every write to that path made before it was asked for.

`write` either writes everything or raises OSError (a full disk is ENOSPC here, never a signal); after an error the
content between `position` and the end of what was asked is undefined and the caller does not move its position.
`view` is a read-only slice of the file as it is now: bytes, or memory of a mapping that stays valid after the file is
closed or removed. Reading past the end of a file gives fewer bytes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from rmqkit.runtime.connection import Buffer

Completion = Callable[[OSError | None], None]


class Clock:
    """The time of the current turn, set by the driver, fixed until the turn ends.

    `wall_ms`: Unix time in ms, for stored stamps only; may jump. `mono_ms`: for deadlines and intervals; never goes back.
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
    """Random numbers; `random.Random` fits. Drivers seed it."""

    def randrange(self, stop: int, /) -> int: ...
    def random(self) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...


class Disk(Protocol):
    # --- synchronous: the page cache
    def create(self, path: str, size: int) -> None:
        """Make a sparse file of exactly `size` bytes, with its folders; an existing file is extended, never cut."""

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers one after the other at `position`; makes the file and its folders if absent."""

    def read(self, path: str, position: int, size: int) -> bytes:
        """FileNotFoundError if absent."""

    def view(self, path: str, position: int, size: int) -> Buffer:
        """As `read`, without a copy where the driver can. For files made with `create`, whose size stays."""

    def size(self, path: str) -> int | None:
        """Bytes, or None when there is no such file."""

    def data_end(self, path: str) -> int:
        """Where the hole at the end of a sparse file begins, or later: behind it everything reads as zeroes.

        The size of the file where the disk cannot tell; FileNotFoundError if absent.
        """

    def list(self, folder: str) -> Sequence[FileInfo]:
        """Files of a folder sorted by name, folders left out; empty when there is none."""

    def folders(self, folder: str) -> Sequence[str]:
        """Names of sub-folders, sorted."""

    def usage(self, path: str) -> DiskUsage:
        """Of the file system that holds `path`."""

    def lock(self, path: str, content: bytes) -> None:
        """Take the exclusive lock on byte 0 of the file, held until the process ends. BlockingIOError if taken."""

    # --- later
    def sync(self, path: str, then: Completion) -> None: ...

    def replace(self, path: str, content: bytes, then: Completion) -> None:
        """Give the file new content, keeping the old one as `path.bak`; done when both are durable."""

    def remove(self, path: str, then: Completion) -> None:
        """Remove a file, or a folder with all in it. An absent one is no error."""

    def truncate(self, path: str, size: int, then: Completion) -> None: ...

    def close(self) -> None:
        """Release files and the lock; waits for what was asked before."""


class Log(Protocol):
    """Structured log lines of a node: an event name and fields. Never called per message."""

    def info(self, event: str, **fields: Any) -> None: ...
    def warning(self, event: str, **fields: Any) -> None: ...
    def error(self, event: str, **fields: Any) -> None: ...


class Ports(NamedTuple):
    """Everything a driver gives a node."""

    clock: Clock
    disk: Disk
    entropy: Entropy
    log: Log
    #: bytes of memory of the machine
    memory_size: int = 8 << 30
