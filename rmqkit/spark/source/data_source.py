"""The data source `rocketmq`: the class that Spark instantiates for each query.

Spark imports this module in a process that looks for data sources, and unpickles the class in the
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

FORMAT = "rocketmq"


class RocketMQSource(DataSource):
    """`spark.read.format("rocketmq")`; options in `docs/spark.md`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        from rmqkit.spark import rows, tables
        from rmqkit.spark.options import parse

        # Spark does not say here whether the query will be a batch or a stream.
        return tables.kept(rows.schema_ddl(parse(tables.to_make(self.options), "batch")), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from rmqkit.spark.source import batch

        return batch.reader(self._parsed("batch", schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from rmqkit.spark.source import stream

        return stream.StreamReader(self._parsed("stream", schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rmqkit.spark.sink import writer

        return writer.BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from rmqkit.spark.sink import writer

        return writer.StreamWriter(self.options, schema, overwrite)

    def _parsed(self, where: str, schema: StructType) -> SourceOptions:
        from rmqkit.spark import options, tables

        return options.parse(tables.options_of(self.options, schema), where)
