"""Histories in Parquet: rows of an Arrow table, and a history that reads its rows when asked.

A row takes 300 to 700 bytes as Python objects, and about 10 in a Parquet file. `StoredHistory`
therefore leaves the rows in the file. A checker that asks for the rows of some kinds gets those,
and `release` forgets them again.
"""

import io
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from rmqkit.drill.history import History, HistoryRow, read_lines, rows_of_lines
from rmqkit.errors import RmqkitError

#: rows that a process may hold as objects at the same time: about 8 GB
HELD_ROWS = 20_000_000
#: rows of JSON lines that become an Arrow table at once
CHUNK_ROWS = 100_000
#: different texts of `extra` whose values are shared by their rows
SHARED = 4_096


class TooManyRows(RmqkitError):
    """A checker asked for more rows than a `StoredHistory` may hold."""


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


def rows_of(stored: pa.Table) -> list[HistoryRow]:
    """Return the rows of a table in the order of `op`. Rows share equal texts."""
    ordered = stored.sort_by("op")
    read = lru_cache(SHARED)(json.loads)
    columns = [_values(ordered[name]) for name in HistoryRow._fields[:-1]]
    extras = (read(text or "{}") for text in _values(ordered["extra"]))
    return list(map(HistoryRow, *columns, extras))


def _values(column: pa.ChunkedArray) -> list[Any]:
    if not pa.types.is_string(column.type) or not len(column):
        return column.to_pylist()
    encoded = column.combine_chunks().dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    return [texts[index] for index in encoded.indices.to_pylist()]


class _Kinds(dict[str, list[HistoryRow]]):
    """kind → rows; a kind is read when it is asked for."""

    def __init__(self, history: "StoredHistory") -> None:
        self._history = history

    def __missing__(self, kind: str) -> list[HistoryRow]:
        self[kind] = self._history.read(ds.field("kind") == kind)
        return self[kind]


class StoredHistory(History):
    """A history whose rows stay in a dataset. It reads the kinds that a checker uses.

    Raises TooManyRows if more than `held_max` rows would be objects at once. No rows can be added.
    """

    def __init__(self, data: ds.Dataset, held_max: int) -> None:
        super().__init__()
        del self.rows  # `__getattr__` reads them
        self._data = data
        self._held_max = held_max
        self._last_ms = pc.max(data.to_table(columns=["complete_ms"])["complete_ms"]).as_py() or 0
        self.release()

    def release(self) -> None:
        """Forget all rows that were read."""
        self._stored = _Kinds(self)
        self._held = 0
        self._messages_of = -1
        self._messages = {}
        self.__dict__.pop("rows", None)

    def read(self, wanted: ds.Expression | None = None) -> list[HistoryRow]:
        """Read rows, all of them by default. Raises TooManyRows."""
        self._held += self._data.count_rows(filter=wanted)
        if self._held > self._held_max:
            raise TooManyRows(f"it needs {self._held:,} rows at once; one process holds {self._held_max:,} rows")
        return rows_of(self._data.to_table(list(HistoryRow._fields), filter=wanted))

    def __getattr__(self, name: str) -> list[HistoryRow]:
        if name != "rows":
            raise AttributeError(name)
        self.rows = self.read()
        return self.rows

    def __len__(self) -> int:
        return int(self._data.count_rows())

    @property
    def by_kind(self) -> Mapping[str, list[HistoryRow]]:
        return self._stored

    @property
    def last_ms(self) -> int:
        return int(self._last_ms)
