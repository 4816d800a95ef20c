"""`rmqkit config ...`: settings of running nodes by RocketMQ's names, and what each key means here."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.asking import admin_of
from rmqkit.cli.commands import group
from rmqkit.cli.complete import bare_setting_keys, setting_keys
from rmqkit.cli.finding import Json, Namesrv
from rmqkit.cli.usage import Failed, UsageError
from rmqkit.settings.keys import KIND_NAMES, KINDS, ROWS, find
from rmqkit.settings.table import Row, Status, allowed_text, show

app = group("Settings of nodes.")

Node = Annotated[
    str | None,
    typer.Option("--node", help="A broker's name or address, or nameserver; all brokers otherwise."),
]
NAMESERVER = "nameserver"


@app.callback()
def config_group() -> None:
    """Read and change the settings of running nodes; explain a key."""


@app.command()
def get(
    key: Annotated[str, typer.Argument(metavar="KEY", autocompletion=bare_setting_keys)],
    node: Node = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """The value of one setting at each node."""
    check_key(key)
    with admin_of(namesrv) as admin:
        found = {name: values.get(key) for name, values in settings_of(admin, node).items()}
    if all(value is None for value in found.values()):
        raise Failed(f"{key} has no value at {', '.join(found)}")
    if json:
        output.document({"key": key, "nodes": found})
    elif len(found) == 1:
        print(next(iter(found.values())))
    else:
        output.table(("node", "value"), [(name, "-" if value is None else value) for name, value in found.items()])


@app.command(name="list")
def list_settings(
    node: Annotated[str | None, typer.Argument(metavar="[NODE]", help="A broker's name or address, or nameserver.")] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what differs from Apache's default.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """All settings of a node, or of every broker."""
    with admin_of(namesrv) as admin:
        found = settings_of(admin, node)
    if changed:
        kind = "nameserver" if node == NAMESERVER else "broker"
        found = {name: {k: v for k, v in values.items() if differs(kind, k, v)} for name, values in found.items()}
    if json:
        output.document(found)
        return
    for name, values in found.items():
        if len(found) > 1:
            print(f"# {name}")
        for key, value in sorted(values.items()):
            print(f"{key}={value}")


@app.command(name="set")
def set_settings(
    pairs: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", autocompletion=setting_keys)],
    node: Node = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Change settings while the nodes run. The change is gone when a node starts again."""
    changes = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"{pair}: must be KEY=VALUE")
        check_key(key)
        changes[key] = value
    with admin_of(namesrv) as admin:
        if node == NAMESERVER:
            admin.update_nameserver_config(changes)
            done = list(admin.nameserver_config())
        else:
            done = brokers_of(admin, node)
            for broker in done:
                admin.update_broker_config(broker, changes)
    if json:
        output.document({"changed": changes, "nodes": done})
    else:
        print(f"{', '.join(changes)}: changed at {', '.join(done)}")
    output.note("until the node starts again; `rmqkit cluster up --set` sets it for good")


@app.command()
def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", autocompletion=bare_setting_keys)], json: Json = False
) -> None:
    """What a setting means here. Asks no node."""
    check_key(key)
    rows = {kind: row for kind in KINDS if (row := find(kind, key)) is not None}
    if json:
        output.document({"key": key, "kinds": {kind: row_fields(row) for kind, row in rows.items()}})
        return
    for kind, row in rows.items():
        print(f"{row.key} ({KIND_NAMES[kind]})")
        for name, value in row_fields(row).items():
            print(f"  {name:8} {value}")


def row_fields(row: Row) -> dict[str, Any]:
    fields: dict[str, Any] = {"status": str(row.status), "meaning": row.text, "value": allowed_text(row)}
    fields["default"] = "-" if row.default is None else show(row.default)
    if row.status is Status.WORKS:
        fields["change"] = "while it runs" if row.live else "takes a restart"
    if row.refusal is not None:
        values = row.refusal.values or ("anything else",)
        fields["refused"] = f"{', '.join(map(show, values))}: {row.refusal.why}"
    return fields


def check_key(key: str) -> None:
    """Raises UsageError for a key that no kind of node has."""
    if not any(find(kind, key) for kind in KINDS) and not key.startswith("plugin."):
        near = get_close_matches(key, [known for kind in KINDS for known in ROWS[kind]], n=1, cutoff=0.6)
        raise UsageError(f"unknown setting {key!r}{f'; did you mean {near[0]}?' if near else ''}")


def differs(kind: str, key: str, value: str) -> bool:
    row = find(kind, key)  # type: ignore[arg-type]
    return row is None or row.default is None or show(row.default) != value


def brokers_of(admin: Any, node: str | None) -> list[str]:
    """The broker that was named, or every master. Raises Failed when there is none."""
    if node is not None:
        return [node]
    found = sorted(admin.masters())
    if not found:
        raise Failed("no broker is registered")
    return found


def settings_of(admin: Any, node: str | None) -> dict[str, dict[str, str]]:
    if node == NAMESERVER:
        answers: dict[str, dict[str, str]] = admin.nameserver_config()
        return answers
    return {name: admin.broker_config(name) for name in brokers_of(admin, node)}
