"""The log of a lake: numbered JSON files in PATH/_lake/log that together name the lake's files.

    00000000000000000001.json            a batch: query, number, begin and end offsets, files
    00000000000000000002.json            a compaction: the replaced files and the new files
    00000000000000000050.snapshot.json   the state after the first 50 entries

An entry is the commit of the files that it names. `Folder.create` creates it whole, and only if its
number is free. An entry is always made for the state after all earlier entries. A writer that finds
its number taken reads the new entries and checks again. Therefore, if two writers write the same
offsets or compact the same hour, the second is refused or repeats its check.

A file that no entry names is not in the lake: a writer died before its commit, or has not committed
yet. Files that a compaction replaced stay until `vacuum` (`lake`), so that readers that have listed
them can finish.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from rmqkit.errors import RmqkitError
from rmqkit.spark.pipelines import coverage
from rmqkit.spark.pipelines.folders import Folder
from rmqkit.spark.source import ranges

FORMAT = 1
LOG = "_lake/log"
#: entries between two snapshots
SNAPSHOT_EVERY = 50
#: maximum attempts of a commit when other writers take its number, and of a read when files vanish
TRIES_MAX = 100
NAME = re.compile(r"(\d{20})(\.snapshot)?\.json")
#: temporary files of a writer that died or was second
HALF = re.compile(r"/\.{1,2}\d{20}[^/]*\.tmp(\.crc)?$")


class LakeError(RmqkitError):
    """Raised when a lake cannot be read or written."""


class LakeMissing(LakeError):
    """Raised when there is no lake at a path."""


class LakeDamaged(LakeError):
    """Raised when an entry is missing or invalid; the message names it."""


class LakeConflict(LakeError):
    """Raised when new rows contradict rows that the lake has; the message names them."""


class DataFile(msgspec.Struct, frozen=True, rename={"size": "bytes"}):
    """A Parquet file with rows of one topic and one hour.

    `path` is relative to the lake. `hour` is that of store time in UTC, such as `2026-11-22-13`.
    `size` is in bytes.
    """

    path: str
    topic: str
    hour: str
    size: int
    rows: int


class BatchEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="batch", kw_only=True):
    """The commit of one micro-batch of a query.

    It covers the offsets [begin, end); both map topic -> broker -> queue -> offset.
    """

    query: str
    batch: int
    begin: dict[str, Any]
    end: dict[str, Any]
    #: topic -> names of the clusters that it was read from
    clusters: dict[str, list[str]] = {}
    rows: int
    files: list[DataFile]
    #: Spark's schema of the files, as JSON
    schema: str
    written_ms: int
    format: int = FORMAT

    def ranges(self) -> list[ranges.OffsetRange]:
        return ranges.between(self.begin, self.end)


class Compaction(msgspec.Struct, frozen=True, tag_field="kind", tag="compaction", kw_only=True):
    """The commit of a compaction: `files` have the same rows as the files in `replaces`."""

    replaces: list[str]
    files: list[DataFile]
    written_ms: int
    format: int = FORMAT


class LogSnapshot(msgspec.Struct, frozen=True, tag_field="kind", tag="snapshot", kw_only=True):
    """The state of the lake after all entries up to a number."""

    files: list[DataFile]
    batches: dict[str, int]
    covered: dict[str, Any]
    clusters: dict[str, list[str]]
    schemas: list[str]
    written_ms: int
    format: int = FORMAT


Entry = BatchEntry | Compaction | LogSnapshot
_READING = msgspec.json.Decoder(Entry)


class LakeState:
    """The state of a lake after the entries up to `number`; 0 means that there is no lake."""

    def __init__(self) -> None:
        self.number = 0
        #: path -> file
        self.files: dict[str, DataFile] = {}
        #: query id -> the number of its last committed batch
        self.batches: dict[str, int] = {}
        self.covered: coverage.Covered = {}
        #: topic -> names of the clusters that it was read from
        self.clusters: dict[str, list[str]] = {}
        #: the distinct schemas of its files, in the order in which they first appeared
        self.schemas: list[str] = []

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files.values())

    @property
    def topics(self) -> list[str]:
        return sorted({file.topic for file in self.files.values()} | {key.topic for key in self.covered})

    def has(self, query: str, batch: int) -> bool:
        return batch <= self.batches.get(query, -1)

    def chosen(self, topics: Iterable[str] | None = None, first: str = "", last: str = "") -> list[DataFile]:
        """Return the files of these topics and of hours `first` to `last`, inclusive.

        "" as `first` or `last` sets no bound; None as `topics` chooses all.
        """
        wanted = None if topics is None else set(topics)
        return [
            file
            for file in self.files.values()
            if (wanted is None or file.topic in wanted)
            and (not first or file.hour >= first)
            and (not last or file.hour <= last)
        ]

    def apply(self, number: int, entry: Entry) -> None:
        """Apply the next entry. Raises LakeDamaged if it replaces an unknown file."""
        match entry:
            case BatchEntry():
                self.batches[entry.query] = max(entry.batch, self.batches.get(entry.query, -1))
                self.covered = coverage.added(self.covered, entry.ranges())
                for topic, names in entry.clusters.items():
                    self.clusters[topic] = sorted({*self.clusters.get(topic, []), *names})
                if entry.schema not in self.schemas:
                    self.schemas.append(entry.schema)
            case Compaction():
                for path in entry.replaces:
                    if self.files.pop(path, None) is None:
                        raise LakeDamaged(f"entry {number} replaces {path}, which the lake does not have")
            case LogSnapshot():
                self.batches = dict(entry.batches)
                self.covered = coverage.flat(entry.covered)
                self.clusters = dict(entry.clusters)
                self.schemas = list(entry.schemas)
        for file in entry.files:
            self.files[file.path] = file
        self.number = number

    def snapshot(self, now_ms: int) -> LogSnapshot:
        return LogSnapshot(
            files=list(self.files.values()),
            batches=self.batches,
            covered=coverage.nested(self.covered),
            clusters=self.clusters,
            schemas=self.schemas,
            written_ms=now_ms,
        )


class LakeLog:
    """The log in a folder. It caches the last state, so that only new entries are read."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._state = LakeState()

    def state(self) -> LakeState:
        """Read new entries and return the current state; its number is 0 if there is no lake.

        Raises LakeDamaged.
        """
        for _ in range(TRIES_MAX):
            entries, snapshots = _numbered(self.folder.list(LOG))
            newest = max([*entries, *snapshots], default=0)
            if newest < self._state.number:
                raise LakeDamaged(f"{self.folder.uri}/{LOG}: entry {self._state.number} is gone, the last is now {newest}")
            if self._read_on(entries, snapshots, newest):
                return self._state
        raise LakeDamaged(f"{self.folder.uri}/{LOG}: entries are missing between {self._state.number} and {newest}")

    def commit(self, make: Callable[[LakeState], BatchEntry | Compaction | None], now_ms: int) -> LakeState:
        """Write the entry that `make` returns for the newest state, and return the state after it.

        If another writer takes the number first, `make` is called again with the newer state. No
        entry is written if `make` returns None or raises. Raises LakeConflict after TRIES_MAX
        attempts.
        """
        for _ in range(TRIES_MAX):
            state = self.state()
            entry = make(state)
            if entry is None:
                return state
            number = state.number + 1
            if self.folder.create(f"{LOG}/{number:020}.json", msgspec.json.format(msgspec.json.encode(entry), indent=1)):
                state.apply(number, entry)
                if number % SNAPSHOT_EVERY == 0:
                    self.write_snapshot(now_ms)
                return state
        raise LakeConflict(f"{self.folder.uri}: commit failed {TRIES_MAX} times, other writers were first each time")

    def write_snapshot(self, now_ms: int) -> None:
        """Write a snapshot of the state read last, unless one exists; it would be the same."""
        name = f"{LOG}/{self._state.number:020}.snapshot.json"
        self.folder.create(name, msgspec.json.encode(self._state.snapshot(now_ms)))

    def replaced_since(self, since_ms: int) -> set[str]:
        """Return the files that compactions replaced after `since_ms`."""
        replaced: set[str] = set()
        for name in self._newer(since_ms):
            content = self.folder.read(name)
            entry = None if content is None else _decoded(content, f"{self.folder.uri}/{name}")
            if isinstance(entry, Compaction):
                replaced.update(entry.replaces)
        return replaced

    def forget(self, before_ms: int) -> int:
        """Remove entries that the latest snapshot covers, and older snapshots and temporary files.

        Only files last changed at or before `before_ms` are removed. Return the number of entries
        and snapshots removed.
        """
        found = self.folder.list(LOG)
        entries, snapshots = _numbered(found)
        latest = max(snapshots, default=0)
        names = [name for number, name in entries.items() if number <= latest]
        names += [name for number, name in snapshots.items() if number < latest]
        old = [name for name in names if found[name].changed_ms <= before_ms]
        half = [name for name in found if HALF.search(name) and found[name].changed_ms <= before_ms]
        for name in [*old, *half]:
            self.folder.remove(name)
        return len(old)

    def _newer(self, since_ms: int) -> list[str]:
        found = self.folder.list(LOG)
        entries, _ = _numbered(found)
        return [name for name in entries.values() if found[name].changed_ms > since_ms]

    def _read_on(self, entries: dict[int, str], snapshots: dict[int, str], newest: int) -> bool:
        """Apply all entries up to `newest`, starting from a snapshot where that is shorter.

        Return False if a file disappeared after the listing: `forget` removed it, and a newer
        snapshot covers it.
        """
        state = self._state
        latest = max(snapshots, default=0)
        if latest > state.number and (latest - state.number > SNAPSHOT_EVERY or state.number + 1 not in entries):
            state = LakeState()
            if not self._apply(state, latest, snapshots[latest]):
                return False
        for number in range(state.number + 1, newest + 1):
            if number not in entries or not self._apply(state, number, entries[number]):
                return False
        self._state = state
        return True

    def _apply(self, state: LakeState, number: int, name: str) -> bool:
        content = self.folder.read(name)
        if content is None:
            return False
        where = f"{self.folder.uri}/{name}"
        entry = _decoded(content, where)
        try:
            state.apply(number, entry)
        except (LakeDamaged, ValueError) as error:
            raise LakeDamaged(f"{where}: {error}") from None
        return True


