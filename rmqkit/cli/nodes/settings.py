"""`rmqkit config ...`: settings of running nodes by RocketMQ's names, and the meaning of each key.

A node comes before keys: `config get broker-a listenPort`, or with `--node`. A single word is a key
if it consists of letters and digits only, else a node: `broker-a`, `broker-a:1`, an address,
`nameserver`, `ns`, or a node's name in `cluster status`.
"""

from operator import itemgetter
from typing import Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import (
    NAMESERVERS,
    absent_brokers,
    admin_of,
    ask_each,
    brokers_of,
    end_with,
    name_servers_named,
    node_named,
)
from rmqkit.cli.cluster_lookup import Json, Namesrv
from rmqkit.cli.commands import group
from rmqkit.cli.complete import bare_setting_keys, nodes, nodes_and_setting_keys, nodes_and_settings
from rmqkit.cli.errors import Failed, UsageError
from rmqkit.errors import ClientError
from rmqkit.settings.keys import KIND_NAMES, KINDS, every_key, find
from rmqkit.settings.table import Kind, Row, Status, allowed_text, show
from rmqkit.suggestions import suggest

app = group("config")

Node = Annotated[
    str | None,
    typer.Option("--node", help="A broker's name or address, or nameserver; by default all brokers.", autocompletion=nodes),
]
#: a key that only rmqkit nodes report
OWN_KEY = "plugins"


@app.command()
def get(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[NODE] [KEY]", help="A node, a key, or both.", autocompletion=nodes_and_setting_keys),
    ],
    node: Node = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show one setting of a node or of every broker; without KEY all settings of the node."""
    node, key = node_and_key(words, node)
    if key is None:
        list_settings(node, False, namesrv, json)
        return
    _kind, answers, failed = settings_of(node, namesrv)
    found = {name: values.get(key) for name, values in answers.items()}
    if all(value is None for value in found.values()):
        raise Failed(f"{key} has no value at {', '.join(found)}")
    if json:
        output.document({"key": key, "nodes": found})
    elif len(set(found.values())) == 1:
        print(next(iter(found.values())))
    else:
        output.report([{"node": name, "value": value} for name, value in found.items()], {"node": "node", "value": "value"})
    end_with(found, failed, "no answer")


def node_and_key(words: list[str], node: str | None) -> tuple[str | None, str | None]:
    """Return the node and the key that the words mean. Raises UsageError."""
    if len(words) > (1 if node else 2):
        raise UsageError(f"too many words: {' '.join(words)}; give [NODE] [KEY]")
    if len(words) == 2:
        node, key = words
    elif words[0] in NAMESERVERS or not words[0].isalnum():
        return words[0], None
    else:
        key = words[0]
    check_key(key)
    return node, key


@app.command(name="list")
def list_settings(
    node: Annotated[str | None, typer.Argument(metavar="NODE", help="A broker's name or address, or nameserver.")] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that differ from Apache's default.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """List all settings of a node, or of every broker."""
    kind, found, failed = settings_of(node, namesrv)
    if changed:
        found = {name: {k: v for k, v in values.items() if differs(kind, k, v)} for name, values in found.items()}
    if json:
        output.document(found)
    else:
        for name, values in found.items():
            if len(found) > 1:
                print(f"# {name}")
            for key, value in sorted(values.items()):
                print(f"{key}={value}")
    end_with(found, failed, "no answer")


@app.command(name="set")
def set_settings(
    pairs: Annotated[list[str], typer.Argument(metavar="[NODE] KEY=VALUE...", autocompletion=nodes_and_settings)],
    node: Node = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Change settings of a running node, or of every broker of the cluster.

    A node keeps the changes across restarts, until its configuration (file or command line) sets
    another value. Exit code 1 if any node did not apply them.
    """
    changes = {}
    if node is None and len(pairs) > 1 and "=" not in pairs[0]:
        node, *pairs = pairs
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"{pair}: must be KEY=VALUE")
        check_key(key)
        changes[key] = value
    with admin_of(namesrv) as admin:
        servers = name_servers_named(node, namesrv)
        if servers:
            done, failed = ask_each(servers, lambda each: change_name_server(each, changes))
        else:
            names = brokers_of(admin, node_named(node, namesrv))
            done, failed = ask_each(names, lambda each: admin.update_broker_config(each, changes))
            failed |= {} if node else absent_brokers(namesrv, names)
    if json and (done or len(failed) > 1):
        errors = {name: str(error) for name, error in failed.items()}
        output.document({"changed": changes, "nodes": list(done), "failed": errors})
    if not json:
        for name in done:
            print(f"{name}: changed {', '.join(changes)}")
    if done:
        output.note("the node keeps the change until its configuration sets another value")
    end_with(done, failed, "not changed")


