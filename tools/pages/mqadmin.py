"""Generates docs/mqadmin.md: the commands of Apache's mqadmin and their rmqkit equivalents.

The table is that of `rmqkit.cli.explain.mqadmin`.
"""

from __future__ import annotations

from textwrap import wrap

from rmqkit.cli.explain import mqadmin

WIDTH = 100

HEAD = """\
# For users of mqadmin

The commands of Apache's mqadmin 5.5.0, and the command of rmqkit for the same task. For operators
who know mqadmin by heart.

`rmqkit` answers a name of mqadmin with its own command: `rmqkit clusterList` prints
``here it is `rmqkit cluster status` ``. Two differences apply to all of them. rmqkit finds the
cluster that runs on this machine, so `--namesrv` (`-n`) is needed only for another one. Every
command that reports takes `--json`.

The main commands of mqadmin itself work on an rmqkit cluster, and rmqkit's commands work on an
Apache cluster.
"""

LATER = """\
The command of mqadmin works where the nodes answer its request code; see
[compatibility](compatibility.md).
"""


def page() -> str:
    """Return the whole page as Markdown."""
    table = mqadmin.table()
    rows = [f"| `{theirs}` | `rmqkit {ours}` |" for theirs, ours in sorted(table.commands.items(), key=_name)]
    parts = [HEAD, "| mqadmin | rmqkit |\n|---|---|\n" + "\n".join(rows)]
    parts += ["\n## Without a command of rmqkit\n", LATER, _listed(table.later)]
    parts += ["\nThese belong to features that rmqkit does not have:\n", _listed(table.never)]
    return "\n".join(parts) + "\n"


def _name(row: tuple[str, str]) -> str:
    return row[0].lower()


def _listed(names: list[str]) -> str:
    return "\n".join(wrap(", ".join(f"`{name}`" for name in sorted(names, key=str.lower)) + ".", WIDTH))
