"""Generates docs/settings.md: every key with its node, default, status and meaning."""

from __future__ import annotations

from collections.abc import Iterator

from rmqkit.settings.keys import KIND_NAMES, KINDS, rows, spellings
from rmqkit.settings.table import Row, Status, show

AREAS = (
    "Identity and addresses",
    "Topics and groups",
    "Sending",
    "Pulling",
    "Clients and consumer offsets",
    "Registration with name servers",
    "Store: files",
    "Store: flushing",
    "Store: retention",
    "Name server",
    "Network and limits",
    "Plug-ins",
    "Access control",
    "TLS",
    "Replication and acting master",
    "Controller and DLedger",
    "Timer and delay",
    "Transactions",
    "Pop",
    "Other features to come",
    "Metrics",
    "Logs",
    "Drills",
    "RocksDB",
    "Threads, queues and tuning of Java",
    "Keys of earlier releases",
)

HEAD = """\
# Settings

This page lists every configuration key of Apache RocketMQ's broker, name server and controller,
and what the key does in rmqkit. It is for operators who configure a node or move Apache's
configuration files.

Nodes use RocketMQ's property names. Write them to a TOML file, or keep an Apache `.conf` file
unchanged, and pass the file with `-c`. `--set key=value` sets a single key. Several `-c` options
are read in order. Later files win over earlier ones, and `--set` wins over files.

In TOML a key stands at the top level or under `[broker]`, `[nameserver]` or
`[controller]`. A list of values may be a TOML list.

```toml
namesrvAddr = ["127.0.0.1:9876", "127.0.0.1:9877"]

[broker]
brokerName = "broker-a"
flushDiskType = "SYNC_FLUSH"
storePathRootDir = "${user.home}/store"

[plugin.example]        # in a .conf: plugin.example.size = 10
size = 10
```

Paths may contain `${user.home}`, `${ROCKETMQ_HOME}` and other environment variables, and may
begin with `~/`.

The tables below give each key one of four states:

- **works**: the key does what its row says.
- **no effect**: rmqkit has nothing that the key could change. The node accepts the key. It logs
  once if the value differs from the default.
- **later**: the feature is not built yet. The node accepts the key as with "no effect", and
  refuses messages that need the feature.
- **refused**: some values would break a promise, for example access control that is not enforced.
  With such a value the node does not start, and prints one line.

A key that is in no table is an error. The error suggests the closest key.

Keys marked "live" can be changed while a node runs (`UPDATE_BROKER_CONFIG`,
`UPDATE_NAMESRV_CONFIG`, `UPDATE_CONTROLLER_CONFIG`). All others need a restart. Defaults are
Apache's. `-` means that a key has no default.

`make docs` generates this page.
"""


def rows_by_area() -> dict[str, list[tuple[str, Row]]]:
    """Return area -> [(nodes, row)]; a row that several kinds of node share is listed once."""
    found: dict[str, list[tuple[str, Row]]] = {area: [] for area in AREAS}
    for kind in KINDS:
        for key, row in rows(kind).items():
            sharing = [each for each in KINDS if rows(each).get(key) == row]
            if sharing[0] == kind:
                nodes = "all" if len(sharing) == len(KINDS) else ", ".join(KIND_NAMES[each] for each in sharing)
                found[row.area].append((nodes, row))
    return found


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def default_cell(row: Row) -> str:
    if row.default is None:
        return "-"
    text = show(row.default)
    return f"`{cell(text)}`" if text else "empty"


def text_cell(row: Row) -> str:
    text = row.text
    if row.refusal:
        listed = ", ".join(f"`{show(value)}`" for value in row.refusal.values) or "any other value"
        text = (
            f"{listed}: {row.text}" if row.status is Status.REFUSED else f"{text}; {listed} is refused: {row.refusal.why}"
        )
    if row.choices and row.status in (Status.WORKS, Status.REFUSED):
        text += " (" + ", ".join(f"`{choice}`" for choice in row.choices) + ")"
    return cell(text)


def lines() -> Iterator[str]:
    yield HEAD
    for area, found in rows_by_area().items():
        yield f"## {area}\n"
        yield "| key | node | default | status | what it does, or why it has no effect | live |"
        yield "|---|---|---|---|---|---|"
        for node, row in found:
            live = "yes" if row.live else ""
            yield f"| `{row.key}` | {node} | {default_cell(row)} | {row.status} | {text_cell(row)} | {live} |"
        yield ""
    yield "## Other spellings\n"
    yield "A node reads each spelling as the key beside it. If one file has both, their values must agree.\n"
    yield "| spelling | key |"
    yield "|---|---|"
    for spelling, key in sorted(spellings().items()):
        yield f"| `{spelling}` | `{key}` |"


def page() -> str:
    return "\n".join(lines()) + "\n"
