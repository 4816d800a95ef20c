"""Turns a lake of rmqkit 0.2, which had its own table format, into a Delta table in the same place.

    migrate("/data/orders")

The old lake is Parquet files under `files/`, and numbered JSON entries in `_lake/log` that name
them: batches, compactions, and snapshots of what the entries before come to. `read_old` applies
them and checks that each file is there with its size and rows. Files are not moved; Delta's first
commit adds them where they lie, with the statistics of their footers, the covered offsets, and the
queries' last batches. So ingests continue with their checkpoints.

Before that commit, an entry with a newer format is put at the end of the old log. An old rmqkit
that still runs, or is started again, refuses it and stops. A migration that dies in between is run
again: the Delta table is there as a whole, or not at all.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rmqkit.errors import ConfigError
from rmqkit.spark.delta import coverage, lake_table, transactions
from rmqkit.spark.delta.data_files import PARTITIONS, FileReport, statistics
from rmqkit.spark.delta.errors import LakeDamaged, LakeError, LakeMissing
from rmqkit.spark.delta.lake_table import OLD_LOG, LakeTable
from rmqkit.spark.delta.storage import LakeStorage
from rmqkit.spark.pipelines import lake
from rmqkit.spark.source import ranges

ENTRY = re.compile(r"(\d{20})(\.snapshot)?\.json")
#: format of the last entry, which an old rmqkit refuses; the others have format 1
ENDED = 2


class MigrationResult(msgspec.Struct, frozen=True):
    """What the Delta table has now. `is_new` is False if an earlier run had made it."""

    path: str
    files: int
    rows: int
    is_new: bool


class OldFile(msgspec.Struct, frozen=True, rename={"size": "bytes"}):
    path: str
    topic: str
    hour: str
    size: int
    rows: int


class OldEntry(msgspec.Struct, frozen=True):
    """An entry of any kind; each kind has some of these fields."""

    kind: str
    files: list[OldFile]
    format: int
    replaces: list[str] = []
    query: str = ""
    batch: int = 0
    begin: dict[str, Any] = {}
    end: dict[str, Any] = {}
    clusters: dict[str, list[str]] = {}
    schema: str = ""
    batches: dict[str, int] = {}
    covered: dict[str, Any] = {}
    schemas: list[str] = []


class OldLake:
    """The state of an old lake after its last entry, `number`."""

    def __init__(self) -> None:
        self.number = 0
        self.is_ended = False
        self.files: dict[str, OldFile] = {}
        self.batches: dict[str, int] = {}
        self.covered: coverage.Covered = {}
        self.clusters: dict[str, list[str]] = {}
        self.schema = lake_table.NOTHING.schema

    def apply(self, number: int, entry: OldEntry) -> None:
        if entry.kind == "snapshot":  # the first entry that is read
            self.batches, self.covered = dict(entry.batches), coverage.flat(entry.covered)
        elif entry.kind == "batch":
            self.batches[entry.query] = max(entry.batch, self.batches.get(entry.query, -1))
            self.covered = coverage.added(self.covered, ranges.between(entry.begin, entry.end))
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
        raise ConfigError(f"{storage.uri}: only a lake in a local or mounted folder can be migrated; ingest it anew")
    root = Path(storage.uri)
    if not (root / OLD_LOG).is_dir():
        raise LakeMissing(f"there is no lake of rmqkit 0.2 at {root}")
    table = LakeTable(storage)
    is_new = not table.exists()
    if is_new:
        old = _ended(root)
        actions = [lake_table.add_action(_report(root, file)) for file in old.files.values()]
        table.create(old.schema, lake_table.description(old.clusters), actions, _transactions(old))
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
    except FileExistsError:
        return False
    finally:
        writing.unlink()
    return True


def read_old(root: Path) -> OldLake:
    """Return the state of the old lake. Raises LakeDamaged if an entry is missing or invalid."""
    entries: dict[int, str] = {}
    snapshots: dict[int, str] = {}
    for name in os.listdir(root / OLD_LOG):
        if match := ENTRY.fullmatch(name):
            (snapshots if match[2] else entries)[int(match[1])] = name
    if not entries and not snapshots:
        raise LakeMissing(f"there is no lake of rmqkit 0.2 at {root}: its log is empty")
    old, first = OldLake(), max(snapshots, default=0)
    for number in range(first or 1, max(first, *entries) + 1):
        if number not in (snapshots if number == first else entries):
            raise LakeDamaged(f"{root}/{OLD_LOG}: entry {number} is missing")
        path = root / OLD_LOG / (snapshots if number == first else entries)[number]
        try:
            entry = msgspec.json.decode(path.read_bytes(), type=OldEntry)
            if entry.format > ENDED:
                raise LakeError(f"{path} has format {entry.format}: a newer rmqkit wrote it")
            old.apply(number, entry)
        except (msgspec.DecodeError, ValueError, LakeDamaged) as error:
            raise LakeDamaged(f"{path} is not a valid entry of a lake's log ({error}): restore the file") from None
    return old


def _report(root: Path, file: OldFile) -> FileReport:
    """Return the file for Delta. Raises LakeDamaged if it is not as the log says."""
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
    return FileReport(**msgspec.structs.asdict(file), written_ms=status.st_mtime_ns // 1_000_000, stats=stats)


def _transactions(old: OldLake) -> Mapping[str, int]:
    covered = [ranges.OffsetRange(*key, *interval) for key, those in old.covered.items() for interval in those]
    return transactions.encode(lake_table.NOTHING.known, covered, old.clusters, None, 0) | old.batches
