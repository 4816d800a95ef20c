"""Lake formats of Spark packages: Delta and Iceberg instead of rmqkit's own lake.

    packages = "io.delta:delta-spark_2.13:4.1.0"
    spark = rmqkit.spark.session(conf=formats.conf(packages))
    ingest(spark, ["orders"], "/data/orders", packages=packages)

The format's own commit makes a batch exactly-once:

- Delta stores (txnAppId, txnVersion) = (query id, batch) in its log and skips a batch that it has.
- Iceberg stores both as snapshot properties, which are checked before a batch is written.

Both guarantees hold only while the checkpoint exists: a new query has another id.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from rmqkit.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: the snapshot properties in which Iceberg stores the query id and batch number
QUERY_KEY, BATCH_KEY = "rmqkit-query", "rmqkit-batch"
CATALOG = "rmqkit_lake"
TABLE = f"{CATALOG}.messages"


class LakeFormat(ABC):
    """Writes batches in one lake format."""

    #: the Maven group of its packages
    group: str
    #: Spark settings that the session needs when it starts
    settings: ClassVar[dict[str, str]]

    @abstractmethod
    def write(self, rows: "DataFrame", path: str, query: str, batch: int) -> None:
        """Append a batch; do nothing if this (query, batch) has been appended."""


class Delta(LakeFormat):
    group = "io.delta"
    settings: ClassVar = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    source = "delta"

    @staticmethod
    def options(query: str, batch: int) -> dict[str, str]:
        return {"txnAppId": query, "txnVersion": str(batch), "mergeSchema": "true"}

    def write(self, rows: "DataFrame", path: str, query: str, batch: int) -> None:
        from pyspark.sql import functions as F

        dated = rows.withColumn("store_date", F.to_date("store_time"))
        writer = dated.write.format(self.source).mode("append").partitionBy("topic", "store_date")
        writer.options(**self.options(query, batch)).save(path)


class Iceberg(LakeFormat):
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


FORMATS: tuple[LakeFormat, ...] = (Delta(), Iceberg())


def of_packages(packages: str | Sequence[str] | None) -> LakeFormat | None:
    """Return the format of Maven coordinates (`group:artifact:version`), None for no packages.

    Raises ConfigError unless exactly one format is among them.
    """
    names = _split(packages)
    if not names:
        return None
    found = [each for each in FORMATS if any(name.startswith(f"{each.group}:") for name in names)]
    if len(found) != 1:
        known = " or ".join(f"{each.group}:…" for each in FORMATS)
        raise ConfigError(f"{', '.join(names)}: exactly one lake format is needed among the packages: {known}")
    return found[0]


def conf(packages: str | Sequence[str] | None) -> dict[str, str]:
    """Return the Spark settings for `session(conf=…)`. Raises ConfigError."""
    chosen = of_packages(packages)
    return {} if chosen is None else {"spark.jars.packages": ",".join(_split(packages)), **chosen.settings}


def _split(packages: str | Sequence[str] | None) -> list[str]:
    given = packages.split(",") if isinstance(packages, str) else packages or []
    return [name.strip() for name in given if name.strip()]
