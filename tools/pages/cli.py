"""Generates docs/cli.md: every command with its options, read from the typer commands.

Commands of plug-ins are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from typer.main import get_command

from rmqkit.cli.commands import TABLE

HEAD = """# The command line

Every command of `rmqkit` with its options. For people who write scripts, or look for a command.
`rmqkit COMMAND --help` explains each option. `make docs` generates this page.

- **The cluster**: `--namesrv`, else `NAMESRV_ADDR`, else the cluster that runs on this machine:
  `default`, or the only one. Commands query an Apache cluster in the same way. `cluster` commands
  take `NAME` or `--cluster NAME`. Without it, commands that change what runs mean `default` if it
  exists, and `cluster down --purge` always does.
- **Nodes**: `broker-a-0` as `cluster status` shows it, `broker-a:0`, `broker-a` (the master, or the
  group), or an address; `ns-0`, and `nameserver` or `ns` for all name servers.
- **`--json`**: one document, or one object a line when results stream. Without it: tables, or
  aligned words when the output is not a terminal.
- **Exit codes**: 0 done, 1 the task failed, 2 usage, 3 no such cluster or not reachable,
  4 inconclusive, 130 Ctrl-C, 143 SIGTERM. Ctrl-C ends `cluster logs -f` and
  `cluster status --watch` with 0.
- **Errors** are one line on stderr. `rmqkit explain` says what a code, an event or a message of a
  log means.
  If a node of another release does not know a request, the error names it:
  `127.0.0.1:10911 does not know this request: 314 CLONE_GROUP_OFFSET`.
- **Completion**: `rmqkit --install-completion` completes commands, topics, groups, nodes, settings
  and delay levels.
- **Times**: `2026-01-31`, `2026-01-31T12:30`, `10m` (ago), or Unix milliseconds.

| command | what it does | options |
|---|---|---|"""

#: options that nearly every command has
COMMON = frozenset(("--namesrv", "--json", "--help", "--install-completion", "--show-completion"))


def page() -> str:
    """Return the whole page as Markdown."""
    return "\n".join([HEAD, *(row(path, command) for path, command in every_command())]) + "\n"


def every_command() -> Iterator[tuple[str, Any]]:
    """Yield each command, without the groups, and its full name such as `cluster up`."""
    for name, lazy in TABLE.items():
        yield from _below(name, get_command(getattr(import_module(lazy.module), lazy.app)))


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if not children:
        yield path, command
        return
    for name, child in children.items():
        yield from _below(f"{path} {name}", child)


def row(path: str, command: Any) -> str:
    words = [_argument(param) for param in command.params if param.param_type_name == "argument"]
    options = [max(param.opts, key=len) for param in command.params if param.param_type_name == "option"]
    shown = " ".join(f"`{option}`" for option in options if option not in COMMON)
    called = " ".join(["rmqkit", path, *words]).replace("|", "\\|")
    return f"| `{called}` | {summary(command.help or '')} | {shown} |"


def _argument(param: Any) -> str:
    text = str(param.metavar or param.name.upper())
    return text if param.required or text.startswith("[") else f"[{text}]"


def summary(text: str) -> str:
    """Return the first paragraph as one line, escaped for a table cell."""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")
