"""Prints the output of commands: results on stdout, notes and progress on stderr.

With `--json` the output is one document (`document`), or one object per line for streams (`line`).
Without it the output is a table. On a terminal Rich draws the table. Elsewhere it is aligned words
without colour, never truncated, so that grep and awk see whole lines.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rmqkit.cli.times import show_time


def document(value: Any) -> None:
    """Print a value as one indented JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=_is_narrow()))


def dumps(value: Any) -> str:
    """Return a value as one line of JSON."""
    return json.dumps(value, ensure_ascii=_is_narrow())


def _is_narrow() -> bool:
    """Return whether stdout may lack characters. Then JSON is ASCII, with JSON's own escapes."""
    return (sys.stdout.encoding or "utf-8").lower().replace("_", "-") not in ("utf-8", "utf8")


def line(value: Any) -> None:
    """Print one object of a stream as a line of JSON, and flush it."""
    sys.stdout.write(dumps(value) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def count_text(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def size_text(count: float) -> str:
    """Return a number of bytes in the largest unit that leaves at least 1 of it."""
    if count < 1024:
        return f"{count:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def on_terminal() -> bool:
    return sys.stdout.isatty()


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """Print a table: drawn by Rich on a terminal, as aligned words elsewhere."""
    if on_terminal():
        from rich.console import Console

        console = Console(highlight=False)
        console.print(rich_table(columns, rows, console.width, title=title))
        console.print()
        return
    words = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in words) for i in range(len(columns))]
    for row in words:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


Row = Mapping[str, Any]
#: where a column's cells come from: `key` or `key:FORMAT` (`time`: Unix milliseconds) of the row,
#: or a function of the row; a cell without a value is "-"
Source = str | Callable[[Row], object]
#: head of the column -> source of its cells
Columns = Mapping[str, Source]
#: the columns of a row that has `admin_session.queue_fields`
QUEUE: Columns = {"topic": "topic", "broker": "broker_name", "queue": "queue_id"}
CLIENT: Columns = {"client": "client_id", "address": "address", "language": "language", "version": "version"}


def report(
    value: Any,
    columns: Columns,
    rows: Sequence[Row] | None = None,
    *,
    as_json: bool = False,
    none: str = "",
    below: str = "",
) -> None:
    """Print what a command found: `value` as JSON, or rows as a table, with the line `below` under
    it.

    `rows` are the rows of the table if `value` is more than a list of rows. Without any row, the
    note `none` is printed instead of a table.
    """
    if as_json:
        document(value)
        return
    shown: Sequence[Row] = value if rows is None else rows
    if none and not shown:
        note(none)
        return
    table(tuple(columns), [[_cell(row, source) for source in columns.values()] for row in shown])
    if below:
        print(below)


def answer(value: Any, text: str, *, as_json: bool) -> None:
    """Print what a command did: `value` as JSON, or `text`."""
    document(value) if as_json else print(text)


def _cell(row: Row, source: Source) -> object:
    key, _colon, form = source.partition(":") if isinstance(source, str) else ("", "", "")
    value: Any = source(row) if callable(source) else row[key]
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if form == "time":
        return show_time(value)
    return format(value, form) if form else value


COLOURS = {"up": "green", "paused": "yellow", "silent": "yellow", "down": "dim", "died": "red", "bad": "red", "ok": "green"}


GAP = 2
#: characters of a long word (a name, an address, a time) that are kept in one line if possible
WORD_MAX = 15


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int, *, title: str = "") -> Any:
    """Return the table as Rich draws it, at most `width` columns wide.

    Known states are coloured.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, GAP - 1, 0, 0),
        pad_edge=False,
        title=title or None,
        title_justify="left",
    )
    widths = column_widths(columns, rows, width - GAP * (len(columns) - 1))
    for number, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[number], int) for row in rows)
        drawn.add_column(column, justify="right" if numeric else "left", overflow="fold", width=widths[number])
    for row in rows:
        drawn.add_row(*(Text(str(cell), style=COLOURS.get(str(cell), "")) for cell in row))
    return drawn


def column_widths(columns: Sequence[str], rows: Sequence[Sequence[object]], room: int) -> list[int]:
    """Return the width of each column, in characters, within `room` characters in total.

    If the room is too small, headers are broken between words first, then cells, the widest first.
    Words are broken only as a last resort.
    """
    from rich.cells import cell_len

    def longest_word(texts: Sequence[str]) -> int:
        return max((cell_len(word) for text in texts for word in text.split()), default=1)

    cells = [[str(row[number]) for row in rows] for number in range(len(columns))]
    bodies = [max(map(cell_len, each), default=1) for each in cells]
    heads = [longest_word([column]) for column in columns]
    widths = [max(cell_len(column), body, 1) for column, body in zip(columns, bodies, strict=True)]
    for least in (
        [max(pair) for pair in zip(heads, bodies, strict=True)],
        [max(head, min(longest_word(each), WORD_MAX)) for head, each in zip(heads, cells, strict=True)],
        [1] * len(columns),
    ):
        while sum(widths) > room:
            loose = [number for number, width in enumerate(widths) if width > least[number]]
            if not loose:
                break
            widths[max(loose, key=widths.__getitem__)] -= 1
    return widths


class Transient:
    """A line on a terminal's stderr that the next text replaces.

    Prints nothing if stderr is no terminal.
    """

    def __init__(self, after_s: float = 1.0) -> None:
        self._live = sys.stderr.isatty()
        self._next_s = time.monotonic() + after_s
        self._drawn = False

    @property
    def is_due(self) -> bool:
        return self._live and time.monotonic() >= self._next_s

    def draw(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
        self._drawn = bool(text)

    def clear(self) -> None:
        if self._drawn:
            self.draw("")


class WaitNote(Transient):
    """Prints what a command waits for, once the wait has taken `after_s` seconds."""

    def tell(self, text: str) -> None:
        if self.is_due:
            self.draw(text[: os.get_terminal_size(2).columns - 1])


class ProgressBar(Transient):
    """Shows how many items are done, at most ten times a second."""

    EVERY_S = 0.1

    def __init__(self, what: str, total: int | None = None) -> None:
        super().__init__(0.0)
        self._what = what
        self._of = f" of {total}" if total else ""

    def show(self, count: int) -> None:
        if self.is_due:
            self._next_s = time.monotonic() + self.EVERY_S
            self.draw(f"{self._what} {count}{self._of}")
