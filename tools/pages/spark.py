"""Generates the tables of docs/spark.md: options and columns."""

from __future__ import annotations

from collections.abc import Iterable

from rmqkit.spark.columns import COLUMNS, STORE_COLUMNS, Column
from rmqkit.spark.option_kinds import Option
from rmqkit.spark.options import OPTIONS, PLACES


def options_table() -> str:
    lines = ["| option | for | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{each.name}` | {_places(each)} | {_default(each)} | {_cell(each.doc)} |" for each in OPTIONS.values()]
    return "\n".join(lines)


def columns_table(columns: Iterable[Column] = COLUMNS.values()) -> str:
    lines = ["| column | type | meaning |", "|---|---|---|"]
    lines += [f"| `{each.name}` | `{each.ddl}` | {_cell(each.doc)} |" for each in columns]
    return "\n".join(lines)


def store_columns_table() -> str:
    return columns_table(column for name, column in STORE_COLUMNS.items() if name not in COLUMNS)


def tables() -> dict[str, str]:
    return {"options": options_table(), "columns": columns_table(), "store columns": store_columns_table()}


def _places(option: Option) -> str:
    return ", ".join(place for place in PLACES if place in option.where)


def _default(option: Option) -> str:
    if option.in_batch:
        places = [place for place in PLACES if place in option.where]
        return ", ".join(f"{place} `{option.default_in(place)}`" for place in places)
    return f"`{option.default}`" if option.default else "-"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
