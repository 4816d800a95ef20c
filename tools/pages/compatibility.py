"""Generates docs/compatibility.md: which nodes answer which request codes.

The nodes come from the handler tables. `make interop` records what each client tried:
`tests/interop/tried.json` has the request codes that a client sent, or answered, with success;
`features.json` has the checks that passed.
"""

import json
from pathlib import Path
from typing import Any

from rmqkit.broker.handlers.admin.refusals import REFUSED
from rmqkit.broker.node import HANDLERS as BROKER
from rmqkit.broker.node import NOT_ON_VIP
from rmqkit.client.peer_calls import PEER_CALLS as CLIENT
from rmqkit.container.node import rows as CONTAINER
from rmqkit.controller.handlers import HANDLERS as CONTROLLER
from rmqkit.nameserver.handlers import HANDLERS as NAMESERVER
from rmqkit.wire.codes import OwnRequestCode, RequestCode
from tools.pages.code_history import SINCE, WHY_NOT

RECORDS = Path(__file__).parents[2] / "tests" / "interop"
NODES = (
    ("broker", BROKER),
    ("name server", NAMESERVER),
    ("controller", CONTROLLER),
    ("client", CLIENT),
    ("container", CONTAINER),
)

HEAD = """# Compatibility

This page lists which request codes and features of RocketMQ 5.x rmqkit supports, and which clients
have been tried. It is for engineers who connect an existing client, tool or broker to rmqkit.

Look up a feature in the first table, or a request code in the second one. `make docs` generates
both from the handler tables and from the results of `make interop`.
"""
FEATURES_HEAD = """
## Features by client

Each cell counts the checks of `make interop` that show a feature with a client. `–` means that the
client has no API for the feature, or that no check tries it.
[features.json](../tests/interop/features.json) names the checks. Their code is in the same folder.

"""
CODES_HEAD = """
## Request codes

rmqkit answers {answered} of the {count} request codes of RocketMQ's 5.x line, all of them since version 0.1.0.
Its nodes reply REQUEST_CODE_NOT_SUPPORTED (3) to any other code, as Apache's servers do to codes
that they do not know.

A broker with main port P also listens on port P−2. There it answers all of its codes except
{vip}.

"Since" is the first Apache release with the code. "4.1.0" includes earlier releases, and "5.5.0"
includes 5.4.

"Tried with" lists the clients that sent the code, or answered it, with success:

{legend}

| code | name | since | answered by | tried with |
|---|---|---|---|---|"""
OWN_HEAD = """
## Requests of rmqkit's own

Apache has no requests with the numbers 60000 to 69999. Its brokers, and older ones of rmqkit,
reply REQUEST_CODE_NOT_SUPPORTED (3) to these.

| code | name | answered by |
|---|---|---|"""


def answered_by(code: int) -> list[str]:
    """Return the names of the nodes that answer a code with more than a refusal."""
    return [] if code in REFUSED else [name for name, table in NODES if code in table.rows]


def refusal(code: int) -> str:
    """Return why a code is not answered; "" if it is answered or no reason is recorded."""
    if code in REFUSED:
        return REFUSED[RequestCode(code)]
    return "" if answered_by(code) else WHY_NOT.get(code, "")


def page(records: Path = RECORDS) -> str:
    """Return the whole page as Markdown."""
    tried: dict[str, list[int]] = _record(records / "tried.json")
    marks = {name: chr(ord("A") + number) for number, name in enumerate(tried)}
    codes = sorted(RequestCode)
    head = CODES_HEAD.format(
        answered=sum(bool(answered_by(code)) for code in codes),
        count=len(codes),
        vip=", ".join(f"{code.name} ({int(code)})" for code in NOT_ON_VIP),
        legend="\n".join(f"- {mark}: {name}" for name, mark in marks.items()),
    )
    lines = [head]
    for code in codes:
        nodes = ", ".join(answered_by(code)) or f"refused: {refusal(code)}"
        clients = " ".join(marks[name] for name, its_codes in tried.items() if code in its_codes)
        lines.append(f"| {int(code)} | {code.name} | {SINCE[int(code)]} | {nodes} | {clients} |")
    own = [f"| {int(code)} | {code.name} | {', '.join(answered_by(code))} |" for code in OwnRequestCode]
    lines += [OWN_HEAD, *own]
    return HEAD + _features(_record(records / "features.json")) + "\n".join(lines) + "\n"


def _features(record: dict[str, Any]) -> str:
    clients = record["clients"]
    lines = [f"| feature | {' | '.join(clients)} |", "|---" * (len(clients) + 1) + "|"]
    for feature in record["features"]:
        counts = [len(checks.get(feature, ())) for checks in clients.values()]
        lines.append(f"| {feature} | {' | '.join(str(count or '–') for count in counts)} |")
    return FEATURES_HEAD + "\n".join(lines) + "\n"


def _record(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
