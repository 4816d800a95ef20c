"""The data source `rocketmq-store`: a store folder as a table, without a broker.

`spark.read.format("rocketmq-store").load("/data/store")` reads the commit log of a stopped or
copied store, ours or Apache's. Each file is one Spark partition. Each record is a row, in the order
of the log. Damage has rows of its own.

Nothing is written. Consume queues and the checkpoint are ignored. So the rows include messages that
a broker would no longer serve: those of deleted topics, half messages, and records behind a
truncation.

The folder must have the same path on the driver and on all workers. Spark imports this module in
every process that looks for data sources, so it imports only Spark's interface.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from rmqkit.spark.options import SourceOptions

FORMAT = "rocketmq-store"


class StoreDataSource(DataSource):
    """`spark.read.format("rocketmq-store")`; options in `docs/spark.md`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        from rmqkit.spark import tables
        from rmqkit.spark.columns import STORE_COLUMNS, ddl
        from rmqkit.spark.options import parse

        return tables.kept(ddl(parse(self.options, "store").columns, STORE_COLUMNS), self.options)

    def reader(self, schema: StructType) -> StoreReader:
        from rmqkit.errors import ConfigError
        from rmqkit.spark import tables
        from rmqkit.spark.columns import STORE_COLUMNS
        from rmqkit.spark.options import parse

        given = tables.options_of(self.options, schema, "store")
        options = parse(given, "store")
        path = given.get("path", "")
        if not path:
            raise ConfigError(f'{FORMAT} needs a path: .load("/data/store")')
        unknown = [name for name in schema.names if name not in STORE_COLUMNS]
        if unknown:
            known = ", ".join(STORE_COLUMNS)
            raise ConfigError(f"{unknown[0]!r} of the schema is not a column of {FORMAT}; choose from {known}")
        return StoreReader(path, replace(options, columns=tuple(schema.names)))


class StoreReader(DataSourceReader):
    """Reads a store folder: lists its files on the driver, reads them in the workers."""

    def __init__(self, path: str, options: SourceOptions) -> None:
        self._path = path
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return one partition per file. Raises ConfigError or StoreInUse."""
        from rmqkit.spark.store.files import check_not_in_use, log_files, log_folders

        folders = log_folders(self._path)
        if not self._options.allow_running:
            check_not_in_use(folders)
        return [InputPartition(file) for file in log_files(folders, self._options.files)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from rmqkit.spark.store.reader import read_file

        # For an empty list of partitions, Spark reads one partition whose value is None.
        if partition.value is not None:
            yield from read_file(partition.value, self._options)
