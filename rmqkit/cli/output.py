"""What commands print: results on stdout, notes and progress on stderr.

`--json` is one document (`document`), or one object a line when results stream (`line`). For humans a table: drawn by
Rich on a terminal; elsewhere aligned words without colour, never cut, so that grep and awk get whole lines.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any


def document(value: Any) -> None:
    """A whole answer as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def dumps(value: Any) -> str:
    """JSON in one line."""
    return json.dumps(value, ensure_ascii=False)


def line(value: Any) -> None:
    """One of many answers as JSON, out at once."""
    sys.stdout.write(dumps(value) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def on_terminal() -> bool:
    return sys.stdout.isatty()


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    if on_terminal():
        from rich.console import Console

        Console(highlight=False).print(rich_table(columns, rows, title=title))
        return
    words = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in words) for i in range(len(columns))]
    for row in words:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


COLOURS = {"up": "green", "paused": "yellow", "silent": "yellow", "down": "dim", "died": "red", "bad": "red", "ok": "green"}


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> Any:
    """The table as Rich draws it; known words of state have their colours."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for number, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[number], int) for row in rows)
        drawn.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(str(cell), style=COLOURS.get(str(cell), "")) for cell in row))
    return drawn


class Waiting:
    """The line that says what a command waits for, on a terminal, once that has taken a second."""

    AFTER_S = 1.0

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._show_s = time.monotonic() + self.AFTER_S
        self._drawn = False

    def tell(self, text: str) -> None:
        if self._live and time.monotonic() >= self._show_s:
            width = os.get_terminal_size(2).columns - 1
            sys.stderr.write(f"\r\x1b[K{text[:width]}")
            sys.stderr.flush()
            self._drawn = True

    def clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False


class Progress:
    """A counting line on a terminal's stderr; silent elsewhere. Drawn at most ten times a second."""

    EVERY_S = 0.1

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._total = total
        self._live = sys.stderr.isatty()
        self._next_s = 0.0
        self._drawn = False

    def show(self, count: int) -> None:
        now_s = time.monotonic()
        if self._live and now_s >= self._next_s:
            self._next_s = now_s + self.EVERY_S
            of = f" of {self._total}" if self._total else ""
            sys.stderr.write(f"\r\x1b[K{self._what} {count}{of}")
            sys.stderr.flush()
            self._drawn = True

    def clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False
