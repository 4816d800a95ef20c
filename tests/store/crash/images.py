"""The disk contents that a power loss may leave, image by image.

`Platter` follows recorded operations. For each file it knows what is durable and what is only in
the page cache. After each operation it lists the images that a power loss at that moment could
leave:

- `synced`: only what was synced.
- `pages`: the same, plus each subset of the last `PAGES_LAST` unsynced pages; then once more with
  all earlier unsynced pages. A file that was never synced ends with its last page there, or has
  its full size.
- `stale`: everything, but one of those pages as it was one write before.
- `names`: files that were never synced, as names without content.
- `changes`: replaced and removed files, as far as the disk thread had come; a folder half removed.
- `torn`: of the last write only the part before, or only the part after, a boundary of 512 bytes.

Images are whole `SimFolder`s, so the store is recovered from them as from any other folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rmqkit.sim.folder import PAGE_SIZE, SECTOR_SIZE, SimFile, SimFolder
from tests.store.crash.record import ENDED, Operation

PAGES_LAST = 4
_ZEROES = bytes(PAGE_SIZE)

#: path, number of the page
Page = tuple[str, int]


class Content(NamedTuple):
    size: int
    #: page number -> content; never changed in place
    pages: Mapping[int, bytes]

    def write(self, position: int, data: bytes) -> "Content":
        pages = dict(self.pages)
        done = 0
        while done < len(data):
            number, start = divmod(position + done, PAGE_SIZE)
            part = data[done : done + PAGE_SIZE - start]
            page = pages.get(number, _ZEROES)
            pages[number] = page[:start] + part + page[start + len(part) :]
            done += len(part)
        return Content(max(self.size, position + len(data)), pages)

    def truncate(self, size: int) -> "Content":
        pages = {number: page for number, page in self.pages.items() if number * PAGE_SIZE < size}
        keep, rest = divmod(size, PAGE_SIZE)
        if keep in pages:
            pages[keep] = pages[keep][:rest] + _ZEROES[rest:]
        return Content(size, pages)


EMPTY = Content(0, {})
Files = dict[str, Content]


class Image(NamedTuple):
    """A disk after `operation_count` operations. The last of them may be incomplete."""

    kind: str
    operation_count: int
    files: Files
    detail: str = ""
    #: for an image of a killed process: what of it is durable, should the power fail later
    durable: Files | None = None

    @property
    def key(self) -> int:
        """A hash of the content: equal for images of equal content."""
        return (self.durable is None) ^ hash(
            tuple((path, file.size, tuple(sorted(file.pages.items()))) for path, file in sorted(self.files.items()))
        )

    def folder(self) -> SimFolder:
        folder = SimFolder()
        for path, content in self.files.items():
            file = folder.make_file(folder.full(path))
            file.size = file.size_durable = content.size
            file.pages = {number: bytearray(page) for number, page in content.pages.items()}
            file.is_named = True
            if self.durable is not None:
                self._let_unsynced(file, content, self.durable.get(path))
        return folder

    @staticmethod
    def _let_unsynced(file: SimFile, content: Content, durable: Content | None) -> None:
        old = durable or EMPTY
        file.is_named = durable is not None
        file.size_durable = min(old.size, content.size)
        file.dirty = {
            number: old.pages.get(number) for number, page in content.pages.items() if old.pages.get(number) != page
        }

    def flipped(self, path: str, position: int, bit: int, detail: str) -> "Image":
        """Return this image with one bit inverted."""
        content = self.files[path]
        number, at = divmod(position, PAGE_SIZE)
        byte = content.pages.get(number, _ZEROES)[at] ^ 1 << bit
        files = {**self.files, path: content.write(position, bytes([byte]))}
        return Image("flip", self.operation_count, files, detail)


def content_of(file: SimFile) -> Content:
    return Content(file.size, {number: bytes(page) for number, page in file.pages.items()})


class Platter:
    """The disk's state while operations are applied. `folder`: its durable content at the start."""

    def __init__(self, folder: SimFolder | None = None) -> None:
        files = {} if folder is None else {path: content_of(file) for path, file in folder.files.items()}
        self.durable: Files = dict(files)
        self.cache: Files = files
        #: page whose newest content is not durable -> the operation that wrote it, oldest first
        self.dirty: dict[Page, int] = {}
        #: page in `dirty` -> its content before that operation
        self.before: dict[Page, bytes] = {}
        #: operation number -> pending operation; for a sync also the file's content when it was
        #: requested, and the pages it covers
        self.asked: dict[int, tuple[Operation, Content, frozenset[int]]] = {}

    def copy(self) -> "Platter":
        other = Platter()
        other.durable, other.cache, other.dirty = dict(self.durable), dict(self.cache), dict(self.dirty)
        other.before, other.asked = self.before, dict(self.asked)
        return other

    # --- following operations

    def apply(self, number: int, operation: Operation) -> None:
        kind, path, position, data, asked = operation
        if kind == "create":
            old = self.cache.get(path, EMPTY)
            self.cache[path] = Content(max(old.size, position), old.pages)
        elif kind == "write":
            old = self.cache.get(path, EMPTY)
            self.cache[path] = old.write(position, data)
            for page in range(position // PAGE_SIZE, (position + max(len(data), 1) - 1) // PAGE_SIZE + 1):
                self.before[path, page] = old.pages.get(page, _ZEROES)
                self.dirty.pop((path, page), None)
                self.dirty[path, page] = number
        elif kind in ENDED:
            dirty = frozenset(page for name, page in self.dirty if name == path) if kind == "sync" else frozenset()
            self.asked[number] = operation, self.cache.get(path, EMPTY), dirty
        else:
            self._end(asked)

    def _end(self, number: int) -> None:
        operation, content, dirty = self.asked.pop(number)
        kind, path, position, data, _ = operation
        if kind == "sync":
            old = self.durable.get(path, EMPTY)
            pages = {**old.pages, **{page: content.pages[page] for page in dirty}}
            self.durable[path] = Content(max(old.size, content.size), pages)
            for page in dirty:
                if self.dirty.get((path, page), number) < number:
                    del self.dirty[path, page]
        elif kind == "replace":
            if path in self.cache:
                self._set(f"{path}.bak", self.cache[path])
            self._set(path, EMPTY.write(0, data))
        elif kind == "truncate":
            self._set(path, self.cache.get(path, EMPTY).truncate(position))
        else:
            for known in [known for known in {**self.cache, **self.durable} if is_below(known, path)]:
                self._forget(known)

    def _set(self, path: str, content: Content) -> None:
        self._forget(path)
        self.durable[path] = self.cache[path] = content

    def _forget(self, path: str) -> None:
        self.durable.pop(path, None)
        self.cache.pop(path, None)
        for page in [page for page in self.dirty if page[0] == path]:
            del self.dirty[page]

    # --- images

    def whole(self, count: int, kind: str = "kill") -> Image:
        """Return the page cache itself: what a killed process leaves."""
        return Image(kind, count, dict(self.cache), "", dict(self.durable) if kind == "kill" else None)

    def images(self, count: int) -> Iterator[Image]:
        yield Image("synced", count, dict(self.durable))
        yield from self._subsets(count)
        yield from self._stale(count)
        yield from self._names(count)
        yield from self._changes(count)

    def _with(self, pages: Sequence[Page], *, short: bool) -> Files:
        files = dict(self.durable)
        for path, page in pages:
            now, old = self.cache[path], files.get(path, EMPTY)
            size = min(now.size, (page + 1) * PAGE_SIZE) if short else now.size
            files[path] = Content(max(old.size, size), {**old.pages, page: now.pages[page]})
        return files

    def _subsets(self, count: int) -> Iterator[Image]:
        dirty = list(self.dirty)
        last, earlier = dirty[-PAGES_LAST:], dirty[:-PAGES_LAST]
        for mask in range(1 << len(last)):
            chosen = [page for bit, page in enumerate(last) if mask >> bit & 1]
            detail = f"{mask:04b}"
            if mask:
                yield Image("pages", count, self._with(chosen, short=bool(mask & 1)), detail)
            if earlier:
                files = self._with(earlier + chosen, short=mask % 3 == 1)
                yield Image("pages", count, files, f"{detail} and earlier ones")

    def _stale(self, count: int) -> Iterator[Image]:
        for path, page in list(self.dirty)[-PAGES_LAST:]:
            now = self.cache[path]
            older = Content(now.size, {**now.pages, page: self.before[path, page]})
            yield Image("stale", count, {**self.cache, path: older}, f"page {page} of {path}")

    def _names(self, count: int) -> Iterator[Image]:
        new = [path for path in self.cache if path not in self.durable]
        for is_sized in (False, True) if new else ():
            names = {path: Content(self.cache[path].size if is_sized else 0, {}) for path in new}
            yield Image("names", count, {**self.durable, **names}, "sized" if is_sized else "empty")

    def _changes(self, count: int) -> Iterator[Image]:
        """Yield the disk as pending changes complete.

        The disk thread works in order: once a change is done, so is every sync requested before it.
        """
        ahead = self.copy()
        for number, (operation, _, _) in self.asked.items():
            if operation.kind == "remove":
                below = sorted(known for known in ahead.durable if is_below(known, operation.path))
                if len(below) > 1:
                    half = dict(ahead.durable)
                    for known in below[len(below) // 2 :]:
                        del half[known]
                    yield Image("changes", count, half, f"{operation.path} half removed")
            elif operation.kind == "replace":
                torn = EMPTY.write(0, operation.data[: len(operation.data) // 2])
                yield Image("changes", count, {**ahead.durable, f"{operation.path}.tmp": torn}, f"{operation.path}.tmp")
            ahead._end(number)
            if operation.kind != "sync":
                detail = f"{operation.kind} {operation.path}"
                yield Image("changes", count, dict(ahead.durable), detail)
                yield Image("changes", count, dict(ahead.cache), f"{detail}, all pages")


def is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def torn(before: Platter, number: int, operation: Operation) -> Iterator[Image]:
    """Yield the images of a write that was done in part; everything before it is there."""
    _, path, position, data, _ = operation
    first = position - position % SECTOR_SIZE + SECTOR_SIZE
    for cut in range(first - position, len(data), SECTOR_SIZE):
        old = before.cache.get(path, EMPTY)
        for name, start, part in (("front", position, data[:cut]), ("back", position + cut, data[cut:])):
            yield Image("torn", number + 1, {**before.cache, path: old.write(start, part)}, f"{name} at byte {cut}")


def all_images(operations: Sequence[Operation], folder: SimFolder | None = None) -> Iterator[Image]:
    """Yield the images of every prefix of the operations."""
    platter = Platter(folder)
    for number, operation in enumerate(operations):
        if operation.kind == "write":
            yield from torn(platter, number, operation)
        platter.apply(number, operation)
        yield from platter.images(number + 1)
        yield platter.whole(number + 1)
