"""The tables of docs/spark.md, which a test holds to the code: `python -m rmqkit.spark.docs docs/spark.md`.

The rest of the page is written by hand; what lies between the marks is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from rmqkit.spark.columns import COLUMNS, Column
from rmqkit.spark.options import OPTIONS, PLACES, Option
from rmqkit.spark.store_columns import STORE_COLUMNS

BEGIN, END = "<!-- {name}: made by rmqkit.spark.docs -->", "<!-- end of {name} -->"


def options_table() -> str:
    lines = ["| option | of | default | |", "|---|---|---|---|"]
    lines += [f"| `{each.name}` | {_places(each)} | {_default(each)} | {_cell(each.doc)} |" for each in OPTIONS.values()]
    return "\n".join(lines)


def columns_table(columns: Iterable[Column] = COLUMNS.values()) -> str:
    lines = ["| column | type | |", "|---|---|---|"]
    lines += [f"| `{each.name}` | `{each.ddl}` | {_cell(each.doc)} |" for each in columns]
    return "\n".join(lines)


def store_columns_table() -> str:
    return columns_table(column for name, column in STORE_COLUMNS.items() if name not in COLUMNS)


def with_table(page: str) -> str:
    """The page with its tables as they are now. Raises ValueError for a page without the marks."""
    tables = {"options": options_table(), "columns": columns_table(), "store columns": store_columns_table()}
    for name, table in tables.items():
        begin, end = BEGIN.format(name=name), END.format(name=name)
        head, found, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the page has no place for the {name}: {begin} … {end}")
        page = f"{head}{begin}\n{table}\n{end}{tail}"
    return page


def _places(option: Option) -> str:
    return ", ".join(place for place in PLACES if place in option.where)


def _default(option: Option) -> str:
    if option.default_of:
        named = dict(option.default_of)
        places = [place for place in PLACES if place in option.where]
        return ", ".join(f"{place} `{named.get(place, option.default)}`" for place in places)
    return f"`{option.default}`" if option.default else "-"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text()))
