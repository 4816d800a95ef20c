"""`rmqkit message ...`: finds single messages, shows who consumed them, delivers one again, and
recalls one that is not due yet.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import admin_of, check_brokers, check_group, choose_queue, known_topic
from rmqkit.cli.cluster_lookup import Json, Namesrv, Topic, find_namesrv
from rmqkit.cli.commands import group
from rmqkit.cli.complete import groups, topics
from rmqkit.cli.data.trace import trace
from rmqkit.cli.errors import Failed, UsageError
from rmqkit.cli.times import show_time, time_of
from rmqkit.errors import BrokerError, InvalidMessage

if TYPE_CHECKING:
    from rmqkit import Admin, MessageExt

app = group("message")

MsgId = Annotated[str, typer.Argument(metavar="ID", help="The unique id that a send printed, or an offset id.")]
InTopic = Annotated[
    str | None,
    typer.Option("--topic", help="Search this topic for a unique id; by default every topic.", autocompletion=topics),
]
TIMES = "2026-01-31T12:30, 10m (ago), or Unix time in ms"
#: bytes of a body that are shown
BODY_SHOWN = 2000
HEX_ID = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")


@app.command()
def show(
    msg_id: MsgId,
    topic: InTopic = None,
    track: Annotated[bool, typer.Option("--track", help="Also show which groups have consumed it.")] = False,
    raw: Annotated[bool, typer.Option("--body", help="Print only the bytes of the body.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show a message by its unique id or its offset id."""
    with admin_of(namesrv) as admin:
        message = the_message(admin, msg_id, topic)
        tracks = admin.message_track(message) if track else []
    if raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(message.body)
        return
    from rmqkit.cli.data.message_output import fields_of

    fields = fields_of(message)
    tracked = [{"group": each.group, "state": each.state, "online": each.online} for each in tracks]
    if json:
        output.document({**fields, "tracks": tracked} if track else fields)
        return
    print_message(message)
    if track:
        print()
        output.report(tracked, {"group": "group", "state": "state", "online": "online"})


def the_message(admin: Admin, msg_id: str, topic: str | None) -> MessageExt:
    """Return the message with an id.

    Raises UsageError for a text that cannot be an id, Failed if the message is unknown, Unreachable
    if no broker is registered.
    """
    if not HEX_ID.fullmatch(msg_id):
        raise UsageError(
            f"{msg_id} is not a message id (32 or 56 hex characters); find it by key with `rmqkit message query`"
        )
    if topic is None:
        found = admin.find_message(msg_id)
    else:
        with known_topic(admin, topic):
            found = admin.find_message(msg_id, topic)
    if found is None:
        check_brokers(admin)
        where = f"in topic {topic}" if topic else "in any topic of this cluster"
        raise Failed(f"no message {msg_id} {where}; it may be deleted with its file, or its send was never stored")
    return found


def print_message(message: MessageExt) -> None:
    from rmqkit.cli.data.message_output import visible

    place = f"{message.broker_name}:{message.queue_id} offset {message.queue_offset}"
    own = {"KEYS", "TAGS", "UNIQ_KEY", "WAIT"}
    rows = [
        ("topic", message.topic),
        ("queue", f"{place}, in the log at {message.commit_log_offset}"),
        ("id", message.msg_id),
        ("offset id", message.offset_msg_id),
        ("keys", message.keys or "-"),
        ("tag", message.tags or "-"),
        ("born", f"{show_time(message.born_timestamp_ms)} at {message.born_host}"),
        ("stored", f"{show_time(message.store_timestamp_ms)} at {message.store_host}"),
        ("retries", str(message.reconsume_times)),
        *((f"  {name}", value) for name, value in sorted(message.properties.items()) if name not in own),
    ]
    for name, value in rows:
        print(f"{name:9} {visible(value.encode())}")
    body = message.body
    rest = f" ... (whole body, {len(body)} bytes: --body)" if len(body) > BODY_SHOWN else ""
    print(f"{'body':9} {visible(body[:BODY_SHOWN])}{rest}")


