"""Iceberg tables instead of a lake, by a Spark package.

    packages = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
    spark = rmqkit.spark.session(conf=formats.conf(packages))
    ingest(spark, ["orders"], "/data/orders", packages=packages)

Iceberg stores query id and batch number as snapshot properties, which are checked before a batch is
written. That makes a batch exactly-once while the checkpoint exists: a new query has another id.

Delta needs no package: a lake is a Delta table (`lake_table`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from rmqkit.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: the snapshot properties in which Iceberg stores the query id and batch number
QUERY_KEY, BATCH_KEY = "rmqkit-query", "rmqkit-batch"
CATALOG = "rmqkit_lake"
TABLE = f"{CATALOG}.messages"
DELTA = "io.delta:"


class Iceberg:
    """Writes batches into an Iceberg table at PATH/messages."""

    group = "org.apache.iceberg"
    settings: ClassVar = {"spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"}

    @staticmethod
    def catalog(path: str) -> dict[str, str]:
        """Return the catalog settings of a table at PATH/messages; they may be set at run time."""
        return {
            f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
            f"spark.sql.catalog.{CATALOG}.type": "hadoop",
            f"spark.sql.catalog.{CATALOG}.warehouse": path,
        }

    @staticmethod
    def options(query: str, batch: int) -> dict[str, str]:
        return {f"snapshot-property.{QUERY_KEY}": query, f"snapshot-property.{BATCH_KEY}": str(batch)}

    @staticmethod
    def committed(query: str) -> str:
        """Return SQL for the number of the last batch of a query that the table has."""
        summary = f"summary['{BATCH_KEY}']"
        return f"SELECT max(int({summary})) FROM {TABLE}.snapshots WHERE summary['{QUERY_KEY}'] = '{query}'"

    def write(self, rows: "DataFrame", path: str, query: str, batch: int) -> None:
        """Append a batch; do nothing if this (query, batch) has been appended."""
        from pyspark.sql import functions as F

        session = rows.sparkSession
        for key, value in self.catalog(path).items():
            session.conf.set(key, value)
        if not session.catalog.tableExists(TABLE):
            empty = rows.limit(0).writeTo(TABLE).using("iceberg")
            empty.partitionedBy(F.col("topic"), F.hours("store_time")).create()
        last = session.sql(self.committed(query)).first()
        if last is None or last[0] is None or last[0] < batch:
            rows.sortWithinPartitions("topic", "store_time").writeTo(TABLE).options(**self.options(query, batch)).append()


def of_packages(packages: str | Sequence[str] | None) -> Iceberg | None:
    """Return the format of Maven coordinates (`group:artifact:version`), None for no packages.

    Raises ConfigError unless Iceberg is among them.
    """
    names = _split(packages)
    if not names:
        return None
    if any(name.startswith(DELTA) for name in names):
        raise ConfigError(f"{', '.join(names)}: omit packages, without any rmqkit writes a Delta table")
    if not any(name.startswith(f"{Iceberg.group}:") for name in names):
        raise ConfigError(f"{', '.join(names)}: Iceberg is needed among the packages: {Iceberg.group}:…")
    return Iceberg()


def conf(packages: str | Sequence[str] | None) -> dict[str, str]:
    """Return the Spark settings for `session(conf=…)`. Raises ConfigError."""
    chosen = of_packages(packages)
    return {} if chosen is None else {"spark.jars.packages": ",".join(_split(packages)), **chosen.settings}


def _split(packages: str | Sequence[str] | None) -> list[str]:
    given = packages.split(",") if isinstance(packages, str) else packages or []
    return [name.strip() for name in given if name.strip()]
