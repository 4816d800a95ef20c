"""`rmqkit group pop` and `rmqkit group mode`: what a group has in flight, and how it reads."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import admin_of, check_group, known_topic
from rmqkit.cli.cluster_lookup import Json, Namesrv
from rmqkit.cli.complete import topics
from rmqkit.cli.data.progress import Group
from rmqkit.cli.errors import UsageError

COLUMNS: output.Columns = {
    **output.QUEUE,
    "offset": "offset",
    "delivered": "deliveries",
    "visible in": "left",
    "client": "client_id",
}
OnlyTopic = Annotated[str | None, typer.Option("--topic", "-t", help="Only messages of this topic.", autocompletion=topics)]
ModeTopic = Annotated[str | None, typer.Argument(metavar="TOPIC", autocompletion=topics)]
Mode = Annotated[str | None, typer.Argument(metavar="pull|pop", help="The mode; without it, show the modes.")]
Share = Annotated[
    int, typer.Option("--share", min=0, help="With pop: each member also pops the queues of this many others; 0: all.")
]


def pop(name: Group, topic: OnlyTopic = None, namesrv: Namesrv = None, json: Json = False) -> None:
    """List popped messages without an ack, with their client and the end of their invisible time.

    Apache's brokers do not report them. Each broker lists at most 1,000.
    """
    with admin_of(namesrv) as admin:
        check_group(admin, name)
        found = admin.pop_in_flight(name, topic)
    now_ms = time.time_ns() // 1_000_000
    rows = [
        {
            "topic": each.topic,
            "broker_name": each.broker,
            "queue_id": each.queue_id,
            "offset": each.offset,
            "deliveries": each.deliveries,
            "popped_ms": each.popped_ms,
            "visible_ms": each.visible_ms,
            "client_id": each.client_id,
            "left": f"{max(0, each.visible_ms - now_ms) / 1000:.1f} s",
        }
        for each in found.messages
    ]
    if json:
        messages = [{key: value for key, value in row.items() if key != "left"} for row in rows]
        output.document({"group": name, "total": found.total, "messages": messages})
        return
    output.report(rows, COLUMNS, none=f"group {name} has no popped message that is not acked")
    if found.total > len(rows):
        output.note(f"{found.total - len(rows)} more are not listed")


def mode(
    name: Group,
    topic: ModeTopic = None,
    mode: Mode = None,
    share: Share = 0,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show or set whether Java's push consumers of a group pull or pop a topic.

    It applies to consumers that let the broker divide the queues (setClientRebalance(false)).
    """
    from rmqkit.client.admin.pop import MODES

    if mode is not None and mode not in MODES:
        raise UsageError(f"mode {mode} is not known; choose one of {', '.join(MODES)}")
    if mode is None and topic in MODES:
        raise UsageError(f"mode {topic} needs a topic: `rmqkit group mode {name} TOPIC {topic}`")
    if mode is None and share:
        raise UsageError("--share needs the mode pop")
    with admin_of(namesrv) as admin:
        check_group(admin, name)
        if mode is not None and topic is not None:
            with known_topic(admin, topic):
                brokers = admin.set_request_mode(name, topic, mode, share_queue_num=share)
            said = {"group": name, "topic": topic, "mode": mode, "share": share, "brokers": brokers}
            text = f"group {name} {mode}s {topic} at {', '.join(brokers)}"
            output.answer(said, text, as_json=json)
            return
        found = admin.request_modes(name)
    rows = [{"topic": each, "mode": value} for each, value in found.items() if topic in (None, each)]
    none = f"no mode is set for group {name}: its members pull (defaultMessageRequestMode)"
    output.report({"group": name, "modes": rows}, {"topic": "topic", "mode": "mode"}, rows, as_json=json, none=none)
