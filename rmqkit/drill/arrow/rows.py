"""Rows of a history as an Arrow table, from files and back."""

import gc
import io
import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from rmqkit.drill.history import History, HistoryRow, read_lines, rows_of_lines

#: rows of JSON lines that become an Arrow table at once
CHUNK_ROWS = 100_000
#: different texts of `extra` whose values are shared by their rows
SHARED = 4_096


def dataset(stored: Path | bytes) -> ds.Dataset:
    """Return the rows of `history.parquet` (a file, or a folder of files) or `history.jsonl`.

    Bytes are those of a Parquet file. JSON lines become a table in memory. Raises OSError, or
    ValueError if it is not a history.
    """
    if isinstance(stored, bytes):
        return ds.dataset(pq.read_table(io.BytesIO(stored)))
    if stored.suffix == ".parquet":
        found = ds.dataset(stored, format="parquet")
        if missing := [name for name in HistoryRow._fields if name not in found.schema.names]:
            raise ValueError(f"it has no column {missing[0]}")
        return found
    rows = rows_of_lines(stored)
    chunks = iter(lambda: list(islice(rows, CHUNK_ROWS)), [])
    return ds.dataset(pa.concat_tables([table(()), *map(table, chunks)]))


def read_history(stored: Path | bytes) -> History:
    """Read a whole history of either format. Raises as `dataset`."""
    if isinstance(stored, Path) and stored.suffix != ".parquet":
        return read_lines(stored)
    return History(rows_of(dataset(stored).to_table()))


SCHEMA = pa.schema(
    [(name, pa.int64() if kind is int else pa.string()) for name, kind in HistoryRow.__annotations__.items()]
)


def table(rows: Sequence[HistoryRow]) -> pa.Table:
    """Return rows as an Arrow table with `extra` as JSON text."""
    columns = {name: [getattr(row, name) for row in rows] for name in HistoryRow._fields}
    columns["extra"] = [json.dumps(dict(extra), ensure_ascii=False) for extra in columns["extra"]]
    return pa.table(columns, SCHEMA)


def write_parquet(history: History, to: Path | BinaryIO) -> None:
    """Write the rows as a Parquet file, with `extra` as JSON text."""
    pq.write_table(table(history.rows), to, compression="zstd")


def rows_of(stored: pa.Table) -> list[HistoryRow]:
    """Return the rows of a table in the order of `op`. Rows share equal texts."""
    ordered = stored.sort_by("op")
    read = lru_cache(SHARED)(json.loads)
    was_enabled = gc.isenabled()
    gc.disable()  # millions of new rows make the collector run often, and it finds nothing
    try:
        columns = [_values(ordered[name]) for name in HistoryRow._fields[:-1]]
        extras = (read(text or "{}") for text in _values(ordered["extra"]))
        return list(map(HistoryRow, *columns, extras))
    finally:
        if was_enabled:
            gc.enable()


def _values(column: pa.ChunkedArray) -> list[Any]:
    if not pa.types.is_string(column.type) or not len(column):
        return list(column.to_pylist())
    encoded = column.combine_chunks().dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    return [texts[index] for index in encoded.indices.to_pylist()]
