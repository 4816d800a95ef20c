"""`OsDisk`: the disk port on real files.

Synchronous calls run on the driver's thread and reach the page cache only: complete `pwritev`
writes, `pread`, and slices of a read-only mapping.

Open files are cached, at most `fds_max` of them; the least recently used is closed first. A file
with a job in flight stays open even above that limit. Mappings are cached in the same way, but
never closed explicitly: a socket may still be sending views of one. An evicted mapping is freed
with its last view. A mapped file must not shrink under its views, so call `truncate` only for a
tail that is not read any more.

Asynchronous calls are `Job`s for the disk thread. The driver collects finished jobs with
`take_completed` in the first phase of its turn. Open files are tracked there, on the driver's
thread, so no table of files is shared between threads.

- A sync covers the file. If this disk created the file or folders above it, the sync also covers
  the entries of those folders.
- After a failed sync every later sync of that path fails too. The kernel has dropped the dirty
  pages by then and would report success.
- `replace` writes `path.tmp`, syncs it, hard-links the old content to `path.bak` and renames. At
  every instant `path` holds either the old or the new content. An empty old file gets no backup.
- A POSIX lock belongs to the process and ends when any descriptor of its file is closed. So the
  descriptor of a locked file stays in the table until `close`. The process-wide table `_LOCKED`
  refuses a second lock without opening the file.
"""

import errno
import mmap
import os
import shutil
import stat
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rmqkit.runtime.connection import Buffer
from rmqkit.runtime.ports import PRIVATE_FILES, Completion, DiskUsage, FileInfo
from rmqkit.shell import osfile
from rmqkit.shell.disk_thread import DiskThread, Job

#: bytes; copying a smaller file is cheaper than a page fault and the bookkeeping of a mapping
MAPPED_SIZE_MIN = 65_536
#: path by (device, inode) of each file that this process has locked
_LOCKED: dict[tuple[int, int], str] = {}
_LOCKED_GUARD = threading.Lock()


@dataclass(slots=True, eq=False)
class _File:
    fd: int
    writable: bool
    #: jobs in flight, plus 1 if the file is locked; the descriptor stays open while this is above 0
    users: int = 0


