"""The rmqkit commands that replace commands of Apache's mqadmin (`explain/mqadmin.toml`)."""

from functools import cache
from typing import NamedTuple

from rmqkit.cli.explain.codes import load


class Table(NamedTuple):
    commands: dict[str, str]  # mqadmin's name -> our command line without `rmqkit`
    later: list[str]  # rmqkit has no command for these yet
    never: list[str]  # belong to features that rmqkit does not have


@cache
def table() -> Table:
    read = load("mqadmin.toml")
    missing = read["missing"]
    return Table(read["commands"], missing["later"].split(), missing["never"].split())


def advice(name: str, program: str) -> str | None:
    """Return the error for a command of mqadmin, None for any other word.

    Case does not matter, as in mqadmin.
    """
    known = table()
    for theirs, ours in known.commands.items():
        if theirs.lower() == name.lower():
            return f"{theirs} is a command of mqadmin; here it is `{program} {ours}`"
    if name.lower() in (each.lower() for each in [*known.later, *known.never]):
        return f"{name} is a command of mqadmin; rmqkit has no such command (docs/mqadmin.md lists all)"
    return None
