"""Remarks of nodes and log texts of clients, with cause and advice: `rmqkit explain 'TEXT'`.

The table is `explain/remarks.toml`. Its head says how to write a row.
"""

import re
from functools import cache
from typing import NamedTuple

from rmqkit.cli.explain.codes import load


class Remark(NamedTuple):
    text: str
    cause: str
    do: str


@cache
def remarks() -> tuple[Remark, ...]:
    table = load("remarks.toml")
    advice = table["advice"]
    return tuple(
        Remark(row["text"], row["cause"], row["do"] if "do" in row else advice[row["advice"]]) for row in table["remark"]
    )


def find(text: str) -> list[Remark]:
    """Return the rows that match a text, the longest first."""
    found = [(len(_fixed(row)), row) for row in remarks() if _pattern(row).search(text)]
    if not found and len(text) > 5:
        lower = " ".join(text.lower().split())
        found = [(len(_fixed(row)), row) for row in remarks() if lower in row.text.lower()]
    found.sort(key=lambda each: -each[0])
    # Drop rows such as "{} failed: {}" if a much longer one matches.
    return [row for _size, row in found[:3] if _size * 3 >= found[0][0]]


def _fixed(row: Remark) -> str:
    return row.text.replace("{}", "")


def _pattern(row: Remark) -> re.Pattern[str]:
    parts = [r"\s+".join(map(re.escape, part.split(" "))) for part in row.text.split("{}")]
    return re.compile(".*?".join(parts), re.IGNORECASE | re.DOTALL)
