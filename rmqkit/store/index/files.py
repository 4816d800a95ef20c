"""The index files of a store. Keys are added in batches.

- `add` collects the keys of a batch, grouped by the block of the slot table that they belong to.
- `apply_some` reads, changes and writes a few blocks at a time, then writes all entries at once. A
  small batch takes one call: at a low rate of messages, each further turn would cost more.
- Only then do the counts change, so lookups see whole batches.

A slot table has 20 MB, and a batch touches scattered parts of it. Reading and writing blocks of 16
KiB makes this affordable without holding the table in memory.

A header is written only after the entries and slots that it covers are synced, and after the header
of the previous file (`sync_due`). So after a crash every header is true. Slots that point beyond
its count are leftovers; `Repair` rebuilds the slot table from the entries.

Source: `store/.../index/IndexService.java`.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from struct import Struct
from typing import NamedTuple

from rmqkit.runtime.ports import Completion, Disk
from rmqkit.store.index.file import BLOCK_SIZE, ENTRY, SLOTS_PER_BLOCK, IndexFile, block_of, seconds_between, slots_of

_ENTRIES_PER_STEP = 16_384
_ENTRIES_PACKED = 2048
#: entries that are encoded by one call
_GROUP = 256
_GROUP_PACK = Struct(f">{'iqii' * _GROUP}").pack
#: slots that one step changes, at least
_SLOTS_PER_STEP = 4096
#: consecutive entries that are looked at together: the ids of one client that follow each other
#: have hashes close to each other, as a rule in one block of slots
_NEIGHBOURS = 32


class Entries(NamedTuple):
    """Entries for an index file, by column."""

    hashes: list[int]
    phy_offsets: list[int]
    #: store times in ms
    times_ms: list[int]


class IndexFiles:
    """All index files, oldest first, and the batch for the last one."""

    def __init__(self, disk: Disk, folder: str, slot_count: int, count_max: int) -> None:
        self.disk = disk
        self.folder = folder
        self.files: list[IndexFile] = []
        self._slot_count = slot_count
        self._count_max = count_max
        #: the batch, the slot of each entry, and the numbers of the entries by slot block
        self._entries = Entries([], [], [])
        self._slots: list[int] = []
        self._blocks: defaultdict[int, list[int]] = defaultdict(list)
        self._previous: list[int] = []
        self._packed: list[bytes] = []
        self._packed_count = 0
        self._used = 0
        #: files with entries that the header on disk does not cover yet, oldest first
        self._unsynced: list[IndexFile] = []
        self._syncing = False
        self._sync_waiters: list[Callable[[], None]] = []
        #: whether the last attempt to write a header failed
        self.is_behind = False

    def load(self) -> bool:
        """Read the headers.

        Return False if there are untrusted files. They are left out; `remove_strangers` removes
        them.
        """
        expected = IndexFile(self.disk, "", self._slot_count, self._count_max).size
        files: list[IndexFile] = []
        for info in self.disk.list(self.folder):
            file = IndexFile(self.disk, f"{self.folder}/{info.name}", self._slot_count, self._count_max)
            if info.size != expected or not file.load():
                break
            if files and (not files[-1].is_full or (file.count > 1 and file.begin_phy < files[-1].end_phy)):
                break
            if files and file.count == 1:
                file.follow(files[-1])
            files.append(file)
        self.files = files
        return len(files) == len(self.disk.list(self.folder))

    def remove_strangers(self, then: Callable[[], Completion]) -> int:
        """Remove the files that `load` left out. Return how many.

        `then()` creates the completion of each removal.
        """
        known = {file.path for file in self.files}
        strangers = [info.name for info in self.disk.list(self.folder) if f"{self.folder}/{info.name}" not in known]
        for name in strangers:
            self.disk.remove(f"{self.folder}/{name}", then())
        return len(strangers)

    # --- growing ----------------------------------------------------------------------------------

    def open_last(self, now_ms: int) -> IndexFile:
        """Return the file for the next entry, creating it if needed. Raises OSError."""
        last = self.files[-1] if self.files else None
        if last is not None and not last.is_full:
            return last
        stamp = datetime.fromtimestamp(now_ms / 1000)
        name = stamp.strftime("%Y%m%d%H%M%S") + f"{now_ms % 1000:03d}"
        if last is not None and name <= (before := last.path.rpartition("/")[2]):
            # Names must increase, even if the clock went back or two files share a millisecond.
            name = f"{int(before) + 1:017d}"
        file = IndexFile(self.disk, f"{self.folder}/{name}", self._slot_count, self._count_max)
        self.disk.create(file.path, file.size)
        if last is not None:
            file.follow(last)
        self.files.append(file)
        return file

    def room(self, now_ms: int) -> int:
        """Return how many more entries the batch can take.

        Raises OSError if a new file is needed and cannot be created.
        """
        file = self.open_last(now_ms)
        return file.count_max - file.count - self.batch_size

    def add(self, entries: Entries) -> None:
        """Add entries to the batch; there must be room for them."""
        blocks, slot_count, first = self._blocks, self._slot_count, self.batch_size
        slots = [key_hash % slot_count for key_hash in entries.hashes]
        for at in range(0, len(slots), _NEIGHBOURS):
            near = slots[at : at + _NEIGHBOURS]
            block = min(near) // SLOTS_PER_BLOCK
            if max(near) // SLOTS_PER_BLOCK == block:
                blocks[block].extend(range(first + at, first + at + len(near)))
            else:
                for number, slot in enumerate(near, first + at):
                    blocks[slot // SLOTS_PER_BLOCK].append(number)
        self._slots += slots
        for column, more in zip(self._entries, entries, strict=True):
            column += more

    @property
    def batch_size(self) -> int:
        return len(self._slots)

    def apply_some(self, block_count: int) -> bool:
        """Write a part of the batch to the file. Return whether more is left.

        A batch of at most `block_count` entries is written whole.
        After an OSError the file needs a `Repair`.
        """
        size = self.batch_size
        if not size:
            return False
        if not self._previous:
            self._previous = [0] * size
            self._used = 0
        is_small = size <= block_count
        if self._blocks:
            self._change_slots(block_count)
            if not is_small:
                return True
        if self._packed_count < size:
            self._pack_some()
            if not is_small:
                return True
        file, (_, phy_offsets, times_ms) = self.files[-1], self._entries
        self.disk.write(file.path, file.entry_position(file.count), [b"".join(self._packed)])
        if file.count == 1:
            file.begin_phy, file.begin_ms = phy_offsets[0], times_ms[0]
        file.end_phy, file.end_ms = phy_offsets[-1], times_ms[-1]
        file.count += size
        file.used_slots += self._used
        if file not in self._unsynced:
            self._unsynced.append(file)
        self.drop_batch()
        return False

    def _change_slots(self, block_count: int) -> None:
        """Point the slots of up to `block_count` blocks to the entries of the batch.

        Record the previous value of each slot in `_previous`, for the entry.
        """
        file, slot_of, previous = self.files[-1], self._slots, self._previous
        first, used = file.count, 0
        done = 0
        while self._blocks and block_count > 0 and done < _SLOTS_PER_STEP:
            number, numbers = self._blocks.popitem()
            block_count -= 1
            done += len(numbers)
            slots = slots_of(file.block(number))
            for entry in numbers:
                slot = slot_of[entry] % SLOTS_PER_BLOCK
                before = slots[slot]
                slots[slot] = newest = first + entry
                if 0 < before < newest:
                    previous[entry] = before
                else:
                    used += 1
            file.write_block(number, block_of(slots))
        self._used += used

    def _pack_some(self) -> None:
        """Encode some entries of the batch."""
        file = self.files[-1]
        done = self._packed_count
        columns = [column[done : done + _ENTRIES_PACKED] for column in (*self._entries, self._previous)]
        self._packed_count += len(columns[0])
        if done == 0 and file.count == 1:
            # The first entry's seconds count from the end time of the previous file, the seconds of
            # the following entries from the first entry's time.
            key_hash, phy_offset, store_ms, previous = [column.pop(0) for column in columns]
            seconds = seconds_between(file.begin_ms, store_ms)
            self._packed.append(ENTRY.pack(key_hash, phy_offset, seconds, previous))
            file.begin_ms = store_ms
        self._packed += _encoded(file.begin_ms, *columns)

    def drop_batch(self) -> None:
        self._entries = Entries([], [], [])
        self._slots = []
        self._blocks = defaultdict(list)
        self._previous = []
        self._packed = []
        self._packed_count = 0

    # --- syncing ----------------------------------------------------------------------------------

    def sync_due(self, filled: Callable[[IndexFile], None], broken: Callable[[str], None]) -> None:
        """Sync the oldest file with new entries, then write its header.

        The header is also synced if the file is full, or if a `sync_all` waits. `filled` is called
        once a full file is durable, `broken` if a sync fails.
        """
        if self._syncing:
            return
        if not self._unsynced:
            self._release_waiters()
            return
        self._syncing = True
        file = self._unsynced[0]
        header, count = file.header, file.count
        is_full = file.is_full

        def synced(error: OSError | None) -> None:
            nonlocal header, count
            if error is not None or file not in self.files:
                end(error)
                return
            if file.count < count:
                # The file was cut meanwhile.
                header, count = file.header, file.count
            try:
                self.disk.write(file.path, 0, [header])
            except OSError:
                # The old header is still there and true. `is_behind` tells the caller of `sync_all`
                # that the next start must check this file.
                self._syncing = False
                self.is_behind = True
                self._release_waiters()
                return
            self.is_behind = False
            file.count_saved = count
            if is_full or self._sync_waiters:
                self.disk.sync(file.path, end)
            else:
                end(None)

        def end(error: OSError | None) -> None:
            self._syncing = False
            if file not in self.files or (error is None and header == file.header):
                self._unsynced = [other for other in self._unsynced if other is not file]
            elif error is not None:
                broken(f"{file.path} could not be synced ({error.strerror or error})")
                return
            if is_full and error is None:
                filled(file)
            if is_full or self._sync_waiters:
                self.sync_due(filled, broken)

        self.disk.sync(file.path, synced)

    def _release_waiters(self) -> None:
        waiters, self._sync_waiters = self._sync_waiters, []
        for then in waiters:
            then()

    def sync_all(
        self, filled: Callable[[IndexFile], None], broken: Callable[[str], None], then: Callable[[], None]
    ) -> None:
        """Make all files durable, including their headers, then call `then`.

        `then` is also called if a header could not be written (`is_behind`), but never after a
        failed sync.
        """
        self._sync_waiters.append(then)
        self.sync_due(filled, broken)

    # --- shrinking --------------------------------------------------------------------------------

    def drop_expired(self, phy_min: int) -> int:
        """Remove the files whose records have all left the log, but never the last file.

        Return how many were removed.
        """
        count = 0
        while len(self.files) > 1 and self.files[0].end_phy < phy_min:
            file = self.files.pop(0)
            self._unsynced = [other for other in self._unsynced if other is not file]
            self.disk.remove(file.path, _ignore)
            count += 1
        return count

    def drop_last(self) -> None:
        """Remove the last file. The caller indexes its records again."""
        file = self.files.pop()
        self._unsynced = [other for other in self._unsynced if other is not file]
        self.disk.remove(file.path, _ignore)

    def shorten(self, phy_offset: int) -> bool:
        """Drop the entries of records at or after `phy_offset`. Raises OSError.

        Return whether the last file now needs a `Repair` of its slots: entries were dropped, or a
        batch was abandoned halfway.
        """
        changed = bool(self._previous)
        self.drop_batch()
        # An empty file repeats the end of the previous file.
        while self.files and self.files[-1].end_phy >= phy_offset and (self.files[-1].count > 1 or len(self.files) > 1):
            changed = True
            file = self.files[-1]
            if file.count == 1 or file.begin_phy >= phy_offset:
                self.drop_last()
                continue
            low, high = 1, file.count
            while low < high:
                middle = (low + high) // 2
                if file.entry(middle)[1] >= phy_offset:
                    high = middle
                else:
                    low = middle + 1
            _, end_phy, seconds, _ = file.entry(low - 1)
            file.count = low
            file.end_phy = end_phy
            file.end_ms = file.begin_ms + (seconds * 1000 if low > 2 else 0)
            if file not in self._unsynced:
                self._unsynced.append(file)
            # If the saved header covers no more than this, it may only be written after the next
            # sync.
            if file.count_saved > low:
                self.disk.write(file.path, 0, [file.header])
                file.count_saved = low
        return changed


class Repair:
    """Rebuilds the slot table of a file from its entries, step by step, and checks the entries."""

    def __init__(self, file: IndexFile) -> None:
        self._file = file
        self._number = 1
        self._block = 0
        self._used = 0
        self._newest = array("i", bytes(4 * file.slot_count))

    def step(self) -> bool | None:
        """Do one step. Return True if done, False if the entries are damaged, None if steps are
        left.

        Raises OSError.
        """
        file = self._file
        if self._number < file.count:
            return self._read_entries()
        slots = self._newest[self._block * SLOTS_PER_BLOCK : (self._block + 1) * SLOTS_PER_BLOCK]
        content = block_of(slots)
        if len(content) and file.block(self._block) != content:
            file.write_block(self._block, content)
        self._block += 1
        if self._block * BLOCK_SIZE < 4 * file.slot_count:
            return None
        file.used_slots = self._used
        return True

    def _read_entries(self) -> bool | None:
        file = self._file
        newest = self._newest
        slot_count = file.slot_count
        count = min(file.count - self._number, _ENTRIES_PER_STEP)
        number = self._number
        low, high = file.begin_phy, file.end_phy
        for key_hash, phy_offset, seconds, before in file.entries(number, count):
            slot = key_hash % slot_count
            if key_hash < 0 or seconds < 0 or not low <= phy_offset <= high or before != newest[slot]:
                return False
            low = phy_offset
            self._used += before == 0
            newest[slot] = number
            number += 1
        if number < self._number + count:
            return False
        self._number = number
        return None


def _encoded(
    begin_ms: int, hashes: Sequence[int], phy_offsets: Sequence[int], times: Sequence[int], previous: Sequence[int]
) -> Iterator[bytes]:
    """Yield the bytes of entries in groups. `previous`: the previous entry of each one's slot."""
    # Most entries that are packed together have the same time: there are few different ones.
    seconds = {store_ms: seconds_between(begin_ms, store_ms) for store_ms in set(times)}
    values = [0] * (4 * len(hashes))
    values[::4], values[1::4], values[3::4] = hashes, phy_offsets, previous
    values[2::4] = map(seconds.__getitem__, times)
    whole = len(values) - len(values) % (4 * _GROUP)
    for at in range(0, whole, 4 * _GROUP):
        yield _GROUP_PACK(*values[at : at + 4 * _GROUP])
    yield b"".join([ENTRY.pack(*values[at : at + 4]) for at in range(whole, len(values), 4)])


def _ignore(error: OSError | None) -> None:
    """Ignore the error: the next start finds and removes a file that stays."""
