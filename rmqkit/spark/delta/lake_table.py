"""The Delta table of a lake: its state, and commits that happen once.

    PATH/_delta_log/…                                    Delta's log
    PATH/topic=orders/hour=2026-11-22-13/part-….parquet  rows of one topic and hour
    PATH/_lake/checkpoints/…                             Spark's checkpoints of ingests

`commit` asks its caller for a batch that fits the newest state, and hands it to Delta. Delta
refuses it if another commit has touched one of its application ids meanwhile (`transactions`): an
ingest of the same queues, or the same query. Then the caller is asked again, with the newer state,
and decides whether the batch still fits. Compaction and ingests of other topics touch none of these
ids, so Delta puts both commits one after the other.

A column that the table lacks is added by a commit of its own, before the batch: deltalake cannot do
both at once. If the driver dies in between, the table has a column without values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

import rmqkit
from rmqkit.spark.delta import data_files, transactions
from rmqkit.spark.delta.data_files import PARTITIONS, FileReport, Schema
from rmqkit.spark.delta.storage import LakeConflict, LakeError, LakeMissing, LakeStorage
from rmqkit.spark.delta.transactions import LOG, TransactionLog
from rmqkit.spark.source.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: where rmqkit 0.2 kept the log of its own table format
OLD_LOG = "_lake/log"
#: maximum attempts of a commit when other writers are first
TRIES_MAX = 100
#: commits between two checkpoints of Delta's log; reading it begins at the newest
PROPERTIES = {"delta.checkpointInterval": "20"}
#: what plain Parquet readers need not know about a table's files
FEATURES_READ = frozenset({"timestampNtz"})

#: conditions on columns: (column, operator, value)
Filters = list[tuple[str, str, Any]]


class LakeState(NamedTuple):
    """The state of a lake at a version of its table; -1 means that there is no lake.

    `schema` has the columns as Delta's (and Spark's) JSON, with the partition column `hour`.
    """

    version: int
    known: transactions.Ledger
    schema: Schema

    @property
    def covered(self) -> transactions.Covered:
        return self.known.covered

    def has(self, query: str | None, batch: int) -> bool:
        return query is not None and batch <= self.known.batches.get(query, -1)


NOTHING = LakeState(-1, transactions.Ledger({}, {}, {}), {"type": "struct", "fields": []})


class Batch(NamedTuple):
    """A batch to commit: files with rows of the offsets in `ranges`.

    `query` is None for a query that cannot come back. `clusters` maps topic → names of the clusters
    that the rows were read from. `schema` is that of the rows, as Spark's JSON.
    """

    query: str | None
    number: int
    ranges: Sequence[OffsetRange]
    clusters: Mapping[str, Sequence[str]]
    files: Sequence[FileReport]
    schema: Schema


class LakeTable:
    """The table at a place. It caches the last state, so that only new commits are read."""

    #: whether data files have the column `topic`; Delta has it in its log only
    has_topics = False

    def __init__(self, storage: LakeStorage) -> None:
        self.storage = storage
        self._table: DeltaTable | None = None
        self._log = TransactionLog(storage)

    def exists(self) -> bool:
        """Return whether there is a Delta table."""
        return DeltaTable.is_deltatable(self.storage.uri, self.storage.options or None)

    def opened(self, version: int | datetime | None = None) -> DeltaTable:
        """Return deltalake's table at its newest version, or at a version or time.

        Raises LakeMissing, and LakeError for a table that is not a lake, or whose files only
        Delta's own readers understand.
        """
        try:
            table = DeltaTable(self.storage.uri, storage_options=self.storage.options or None)
            if version is not None:
                table.load_as_version(version)
        except TableNotFoundError:
            if self.storage.is_local and Path(self.storage.full(OLD_LOG)).is_dir():
                text = "is a lake of rmqkit 0.2, in its own format: run `rmqkit pipeline migrate` on it once"
                raise LakeError(f"{self.storage.uri} {text}") from None
            text = f"there is no lake at {self.storage.uri}: `rmqkit pipeline ingest TOPIC --to PATH` makes one"
            raise LakeMissing(text) from None
        except DeltaError as error:
            raise LakeError(f"{self.storage.uri}: {error}") from None
        if table.metadata().partition_columns != PARTITIONS:
            text = f"a Delta table, but not a lake: it is not partitioned by {' and '.join(PARTITIONS)}"
            raise LakeError(f"{self.storage.uri} is {text}")
        if features := sorted(set(table.protocol().reader_features or ()) - FEATURES_READ):
            raise LakeError(f"{self.storage.uri} has Delta's {', '.join(features)}: only Delta's own readers can read it")
        return table

    def state(self) -> LakeState:
        """Return the current state. Raises LakeDamaged, LakeError."""
        try:
            if self._table is None:
                self._table = self.opened()
            else:
                self._table.update_incremental()
        except LakeMissing:
            return NOTHING
        return self.state_of(self._table)

    def state_of(self, table: DeltaTable) -> LakeState:
        version = table.version()
        return LakeState(version, transactions.decode(self._log.at(version)), json.loads(table.schema().to_json()))

    def commit(self, make: Callable[[LakeState], Batch | None]) -> LakeState | None:
        """Commit the batch that `make` returns for the newest state, and return the state after it.

        If another writer is first, `make` is called again with the newer state. Nothing is
        committed if it returns None, as this then does, or raises. Raises LakeConflict after
        TRIES_MAX attempts, or if a column has another type in the table.
        """
        since: int | None = None
        for _ in range(TRIES_MAX):
            state = self.state()
            since = state.version if since is None else since
            if (batch := make(state)) is None:
                return None
            try:
                # A commit of its own may hide another writer's. Therefore the state is read again.
                if self._alter(state, batch):
                    continue
                self._commit(state, batch)
            except CommitFailedError:
                continue
            after = self.state()
            self.storage.sync(f"{LOG}/{number:020}.json" for number in range(since + 1, after.version + 1))
            return after
        raise LakeConflict(f"{self.storage.uri}: commit failed {TRIES_MAX} times, other writers were first each time")

    def rows(
        self, spark: SparkSession, topics: Iterable[str] | None, bounds: Filters, version: int | datetime | None = None
    ) -> DataFrame:
        """Return the rows of all files that may have rows of these topics within these bounds.

        Without `topics`, rows of all topics. Raises as `opened`.
        """
        opened = self.opened(version)
        files = files_of(opened, topics, bounds)
        return data_files.read(spark, self.storage, json.loads(opened.schema().to_json()), files)

    def swap(self, old: Sequence[str], new: Sequence[FileReport]) -> bool:
        """Replace files by others with the same rows. Return False if one of them is gone.

        Delta's own check of conflicts ignores files that another commit has replaced, so the commit
        is made at the next version or not at all. Raises LakeConflict after TRIES_MAX attempts.
        """
        for _ in range(TRIES_MAX):
            table = self.opened()
            there = {unquote(path) for path in table.get_add_actions().column("path").to_pylist()}
            if not there.issuperset(old):
                return False
            gone: dict[str, str | None] = {"topic": new[0].topic, "hour": new[0].hour}
            now_ms = max(file.written_ms for file in new)
            removed = [RemoveAction(path, False, now_ms, partition_values=gone) for path in old]
            try:
                _write(table, [*removed, *(add_action(file, is_new=False) for file in new)], {}, retries=0)
            except CommitFailedError:
                continue
            self.storage.sync([f"{LOG}/{table.version() + 1:020}.json"])
            return True
        raise LakeConflict(f"{self.storage.uri}: commit failed {TRIES_MAX} times, other writers were first each time")

    def create(self, schema: Schema, description: str, actions: Sequence[Any], apps: Mapping[str, int]) -> None:
        """Create the table with its first files, in one commit.

        Raises CommitFailedError if there is a table.
        """
        try:
            create_table_with_add_actions(
                self.storage.uri,
                DeltaSchema.from_json(json.dumps(schema)),
                list(actions),
                mode="error",
                partition_by=PARTITIONS,
                name="messages",
                description=description,
                configuration=PROPERTIES,
                storage_options=self.storage.options or None,
                commit_properties=_properties(apps),
            )
        except DeltaError as error:
            if self.exists():
                raise CommitFailedError(str(error)) from None
            raise

    def _commit(self, state: LakeState, batch: Batch) -> None:
        apps = transactions.encode(state.known, batch.ranges, batch.clusters, batch.query, batch.number)
        actions = [add_action(file) for file in batch.files]
        if self._table is None:
            return self.create(merged_schema(state.schema, batch.schema), description(batch.clusters), actions, apps)
        _write(self._table, actions, apps)

    def _alter(self, state: LakeState, batch: Batch) -> bool:
        """Add the columns that the table lacks, or name new topics in its description.

        Return whether there was one to add or name.
        """
        if self._table is None:
            return False
        fields = merged_schema(state.schema, batch.schema)["fields"][len(state.schema["fields"]) :]
        if fields:
            self._table.alter.add_columns(DeltaSchema.from_json(json.dumps({"type": "struct", "fields": fields})).fields)
            return True
        known = {**{key.topic: [] for key in state.covered}, **state.known.clusters}
        named = description({**known, **batch.clusters})
        if batch.clusters.keys() <= known.keys() or named == self._table.metadata().description:
            return False
        self._table.alter.set_table_description(named)
        return True


def files_of(opened: DeltaTable, topics: Iterable[str] | None, bounds: Filters) -> dict[str, list[str]]:
    """Return topic → URIs of its files that may have rows within these bounds; None: all topics."""
    there = {each["topic"] for each in opened.partitions()}
    return {
        topic: opened.file_uris(file_pruning_predicate=[("topic", "=", topic), *bounds])
        for topic in sorted(there if topics is None else there.intersection(topics))
    }


def add_action(file: FileReport, *, is_new: bool = True) -> Any:
    """Return the action that adds a file; `is_new` is False if its rows were in other files."""
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={"topic": file.topic, "hour": file.hour},
        modification_time=file.written_ms,
        data_change=is_new,
        stats=file.stats,
    )


def _write(table: DeltaTable, actions: list[Any], apps: Mapping[str, int], *, retries: int | None = None) -> None:
    made = _properties(apps, retries=retries)
    table.create_write_transaction(actions, "append", table.schema(), partition_by=PARTITIONS, commit_properties=made)


def _properties(apps: Mapping[str, int], *, retries: int | None = None) -> Any:
    return CommitProperties(
        custom_metadata={"rmqkit": rmqkit.__version__},
        app_transactions=[Transaction(app, version) for app, version in apps.items()],
        max_commit_retries=retries,
    )


def description(clusters: Mapping[str, Sequence[str]]) -> str:
    topics = ", ".join(f"{topic} of {'+'.join(names)}" if names else topic for topic, names in sorted(clusters.items()))
    return f"RocketMQ messages by topic and hour of store time (UTC): {topics}. Written by rmqkit {rmqkit.__version__}"


def merged_schema(known: Schema, new: Schema) -> Schema:
    """Return the known columns, then those that are new; rows without a column have null.

    Raises LakeConflict if both have a column with different types.
    """
    fields = {field["name"]: field for field in known["fields"]}
    hour = {"name": "hour", "type": "string"}
    for field in [*new["fields"], hour]:
        given = fields.setdefault(field["name"], {**field, "nullable": True, "metadata": {}})
        if given["type"] != field["type"]:
            raise LakeConflict(f"column {field['name']} is {given['type']} in the lake, {field['type']} in new rows")
    return {"type": "struct", "fields": list(fields.values())}
