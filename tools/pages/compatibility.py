"""docs/compatibility.md: every request code of RocketMQ's 5.x line with the nodes that answer it, from the handler tables.

`make interop` records which client tried what: `tests/interop/tried.json` has the request codes that a client sent, or
answered, with success, and `features.json` the checks that passed.
"""

import json
from pathlib import Path
from typing import Any

from rmqkit.broker.handlers.admin.refused import REFUSED
from rmqkit.broker.node import HANDLERS as BROKER
from rmqkit.broker.node import NOT_ON_VIP
from rmqkit.client.peer_calls import PEER_CALLS as CLIENT
from rmqkit.container.node import rows as CONTAINER
from rmqkit.nameserver.handlers import HANDLERS as NAMESERVER
from rmqkit.wire.codes import RequestCode
from tools.pages.code_history import SINCE, WHY_NOT

RECORDS = Path(__file__).parents[2] / "tests" / "interop"
NODES = (("broker", BROKER), ("name server", NAMESERVER), ("client", CLIENT), ("container", CONTAINER))

HEAD = """# Compatibility

`make docs` generates this page from the handler tables and from what `make interop` recorded.

## Request codes

{answered} of the {count} request codes of RocketMQ's 5.x line are answered here, all since rmqkit 0.1.0. "Since" is the
Apache release that first had a code (4.1.0 stands for what is older, too, 5.5.0 for 5.4). Any other code gets
REQUEST_CODE_NOT_SUPPORTED (3), which is what Apache's servers say of codes they do not know. The port P−2 of a broker
answers all of the broker's codes but {vip}.

"Tried with" are clients that asked for it, or were asked, with success: {legend}.

| code | name | since | answered by | tried with |
|---|---|---|---|---|"""
FEATURES_HEAD = """
## Features by client

How many checks of `make interop` show a feature with each client; `–` where a client has no API for it, or none was tried.
Their names are in [features.json](../tests/interop/features.json), the checks themselves beside it.

"""


def answered_by(code: int) -> list[str]:
    """The nodes that do something for a code but refuse it."""
    return [] if code in REFUSED else [name for name, table in NODES if code in table.rows]


def refusal(code: int) -> str:
    """Why a code is not answered; "" for one that is, or that nobody gave a reason for."""
    if code in REFUSED:
        return REFUSED[RequestCode(code)]
    return "" if answered_by(code) else WHY_NOT.get(code, "")


def page(records: Path = RECORDS) -> str:
    """The whole page as markdown."""
    tried: dict[str, list[int]] = _record(records / "tried.json")
    marks = {name: chr(ord("A") + number) for number, name in enumerate(tried)}
    codes = sorted(RequestCode)
    head = HEAD.format(
        answered=sum(bool(answered_by(code)) for code in codes),
        count=len(codes),
        vip=" and ".join(f"{code.name} ({int(code)})" for code in NOT_ON_VIP),
        legend=", ".join(f"{mark} {name}" for name, mark in marks.items()),
    )
    lines = [head]
    for code in codes:
        who = ", ".join(answered_by(code)) or f"refused: {refusal(code)}"
        with_whom = " ".join(marks[name] for name, its_codes in tried.items() if code in its_codes)
        lines.append(f"| {int(code)} | {code.name} | {SINCE[int(code)]} | {who} | {with_whom} |")
    return "\n".join(lines) + "\n" + _features(_record(records / "features.json"))


def _features(record: dict[str, Any]) -> str:
    clients = record["clients"]
    lines = [f"| feature | {' | '.join(clients)} |", "|---" * (len(clients) + 1) + "|"]
    for feature in record["features"]:
        counts = [len(checks.get(feature, ())) for checks in clients.values()]
        lines.append(f"| {feature} | {' | '.join(str(count or '–') for count in counts)} |")
    return FEATURES_HEAD + "\n".join(lines) + "\n"


def _record(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