def change_name_server(address: str, changes: dict[str, str]) -> None:
    with admin_of(address) as admin:
        admin.update_nameserver_config(changes)


@app.command()
def diff(
    nodes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NODE] [NODE]", help="One node: compare with defaults. Two nodes: compare with each other."
        ),
    ] = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show settings that differ from defaults or between two nodes, and those without effect."""
    if len(nodes or []) > 2:
        raise UsageError(f"too many words: {' '.join(nodes or [])}; give [NODE] [NODE]")
    nodes = nodes or []
    kind, found, failed = settings_of(nodes[0] if nodes else None, namesrv)
    if len(nodes) == 2:
        other_kind, others, other_failed = settings_of(nodes[1], namesrv)
        if other_kind != kind:
            raise UsageError("cannot compare a name server with a broker")
        found, failed = {**found, **others}, {**failed, **other_failed}
        columns = list(found)
        rows = between(kind, found)
    else:
        columns = ["value", "default"]
        rows = [row for name, values in found.items() for row in against_defaults(kind, name, values)]
    first = ["key"] if len(nodes) == 2 or len(found) == 1 else ["node", "key"]
    # A node's name may contain a colon, which would begin a format in a column's source.
    cells = {name: itemgetter(name) for name in (*first, *columns, "note")}
    output.report(rows, cells, as_json=json, none="no difference")
    end_with(found, failed, "no answer")


def between(kind: Kind, found: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """Return the keys with different values at two nodes.

    `note` says if rmqkit does not know a key, or if the key has no effect.
    """
    one, other = found.values() if len(found) == 2 else (next(iter(found.values())),) * 2
    return [
        {"key": key, **{name: values.get(key) for name, values in found.items()}, "note": note_of(kind, key, one, other)}
        for key in sorted({*one, *other})
        if one.get(key) != other.get(key)
    ]


def against_defaults(kind: Kind, name: str, values: dict[str, str]) -> list[dict[str, Any]]:
    """Return the keys of a node whose value differs from Apache's default."""
    rows = []
    for key, value in sorted(values.items()):
        if differs(kind, key, value):
            row = find(kind, key)
            default = None if row is None or row.default is None else show(row.default)
            rows.append({"node": name, "key": key, "value": value, "default": default, "note": note_of(kind, key, values)})
    return rows


def note_of(kind: Kind, key: str, *nodes: dict[str, str]) -> str:
    """Return the note about a key that was set.

    "no effect here" needs a node of rmqkit: Apache's nodes may use the key.
    """
    row = find(kind, key)
    if row is None:
        return "unknown to rmqkit"
    if not any(OWN_KEY in values for values in nodes):
        return ""
    return {Status.NO_EFFECT: "no effect here", Status.LATER: "no effect here yet"}.get(row.status, "")


@app.command()
def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", autocompletion=bare_setting_keys)], json: Json = False
) -> None:
    """Explain what a setting does, which values it takes, and its default. Queries no node."""
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
        fields["change"] = "while the node runs" if row.live else "needs a restart"
    if row.refusal is not None:
        values = row.refusal.values or ("anything else",)
        fields["refused"] = f"{', '.join(map(show, values))}: {row.refusal.why}"
    return fields


def check_key(key: str) -> None:
    """Raises UsageError for a key that no kind of node has."""
    if not any(find(kind, key) for kind in KINDS) and not key.startswith("plugin."):
        raise UsageError(f"unknown setting {key!r}{suggest(key, every_key())}")


def differs(kind: Kind, key: str, value: str) -> bool:
    """Return whether a value differs from Apache's default, or the default is unknown."""
    row = find(kind, key)
    return row is None or row.default is None or show(row.default) != value


def settings_of(node: str | None, namesrv: str | None) -> tuple[Kind, dict[str, dict[str, str]], dict[str, ClientError]]:
    """Return the kind of the nodes, the settings of each, and the errors of silent nodes.

    Raises the error of a single node.
    """
    with admin_of(namesrv) as admin:
        servers = name_servers_named(node, namesrv)
        if servers:
            found, failed = ask_each(servers, name_server_settings)
        else:
            found, failed = ask_each(brokers_of(admin, node_named(node, namesrv)), admin.broker_config)
    if not found:
        end_with(found, failed, "no answer")
    return "nameserver" if servers else "broker", found, failed


def name_server_settings(address: str) -> dict[str, str]:
    with admin_of(address) as admin:
        return next(iter(admin.nameserver_config().values()))
