"""Reads commit-log files into Arrow batches for `rocketmq-store`.

The driver lists the files of a store folder. Spark's workers read one file each.

Rows come in the order of the file. Filters on topic and time apply to intact messages only. Damage
is always reported, because its topic and time are unknown. `rmqkit.spark.decode` makes the columns
that `rocketmq` has too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition

from rmqkit.errors import ConfigError
from rmqkit.spark.columns import STORE_COLUMNS, arrow_schema
from rmqkit.spark.decode import DecodedRecords, batches_of
from rmqkit.spark.options import SourceOptions, parse
from rmqkit.spark.store.files import check_not_in_use, log_files, log_folders
from rmqkit.spark.store.scan import Bytes, Gap, LogFile, RecordSlice, Scan

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class StoreReader(DataSourceReader):
    """Lists the files of a store folder on the driver, reads them in the workers.

    Raises ConfigError for wrong options or an unknown column.
    """

    def __init__(self, given: Mapping[str, str], schema: "StructType") -> None:
        self._options = replace(parse(given, "store"), columns=tuple(schema.names))
        self._path = given.get("path", "")
        if not self._path:
            raise ConfigError('rocketmq-store needs a path: .load("/data/store")')
        for name in schema.names:
            if name not in STORE_COLUMNS:
                known = ", ".join(STORE_COLUMNS)
                raise ConfigError(f"{name!r} of the schema is not a column of rocketmq-store; choose from {known}")

    def partitions(self) -> list[InputPartition]:
        """Return one partition per file. Raises ConfigError or StoreInUse."""
        folders = log_folders(self._path)
        if not self._options.allow_running:
            check_not_in_use(folders)
        return [InputPartition(file) for file in log_files(folders, self._options.files)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # For an empty list of partitions, Spark reads one partition whose value is None.
        if partition.value is not None:
            yield from read_file(partition.value, self._options)


def read_file(file: LogFile, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one commit-log file that the options select, with their columns.

    Raises OSError if it cannot be opened.
    """
    schema = arrow_schema(options.columns, STORE_COLUMNS)
    if file.problem:
        yield _damage_row(file, Gap(0, file.size, file.problem), schema)
        return
    with open(file.path, "rb", buffering=0) as log:
        for piece in Scan(Bytes(log.fileno()), file, is_live=options.allow_running).pieces():
            if isinstance(piece, RecordSlice):
                yield from _rows(file, piece, options, schema)
            elif isinstance(piece, Gap):
                yield _damage_row(file, piece, schema)


def _rows(file: LogFile, piece: RecordSlice, options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    records = piece.records
    constants = {"file": file.path, "body_crc_ok": piece.crc_ok, "damage": piece.damage or None}
    if piece.damage:
        # The record may state another offset.
        constants["physical_offset"] = file.base + piece.at + int(records.starts[0])
    else:
        records = _chosen(records, options)
    if records.count:
        yield from batches_of(records, schema, constants)


def _chosen(records: DecodedRecords, options: SourceOptions) -> DecodedRecords:
    """Return the records that the options select."""
    begin_ms, end_ms = options.starting_timestamp, options.ending_timestamp
    if not (options.subscribe or options.subscribe_pattern or begin_ms is not None or end_ms is not None):
        return records
    mask = np.ones(records.count, np.bool_)
    if begin_ms is not None:
        mask &= records.store_ms >= begin_ms
    if end_ms is not None:
        mask &= records.store_ms < end_ms
    if options.subscribe or options.subscribe_pattern:
        topics = records.topics()
        wanted = [topic for topic in pc.unique(topics).to_pylist() if options.selects(topic)]
        mask &= pc.is_in(topics, pa.array(wanted, pa.string())).to_numpy(zero_copy_only=False)
    return records.at(mask)


def _damage_row(file: LogFile, gap: Gap, schema: pa.Schema) -> pa.RecordBatch:
    """Return a row without the columns of a message."""
    offset = file.base + gap.at if file.base >= 0 else None
    row = {"file": file.path, "physical_offset": offset, "size": gap.size, "damage": gap.why}
    return pa.RecordBatch.from_pylist([row], schema=schema)
