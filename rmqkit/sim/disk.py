"""`SimDisk`: the disk port on a `SimFolder`, in virtual time.

Synchronous calls take no time. Asynchronous calls form one queue of jobs, as on the shell's disk
thread. Each job takes a random time, takes effect at its end, and its completion is delivered in
the node's next turn. A sync covers everything written before it *began*. Syncs of a path that are
requested while one runs share the next one. No job overtakes a job that changes names or sizes.

A handle belongs to one process. If the process is killed or loses power, the handle is dead: queued
jobs have no effect, except that at a power loss the running job may have completed.

Faults: the folder's `capacity` (ENOSPC); `fail` for planned errors (a failed write may have taken
effect in part or completely); `sync_us` and `change_us` for slow disks; `SimFolder.flip` for
flipped bits.
"""

import errno
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from os import strerror
from random import Random
from typing import NamedTuple

from rmqkit.runtime.connection import Buffer
from rmqkit.runtime.ports import Clock, Completion, DiskUsage, FileInfo
from rmqkit.sim.folder import DEFAULT_CAPACITY, PAGE_SIZE, SimFile, SimFolder

_AT = struct.Struct("<QQ")


class _Job:
    __slots__ = ("begin", "end", "error", "path", "started", "waiters")

    def __init__(self, path: str, begin: Callable[[], None], end: Callable[[], None], then: Completion) -> None:
        self.path = path
        self.begin = begin
        self.end = end
        self.waiters = [then]
        self.error: OSError | None = None
        self.started = False


class _Fault(NamedTuple):
    operation: str
    path: str
    code: int


