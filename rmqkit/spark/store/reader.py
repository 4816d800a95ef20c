"""Reads a commit-log file into Arrow batches, in Spark's workers, for `rocketmq-store`.

Rows come in the order of the file. Filters on topic and time apply to intact messages only. Damage
is always reported, because its topic and time are unknown. `rmqkit.spark.decode` makes the columns
that `rocketmq` has too.
"""

import os
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqkit.spark.columns import STORE_COLUMNS, arrow_schema
from rmqkit.spark.decode import DecodedRecords, batches_of
from rmqkit.spark.options import SourceOptions
from rmqkit.spark.source.patterns import selects
from rmqkit.spark.store.files import LogFile
from rmqkit.spark.store.scan import Bytes, Gap, RecordSlice, Scan


def read_file(file: LogFile, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one commit-log file that the options select, with their columns.

    Raises OSError if it cannot be opened.
    """
    schema = arrow_schema(options.columns, STORE_COLUMNS)
    if file.problem:
        yield _damage_row(file, Gap(0, file.size, file.problem), schema)
        return
    fd = os.open(file.path, os.O_RDONLY)
    try:
        scan = Scan(
            Bytes(fd, os.fstat(fd).st_size),
            file.base,
            full_size=file.full_size,
            is_followed=file.is_followed,
            is_live=options.allow_running,
        )
        for piece in scan.pieces():
            if isinstance(piece, RecordSlice):
                yield from _rows(file, piece, options, schema)
            elif isinstance(piece, Gap):
                yield _damage_row(file, piece, schema)
    finally:
        os.close(fd)


def _rows(file: LogFile, piece: RecordSlice, options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    records = piece.records
    constants = {"file": file.path, "body_crc_ok": piece.crc_ok, "damage": piece.damage or None}
    if piece.damage:
        # The record may state another offset.
        constants["physical_offset"] = file.base + piece.at + int(records.starts[0])
    elif (mask := _chosen(records, options)) is not None:
        records = records.at(mask)
    if records.count:
        yield from batches_of(records, schema, constants)


def _chosen(records: DecodedRecords, options: SourceOptions) -> NDArray[np.bool_] | None:
    """Return a mask of the records that the options select; None for all."""
    begin_ms, end_ms = options.starting_timestamp, options.ending_timestamp
    if not (options.subscribe or options.subscribe_pattern or begin_ms is not None or end_ms is not None):
        return None
    mask = np.ones(records.count, np.bool_)
    if begin_ms is not None:
        mask &= records.store_ms >= begin_ms
    if end_ms is not None:
        mask &= records.store_ms < end_ms
    if options.subscribe or options.subscribe_pattern:
        topics = records.topics()
        wanted = [topic for topic in pc.unique(topics).to_pylist() if selects(options, topic)]
        mask &= pc.is_in(topics, pa.array(wanted, pa.string())).to_numpy(zero_copy_only=False)
    return mask


def _damage_row(file: LogFile, gap: Gap, schema: pa.Schema) -> pa.RecordBatch:
    """Return a row without the columns of a message."""
    offset = file.base + gap.at if file.base >= 0 else None
    row = {"file": file.path, "physical_offset": offset, "size": gap.size, "damage": gap.why}
    return pa.RecordBatch.from_pylist([row], schema=schema)
