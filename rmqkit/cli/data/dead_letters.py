"""`rmqkit dlq ...`: dead letters, the messages that a group failed to consume too often."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import admin_of, check_brokers, check_group, known_topic
from rmqkit.cli.cluster_lookup import Json, Namesrv, find_namesrv
from rmqkit.cli.commands import group
from rmqkit.cli.complete import topics
from rmqkit.cli.data.progress import Group
from rmqkit.cli.errors import Failed, UsageError
from rmqkit.cli.times import show_time
from rmqkit.errors import ClientError

if TYPE_CHECKING:
    from rmqkit import Admin, MessageExt
    from rmqkit.client.admin.dead_letters import DeadLetterQueue

app = group("dlq")

NONE = "no dead letters"
COLUMNS: output.Columns = {
    "group": "group",
    "dead": "dead",
    "not requeued": "not_requeued",
    "brokers": lambda row: ", ".join(row["brokers"]),
    "newest": "newest_ms:time",
}


@app.command(name="list")
def list_dead_letters(namesrv: Namesrv = None, json: Json = False) -> None:
    """List the groups with dead letters, and how many of them were never requeued."""
    with admin_of(namesrv) as admin:
        check_brokers(admin)
        by_group: dict[str, list[DeadLetterQueue]] = {}
        for state in admin.dead_letters():
            if state.total:
                by_group.setdefault(state.group, []).append(state)
        rows = [row_of(admin, name, states) for name, states in by_group.items()]
    output.report(rows, COLUMNS, as_json=json, none=NONE)


def row_of(admin: Admin, name: str, states: list[DeadLetterQueue]) -> dict[str, Any]:
    newest = [admin.message_at(state.queue, state.offset_max - 1) for state in states]
    return {
        "group": name,
        "dead": sum(state.total for state in states),
        "not_requeued": sum(state.fresh for state in states),
        "brokers": sorted({state.queue.broker_name for state in states}),
        "newest_ms": max((each.store_timestamp_ms for each in newest if each is not None), default=None),
    }


@app.command()
def show(
    name: Group,
    most: Annotated[int, typer.Option("--max", min=1, help="Show at most this many.")] = 20,
    begin: Annotated[
        str, typer.Option("--from", metavar="earliest|OFFSET|TIME", help="Begin here; a time is 2026-01-31T12:30 or 10m.")
    ] = "earliest",
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show the dead letters of a group, oldest first, with the topic they came from."""
    from rmqkit.cli.data.consume import Place, Sink, read
    from rmqkit.cli.data.message_output import tolerant

    start = Place("--from", begin, ("earliest",))
    addresses = find_namesrv(namesrv)
    sink = Sink(tolerant(print_json if json else print_letter), most)
    with admin_of(addresses) as admin:
        states = letters_of(admin, name)
        total = sum(state.total for state in states)
    if total:
        read(addresses, states[0].queue.topic, start, None, False, "*", sink, None)
    if not json and sink.count < total:
        output.note(f"{sink.count} of {total}; --max shows more")


def letters_of(admin: Admin, name: str) -> list[DeadLetterQueue]:
    """Return the queues with dead letters of a group. Raises Failed if the group is unknown."""
    states = admin.dead_letters(name)
    if not states:
        check_group(admin, name)
        output.note(f"group {name} has {NONE}")
    return states


def fields_of(message: MessageExt) -> dict[str, Any]:
    from rmqkit.cli.data.message_output import fields_of as plain_fields
    from rmqkit.wire import properties as props

    properties = message.properties
    return {
        "original_topic": properties.get(props.PROPERTY_RETRY_TOPIC),
        "original_msg_id": properties.get(props.PROPERTY_ORIGIN_MESSAGE_ID),
        **plain_fields(message),
    }


def print_json(message: MessageExt) -> None:
    sys.stdout.write(output.dumps(fields_of(message)) + "\n")