@app.command()
def query(
    topic: Topic,
    key: Annotated[str | None, typer.Option("--key", help="One of the message's keys.")] = None,
    unique: Annotated[str | None, typer.Option("--id", help="The message's unique id.")] = None,
    place: Annotated[
        str | None, typer.Option("--offset", metavar="[BROKER:]QUEUE:OFFSET", help="The message's offset in a queue.")
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--begin", metavar="TIME", help=f"Only messages stored at this time or later: {TIMES}.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--end", metavar="TIME", help="Only messages stored at this time or earlier.")
    ] = None,
    most: Annotated[int, typer.Option("--max", min=1, max=1000, help="Print at most this many messages.")] = 64,
    format: Annotated[
        str, typer.Option("--format", metavar="line|body|json|TEMPLATE", help="Format of a message.")
    ] = "line",
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Find messages of a topic by key, unique id or offset, oldest first."""
    if sum(each is not None for each in (key, unique, place)) != 1:
        raise UsageError("give one of --key, --id and --offset")
    if key is not None and key.split() != [key]:
        raise UsageError(f"--key {key!r}: a key has no blanks, they separate the keys of a message; give one of them")
    from rmqkit.cli.data.message_output import fields_of, printer, tolerant

    show_one = tolerant(printer(format))
    begin_ms = 0 if begin is None else time_of("--begin", begin)
    end_ms = 2**63 - 1 if end is None else time_of("--end", end)
    with admin_of(namesrv) as admin, known_topic(admin, topic):
        if place is not None:
            found = at_place(admin, topic, place)
        else:
            word = key if key is not None else unique or ""
            found = admin.query_messages(topic, word, unique=key is None, count_max=most, begin_ms=begin_ms, end_ms=end_ms)
    if json:
        output.document([fields_of(message) for message in found])
        return
    for message in found:
        show_one(message)
    if not found:
        what = f"key {key}" if key is not None else f"id {unique}" if unique is not None else f"offset {place}"
        output.note(f"no message with {what} in {topic}")


app.command(name="trace")(trace)


@app.command()
def recall(
    handle: Annotated[str, typer.Argument(metavar="HANDLE", help="The handle that `rmqkit send --at` printed.")],
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Recall a message before it is due.

    Its broker needs recallMessageEnable=true. A message that was delivered already stays delivered.
    """
    addresses = find_namesrv(namesrv)
    from rmqkit import Producer

    with Producer("rmqkit-cli", namesrv=addresses) as producer:
        try:
            msg_id = producer.recall(handle)
        except InvalidMessage as error:
            raise UsageError(str(error)) from None
        except BrokerError as error:
            raise Failed(f"not recalled: {error}") from None
    output.answer({"msg_id": msg_id}, f"recalled: {msg_id}", as_json=json)


def at_place(admin: Admin, topic: str, text: str) -> list[MessageExt]:
    queue, _colon, offset = text.rpartition(":")
    if not queue or not offset.isdigit():
        raise UsageError(f"--offset {text}: must be QUEUE:OFFSET or BROKER:QUEUE:OFFSET, such as 0:15")
    found = admin.message_at(choose_queue(admin.queues(topic), queue), int(offset))
    return [] if found is None else [found]


@app.command()
def direct(
    msg_id: MsgId,
    name: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=groups)],
    client: Annotated[
        str | None, typer.Argument(metavar="CLIENT", help="Client id of the member; by default the first one online.")
    ] = None,
    topic: InTopic = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Deliver a message to a member of a group now, and show the result of its listener.

    No offset changes. Exit code 1 if the listener did not succeed.
    """
    with admin_of(namesrv) as admin:
        message = the_message(admin, msg_id, topic)
        check_group(admin, name)
        client, result = admin.consume_directly(name, message, client)
    said = {
        "msg_id": message.msg_id,
        "group": name,
        "client_id": client,
        "result": result.consume_result,
        "remark": result.remark,
        "took_ms": result.spent_time_mills,
        "orderly": result.order,
    }
    why = f": {result.remark}" if result.remark else ""
    output.answer(said, f"{client}: {result.consume_result} after {result.spent_time_mills} ms{why}", as_json=json)
    if result.consume_result not in ("CR_SUCCESS", "CR_COMMIT"):
        raise Failed("")
