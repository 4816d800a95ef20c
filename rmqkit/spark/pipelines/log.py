"""The log of a lake: numbered entries in PATH/_lake/log, each a JSON file; together they say which files are the lake.

    00000000000000000001.json            a batch: its query and number, offsets begin and end, files with sizes and rows
    00000000000000000002.json            a compaction: the files it replaces and those that it puts in their place
    00000000000000000050.snapshot.json   what the first fifty come to

An entry is the commit of what it names. It is created whole and only if its number is free (`Folder.create`), on top
of a state that holds all entries before it; who comes second reads what came between and looks again. So of two that
write the same offsets, or compact the same hour, one is refused or does it over. A file that no entry names is not in
the lake: left over by who died before its commit, or about to be committed. Files that a compaction replaced stay
until `vacuum` (`lake`), so that readers who have listed them can end.
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
#: how often a commit looks again after others came first
TRIES_MAX = 100
NAME = re.compile(r"(\d{20})(\.snapshot)?\.json")
#: what is left of a writer who died, or came second
HALF = re.compile(r"/\.{1,2}\d{20}[^/]*\.tmp(\.crc)?$")


class LakeError(RmqkitError):
    """A lake that cannot be read or written as asked."""


class LakeMissing(LakeError):
    """There is no lake at a path."""


class LakeDamaged(LakeError):
    """An entry is gone or is not what an entry is; names it."""


class LakeConflict(LakeError):
    """Rows that may not stand beside those that the lake has; names them."""


class DataFile(msgspec.Struct, frozen=True, rename={"size": "bytes"}):
    """A Parquet file of one topic and one hour (UTC, of store time, `2026-11-22-13`); `path` is relative to the lake."""

    path: str
    topic: str
    hour: str
    size: int
    rows: int


class BatchEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="batch", kw_only=True):
    """What one micro-batch of a query brought: the queues' offsets from `begin` to `end` (topic, broker, queue)."""

    query: str
    batch: int
    begin: dict[str, Any]
    end: dict[str, Any]
    #: of each topic: the clusters that it was read from
    clusters: dict[str, list[str]] = {}
    rows: int
    files: list[DataFile]
    #: Spark's, as JSON
    schema: str
    written_ms: int
    format: int = FORMAT

    def ranges(self) -> list[ranges.OffsetRange]:
        return ranges.between(self.begin, self.end)


class Compaction(msgspec.Struct, frozen=True, tag_field="kind", tag="compaction", kw_only=True):
    """The same rows in other files."""

    replaces: list[str]
    files: list[DataFile]
    written_ms: int
    format: int = FORMAT


class LogSnapshot(msgspec.Struct, frozen=True, tag_field="kind", tag="snapshot", kw_only=True):
    """What all entries up to a number come to."""

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
    """What a lake is after the entries up to `number`."""

    def __init__(self) -> None:
        self.number = 0
        #: by path
        self.files: dict[str, DataFile] = {}
        #: query id -> its last batch
        self.batches: dict[str, int] = {}
        self.covered: coverage.Covered = {}
        #: topic -> names of the clusters that it was read from
        self.clusters: dict[str, list[str]] = {}
        #: the different schemas of its files, in the order in which they came
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
        """Files of these topics and of hours from `first` to `last`; "" sets no bound."""
        wanted = None if topics is None else set(topics)
        return [
            file
            for file in self.files.values()
            if (wanted is None or file.topic in wanted)
            and (not first or file.hour >= first)
            and (not last or file.hour <= last)
        ]

    def apply(self, number: int, entry: Entry) -> None:
        """Raises LakeDamaged for an entry that does not fit what was there before it."""
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
    """The log in a folder; keeps the last state it has read."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._state = LakeState()

    def state(self) -> LakeState:
        """As of now; number 0 if there is no lake. Raises LakeDamaged."""
        for _ in range(TRIES_MAX):
            entries, snapshots = _numbered(self.folder.list(LOG))
            newest = max([*entries, *snapshots], default=0)
            if newest < self._state.number:
                raise LakeDamaged(f"{self.folder.uri}/{LOG} ended at entry {self._state.number} before, now at {newest}")
            if self._read_on(entries, snapshots, newest):
                return self._state
        raise LakeDamaged(f"{self.folder.uri}/{LOG}: entries are missing between {self._state.number} and {newest}")

    def commit(self, make: Callable[[LakeState], BatchEntry | Compaction | None], now_ms: int) -> LakeState:
        """Write what `make` returns for the newest state; None, or what it raises, ends it without an entry."""
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
        raise LakeConflict(f"{self.folder.uri}: others wrote an entry first, {TRIES_MAX} times")

    def write_snapshot(self, now_ms: int) -> None:
        """Of the state that was read last. If it is there already, it is the same."""
        name = f"{LOG}/{self._state.number:020}.snapshot.json"
        self.folder.create(name, msgspec.json.encode(self._state.snapshot(now_ms)))

    def replaced_since(self, since_ms: int) -> set[str]:
        """Files that a compaction replaced later than that."""
        replaced: set[str] = set()
        for name in self._newer(since_ms):
            content = self.folder.read(name)
            entry = None if content is None else _decoded(content, f"{self.folder.uri}/{name}")
            if isinstance(entry, Compaction):
                replaced.update(entry.replaces)
        return replaced

    def forget(self, before_ms: int) -> int:
        """Remove what the last snapshot stands for and what is older than that; how many it was."""
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
        """False if something went away under our eyes: it is in a newer snapshot then."""
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
    """Entries and snapshots by number; other names are half-written or somebody else's."""
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
        raise LakeDamaged(f"{where} is no entry of a lake's log ({error}): put the file back as it was") from None
    if entry.format > FORMAT:
        raise LakeError(f"{where} has format {entry.format}, this rmqkit knows {FORMAT}: it was written by a newer one")
    return entry


def merged_schema(schemas: Iterable[str]) -> dict[str, Any]:
    """One schema (Spark's, as a dict) with the columns of all; null where a file has none.

    Raises LakeConflict when two give one column different types.
    """
    fields: dict[str, Mapping[str, Any]] = {}
    for text in schemas:
        for field in json.loads(text)["fields"]:
            known = fields.setdefault(field["name"], {**field, "nullable": True, "metadata": {}})
            if known["type"] != field["type"]:
                raise LakeConflict(f"column {field['name']} is {known['type']} in the lake, {field['type']} in new rows")
    return {"type": "struct", "fields": list(fields.values())}
