"""The files of a simulated node: their current content (page cache) and what is durable.

A `SimFile` is a size and a dict of 4 KiB pages. A page that was never written reads as zeroes, so a
file of 1 GiB costs nothing. Besides the current content, two layers hold old page content:

    dirty     pages written since the last sync began -> their content before
    syncing   pages of the running sync               -> their content before

- A successful sync clears `syncing`. A failed one moves its pages back to `dirty`: they never
  reached the disk, although a real kernel then marks them clean.
- `crash` (power loss): each unsynced page keeps its new content, gets its old content back, or is
  torn at a 512-byte sector. The file's size may follow the surviving pages, or stay without them. A
  file whose name was never synced may be gone.
- `kill` (only the process dies) loses nothing.
- `crash` and `kill` both release the locks.
- `flip` simulates silent corruption: it flips one bit, in the durable content as well.
"""

import errno
from os import strerror
from random import Random

PAGE_SIZE = 4096
SECTOR_SIZE = 512
DEFAULT_CAPACITY = 1 << 40
#: most full paths that a folder remembers
PATHS_MAX = 4096
_ZEROS = bytes(PAGE_SIZE)

Pages = dict[int, bytes | None]


class SimFile:
    """One file: `pages` is its current content by page number; see the module for the layers."""

    __slots__ = ("dirty", "is_named", "modified_ms", "pages", "size", "size_durable", "syncing")

    def __init__(self) -> None:
        self.size = 0
        self.pages: dict[int, bytearray] = {}
        self.dirty: Pages = {}
        self.syncing: Pages = {}
        self.size_durable = 0
        #: whether the file's name survives a power loss
        self.is_named = False
        self.modified_ms = 0

    def read(self, position: int, size: int) -> bytes:
        end = min(position + size, self.size)
        if position >= end:
            return b""
        first, last = position // PAGE_SIZE, (end - 1) // PAGE_SIZE
        pages = self.pages
        start = position - first * PAGE_SIZE
        if first == last:
            return bytes(pages.get(first, _ZEROS)[start : start + end - position])
        whole = b"".join([pages.get(number, _ZEROS) for number in range(first, last + 1)])
        return whole[start : start + end - position]

    def write(self, position: int, data: bytes) -> None:
        done, size = 0, len(data)
        while done < size:
            number, start = divmod(position + done, PAGE_SIZE)
            part = min(PAGE_SIZE - start, size - done)
            page = self._touch(number)
            page[start : start + part] = data[done : done + part]
            done += part
        self.size = max(self.size, position + size)

    @property
    def data_end(self) -> int:
        """End of the last page that was ever written, at most the file's size."""
        return min(self.size, (max(self.pages, default=-1) + 1) * PAGE_SIZE)

    def new_pages(self, position: int, size: int) -> int:
        """Return how many new pages a write would allocate."""
        if size == 0:
            return 0
        numbers = range(position // PAGE_SIZE, (position + size - 1) // PAGE_SIZE + 1)
        return sum(number not in self.pages for number in numbers)

    def truncate(self, size: int) -> None:
        """Cut or extend the file; durable at once."""
        keep, rest = divmod(size, PAGE_SIZE)
        for layer in (self.pages, self.dirty, self.syncing):
            for number in [number for number in layer if number > keep or (number == keep and rest == 0)]:
                del layer[number]
        if rest and keep in self.pages:
            self.pages[keep][rest:] = bytes(PAGE_SIZE - rest)
        self.size = self.size_durable = size

    def begin_sync(self) -> None:
        self.syncing, self.dirty = self.dirty, {}

    def end_sync(self, size: int) -> None:
        """Complete a sync. `size` is the file's size when the sync began; it is durable now."""
        self.syncing = {}
        self.size_durable = max(self.size_durable, size) if size <= self.size else self.size
        self.is_named = True

    def fail_sync(self) -> None:
        for number, old in self.syncing.items():
            self.dirty[number] = old
        self.syncing = {}

    def crash(self, random: Random) -> None:
        """Apply a power loss: keep, undo or tear each unsynced page."""
        end = self.size_durable
        for layer in (self.dirty, self.syncing):
            for number in sorted(layer):
                now = self.pages[number]
                before = layer[number] or _ZEROS
                fate = random.random()
                if fate < 0.45:
                    now[:] = before
                elif fate < 0.6:
                    cut = SECTOR_SIZE * random.randrange(1, PAGE_SIZE // SECTOR_SIZE)
                    now[cut:] = before[cut:]
                if fate >= 0.45:
                    end = max(end, min(self.size, (number + 1) * PAGE_SIZE))
        self.dirty, self.syncing = {}, {}
        # The size set by `create` is separate metadata: it may survive without the pages.
        if random.random() < 0.5:
            self.truncate(end)
        self.size_durable = self.size
        self.is_named = True

    def _touch(self, number: int) -> bytearray:
        page = self.pages.get(number)
        if page is None:
            page = self.pages[number] = bytearray(PAGE_SIZE)
            self.dirty[number] = None
        elif number not in self.dirty:
            self.dirty[number] = bytes(page)
        return page


class SimFolder:
    """All files of a node by full path, and their folders.

    `capacity` limits the bytes of written pages.
    """

    def __init__(self, root: str = "/sim", *, capacity: int = DEFAULT_CAPACITY) -> None:
        self.root = root
        self.capacity = capacity
        self.files: dict[str, SimFile] = {}
        #: full path of a folder -> names of the files and folders in it
        self.entries: dict[str, dict[str, None]] = {}
        self.locks: dict[str, None] = {}
        self._full: dict[str, str] = {}
        self.make_folder(root)

    @property
    def used(self) -> int:
        return PAGE_SIZE * sum(len(file.pages) for file in self.files.values())

    def full(self, path: str) -> str:
        """Return the full path. Raises ValueError if the path leaves the node's folder."""
        full = self._full.get(path)
        if full is not None:
            return full
        if path.startswith("/"):
            return path.rstrip("/")
        if ".." in path.split("/"):
            raise ValueError(f"{path!r} leaves the node's folder")
        full = f"{self.root}/{path}".rstrip("/")
        if len(self._full) < PATHS_MAX:
            self._full[path] = full
        return full

    def find(self, path: str) -> SimFile:
        """Return the file at a full path.

        Raises FileNotFoundError, IsADirectoryError or NotADirectoryError if there is none.
        """
        file = self.files.get(path)
        if file is None:
            if path in self.entries:
                raise IsADirectoryError(errno.EISDIR, strerror(errno.EISDIR), path)
            above = path
            while (above := above.rpartition("/")[0]) and above not in self.entries:
                if above in self.files:
                    raise NotADirectoryError(errno.ENOTDIR, strerror(errno.ENOTDIR), path)
            raise FileNotFoundError(errno.ENOENT, strerror(errno.ENOENT), path)
        return file

    def make_folder(self, path: str) -> None:
        if path in self.entries:
            return
        if path in self.files:
            raise NotADirectoryError(errno.ENOTDIR, strerror(errno.ENOTDIR), path)
        above, _, name = path.rpartition("/")
        if above:
            self.make_folder(above)
            self.entries[above][name] = None
        self.entries[path] = {}

    def make_file(self, path: str) -> SimFile:
        if path in self.entries:
            raise IsADirectoryError(errno.EISDIR, strerror(errno.EISDIR), path)
        above, _, name = path.rpartition("/")
        self.make_folder(above)
        self.entries[above][name] = None
        file = self.files[path] = SimFile()
        return file

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content. A missing path is no error."""
        above, _, name = path.rpartition("/")
        self.entries.get(above, {}).pop(name, None)
        self.files.pop(path, None)
        below = f"{path}/"
        for known in [known for known in self.files if known.startswith(below)]:
            del self.files[known]
        for known in [known for known in self.entries if known == path or known.startswith(below)]:
            del self.entries[known]

    def kill(self) -> None:
        """Apply the death of the process: the page cache stays, the locks are released."""
        self.locks.clear()
        for file in self.files.values():
            # Nobody has seen the running sync succeed, so its pages count as unsynced.
            file.fail_sync()

    def flip(self, random: Random, below: str) -> tuple[str, int]:
        """Flip one bit of the data written to files at or below a full path.

        Return the file's path and the byte's position. Raises ValueError if nothing was written
        there.
        """
        written = [
            (path, number)
            for path in sorted(self.files)
            if path == below or path.startswith(f"{below}/")
            for number in sorted(self.files[path].pages)
        ]
        if not written:
            raise ValueError(f"nothing was written below {below}")
        path, number = written[random.randrange(len(written))]
        file = self.files[path]
        size = max(1, min(PAGE_SIZE, file.size - number * PAGE_SIZE))
        at = random.randrange(size)
        file.pages[number][at] ^= 1 << random.randrange(8)
        return path, number * PAGE_SIZE + at

    def crash(self, random: Random) -> None:
        """Apply a power loss to all files."""
        self.locks.clear()
        for path in sorted(self.files):
            file = self.files[path]
            if not file.is_named and random.random() < 0.5:
                self.remove(path)
            else:
                file.crash(random)
