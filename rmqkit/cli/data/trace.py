"""`rmqkit message trace`: shows what clients wrote about a message to the trace topic, by time.

A producer writes one record for a message. A consumer writes one before its listener and one after,
paired by request id. Only clients that trace write records (`trace=True`, Java's `enableMsgTrace`),
and with a delay of a few seconds. The address is that of the client that wrote the record.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import admin_of, known_topic
from rmqkit.cli.cluster_lookup import Json, Namesrv
from rmqkit.cli.complete import topics
from rmqkit.cli.errors import Failed
from rmqkit.cli.times import time_of
from rmqkit.wire.trace import TRACE_TOPIC, ConsumeCode, TraceMessageType, TraceRecord, TraceType, decode

if TYPE_CHECKING:
    from rmqkit import MessageExt

#: most trace messages to read; each has the records of up to 20 messages
TRACES_MAX = 1000


def trace(
    msg_id: Annotated[str, typer.Argument(metavar="ID", help="The message's unique id, or one of its keys.")],
    trace_topic: Annotated[
        str, typer.Option("--trace-topic", help="The topic that clients write traces to.", autocompletion=topics)
    ] = TRACE_TOPIC,
    begin: Annotated[
        str | None, typer.Option("--begin", metavar="TIME", help="Only traces written at this time or later.")
    ] = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show who sent and consumed a message, when, and how long it took, from clients' traces."""
    begin_ms = 0 if begin is None else time_of("--begin", begin)
    with admin_of(namesrv) as admin, known_topic(admin, trace_topic):
        found = admin.query_messages(trace_topic, msg_id, count_max=TRACES_MAX, begin_ms=begin_ms)
    rows = rows_of(msg_id, found)
    if not rows:
        raise Failed(
            f"no trace of {msg_id} in {trace_topic}: its producer and consumers do not trace (trace=True, or Java's "
            "enableMsgTrace), or have not written it yet (up to 5 s)"
        )
    columns: output.Columns = {
        "what": "what",
        "group": lambda row: row["group"] or None,
        "client": "client",
        "time": "time_ms:time",
        "took ms": "took_ms",
        "outcome": "outcome",
        "topic": lambda row: row["topic"] or None,
        "tries before": "retry_times",
    }
    output.report(rows, columns, as_json=json)


def rows_of(msg_id: str, messages: "list[MessageExt]") -> list[dict[str, Any]]:
    """Return one row per send and one per call of a listener, oldest first.

    Invalid records are skipped.
    """
    rows: list[dict[str, Any]] = []
    calls: dict[tuple[str, str], dict[str, Any]] = {}
    for message in messages:
        for record in decode(message.body):
            if msg_id != record.msg_id and msg_id not in record.keys.split():
                continue
            if record.type in (TraceType.SUB_BEFORE, TraceType.SUB_AFTER):
                row = _row(record, message.born_host, "consumed", "not ended, or not traced yet")
                row = calls.setdefault((record.request_id, record.msg_id), row)
                _fill(row, record)
            else:
                rows.append(_sent(record, message.born_host))
    return sorted([*rows, *calls.values()], key=lambda row: row["time_ms"])


def _sent(record: TraceRecord, client: str) -> dict[str, Any]:
    what = {TraceType.PUB: "sent", TraceType.END_TRANSACTION: "transaction", TraceType.RECALL: "recalled"}[record.type]
    names = {int(each): each.name for each in TraceMessageType}
    return _row(record, client, what, record.transaction_state or ("SUCCESS" if record.success else "FAILED")) | {
        "topic": record.topic,
        "took_ms": record.cost_ms if record.type is TraceType.PUB else None,
        "store_host": record.store_host,
        "offset_msg_id": record.offset_msg_id,
        "message_type": names.get(record.message_type, str(record.message_type)),
    }


def _row(record: TraceRecord, client: str, what: str, outcome: str) -> dict[str, Any]:
    return {
        "msg_id": record.msg_id,
        "group": record.group,
        "client": client,
        "time_ms": record.time_ms,
        "keys": record.keys,
        "tags": record.tags,
        "what": what,
        "topic": "",
        "outcome": outcome,
        "took_ms": None,
        "store_host": "",
        "offset_msg_id": "",
        "message_type": None,
        "retry_times": None,
    }


def _fill(row: dict[str, Any], record: TraceRecord) -> None:
    """Add one of the two records of a listener's call to its row.

    The records may come in any order.
    """
    row["group"] = row["group"] or record.group
    if record.type is TraceType.SUB_BEFORE:
        row["time_ms"] = record.time_ms
        row["retry_times"] = record.retry_times
        return
    row["took_ms"] = record.cost_ms
    row["time_ms"] = row["time_ms"] or record.time_ms
    codes = {int(code): code.name for code in ConsumeCode}
    row["outcome"] = codes.get(record.code, str(record.code)) if not record.success else "SUCCESS"
