"""A disk in the process's memory: the disk port over a dict of pages, with a size limit.

The engine `memory` runs on it. Files are sparse: a file of any size only costs the pages that were
written. Asynchronous calls take effect at once. Their owner delivers the completions
(`take_completed`) in a later turn, as the port promises. Nothing survives the process. Once
`size_max` bytes are used, writes fail with ENOSPC.
"""

import errno
from collections.abc import Callable, Sequence

from rmqkit.runtime.connection import Buffer
from rmqkit.runtime.ports import Clock, Completion, DiskUsage, FileInfo

PAGE_SIZE = 16_384
_ZEROES = bytes(PAGE_SIZE)


class _File:
    __slots__ = ("modified_ms", "pages", "size")

    def __init__(self) -> None:
        self.size = 0
        self.pages: dict[int, bytearray] = {}
        self.modified_ms = 0


class HeapDisk:
    """`ended` is called when `take_completed` has something to return."""

    def __init__(self, clock: Clock, size_max: int, ended: Callable[[], None]) -> None:
        self.size_max = size_max
        self._ended = ended
        self._clock = clock
        self._files: dict[str, _File] = {}
        self._pages = 0
        self._completed: list[tuple[Completion, OSError | None]] = []

    def take_completed(self) -> list[tuple[Completion, OSError | None]]:
        completed, self._completed = self._completed, []
        return completed

    # --- synchronous ------------------------------------------------------------------------------

    def create(self, path: str, size: int) -> None:
        file = self._open(path)
        file.size = max(file.size, size)

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        data = memoryview(b"".join(buffers))
        file = self._open(path)
        pages = file.pages
        file.modified_ms = self._clock.wall_ms
        while data:
            number, start = divmod(position, PAGE_SIZE)
            part = data[: PAGE_SIZE - start]
            page = pages.get(number)
            if page is None:
                if (self._pages + 1) * PAGE_SIZE > self.size_max:
                    raise OSError(errno.ENOSPC, "No space left in memory (size_max)", path)
                page = pages[number] = bytearray(PAGE_SIZE)
                self._pages += 1
            page[start : start + len(part)] = part
            position += len(part)
            data = data[len(part) :]
        file.size = max(file.size, position)

    def read(self, path: str, position: int, size: int) -> bytes:
        file = self._files.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        end = min(position + size, file.size)
        if position >= end:
            return b""
        first, start = divmod(position, PAGE_SIZE)
        pages = [file.pages.get(number, _ZEROES) for number in range(first, (end - 1) // PAGE_SIZE + 1)]
        whole = pages[0] if len(pages) == 1 else b"".join(pages)
        return bytes(whole[start : start + end - position])

    def view(self, path: str, position: int, size: int) -> Buffer:
        return memoryview(self.read(path, position, size))

    def size(self, path: str) -> int | None:
        file = self._files.get(path)
        return None if file is None else file.size

    def data_end(self, path: str) -> int:
        file = self._files.get(path)
        if file is None:
            raise FileNotFoundError(path)
        return min(file.size, (max(file.pages, default=-1) + 1) * PAGE_SIZE)

    def list(self, folder: str) -> Sequence[FileInfo]:
        before = f"{folder}/"
        return sorted(
            FileInfo(path[len(before) :], file.size, file.modified_ms)
            for path, file in self._files.items()
            if path.startswith(before) and "/" not in path[len(before) :]
        )

    def folders(self, folder: str) -> Sequence[str]:
        before = f"{folder}/"
        below = [path[len(before) :] for path in self._files if path.startswith(before)]
        return sorted({name.partition("/")[0] for name in below if "/" in name})

    def usage(self, path: str) -> DiskUsage:
        used = self._pages * PAGE_SIZE
        return DiskUsage(self.size_max, used, self.size_max - used)

    def lock(self, path: str, content: bytes) -> None:
        self.write(path, 0, [content])

    # --- asynchronous -----------------------------------------------------------------------------

    def sync(self, path: str, then: Completion) -> None:
        missing = FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        self._end(then, None if path in self._files else missing)

    def replace(self, path: str, content: bytes, then: Completion) -> None:
        self._remove(path)
        try:
            self.write(path, 0, [content])
        except OSError as error:
            self._end(then, error)
        else:
            self._end(then, None)

    def remove(self, path: str, then: Completion) -> None:
        below = f"{path}/"
        for known in [known for known in self._files if known == path or known.startswith(below)]:
            self._remove(known)
        self._end(then, None)

    def truncate(self, path: str, size: int, then: Completion) -> None:
        content = self.read(path, 0, size)
        self._remove(path)
        self.write(path, 0, [content])
        self._files[path].size = size
        self._end(then, None)

    def close(self) -> None:
        self._files.clear()
        self._pages = 0

    def _end(self, then: Completion, error: OSError | None) -> None:
        self._completed.append((then, error))
        self._ended()

    def _open(self, path: str) -> _File:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = _File()
        return file

    def _remove(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            self._pages -= len(file.pages)
