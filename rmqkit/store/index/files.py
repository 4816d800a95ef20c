"""The index files of a store. Keys are added in batches.

- `add` collects the keys of a batch (`entry_batch.py`).
- `apply_some` reads, changes and writes a few blocks of the slot table at a time, then writes all
  entries at once. A small batch takes one call: at a low rate of messages, each further turn would
  cost more.
- Only then do the counts change, so lookups see whole batches.

A slot table has 20 MB, and a batch touches scattered parts of it. Reading and writing blocks of 16
KiB makes this affordable without holding the table in memory. A large batch touches nearly all
blocks: neighbouring ones are read and written with one call.

A header is written only after the entries and slots that it covers are synced, and after the header
of the previous file (`sync_due`). So after a crash every header is true. Slots that point beyond
its count are leftovers; `Repair` rebuilds the slot table from the entries.

Source: `store/.../index/IndexService.java`.
"""

from collections.abc import Callable
from datetime import datetime

import numpy as np

from rmqkit.runtime.ports import Completion, Disk
from rmqkit.store.index.entry_batch import ENTRY_TYPE, SLOT_TYPE, Entries, EntryBatch, chain, in_order
from rmqkit.store.index.file import ENTRY_SIZE, SLOTS_PER_BLOCK, IndexFile

_ENTRIES_PER_STEP = 16_384


class IndexFiles:
    """All index files, oldest first, and the batch for the last one."""

    def __init__(self, disk: Disk, folder: str, slot_count: int, count_max: int) -> None:
        self.disk = disk
        self.folder = folder
        self.files: list[IndexFile] = []
        self._slot_count = slot_count
        self._count_max = count_max
        self._batch = EntryBatch(slot_count)
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
        self._batch.add(entries)

    @property
    def batch_size(self) -> int:
        return self._batch.size

    def apply_some(self, block_count: int) -> bool:
        """Write a part of the batch to the file. Return whether more is left.

        A batch of at most `block_count` entries is written whole.
        After an OSError the file needs a `Repair`.
        """
        file, batch = self.files[-1], self._batch
        if not batch.size:
            return False
        if not batch.has_begun:
            batch.begin()
            if batch.size > block_count:
                return True
        if batch.change_slots(file, block_count):
            return True
        self.disk.write(file.path, file.entry_position(file.count), [batch.encode(file)])
        _, phy_offsets, times_ms = batch.entries
        if file.count == 1:
            file.begin_phy, file.begin_ms = int(phy_offsets[0]), int(times_ms[0])
        file.end_phy, file.end_ms = int(phy_offsets[-1]), int(times_ms[-1])
        file.count += batch.size
        file.used_slots += batch.used_slots
        if file not in self._unsynced:
            self._unsynced.append(file)
        self.drop_batch()
        return False

    def drop_batch(self) -> None:
        self._batch = EntryBatch(self._slot_count)

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
        changed = self._batch.has_changed_slots
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
        self._newest = np.zeros(file.slot_count, SLOT_TYPE)

    def step(self) -> bool | None:
        """Do one step. Return True if done, False if the entries are damaged, None if steps are
        left.

        Raises OSError.
        """
        file = self._file
        if self._number < file.count:
            return self._read_entries()
        content = self._newest[self._block * SLOTS_PER_BLOCK : (self._block + 1) * SLOTS_PER_BLOCK].tobytes()
        if content and file.blocks(self._block, 1) != content:
            file.write_blocks(self._block, content)
        self._block += 1
        if self._block < file.block_count:
            return None
        file.used_slots = self._used
        return True

    def _read_entries(self) -> bool | None:
        file = self._file
        number = self._number
        count = min(file.count - number, _ENTRIES_PER_STEP)
        found = file.entries(number, count)
        if len(found) < count * ENTRY_SIZE:
            return False
        entries = np.frombuffer(found, ENTRY_TYPE)
        hashes, phy_offsets = entries["hash"].astype(np.int64), entries["phy_offset"].astype(np.int64)
        if hashes.min() < 0 or entries["seconds"].min() < 0 or phy_offsets[-1] > file.end_phy:
            return False
        if (np.diff(phy_offsets, prepend=file.begin_phy) < 0).any():
            return False
        previous = np.zeros(count, np.int64)
        self._used += chain(in_order(hashes % file.slot_count), number, self._newest, previous)
        if (entries["previous"] != previous).any():
            return False
        self._number += count
        return None


def _ignore(error: OSError | None) -> None:
    """Ignore the error: the next start finds and removes a file that stays."""
