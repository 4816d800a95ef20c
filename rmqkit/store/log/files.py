"""A chain of equal-sized files, as RocketMQ stores its logs.

The name of a file is the offset of its first byte, in 20 digits.

`LogFiles` handles names and offsets and never holds content. `start` is the offset of the first
file, `end` is one past the last byte of the last file. Without files both are equal. Files are
sparse: a new file reads as zeroes and uses no space until it is written. Files are removed only
from the front (retention) or from the back (truncation).

Used for `commitlog` (1 GiB per file) and for each queue's `consumequeue/<topic>/<queue id>`
(6,000,000 bytes per file).

Source: `store/.../MappedFileQueue.java`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rmqkit.runtime.ports import Completion, Disk

NAME_DIGITS = 20


class FileChain(NamedTuple):
    """What `LogFiles.load` found besides the valid chain.

    `problem` describes the first file that breaks the chain, "" if none does. `strangers` are the
    paths that do not belong to the chain, that file first. `short` is that file's path if its only
    defect is that it is too short.
    """

    problem: str = ""
    strangers: Sequence[str] = ()
    short: str = ""


class LogFiles:
    """The names and the extent of one chain: existing files cover `start` up to `end`."""

    def __init__(self, disk: Disk, folder: str, file_size: int) -> None:
        self.disk = disk
        self.folder = folder
        self.file_size = file_size
        self.start = 0
        self.end = 0
        self._paths: dict[int, str] = {}

    def __len__(self) -> int:
        return (self.end - self.start) // self.file_size

    def floor(self, offset: int) -> int:
        """Return the offset of the first byte of the file that holds `offset`."""
        return offset - offset % self.file_size

    def path(self, offset: int) -> str:
        """Return the path of the file that holds `offset`, which need not exist."""
        start = offset - offset % self.file_size
        path = self._paths.get(start)
        if path is None:
            path = self._paths[start] = f"{self.folder}/{start:020d}"
        return path

    def load(self) -> FileChain:
        """Find the files. `start` and `end` become those of the longest valid chain.

        As in Apache, an empty last file is not a problem, but it is listed in `strangers`.
        """
        infos = [info for info in self.disk.list(self.folder) if not info.name.startswith(".")]
        self.start = self.end = 0
        for number, info in enumerate(infos):
            path = f"{self.folder}/{info.name}"
            offset = int(info.name) if info.name.isascii() and info.name.isdigit() else -1
            problem = short = ""
            if offset < 0 or len(info.name) != NAME_DIGITS or offset % self.file_size:
                problem = f"{path} does not belong there: file names must be multiples of the file size {self.file_size}"
            elif number and offset != self.end:
                problem = f"{self.path(self.end)} is missing (found {info.name} after it)"
            elif info.size != self.file_size:
                problem = f"{path} has {info.size} bytes where {self.file_size} are configured"
                short = path if info.size < self.file_size else ""
            if problem:
                if not number and offset >= 0:
                    self.start = self.end = self.floor(offset)
                strangers = [f"{self.folder}/{other.name}" for other in infos[number:]]
                return FileChain("" if info.size == 0 and len(strangers) == 1 else problem, strangers, short)
            if not number:
                self.start = offset
            self.end = offset + self.file_size
        return FileChain()

    def begin(self, offset: int) -> None:
        """Make an empty chain start at the file that holds `offset`."""
        assert self.start == self.end, "only an empty chain can begin elsewhere"
        self.start = self.end = self.floor(offset)

    def extend(self) -> None:
        """Create the next file. Raises OSError; the chain is then unchanged."""
        self.disk.create(self.path(self.end), self.file_size)
        self.end += self.file_size

    def remove_first(self, then: Completion) -> None:
        """Remove the first file; `then` is its completion."""
        path = self.path(self.start)
        self._paths.pop(self.start, None)
        self.start += self.file_size
        self.disk.remove(path, then)

    def remove_from(self, offset: int, then: Callable[[], Completion]) -> int:
        """Remove every file that starts at or after `offset`, the last first. Return how many.

        `then()` creates the completion of each removal.
        """
        removed = 0
        while self.end > self.start and self.end - self.file_size >= offset:
            last = self.end - self.file_size
            path = self.path(last)
            self._paths.pop(last, None)
            self.end = last
            self.disk.remove(path, then())
            removed += 1
        return removed
