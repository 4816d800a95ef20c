"""The log of a member in memory: the entries behind its snapshot, and four marks.

    start <= applied <= commit <= last        start: the last entry in the snapshot
             applied <= saved  <= last        saved: durable on this member's disk

- An entry at or below `commit` never changes (state machine safety).
- Only entries that are committed *and* saved are applied, so a member never shows what it could
  forget.
- A member starts with `applied` 0: its state machine is empty until `take_committed` has given it
  the snapshot.

The log decides what has to be written. `take_unsaved` gives out the entries that the disk has not
been given yet; one that replaces a conflicting entry is given out again, and replaces it and all
entries after it on disk as well. After a snapshot the whole file is rewritten.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rmqkit.controller.raft.messages import ORIGIN, LogEntry, Position


class LogWrites(NamedTuple):
    """What the disk has to write: `entries` at the end of the file.

    With `snapshot`, the content of the whole file: the snapshot, its position, and all entries
    behind it.
    """

    entries: Sequence[LogEntry] = ()
    snapshot: bytes | None = None
    start: Position = ORIGIN


class EntryLog:
    """Entries, snapshot and marks; see the module."""

    def __init__(self, start: Position = ORIGIN, snapshot: bytes = b"", entries: Sequence[LogEntry] = ()) -> None:
        self.start = start
        #: the state machine after `start`
        self.snapshot = snapshot
        #: without a gap from `start.index` + 1 on
        self.entries = list(entries)
        self.commit = start.index
        self.applied = 0
        self.saved = self.last.index
        #: first index that the disk has not been given
        self._unsaved = self.saved + 1
        #: last index that the disk has been given and has not confirmed
        self._given = 0
        self._is_whole_unsaved = False

    @property
    def last(self) -> Position:
        return self.entries[-1].position if self.entries else self.start

    @property
    def has_unsaved(self) -> bool:
        return self._is_whole_unsaved or self._unsaved <= self.last.index

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at `index`, None if it is unknown."""
        if index == self.start.index:
            return self.start.term
        entry = self.entry_at(index)
        return None if entry is None else entry.term

    def entry_at(self, index: int) -> LogEntry | None:
        """Return the entry at `index`, None if it is not in memory."""
        return self.entries[index - self.start.index - 1] if self.start.index < index <= self.last.index else None

    def read(self, first: int, bytes_max: int) -> Sequence[LogEntry]:
        """Return entries from `first` on, at least one, of at most `bytes_max` bytes of data."""
        found: list[LogEntry] = []
        size = 0
        for entry in self.entries[first - self.start.index - 1 :]:
            size += len(entry.data)
            if found and size > bytes_max:
                break
            found.append(entry)
        return found

    def unapplied(self, position: Position) -> Sequence[LogEntry] | None:
        """Return the entries behind the state machine, up to `position`.

        Return None if the log takes over no entries behind it: it has another entry there, or none,
        or a committed one; or the state machine is not as far as the snapshot.
        """
        if self.applied < self.start.index or position.index < self.commit or self.term_at(position.index) != position.term:
            return None
        return self.entries[self.applied - self.start.index : position.index - self.start.index]

    def find_agreement(self, index: int, term: int) -> Position:
        """Return the last position at or before `index` whose term is at most `term`.

        Two logs can agree there at the latest. An unknown position counts as the start.
        """
        index = min(index, self.last.index)
        while index > self.start.index and (self.term_at(index) or 0) > term:
            index -= 1
        return Position(self.term_at(index) or 0, index)

    # --- changes

    def append(self, term: int, data: bytes) -> LogEntry:
        """Add an entry of the leader itself."""
        entry = LogEntry(term, self.last.index + 1, data)
        self.entries.append(entry)
        return entry

    def merge(self, previous: Position, entries: Sequence[LogEntry]) -> int | None:
        """Take over entries of the leader that follow `previous`.

        Return the index up to which the log now equals the leader's, or None if it has another
        entry, or none, at `previous`. Entries that conflict are replaced, with all that follow
        them; entries that agree stay, with all that follow them.
        """
        if self.term_at(previous.index) != previous.term:
            return None
        for number, entry in enumerate(entries):
            known = self.term_at(entry.index)
            if known == entry.term:
                continue
            if known is not None:
                self._cut(entry.index)
            self.entries += entries[number:]
            break
        return previous.index + len(entries)

    def commit_to(self, index: int) -> None:
        """Raise the commit index; a smaller one changes nothing."""
        assert index <= self.last.index, f"commit {index} is beyond the log's end {self.last.index}"
        self.commit = max(self.commit, index)

    def restore(self, start: Position, snapshot: bytes) -> None:
        """Replace the whole log by a snapshot of the leader."""
        assert start.index > self.commit
        self.start, self.snapshot, self.entries = start, snapshot, []
        self.commit = start.index
        # What is applied is a part of the snapshot, and stays durable until it is replaced.
        self.saved = self.applied
        self._unsaved, self._given = start.index + 1, 0
        self._is_whole_unsaved = True

    def compact(self, snapshot: bytes) -> None:
        """Drop the entries that are applied; `snapshot` is the state machine after them."""
        term = self.term_at(self.applied)
        assert term is not None
        assert self.applied > self.start.index
        del self.entries[: self.applied - self.start.index]
        self.start, self.snapshot = Position(term, self.applied), snapshot
        self._is_whole_unsaved = True

    # --- the disk and the state machine

    def take_unsaved(self) -> LogWrites:
        """Return what the disk has not been given. The next call waits for `confirm`."""
        if self._is_whole_unsaved:
            writes = LogWrites(tuple(self.entries), self.snapshot, self.start)
            self._is_whole_unsaved = False
        else:
            writes = LogWrites(tuple(self.entries[self._unsaved - self.start.index - 1 :]))
        self._given = self.last.index
        self._unsaved = self._given + 1
        return writes

    def confirm(self) -> None:
        """Note that what was given out last is durable, as far as it is still in the log."""
        if not self._is_whole_unsaved or self._given > self.start.index:
            self.saved = max(self.saved, min(self._given, self._unsaved - 1))
        self._given = 0

    def take_committed(self) -> tuple[bytes | None, Sequence[LogEntry]]:
        """Return the snapshot, if it is ahead of the state machine, and the entries to apply."""
        snapshot = None
        if self.applied < self.start.index <= self.saved:
            snapshot = self.snapshot
            self.applied = self.start.index
        end = min(self.commit, self.saved)
        if end <= self.applied or self.applied < self.start.index:
            return snapshot, ()
        entries = self.entries[self.applied - self.start.index : end - self.start.index]
        self.applied = end
        return snapshot, entries

    def validate(self) -> None:
        """Raise AssertionError if the marks contradict each other."""
        last = self.last.index
        assert self.start.index <= self.commit <= last
        assert self.applied <= self.commit
        assert self.applied <= self.saved <= last
        assert self.saved < self._unsaved <= last + 1
        assert len(self.entries) == last - self.start.index
        # Each entry was compared with the one before it when it was the last.
        if self.entries:
            before = self.entries[-2].term if len(self.entries) > 1 else self.start.term
            assert self.entries[-1].term >= before

    def _cut(self, index: int) -> None:
        """Drop the entries from `index` on."""
        assert index > self.commit, f"entry {index} is committed and must not be replaced"
        del self.entries[index - self.start.index - 1 :]
        self._unsaved = min(self._unsaved, index)
        # The disk still has the entries that were dropped, so they no longer count as durable.
        self.saved = min(self.saved, index - 1)
