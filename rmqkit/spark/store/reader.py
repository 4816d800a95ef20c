"""Reads a commit-log file into Arrow batches, in Spark's workers, for `rocketmq-store`.

Rows come in the order of the file. Filters on topic and time apply to intact messages only. Damage
is always reported, because its topic and time are unknown. `rmqkit.spark.decode` makes the columns
that `rocketmq` has too.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqkit.spark import decode
from rmqkit.spark.columns import COLUMNS
from rmqkit.spark.options import SourceOptions
from rmqkit.spark.source.patterns import chosen
from rmqkit.spark.source.slices import Ints, gather
from rmqkit.spark.store.columns import OF_PLACES, STORE_COLUMNS
from rmqkit.spark.store.files import LogFile
from rmqkit.spark.store.scan import Bytes, Gap, RecordSlice, Scan

_I32, _I64 = np.dtype(">i4"), np.dtype(">i8")
_FLAG_AT = 16
_SYS_FLAG_AT = 36
#: Position of the prepared offset in a record with IPv4 hosts, in bytes.
_PREPARED_AT = 76


def read_file(file: LogFile, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one commit-log file that the options select, with their columns.

    Raises OSError if it cannot be opened.
    """
    if file.problem:
        yield _damage_row(file, Gap(0, file.size, file.problem), options.columns)
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
                yield from _rows(file, piece, options)
            elif isinstance(piece, Gap):
                yield _damage_row(file, piece, options.columns)
    finally:
        os.close(fd)


def _rows(file: LogFile, piece: RecordSlice, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    starts, sizes = piece.starts, piece.sizes
    if not piece.damage:
        chosen = _chosen(piece, options)
        if chosen is not None:
            starts, sizes = starts[chosen], sizes[chosen]
    if not len(starts):
        return
    names = [name for name in options.columns if name in COLUMNS]
    done = 0
    for batch in decode.batches_of(decode.DecodedRecords(piece.data, starts), names, {}):
        count = batch.num_rows
        part = slice(done, done + count)
        arrays = {name: batch.column(number) for number, name in enumerate(names)}
        for name in options.columns:
            if name not in arrays:
                arrays[name] = _MAKERS[name](file, piece, starts[part], sizes[part])
        yield _batch(options.columns, arrays, count)
        done += count


def _chosen(piece: RecordSlice, options: SourceOptions) -> NDArray[np.bool_] | None:
    """Return a mask of the records that the options select; None for all."""
    begin_ms, end_ms = options.starting_timestamp, options.ending_timestamp
    if not (options.subscribe or options.subscribe_pattern or begin_ms is not None or end_ms is not None):
        return None
    records = decode.DecodedRecords(piece.data, piece.starts)
    chosen = np.ones(records.count, np.bool_)
    if begin_ms is not None:
        chosen &= records.store_ms >= begin_ms
    if end_ms is not None:
        chosen &= records.store_ms < end_ms
    if options.subscribe or options.subscribe_pattern:
        topics = records.topics()
        wanted = [topic for topic in pc.unique(topics).to_pylist() if _is_wanted(topic, options)]
        chosen &= pc.is_in(topics, pa.array(wanted, pa.string())).to_numpy(zero_copy_only=False)
    return chosen


def _is_wanted(topic: str, options: SourceOptions) -> bool:
    if options.subscribe_pattern:
        return chosen(topic, options.subscribe_pattern)
    return topic in options.subscribe


def _damage_row(file: LogFile, gap: Gap, names: Sequence[str]) -> pa.RecordBatch:
    values: dict[str, Any] = {
        "file": file.path,
        "physical_offset": file.base + gap.at if file.base >= 0 else None,
        "size": gap.size,
        "body_crc_ok": None,
        "damage": gap.why,
    }
    arrays = {name: pa.array([values.get(name)], STORE_COLUMNS[name].arrow_type) for name in names}
    return _batch(names, arrays, 1)


def _batch(names: Sequence[str], arrays: dict[str, pa.Array], count: int) -> pa.RecordBatch:
    schema = pa.schema([pa.field(name, STORE_COLUMNS[name].arrow_type) for name in names])
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=schema)


# --- columns


def _prepared(file: LogFile, piece: RecordSlice, starts: Ints, sizes: Ints) -> pa.Array:
    data = np.frombuffer(piece.data, np.uint8)
    flags = gather(data, starts + _SYS_FLAG_AT, _I32)
    return pa.array(gather(data, starts + _PREPARED_AT + 12 * ((flags >> 4 & 1) + (flags >> 5 & 1)), _I64))


_Maker = Callable[[LogFile, RecordSlice, Ints, Ints], pa.Array]
_MAKERS: dict[str, _Maker] = {
    "flag": lambda file, piece, starts, sizes: pa.array(
        gather(np.frombuffer(piece.data, np.uint8), starts + _FLAG_AT, _I32)
    ),
    "prepared_offset": _prepared,
    "file": lambda file, piece, starts, sizes: pa.repeat(pa.scalar(file.path, pa.string()), len(starts)),
    "physical_offset": lambda file, piece, starts, sizes: pa.array(starts + (file.base + piece.at)),
    "size": lambda file, piece, starts, sizes: pa.array(sizes),
    "body_crc_ok": lambda file, piece, starts, sizes: pa.repeat(pa.scalar(piece.crc_ok), len(starts)),
    "damage": lambda file, piece, starts, sizes: pa.repeat(pa.scalar(piece.damage or None, pa.string()), len(starts)),
}
assert {*OF_PLACES} < {*_MAKERS}
