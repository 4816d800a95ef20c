"""docs/settings.md: every key with its node, default, status and meaning."""

from __future__ import annotations

from collections.abc import Iterator

from rmqkit.settings.keys import KIND_NAMES, KINDS, rows, spellings
from rmqkit.settings.table import Kind, Row, Status, show

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

Nodes are configured with RocketMQ's property names: in a TOML file or an Apache `.conf` given to `-c` as it is, and with
`--set key=value`. Several `-c` are read in order; later ones win, and `--set` wins over files. In TOML a key stands at the
top or under `[broker]` or `[nameserver]`; a list may be written as a list.

```toml
namesrvAddr = ["127.0.0.1:9876", "127.0.0.1:9877"]

[broker]
brokerName = "broker-a"
flushDiskType = "SYNC_FLUSH"
storePathRootDir = "${user.home}/store"

[plugin.example]        # in a .conf: plugin.example.size = 10
size = 10
```

Every key of Apache RocketMQ's broker and name server is in the tables below, with one of four states:

- **works**: it does what it says.
- **no effect**: there is nothing here that it could change. The node accepts it, and logs once if its value differs from
  the default.
- **later**: its feature is not built yet. The node accepts it like "no effect"; messages that need the feature are refused.
- **refused**: some values would break a promise, such as access control that is not enforced. They end the start with one
  line.

A key in no table is an error that names the nearest one. "Live" keys can be changed while a node runs
(`UPDATE_BROKER_CONFIG`, `UPDATE_NAMESRV_CONFIG`), all others only by a restart. Defaults are Apache's; `-` means that
there is none. Paths may hold `${user.home}`, `${ROCKETMQ_HOME}` and other variables of the environment, or begin with
`~/`.

`make docs` generates this page.
"""


def rows_by_area() -> dict[str, list[tuple[str, Row]]]:
    """Area -> (node, row), a row that both kinds of node have alike once."""
    found: dict[str, list[tuple[str, Row]]] = {area: [] for area in AREAS}
    other: dict[Kind, Kind] = {"broker": "nameserver", "nameserver": "broker"}
    for kind in KINDS:
        for key, row in rows(kind).items():
            shared = rows(other[kind]).get(key) == row
            if shared and kind == "nameserver":
                continue
            found[row.area].append(("both" if shared else KIND_NAMES[kind], row))
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
        yield "| key | node | default | status | what it does, or why it does not | live |"
        yield "|---|---|---|---|---|---|"
        for node, row in found:
            live = "yes" if row.live else ""
            yield f"| `{row.key}` | {node} | {default_cell(row)} | {row.status} | {text_cell(row)} | {live} |"
        yield ""
    yield "## Other spellings\n"
    yield "Taken for the key beside them. Both in one file must agree.\n"
    yield "| spelling | key |"
    yield "|---|---|"
    for spelling, key in sorted(spellings().items()):
        yield f"| `{spelling}` | `{key}` |"


def page() -> str:
    return "\n".join(lines()) + "\n"
