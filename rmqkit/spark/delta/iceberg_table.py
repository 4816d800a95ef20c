"""An Iceberg table in place of the Delta table of a lake: the same batches, by `pyiceberg`, no jar.

    PATH/catalog.db                                      a SQL catalog, in SQLite
    PATH/metadata/…                                      Iceberg's metadata of the table
    PATH/topic=orders/hour=2026-11-22-13/part-….parquet  rows of one topic and hour

`pipelines.ingest` uses it as it uses `LakeTable`: `state`, `commit`, `rows`. What Delta keeps as
application transactions are properties of the table here. One commit changes them, adds the files,
and adds the columns that the table lacks.

A commit requires the snapshot that its batch was made for, and every commit makes a snapshot. So of
two that run at once the catalog refuses one, and its batch is made again for the newer state. That
needs `commit.retry.num-retries` of 0: pyiceberg would repeat a refused append on its own.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import Schema as DeltaSchema

from rmqkit.errors import ConfigError
from rmqkit.spark.delta import lake_table, transactions
from rmqkit.spark.delta.data_files import HOUR, TOPIC, Schema
from rmqkit.spark.delta.lake_table import TRIES_MAX, Batch, Filters, LakeState
from rmqkit.spark.delta.storage import LakeConflict, LakeError, LakeStorage

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

CATALOG_FILE = "catalog.db"
TABLE = "rmqkit.messages"
#: properties of the table: one for each application transaction, and the schema as Spark's JSON
TRANSACTION, SCHEMA = "rmqkit.txn.", "rmqkit.schema"
RETRIES = "commit.retry.num-retries"


class IcebergTable:
    """The table `rmqkit.messages` of the catalog in a folder; it need not exist yet.

    The constructor raises ConfigError unless there can be an Iceberg table. It needs no Spark.
    """

    has_topics = True

    def __init__(self, storage: LakeStorage) -> None:
        if find_spec("pyiceberg") is None:
            raise ConfigError("an Iceberg table needs pyiceberg: pip install 'rmqkit[iceberg]'")
        if not storage.is_local:
            raise ConfigError(f"{storage.uri}: an Iceberg table must be in a local or mounted folder; use Delta elsewhere")
        self.storage = storage

    def opened(self) -> Table | None:
        """Return pyiceberg's table at its newest snapshot, None if there is none."""
        from pyiceberg.exceptions import NoSuchTableError

        with suppress(NoSuchTableError):
            if Path(self.storage.full(CATALOG_FILE)).exists():
                return self._catalog().load_table(TABLE)
        return None

    def state(self) -> LakeState:
        return _state(self.opened())

    def commit(self, make: Callable[[LakeState], Batch | None]) -> LakeState | None:
        """Commit the batch that `make` returns for the newest state, as `LakeTable.commit` does."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        for _ in range(TRIES_MAX):
            table = self.opened()
            state = _state(table)
            if (batch := make(state)) is None:
                return None
            try:
                table = table or self._created(batch)
                self._commit(table, state, batch)
            except (CommitFailedException, TableAlreadyExistsError):
                continue
            self._sync(table)
            return _state(table)
        raise LakeConflict(f"{self.storage.uri}: commit failed {TRIES_MAX} times, other writers were first each time")

    def rows(self, spark: SparkSession, topics: Iterable[str], bounds: Filters) -> DataFrame:
        """Return the rows of all files that may have rows of these topics within these bounds."""
        from pyiceberg.expressions import And, In
        from pyiceberg.expressions.parser import parse
        from pyspark.sql.types import StructType

        table = self.opened()
        assert table is not None
        condition: Any = In(TOPIC, list(topics))  # type: ignore[call-arg, arg-type]  # mypy takes pydantic's signature
        for column, operator, value in bounds:
            condition = And(condition, parse(f"{column} {operator} {value!r}"))
        found = [task.file.file_path for task in table.scan(row_filter=condition).plan_files()]
        schema = StructType.fromJson({"fields": _stored(json.loads(table.properties[SCHEMA]))})
        return spark.read.schema(schema).parquet(*found) if found else spark.createDataFrame([], schema)

    def _catalog(self) -> SqlCatalog:
        from pyiceberg.catalog.sql import SqlCatalog

        root = Path(self.storage.uri)
        root.mkdir(parents=True, exist_ok=True)
        catalog = SqlCatalog("rmqkit", uri=f"sqlite:///{root / CATALOG_FILE}", warehouse=f"file://{root}")
        # The tables of a catalog refer to it, so it cannot be closed here.
        weakref.finalize(catalog, catalog.engine.dispose)
        return catalog

    def _created(self, batch: Batch) -> Table:
        """Create the table, without rows. Raises TableAlreadyExistsError."""
        from pyiceberg.transforms import HourTransform, IdentityTransform

        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(TABLE.partition(".")[0])
        creation = catalog.create_table_transaction(
            TABLE,
            _arrow(batch.schema),
            location=f"file://{self.storage.uri}",
            properties={RETRIES: "0", SCHEMA: json.dumps(batch.schema)},
        )
        with creation.update_spec() as spec:
            spec.add_field(TOPIC, IdentityTransform(), f"{TOPIC}_name")
            spec.add_field("store_time", HourTransform(), HOUR)
        return creation.commit_transaction()

    def _commit(self, table: Table, state: LakeState, batch: Batch) -> None:
        if table.properties.get(RETRIES) != "0":
            raise LakeError(f"{self.storage.uri}: set the table's {RETRIES} to 0 again, or batches may be there twice")
        merged = lake_table.merged_schema(state.schema, batch.schema)
        apps = transactions.encode(state.known, batch.ranges, batch.clusters, batch.query, batch.number)
        named = {**state.known.clusters, **batch.clusters}
        with table.transaction() as commit:
            with commit.update_schema() as update:
                update.union_by_name(_arrow(merged))
            commit.set_properties(
                {SCHEMA: json.dumps(merged), "comment": lake_table.description(named)}
                | {f"{TRANSACTION}{app}": str(version) for app, version in apps.items()}
            )
            # This makes a snapshot also if there is no file.
            paths = [f"file://{self.storage.full(file.path)}" for file in batch.files]
            commit.add_files(paths, check_duplicate_files=False)

    def _sync(self, table: Table) -> None:
        """Make the metadata of the table's snapshot durable; pyiceberg does not."""
        snapshot = table.current_snapshot()
        assert snapshot is not None
        own = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot.snapshot_id]
        written = [table.metadata_location, snapshot.manifest_list, *(each.manifest_path for each in own)]
        self.storage.sync(name.removeprefix(f"file://{self.storage.uri}/") for name in written)


def _state(table: Table | None) -> LakeState:
    if table is None:
        return lake_table.NOTHING
    properties, snapshot = table.properties, table.current_snapshot()
    found = {name.removeprefix(TRANSACTION): int(properties[name]) for name in properties if name.startswith(TRANSACTION)}
    version = 0 if snapshot is None else snapshot.sequence_number or 0
    return LakeState(version, transactions.decode(found), json.loads(properties[SCHEMA]))


def _arrow(schema: Schema) -> pa.Schema:
    return pa.schema(DeltaSchema.from_json(json.dumps({**schema, "fields": _stored(schema)})).to_arrow())


def _stored(schema: Schema) -> list[dict[str, Any]]:
    """Return the columns of the table: Delta's partition column `hour` is a transform here."""
    return [field for field in schema["fields"] if field["name"] != HOUR]
