"""Turns a lake of rmqkit 0.2, which had its own table format, into a Delta table in the same place.

    migrate("/data/orders")

The old lake is Parquet files under `files/`, and numbered JSON entries in `_lake/log` that name
them: batches, compactions, and snapshots of what the entries before come to. Delta's first commit
adds the files where they lie, with the statistics of their footers, the covered offsets, and the
queries' last batches. So ingests continue with their checkpoints.

Before that commit, an entry with a newer format ends the old log: an old rmqkit refuses it and
stops. A migration that dies in between is run again.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from pathlib import Path
from typing import Any

import msgspec

from rmqkit.errors import ConfigError
from rmqkit.spark.delta import lake_table, transactions
from rmqkit.spark.delta.data_files import PARTITIONS, FileReport, statistics
from rmqkit.spark.delta.lake_table import OLD_LOG, LakeTable
from rmqkit.spark.delta.storage import LakeDamaged, LakeError, LakeMissing, LakeStorage
from rmqkit.spark.pipelines import lake
from rmqkit.spark.source import ranges

ENTRY = re.compile(r"\d{20}(\.snapshot)?\.json")
#: format of the last entry, which an old rmqkit refuses; the others have format 1
ENDED = 2


class MigrationResult(msgspec.Struct, frozen=True):
    """What the Delta table has now. `is_new` is False if an earlier run had made it."""

    path: str
    files: int
    rows: int
    is_new: bool


class OldEntry(msgspec.Struct, frozen=True):
    """An entry of any kind (batch, compaction, snapshot); each kind has some of these fields."""

    files: list[FileReport]
    format: int
    replaces: list[str] = []
    query: str = ""
    batch: int = 0
    begin: dict[str, Any] = {}
    end: dict[str, Any] = {}
    clusters: dict[str, list[str]] = {}
    schema: str = ""
    batches: dict[str, int] = {}
    #: topic -> broker -> queue -> intervals
    covered: dict[str, dict[str, dict[int, list[tuple[int, int]]]]] = {}
    schemas: list[str] = []


class OldLake:
    """The state of an old lake after its last entry, `number`."""

    def __init__(self) -> None:
        self.number = 0
        self.is_ended = False
        self.files: dict[str, FileReport] = {}
        self.batches: dict[str, int] = {}
        self.ranges: list[ranges.OffsetRange] = []
        self.clusters: dict[str, list[str]] = {}
        self.schema = lake_table.NOTHING.schema

    def apply(self, number: int, entry: OldEntry) -> None:
        for query, batch in [*entry.batches.items(), (entry.query, entry.batch)]:
            if query:
                self.batches[query] = max(batch, self.batches.get(query, -1))
        self.ranges += ranges.between(entry.begin, entry.end)
        self.ranges += [
            ranges.OffsetRange(topic, broker, queue, *interval)
            for topic, brokers in entry.covered.items()
            for broker, queues in brokers.items()
            for queue, intervals in queues.items()
            for interval in intervals
        ]
        for path in entry.replaces:
            if self.files.pop(path, None) is None:
                raise LakeDamaged(f"entry {number} replaces {path}, which the lake does not have")
        self.files |= {file.path: file for file in entry.files}
        for topic, names in entry.clusters.items():
            self.clusters[topic] = sorted({*self.clusters.get(topic, []), *names})
        for text in filter(None, [*entry.schemas, entry.schema]):
            self.schema = lake_table.merged_schema(self.schema, json.loads(text))
        self.number, self.is_ended = number, entry.format == ENDED


def migrate(path: str | os.PathLike[str]) -> MigrationResult:
    """Turn the old lake at `path` into a Delta table. No ingest may run; an old one stops.

    Raises LakeMissing, LakeDamaged for a log or files that are not whole, ConfigError for a path
    that is not local.
    """
    storage = LakeStorage(path)
    if not storage.is_local:
        raise ConfigError(
            f"{storage.uri}: only a lake in a local or mounted folder can be migrated; ingest the topics again"
        )
    root = Path(storage.uri)
    if not (root / OLD_LOG).is_dir():
        raise LakeMissing(f"there is no lake of rmqkit 0.2 at {root}")
    table = LakeTable(storage)
    is_new = not table.exists()
    if is_new:
        old = _ended(root)
        actions = [lake_table.add_action(_report(root, file)) for file in old.files.values()]
        apps = transactions.encode(lake_table.NOTHING.known, old.ranges, old.clusters, None, 0) | old.batches
        table.create(old.schema, lake_table.description(old.clusters), actions, apps)
        storage.sync([f"{transactions.LOG}/{0:020}.json"])
    now = lake.describe(storage.uri)
    return MigrationResult(path=storage.uri, files=now.files, rows=now.rows, is_new=is_new)


def _ended(root: Path) -> OldLake:
    """Read the old lake, and end its log. Whoever is first at a number of the log keeps it."""
    while True:
        old = read_old(root)
        if old.is_ended or _create(root / OLD_LOG / f"{old.number + 1:020}.json"):
            return old


def _create(path: Path) -> bool:
    """Create the last entry as a whole; return False if there is a file of this name."""
    writing = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    last = {"kind": "compaction", "replaces": [], "files": [], "written_ms": 0, "format": ENDED}
    with writing.open("x") as file:
        json.dump(last, file)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(writing, path)
        return True
    except FileExistsError:
        return False
    finally:
        writing.unlink()


def read_old(root: Path) -> OldLake:
    """Return the state of the old lake. Raises LakeDamaged if an entry is missing or invalid."""
    log = root / OLD_LOG
    names = sorted(filter(ENTRY.fullmatch, os.listdir(log)))
    if not names:
        raise LakeMissing(f"there is no lake of rmqkit 0.2 at {root}: its log is empty")
    # The newest snapshot comes after the entry of its number, and replaces it and those before.
    first = max((place for place, name in enumerate(names) if "snapshot" in name), default=0)
    old = OldLake()
    for number, name in enumerate(names[first:], int(names[first][:20]) if "snapshot" in names[first] else 1):
        path = log / name
        if int(name[:20]) != number:
            raise LakeDamaged(f"{log}: entry {number} is missing")
        try:
            entry = msgspec.json.decode(path.read_bytes(), type=OldEntry)
            if entry.format > ENDED:
                raise LakeError(f"{path} has format {entry.format}: a newer rmqkit wrote it")
            old.apply(number, entry)
        except (msgspec.DecodeError, ValueError, LakeDamaged) as error:
            raise LakeDamaged(f"{path} is not a valid entry of a lake's log ({error}): restore the file") from None
    return old


def _report(root: Path, file: FileReport) -> FileReport:
    """Return the file with what Delta needs. Raises LakeDamaged if it is not as the log says."""
    from pyarrow import ArrowException, parquet

    try:
        status = (root / file.path).stat()
        metadata = parquet.read_metadata(root / file.path)
    except (OSError, ArrowException) as error:
        raise LakeDamaged(f"{root}/{file.path}: {error}; restore the file, nothing was changed") from None
    if (status.st_size, metadata.num_rows) != (file.size, file.rows):
        raise LakeDamaged(
            f"{root}/{file.path} has {status.st_size} bytes and {metadata.num_rows} rows, the log says {file.size} and "
            f"{file.rows}: restore the file, nothing was changed"
        )
    stats = statistics(metadata, leave_out=PARTITIONS)
    return msgspec.structs.replace(file, written_ms=status.st_mtime_ns // 1_000_000, stats=stats)
