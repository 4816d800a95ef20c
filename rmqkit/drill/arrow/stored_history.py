"""A history that leaves its rows in a file until a checker asks for them.

A row takes up to 900 bytes as Python objects, and about 10 in a Parquet file. A checker that asks
for the rows of some kinds gets those, and `release` forgets them again.
"""

from collections.abc import Mapping

import pyarrow.compute as pc
import pyarrow.dataset as ds

from rmqkit.drill.arrow.rows import rows_of
from rmqkit.drill.history import History, HistoryRow
from rmqkit.errors import RmqkitError

#: rows that a process may hold as objects at the same time: about 10 GB
HELD_ROWS = 20_000_000


class TooManyRows(RmqkitError):
    """A checker asked for more rows than a `StoredHistory` may hold."""


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
        ends_ms = data.to_table(columns=["complete_ms"])["complete_ms"]
        self._count = len(ends_ms)
        self._last_ms = pc.max(ends_ms).as_py() or 0
        self.release()

    def release(self) -> None:
        """Forget all rows that were read."""
        self._stored = _Kinds(self)
        self._held = 0
        self._views.clear()
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
        return self._count

    @property
    def by_kind(self) -> Mapping[str, list[HistoryRow]]:
        return self._stored

    @property
    def last_ms(self) -> int:
        return int(self._last_ms)