class SimDisk:
    """The disk handle of one process.

    `after_us(delay_us, function)` calls back in virtual time. `ended` is called when
    `take_completed` has something to return.
    """

    def __init__(
        self,
        folder: SimFolder,
        *,
        clock: Clock,
        random: Random,
        after_us: Callable[[int, Callable[[], None]], None],
        ended: Callable[[], None] = lambda: None,
        trace: Callable[[bytes], None] = lambda data: None,
    ) -> None:
        self.folder = folder
        self.is_dead = False
        #: durations of a job in microseconds (minimum, maximum): of a sync, and of any other job
        self.sync_us = (100, 2000)
        self.change_us = (50, 500)
        self.completed: deque[_Job] = deque()
        self._clock = clock
        self._random = random
        self._after_us = after_us
        self._ended = ended
        self._trace = trace
        self._jobs: deque[_Job] = deque()
        self._syncing: dict[str, _Job] = {}
        self._failed: dict[str, OSError] = {}
        self._faults: list[_Fault] = []
        self._locked: list[str] = []

    # --- faults -----------------------------------------------------------------------------------

    def fail(self, operation: str, path: str = "", *, code: int = errno.EIO, times: int = 1) -> None:
        """Make calls of `operation` (a method name) fail, on paths that begin with `path`.

        The next `times` calls raise an OSError with `code`.
        """
        self._faults += [_Fault(operation, path, code)] * times

    def heal(self) -> None:
        """Cancel the planned errors that have not occurred yet."""
        self._faults.clear()

    def die(self, random: Random | None = None) -> None:
        """End the handle with its process.

        `random` is given at a power loss: the running job then has completed with a chance of 50 %.
        """
        self.is_dead = True
        if random is not None and self._jobs and self._jobs[0].started and random.random() < 0.5:
            try:
                self._jobs[0].end()
            except OSError:
                pass
        self._jobs.clear()
        self.completed.clear()

    # --- synchronous ------------------------------------------------------------------------------

    def create(self, path: str, size: int) -> None:
        self._note(b"create", path, 0, size)
        self._check("create", path)
        file = self._writable(path)
        file.size = max(file.size, size)

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        self._note(b"write", path, position, len(data))
        self._trace(data)
        try:
            self._check("write", path)
        except OSError:
            # None, all or a part of it is written: the port makes no promise about a failed write.
            fate = self._random.randrange(3)
            if fate:
                self._writable(path).write(
                    position, data[: len(data) if fate == 1 else self._random.randrange(len(data) + 1)]
                )
            raise
        file = self._writable(path)
        folder = self.folder
        if folder.capacity != DEFAULT_CAPACITY:
            room = folder.capacity - folder.used
            if file.new_pages(position, len(data)) * PAGE_SIZE > room:
                file.write(position, data[: max(0, room)])
                raise _os_error(errno.ENOSPC, path)
        file.write(position, data)
        file.modified_ms = self._clock.wall_ms

    def read(self, path: str, position: int, size: int) -> bytes:
        self._check("read", path)
        return self._existing(path).read(position, size)

    def view(self, path: str, position: int, size: int) -> Buffer:
        self._check("view", path)
        return memoryview(self._existing(path).read(position, size))

    def size(self, path: str) -> int | None:
        file = self.folder.files.get(self.folder.full(path))
        return None if file is None else file.size

    def data_end(self, path: str) -> int:
        return self._existing(path).data_end

    def list(self, folder: str) -> Sequence[FileInfo]:
        full = self.folder.full(folder)
        infos: list[FileInfo] = []
        for name in sorted(self.folder.entries.get(full, {})):
            file = self.folder.files.get(f"{full}/{name}")
            if file is not None:
                infos.append(FileInfo(name, file.size, file.modified_ms))
        return infos

    def folders(self, folder: str) -> Sequence[str]:
        full = self.folder.full(folder)
        entries = self.folder.entries
        return sorted(name for name in entries.get(full, {}) if f"{full}/{name}" in entries)

    def usage(self, path: str) -> DiskUsage:
        used = self.folder.used
        return DiskUsage(self.folder.capacity, used, max(0, self.folder.capacity - used))

    def lock(self, path: str, content: bytes) -> None:
        full = self.folder.full(path)
        if full in self.folder.locks:
            raise BlockingIOError(errno.EAGAIN, strerror(errno.EAGAIN), full)
        self.write(path, 0, [content])
        self.folder.locks[full] = None
        self._locked.append(full)

    # --- asynchronous -----------------------------------------------------------------------------

    def sync(self, path: str, then: Completion) -> None:
        self._note(b"sync", path, 0, 0)
        job = self._syncing.get(path)
        if job is not None and not job.started:
            job.waiters.append(then)
            return
        try:
            file = self._existing(path)
        except OSError as error:
            self._give(_Job(path, _nothing, _raising(error), then))
            return
        size = 0

        def begin() -> None:
            nonlocal size
            size = file.size
            file.begin_sync()

        def end() -> None:
            try:
                if path in self._failed:
                    raise self._failed[path]
                self._check("sync", path)
            except OSError as error:
                self._failed[path] = error
                file.fail_sync()
                raise
            file.end_sync(size)

        self._syncing[path] = job = _Job(path, begin, end, then)
        self._give(job)

    def replace(self, path: str, content: bytes, then: Completion) -> None:
        self._note(b"replace", path, 0, len(content))
        self._trace(content)

        def end() -> None:
            self._check("replace", path)
            full = self.folder.full(path)
            old = self.folder.files.get(full)
            new = self.folder.make_file(full)
            new.write(0, content)
            new.modified_ms = self._clock.wall_ms
            new.begin_sync()
            new.end_sync(new.size)
            if old is not None and old.size:
                old.begin_sync()
                old.end_sync(old.size)
                self.folder.make_file(f"{full}.bak")
                self.folder.files[f"{full}.bak"] = old

        self._change(path, end, then)

    def remove(self, path: str, then: Completion) -> None:
        self._note(b"remove", path, 0, 0)

        def end() -> None:
            self._check("remove", path)
            self.folder.remove(self.folder.full(path))
            below = f"{path}/"
            for known in [known for known in self._failed if known == path or known.startswith(below)]:
                del self._failed[known]

        self._change(path, end, then)

    def truncate(self, path: str, size: int, then: Completion) -> None:
        self._note(b"truncate", path, 0, size)

        def end() -> None:
            self._check("truncate", path)
            self._existing(path).truncate(size)

        self._change(path, end, then)

    def take_completed(self) -> Iterator[tuple[Completion, OSError | None]]:
        completed = self.completed
        while completed:
            job = completed.popleft()
            if self._syncing.get(job.path) is job:
                del self._syncing[job.path]
            for then in job.waiters:
                yield then, job.error

    def close(self) -> None:
        """Complete all queued jobs now: a process that stops cleanly waits for its disk."""
        while self._jobs:
            self._end_first(self._jobs[0])
        self.is_dead = True
        for full in self._locked:
            self.folder.locks.pop(full, None)
        self._locked.clear()

    # --- internals --------------------------------------------------------------------------------

    def _note(self, operation: bytes, path: str, position: int, size: int) -> None:
        if self.is_dead:
            raise AssertionError(f"{operation.decode()} of {path} by a process that has ended")
        self._trace(operation + path.encode() + _AT.pack(position, size))

    def _check(self, operation: str, path: str) -> None:
        if self._faults:
            for number, fault in enumerate(self._faults):
                if fault.operation == operation and path.startswith(fault.path):
                    del self._faults[number]
                    raise _os_error(fault.code, path)

    def _existing(self, path: str) -> SimFile:
        return self.folder.find(self.folder.full(path))

    def _writable(self, path: str) -> SimFile:
        full = self.folder.full(path)
        file = self.folder.files.get(full)
        if file is None:
            file = self.folder.make_file(full)
            file.modified_ms = self._clock.wall_ms
        return file

    def _change(self, path: str, end: Callable[[], None], then: Completion) -> None:
        # Later syncs must not join a sync that is queued before this change of names or sizes.
        self._syncing.clear()
        self._give(_Job(path, _nothing, end, then))

    def _give(self, job: _Job) -> None:
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._begin_first()

    def _begin_first(self) -> None:
        job = self._jobs[0]
        job.started = True
        job.begin()
        low, high = self.change_us if job.begin is _nothing else self.sync_us
        self._after_us(low + int(self._random.random() * (high - low)), lambda: self._end_first(job))

    def _end_first(self, job: _Job) -> None:
        if self.is_dead or not self._jobs or self._jobs[0] is not job:
            return
        if not job.started:
            job.started = True
            job.begin()
        try:
            job.end()
        except OSError as error:
            job.error = error
        self._jobs.popleft()
        self.completed.append(job)
        if self._jobs:
            self._begin_first()
        self._ended()


def _nothing() -> None:
    pass


def _raising(error: OSError) -> Callable[[], None]:
    def end() -> None:
        raise error

    return end


def _os_error(code: int, path: str) -> OSError:
    return OSError(code, strerror(code), path)
