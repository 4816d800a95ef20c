"""The data sources `rocketmq` and `rocketmq-store`: what Spark instantiates for each query.

`spark.read.format("rocketmq")` reads and writes topics of a cluster.

`spark.read.format("rocketmq-store").load("/data/store")` reads the commit log of a stopped or
copied store, ours or Apache's, without a broker. Each file is one Spark partition. Each record is a
row, in the order of the log. Damage has rows of its own. Nothing is written. Consume queues and the
checkpoint are ignored. So the rows include messages that a broker would no longer serve: those of
deleted topics, half messages, and records behind a truncation. The folder must have the same path
on the driver and on all workers.

Spark imports this module in a process that looks for data sources, and unpickles the classes in the
processes that plan and read. So the module imports only Spark's interface; readers and writers are
imported when they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from rmqkit.spark.options import SourceOptions


class RocketMQSource(DataSource):
    """`spark.read.format("rocketmq")`; options in `docs/spark.md`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        from rmqkit.spark import columns, options, tables

        # Spark does not say here whether the query will be a batch or a stream.
        asked = options.parse(tables.to_make(self.options), "batch")
        return tables.kept(columns.schema_ddl(asked), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from rmqkit.spark.source import readers

        options = self._parsed("batch", schema)
        return (readers.FilteringReader if options.pushdown else readers.BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from rmqkit.spark.source import readers

        return readers.StreamReader(self._parsed("stream", schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rmqkit.spark.sink import writer

        return writer.BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from rmqkit.spark.sink import writer

        return writer.StreamWriter(self.options, schema, overwrite)

    def _parsed(self, where: str, schema: StructType) -> SourceOptions:
        from rmqkit.spark import options, tables

        return options.parse(tables.options_of(self.options, schema), where)


class StoreDataSource(DataSource):
    """`spark.read.format("rocketmq-store")`; options in `docs/spark.md`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    def schema(self) -> str:
        from rmqkit.spark import columns, options, tables

        asked = options.parse(self.options, "store").columns
        return tables.kept(columns.ddl(asked, columns.STORE_COLUMNS), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from rmqkit.spark import tables
        from rmqkit.spark.store.reader import StoreReader

        return StoreReader(tables.options_of(self.options, schema, "store"), schema)
