"""File calls that differ between operating systems: positioned I/O, syncs, and the byte lock.

- Linux has all of them.
- macOS needs F_FULLFSYNC: its fsync does not flush the drive's own cache.
- Windows (clients only) has neither positioned I/O nor folder syncs. It seeks first, which is safe
  because only one thread at a time uses a file there.
"""

import errno
import os
import sys
from collections.abc import Sequence

from rmqkit.runtime.connection import Buffer

#: most buffers in one vectored call; the limit of both Linux and macOS
IOV_MAX = 1024
#: bytes per buffer up to which joining buffers is cheaper than a vectored call with all of them
JOIN_SIZE_MAX = 2048
OPEN_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
IS_WINDOWS = sys.platform == "win32"
_F_FULLFSYNC = 51


if IS_WINDOWS:

    def read_at(fd: int, size: int, position: int) -> bytes:
        """Read up to `size` bytes at `position`; fewer at the end of the file."""
        os.lseek(fd, position, os.SEEK_SET)
        return os.read(fd, size)

    def _write_some(fd: int, buffers: Sequence[Buffer], position: int) -> int:
        os.lseek(fd, position, os.SEEK_SET)
        return os.write(fd, buffers[0])

else:

    def read_at(fd: int, size: int, position: int) -> bytes:
        """Read up to `size` bytes at `position`; fewer at the end of the file."""
        return os.pread(fd, size, position)

    def _write_some(fd: int, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(fd, buffers, position)


def write_at(fd: int, buffers: Sequence[Buffer], position: int) -> None:
    """Write all buffers one after the other, starting at `position`. Repeat after a short write.

    Raises OSError.
    """
    size_left = sum(map(len, buffers))
    if size_left == 0:
        return
    is_joined = size_left <= JOIN_SIZE_MAX * len(buffers)
    waiting: list[Buffer] = [b"".join(buffers)] if is_joined else list(buffers)
    while True:
        written = _write_some(fd, waiting[:IOV_MAX], position)
        size_left -= written
        if size_left == 0:
            return
        if written == 0 and any(map(len, waiting[:IOV_MAX])):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        position += written
        done = 0
        while done < len(waiting) and len(waiting[done]) <= written:
            written -= len(waiting[done])
            done += 1
        del waiting[:done]
        if written:
            waiting[0] = memoryview(waiting[0])[written:]


def sync_file(fd: int) -> None:
    """Flush the content and the size of the file to stable storage."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, _F_FULLFSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def sync_folder(path: str) -> None:
    """Flush the entries of a folder (files created, renamed or removed in it) to stable storage.

    A missing folder is not an error.
    """
    if IS_WINDOWS:
        return
    try:
        fd = os.open(path, os.O_RDONLY | OPEN_FLAGS)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def descriptors_max() -> int:
    """Return the soft limit of open descriptors: 1 << 20 if unlimited, 2048 on Windows."""
    if IS_WINDOWS:
        return 2048
    import resource

    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def lock_byte(fd: int) -> None:
    """Take the exclusive lock on byte 0, as Java's FileChannel.tryLock(0, 1, false) does.

    Raises BlockingIOError if another process holds it.
    """
    if IS_WINDOWS:
        raise OSError(errno.ENOSYS, "a node folder cannot be locked on this platform")
    import fcntl

    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except PermissionError as error:  # POSIX allows EACCES, too, for a lock that is taken
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error


def data_end(fd: int) -> int:
    """Return the offset where the data of a file ends, which may be followed by a hole.

    Return the file's size if the file system does not support holes.
    """
    size = os.fstat(fd).st_size
    if not hasattr(os, "SEEK_DATA"):
        return size
    position = 0
    try:
        while position < size:
            position = os.lseek(fd, os.lseek(fd, position, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        if error.errno != errno.ENXIO:
            return size
    return position
