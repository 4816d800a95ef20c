"""Generates the table of docs/security.md: what each request demands of its caller.

The demands come from the rows of the handler tables, so the table cannot differ from what nodes
check.
"""

from collections.abc import Mapping

from tools.pages.compatibility import NODES

WORDS = {"int": "the cluster's own nodes and super users"}


def tables() -> Mapping[str, str]:
    """Return the table of request codes by its mark."""
    by_demand: dict[tuple[int, str, str], list[str]] = {}
    for node, table in NODES:
        for row in table.rows.values():
            text = row.access.text
            by_demand.setdefault((row.code, row.name, WORDS.get(text, text)), []).append(node)
    lines = ["| code | name | at | demands |", "|---|---|---|---|"]
    lines += [
        f"| {code} | {name} | {', '.join(nodes)} | {_cell(demand)} |"
        for (code, name, demand), nodes in sorted(by_demand.items())
    ]
    return {"demands": "\n".join(lines)}


def _cell(text: str) -> str:
    """Return a text for a cell of Markdown, where `*` would begin emphasis."""
    return text.replace("*", "\\*").replace("|", "\\|")
