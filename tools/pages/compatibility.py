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
both from the handler tables and from the results of `make interop`. The table between them lists
answers that differ from Apache's on purpose.
"""
FEATURES_HEAD = """
## Features by client

Each cell counts the checks of `make interop` that show a feature with a client. `–` means that the
client has no API for the feature, or that no check tries it.
[features.json](../tests/interop/features.json) names the checks. Their code is in the same folder.

"""
DIFFERENCES_HEAD = """
## Where rmqkit answers differently

The same requests were sent to a broker of Apache's 5.5.0 and to one of rmqkit. These answers differ
on purpose. The remarks of errors differ in more places.

| request | Apache 5.5.0 | rmqkit |
|---|---|---|
"""
#: request, what Apache's broker does, what ours does
DIFFERENCES = (
    ("send: half message with a delay or a due time", "stored", "MESSAGE_ILLEGAL (13)"),
    ("send: transaction bits without `TRAN_MSG`", "stored, never delivered", "MESSAGE_ILLEGAL (13)"),
    ("send: property `WAIT`", "stored", "obeyed, stored only in a batch, and there only if false"),
    ("batch: a message has DELAY, TIMER_* or TRAN_MSG", "stored, delivered at once", "MESSAGE_ILLEGAL (13)"),
    ("batch: a message has INNER_NUM, and the topic is no BatchCQ topic", "stored", "MESSAGE_ILLEGAL (13)"),
    ("batch: a message has CLUSTER, MSG_REGION, TRACE_ON, POP_CK or `__CRC32#`", "stored", "stored without them"),
    ("batch to a BatchCQ topic: transaction bits", "success, never delivered", "MESSAGE_ILLEGAL (13)"),
    ("batch: the body is torn", "SYSTEM_ERROR (1)", "MESSAGE_ILLEGAL (13)"),
    (
        "send to `rmq_sys_wheel_timer`, the topic of the timers",
        "stored; no timer is delivered any more",
        "stored, skipped by the timers",
    ),
    ("send: new topic with 0 queues", "creates it, then INVALID_PARAMETER (29)", "creates it with 1 queue"),
    ("end of a transaction, for the second time", "delivers the message again", "SYSTEM_ERROR (1)"),
    ("check of a half message within its own immunity time", "counts towards `transactionCheckMax`", "does not count"),
    (
        "pull with a subscription of its own: SQL92 or filter type is wrong",
        "delivers every message",
        "SUBSCRIPTION_PARSE_FAILED (23)",
    ),
    (
        "SQL92: text behind a complete expression, as in `a LIKE 'x'`, `a + 1 > 5`, `a = 0x10`",
        "ignores the text",
        "SUBSCRIPTION_PARSE_FAILED (23)",
    ),
    ("pull: `maxMsgBytes`", "ignored", "limits the answer, to at least 1 message"),
    ("pull: `suspendTimeoutMillis`", "checked every 5 s", "exact"),
    (
        "offset of a group that never consumed, queue is empty",
        "QUERY_NOT_FOUND (22): the group starts at the end",
        "0: the group misses nothing",
    ),
    ("topic: `perm` beyond 15, fewer than 0 queues", "stored", "INVALID_PARAMETER (29)"),
    ("topic: `cleanup.policy=COMPACTION`, `message.type=LITE`", "stored", "SYSTEM_ERROR (1): not built"),
    ("group: attributes of priority and lite topics", "stored", "SYSTEM_ERROR (1): not built"),
    ("353: lifting a ban", "lifts the bans of all topics of the group (by its source)", "lifts that ban"),
    (
        "201 in pages, as slaves ask: bans of groups that do not exist yet",
        "left out, so slaves lack them (by its source)",
        "with the first page",
    ),
    ("settings of a broker: unknown key or wrong value", "success, ignored", "NO_PERMISSION (16)"),
    ("settings of a name server: unknown key", "success, ignored", "SYSTEM_ERROR (1)"),
    ("a field that Apache's class marks as required is missing", "accepted if it is not read", "SYSTEM_ERROR (1)"),
)
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
    return HEAD + _features(_record(records / "features.json")) + _differences() + "\n".join(lines) + "\n"


def _features(record: dict[str, Any]) -> str:
    clients = record["clients"]
    lines = [f"| feature | {' | '.join(clients)} |", "|---" * (len(clients) + 1) + "|"]
    for feature in record["features"]:
        counts = [len(checks.get(feature, ())) for checks in clients.values()]
        lines.append(f"| {feature} | {' | '.join(str(count or '–') for count in counts)} |")
    return FEATURES_HEAD + "\n".join(lines) + "\n"


def _differences() -> str:
    return DIFFERENCES_HEAD + "".join(f"| {' | '.join(row)} |\n" for row in DIFFERENCES)


def _record(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