def _numbered(names: Iterable[str]) -> tuple[dict[int, str], dict[int, str]]:
    """Return entries and snapshots by number; other names are temporary or foreign files."""
    entries: dict[int, str] = {}
    snapshots: dict[int, str] = {}
    for name in names:
        if found := NAME.fullmatch(name.removeprefix(f"{LOG}/")):
            (snapshots if found[2] else entries)[int(found[1])] = name
    return entries, snapshots


def _decoded(content: bytes, where: str) -> Entry:
    try:
        entry: Entry = _READING.decode(content)
    except (msgspec.DecodeError, ValueError) as error:
        raise LakeDamaged(f"{where} is not a valid entry of a lake's log ({error}): restore the file") from None
    if entry.format > FORMAT:
        raise LakeError(f"{where} has format {entry.format}, this rmqkit reads {FORMAT}: a newer rmqkit wrote it")
    return entry


def merged_schema(schemas: Iterable[str]) -> dict[str, Any]:
    """Return one Spark schema, as a dict, with the columns of all; rows without a column have null.

    Raises LakeConflict if two schemas give a column different types.
    """
    fields: dict[str, Mapping[str, Any]] = {}
    for text in schemas:
        for field in json.loads(text)["fields"]:
            known = fields.setdefault(field["name"], {**field, "nullable": True, "metadata": {}})
            if known["type"] != field["type"]:
                raise LakeConflict(f"column {field['name']} is {known['type']} in the lake, {field['type']} in new rows")
    return {"type": "struct", "fields": list(fields.values())}