class OsDisk:
    """The files of one node under `root`, which is created if missing.

    The disk thread calls `wake` after each job.

    `share` is the number of nodes that divide the process's descriptor limit. By default a node
    keeps a quarter of its share as open files (`fds_max`, 8 to 4096) and a sixteenth as mappings
    (`mappings_max`, 4 to 256). Each mapping holds a descriptor too.
    """

    def __init__(
        self,
        root: str,
        *,
        wake: Callable[[], None] = lambda: None,
        share: int = 1,
        fds_max: int | None = None,
        mappings_max: int | None = None,
    ) -> None:
        descriptors = osfile.descriptors_max() // share
        self.root = os.path.abspath(root)
        #: finished jobs that the driver has not collected yet; filled by the disk thread
        self.completed: deque[Job] = deque()
        self._thread = DiskThread(wake)
        self._fds_max = fds_max or max(8, min(4096, descriptors // 4))
        self._mappings_max = mappings_max or max(4, min(256, descriptors // 16))
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._mappings: OrderedDict[str, memoryview] = OrderedDict()
        #: by path: folders whose entries the next sync of that path must cover
        self._new_names: dict[str, list[str]] = {}
        self._syncing: dict[str, Job] = {}
        self._synced_files: dict[Job, _File] = {}
        #: error by path whose sync has failed; used by the disk thread only
        self._failed: dict[str, OSError] = {}
        self._locks: list[tuple[int, int]] = []
        self._asked = 0
        self._collected = 0
        os.makedirs(self.root, exist_ok=True)

    # --- synchronous ------------------------------------------------------------------------------

    def create(self, path: str, size: int) -> None:
        file = self._writable(path)
        if os.fstat(file.fd).st_size < size:
            os.ftruncate(file.fd, size)

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        file = self._files.get(path)
        if file is None or not file.writable:
            file = self._writable(path)
        else:
            self._files.move_to_end(path)
        osfile.write_at(file.fd, buffers, position)

    def read(self, path: str, position: int, size: int) -> bytes:
        return osfile.read_at(self._readable(path).fd, size, position)

    def view(self, path: str, position: int, size: int) -> Buffer:
        mapping = self._mappings.get(path)
        if mapping is None or position + size > len(mapping):
            mapping = self._map(path)
            if mapping is None:
                return self.read(path, position, size)
        else:
            self._mappings.move_to_end(path)
        return mapping[position : position + size]

    def size(self, path: str) -> int | None:
        try:
            found = os.stat(self._full(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def data_end(self, path: str) -> int:
        return osfile.data_end(self._readable(path).fd)

    def list(self, folder: str) -> Sequence[FileInfo]:
        infos: list[FileInfo] = []
        for entry in self._scan(folder):
            try:
                if entry.is_file():
                    found = entry.stat()
                    infos.append(FileInfo(entry.name, found.st_size, found.st_mtime_ns // 1_000_000))
            except FileNotFoundError:
                continue
        return sorted(infos)

    def folders(self, folder: str) -> Sequence[str]:
        return sorted(entry.name for entry in self._scan(folder) if entry.is_dir())

    def usage(self, path: str) -> DiskUsage:
        full = self._full(path)
        while not os.path.exists(full) and full != os.path.dirname(full):
            full = os.path.dirname(full)
        if not hasattr(os, "statvfs"):
            return DiskUsage(*shutil.disk_usage(full))
        found = os.statvfs(full)
        unit = found.f_frsize
        return DiskUsage(found.f_blocks * unit, (found.f_blocks - found.f_bfree) * unit, found.f_bavail * unit)

    def lock(self, path: str, content: bytes) -> None:
        full = self._full(path)
        with _LOCKED_GUARD:
            try:
                found = os.stat(full)
            except FileNotFoundError:
                pass
            else:
                if (found.st_dev, found.st_ino) in _LOCKED:
                    raise BlockingIOError(errno.EAGAIN, "locked by this process", full)
            file = self._writable(path)
            osfile.lock_byte(file.fd)
            found = os.fstat(file.fd)
            self._locks.append((found.st_dev, found.st_ino))
            _LOCKED[self._locks[-1]] = full
        file.users += 1
        osfile.write_at(file.fd, [content], 0)

    # --- asynchronous -----------------------------------------------------------------------------

    def sync(self, path: str, then: Completion) -> None:
        job = self._syncing.get(path)
        if job is not None and not job.started:
            job.waiters.append(then)
            return
        try:
            file = self._readable(path)
        except OSError as error:
            self._give(Job(path, _raising(error), [then], self.completed))
            return
        file.users += 1
        folders = self._new_names.pop(path, [])
        failed = self._failed

        def work() -> None:
            if path in failed:
                raise failed[path]
            try:
                osfile.sync_file(file.fd)
                for folder in folders:
                    osfile.sync_folder(folder)
            except OSError as error:
                failed[path] = error
                raise

        job = Job(path, work, [then], self.completed)
        self._synced_files[job] = file
        self._syncing[path] = job
        self._give(job)

    def replace(self, path: str, content: bytes, then: Completion) -> None:
        full = self._full(path)
        self._change(path, lambda: _replace(full, content), then)

    def remove(self, path: str, then: Completion) -> None:
        full = self._full(path)
        failed = self._failed

        def work() -> None:
            _remove(full)
            # A file created later under this name is another file and may be synced.
            for known in _of_path(path, failed):
                del failed[known]

        self._change(path, work, then)

    def truncate(self, path: str, size: int, then: Completion) -> None:
        full = self._full(path)
        self._change(path, lambda: _truncate(full, size), then)

    def take_completed(self) -> Iterator[tuple[Completion, OSError | None]]:
        """Yield the completions of the jobs that ended since the last call, with the error or None.

        They come in the order in which the jobs were queued. Only the driver may call this.
        """
        completed = self.completed
        while completed:
            job = completed.popleft()
            self._collected += 1
            file = self._synced_files.pop(job, None)
            if file is None:
                # The job may have replaced or shortened the file, so drop what was cached.
                self._forget(job.path)
            else:
                file.users -= 1
                if self._syncing.get(job.path) is job:
                    del self._syncing[job.path]
            for then in job.waiters:
                yield then, job.error

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until `take_completed` has something to yield, or no job is in flight.

        Return False on timeout.
        """
        return self._thread.wait_until(lambda: bool(self.completed) or self._asked == self._collected, timeout_s)

    def close(self) -> None:
        """Wait for the jobs in flight, then close every file and release the locks."""
        self._thread.wait_until(lambda: self._asked == self._collected + len(self.completed))
        self._thread.close()
        self._mappings.clear()
        with _LOCKED_GUARD:
            for file in self._files.values():
                os.close(file.fd)
            for key in self._locks:
                del _LOCKED[key]
        self._files.clear()
        self._locks.clear()

    # --- open files -------------------------------------------------------------------------------

    def _full(self, path: str) -> str:
        if os.path.isabs(path):
            return path
        if ".." in path.split("/"):
            raise ValueError(f"{path!r} leaves the node's folder")
        return os.path.join(self.root, path)

    def _scan(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self._full(folder)) as entries:
                yield from entries
        except (FileNotFoundError, NotADirectoryError):
            return

    def _readable(self, path: str) -> _File:
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        full = self._full(path)
        try:
            return self._keep(path, _File(os.open(full, os.O_RDWR | osfile.OPEN_FLAGS), True))
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            return self._keep(path, _File(os.open(full, os.O_RDONLY | osfile.OPEN_FLAGS), False))

    def _writable(self, path: str) -> _File:
        file = self._files.get(path)
        if file is not None and file.writable:
            self._files.move_to_end(path)
            return file
        if file is not None:
            self._forget(path)
        full = self._full(path)
        try:
            fd = os.open(full, os.O_RDWR | osfile.OPEN_FLAGS)
        except FileNotFoundError:
            folders = _make_folders(full)
            fd = os.open(full, os.O_RDWR | os.O_CREAT | osfile.OPEN_FLAGS, 0o644)
            self._new_names[path] = folders
        return self._keep(path, _File(fd, True))

    def _keep(self, path: str, file: _File) -> _File:
        files = self._files
        files[path] = file
        if len(files) > self._fds_max:
            for old_path, old in files.items():
                if old.users == 0 and old is not file:
                    os.close(old.fd)
                    del files[old_path]
                    break
        return file

    def _map(self, path: str) -> memoryview | None:
        """Return a mapping of the file at its current size, or None below `MAPPED_SIZE_MIN`."""
        file = self._readable(path)
        size = os.fstat(file.fd).st_size
        if size < MAPPED_SIZE_MIN:
            return None
        known = self._mappings.get(path)
        if known is not None and len(known) == size:
            return known
        mapping = memoryview(mmap.mmap(file.fd, size, access=mmap.ACCESS_READ))
        self._mappings[path] = mapping
        self._mappings.move_to_end(path)
        if len(self._mappings) > self._mappings_max:
            self._mappings.popitem(last=False)
        return mapping

    def _forget(self, path: str) -> None:
        """Drop the cached mappings and unused descriptors of a path and of everything below it."""
        for known in _of_path(path, self._mappings):
            del self._mappings[known]
        for known in _of_path(path, self._files):
            if self._files[known].users == 0:
                os.close(self._files.pop(known).fd)

    def _change(self, path: str, work: Callable[[], None], then: Completion) -> None:
        """Queue a job that changes a name or a size.

        Later syncs must not join one that was queued before this job.
        """
        self._syncing.clear()
        self._forget(path)
        self._give(Job(path, work, [then], self.completed))

    def _give(self, job: Job) -> None:
        self._asked += 1
        self._thread.give(job)


def _of_path(path: str, known: Iterable[str]) -> Sequence[str]:
    """Return those of the known paths that are `path` itself or lie below it."""
    below = f"{path}/"
    return [each for each in known if each == path or each.startswith(below)]


def _raising(error: OSError) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def _make_folders(full: str) -> list[str]:
    """Create the missing folders above a file.

    Return every folder whose entries change when the file is created, innermost first.
    """
    folder = os.path.dirname(full)
    changed = [folder]
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        changed.append(folder)
    if len(changed) > 1:
        try:
            os.makedirs(changed[0], exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), full) from error
    return changed


def _replace(full: str, content: bytes) -> None:
    if os.path.isdir(full):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), full)
    folders = _make_folders(full)
    temporary, backup, backup_next = f"{full}.tmp", f"{full}.bak", f"{full}.bak.tmp"
    is_private = os.path.basename(full) in PRIVATE_FILES
    mode = 0o600 if is_private else 0o644
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | osfile.OPEN_FLAGS, mode)
    try:
        if is_private:
            os.fchmod(fd, mode)  # a leftover of a crash may be readable for others
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(content)
        osfile.sync_file(fd)
    finally:
        os.close(fd)
    has_old = os.path.exists(full) and os.path.getsize(full) > 0
    if has_old:
        try:
            if os.path.exists(backup_next):
                os.remove(backup_next)
            os.link(full, backup_next)
        except OSError:  # no hard links on this file system: for an instant only the backup exists
            os.replace(full, backup)
            has_old = False
    os.replace(temporary, full)
    if has_old:
        os.replace(backup_next, backup)
    for folder in folders:
        osfile.sync_folder(folder)


def _remove(full: str) -> None:
    try:
        if os.path.isdir(full) and not os.path.islink(full):
            shutil.rmtree(full)
        else:
            os.remove(full)
    except (FileNotFoundError, NotADirectoryError):
        return
    osfile.sync_folder(os.path.dirname(full))


def _truncate(full: str, size: int) -> None:
    fd = os.open(full, os.O_RDWR | osfile.OPEN_FLAGS)
    try:
        os.ftruncate(fd, size)
        osfile.sync_file(fd)
    finally:
        os.close(fd)