def print_letter(message: MessageExt) -> None:
    from rmqkit.cli.data.message_output import visible

    fields = fields_of(message)
    words = [
        f"{fields['broker_name']}:{fields['queue_id']}:{fields['queue_offset']}",
        show_time(fields["store_ms"]),
        fields["msg_id"],
        f"topic={fields['original_topic'] or '-'}",
        f"failed={fields['reconsume_times']}",
    ]
    words += [f"keys={fields['keys']}"] if fields["keys"] else []
    sys.stdout.write("  ".join([*words, visible(message.body)]) + "\n")


@app.command()
def requeue(
    name: Group,
    everything: Annotated[bool, typer.Option("--all", help="Requeue all that were never requeued.")] = False,
    again: Annotated[bool, typer.Option("--again", help="With --all: also those that an earlier --all requeued.")] = False,
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="Requeue this message; may be repeated.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", help="Send to this topic instead, for all of its groups.", autocompletion=topics),
    ] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="With --all: at most this many.")] = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Redeliver copies of dead letters: only to their group, under their original topic.

    Each copy starts with no failed delivery. The dead letters themselves stay. --all records its
    progress, and the next --all continues there; --id does not. If the send of a copy
    times out, the copy may be delivered twice.
    """
    if everything == bool(ids) or (ids and (again or most)):
        raise UsageError("give either --all, optionally with --again and --max, or --id ID for single messages")
    with admin_of(namesrv) as admin:
        states = letters_of(admin, name)
        if topic is None:
            check_unordered(admin, name)
        else:
            with known_topic(admin, topic, "; create it with `rmqkit topic create`"):
                admin.queues(topic)
        if ids:
            found = [letter(admin, name, each) for each in ids]
            for message in found:
                admin.requeue(message, name, topic)
            requeued, left, error = len(found), sum(state.fresh for state in states), None
        else:
            requeued, left, error = requeue_all(admin, states, topic, again=again, most=most)
    where = f"topic {topic}" if topic else f"group {name}"
    value = {"group": name, "topic": topic, "requeued": requeued, "left": left, "error": str(error) if error else None}
    if json or not error:
        text = f"{output.count_text(requeued, 'dead letter')} of {name} requeued to {where}; {left} left"
        output.answer(value, text, as_json=json)
    if error:
        raise Failed(f"{requeued} requeued, {left} left; then: {error}. The same command continues there")


def check_unordered(admin: Admin, name: str) -> None:
    """Raises Failed for a group whose members consume in order.

    The broker puts what comes to the retry topic of such a group into the dead letters
    (`SendMessageProcessor.handleRetryAndDLQ`).
    """
    online = admin.consumer_connections(name)
    for member in online.connection_set if online else ():
        try:
            info = admin.consumer_running_info(name, member.client_id)
        except ClientError:
            continue  # it went offline, or does not answer: its locks end with it
        if info.properties.get("PROP_CONSUMEORDERLY") == "true":
            raise Failed(
                f"group {name} consumes in order: the broker would return the copies to the dead letters;"
                " send them to a topic with --topic"
            )


def letter(admin: Admin, name: str, msg_id: str) -> MessageExt:
    """Return a dead letter by its id. Raises Failed if the group has none with it."""
    from rmqkit.wire.topic_names import DLQ_PREFIX

    found = admin.find_message(msg_id, DLQ_PREFIX + name)
    if found is None or found.queue.topic != DLQ_PREFIX + name:
        raise Failed(f"group {name} has no dead letter {msg_id}; `rmqkit dlq show {name}` lists them")
    return found


def requeue_all(
    admin: Admin, states: list[DeadLetterQueue], topic: str | None, *, again: bool, most: int | None
) -> tuple[int, int, ClientError | None]:
    """Return how many were requeued, how many are left, and the error that ended it early."""
    requeued = 0
    after: list[DeadLetterQueue] = []
    error: ClientError | None = None
    for state in states:
        if again:
            state = state._replace(offset_requeued=state.offset_min)
        while error is None and state.fresh and (most is None or requeued < most):
            room = state.fresh if most is None else most - requeued
            state, count, error = admin.requeue_step(state, topic=topic, count_max=room)
            requeued += count
        after.append(state)
    return requeued, sum(state.fresh for state in after), error
