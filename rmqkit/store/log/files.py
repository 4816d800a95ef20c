"""A chain of files of one size, each named by the offset of its first byte (20 digits), as RocketMQ stores its logs.

`LogFiles` knows names and arithmetic; it never holds content. `start` is the offset of the first file, `end` one past the
last byte of the last file; both are equal when there are no files. Files are sparse: the content of a new file is zeroes
and takes no room until it is written. Offsets in a chain never come back: removed files leave from the front (retention)
or from the back (a cut).

Two folders use it: `commitlog` (1 GiB a file) and each queue's `consumequeue/<topic>/<queue id>` (6,000,000 bytes a file).
Source: `store/.../MappedFileQueue.java`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rmqkit.runtime.ports import Completion, Disk

NAME_DIGITS = 20


class FileChain(NamedTuple):
    """What `LogFiles.load` found besides a good chain: `problem` names the first file that breaks it ("" for none), and
    `strangers` are the paths that are no part of it, that file first. `short` is that file when it only lacks bytes."""

    problem: str = ""
    strangers: Sequence[str] = ()
    short: str = ""


class LogFiles:
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
        """Offset of the first byte of the file that holds `offset`."""
        return offset - offset % self.file_size

    def path(self, offset: int) -> str:
        """Path of the file that holds `offset`, whether it exists or not."""
        start = offset - offset % self.file_size
        path = self._paths.get(start)
        if path is None:
            path = self._paths[start] = f"{self.folder}/{start:020d}"
        return path

    def load(self) -> FileChain:
        """Find the files: `start` and `end` become those of the longest good chain. An empty last file is a stranger
        without being a problem, as it is upstream."""
        infos = [info for info in self.disk.list(self.folder) if not info.name.startswith(".")]
        self.start = self.end = 0
        for number, info in enumerate(infos):
            path = f"{self.folder}/{info.name}"
            offset = int(info.name) if info.name.isascii() and info.name.isdigit() else -1
            problem = short = ""
            if offset < 0 or len(info.name) != NAME_DIGITS or offset % self.file_size:
                problem = f"{path} does not belong there: the files' names are multiples of their size {self.file_size}"
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
        """Set where the first file of an empty chain will start."""
        assert self.start == self.end, "only an empty chain can begin elsewhere"
        self.start = self.end = self.floor(offset)

    def extend(self) -> None:
        """Make the next file. Raises OSError, with nothing moved."""
        self.disk.create(self.path(self.end), self.file_size)
        self.end += self.file_size

    def remove_first(self, then: Completion) -> None:
        path = self.path(self.start)
        self._paths.pop(self.start, None)
        self.start += self.file_size
        self.disk.remove(path, then)

    def remove_from(self, offset: int, then: Callable[[], Completion]) -> int:
        """Remove every file that starts at or after `offset`, the last first; how many went.

        `then` makes the completion of each removal.
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
