"""The progress of groups, and setting it: `group progress`, `group reset`, `group clone`.

`groups.py` registers these commands. The progress of a group comes from the brokers (code 208). For
each queue it has the end, the committed offset, the offset up to which members have pulled, and
when the last committed message was stored.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import admin_of, check_brokers, check_group, known_topic, queue_fields
from rmqkit.cli.cluster_lookup import Json, Namesrv, Topic
from rmqkit.cli.complete import groups, topics
from rmqkit.cli.errors import Failed
from rmqkit.cli.times import TIME_WORDS, time_of
from rmqkit.errors import BrokerError

if TYPE_CHECKING:
    from rmqkit import Admin

Group = Annotated[str, typer.Argument(metavar="GROUP", autocompletion=groups)]
GroupOrAll = Annotated[
    str | None, typer.Argument(metavar="GROUP", help="Name of a group; by default all groups.", autocompletion=groups)
]

NO_GROUPS = "no groups; the first consumer of a group creates it, or `rmqkit group create`"
GROUPS: output.Columns = {
    "group": "group",
    "members": "members",
    "model": "model",
    "topics": "topics",
    "a second": "consume_tps:.1f",
    "behind": "lag",
    "last consumed": "last_ms:time",
    "dead": "dead_letters",
}
MOVED: output.Columns = {**output.QUEUE, "offset": "offset"}
#: how the offsets were set, by `Moved.way` and by whether a member of the group is online
WAYS = {
    ("reset", True): "the brokers have reset the offsets (request 222); each member continues there with its next pull",
    ("reset", False): "the brokers have reset the offsets (request 222); no member is online, the next one starts there",
    ("commit", True): "the brokers cannot reset to this place themselves, so the offsets were committed for the group"
    " (request 15); a member that is online may overwrite them: check with `rmqkit group progress`",
    ("commit", False): "no member is online; the offsets were committed for the group (request 15), the next member starts"
    " there",
}


def progress(
    name: GroupOrAll = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.", autocompletion=topics)] = None,
    clients: Annotated[
        bool, typer.Option("--clients", help="Show which member has each queue, as members report.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include system groups.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show how far a group is in each queue; without GROUP, one line for each group."""
    with admin_of(namesrv) as admin:
        if name is None:
            check_brokers(admin)
            dead = counts(admin)
            wanted = [each for each in sorted(admin.groups()) if everything or not is_system_group(each)]
            found = [{**line_of(admin, each), "dead_letters": dead.get(each, 0)} for each in wanted]
        else:
            check_group(admin, name)
            dead = counts(admin, name)
            stats = admin.group_progress(name, topic)
            owners = owners_of(admin, name) if clients else {}
            rows = [
                {**queue_row(queue, each), "client_id": owners.get(queue)} for queue, each in stats.offset_table.items()
            ]
    if name is None:
        output.report(found, GROUPS, as_json=json, none=NO_GROUPS)
        return
    total = {
        "group": name,
        "lag": sum(row["lag"] for row in rows),
        "inflight": sum(row["inflight"] for row in rows),
        "consume_tps": stats.consume_tps,
        "dead_letters": dead.get(name, 0),
    }
    columns: dict[str, output.Source] = {
        **output.QUEUE,
        "end": "broker_offset",
        "committed": lambda row: row["consumer_offset"] if row["consumer_offset"] >= 0 else None,
        "pulled": lambda row: row["pull_offset"] if row["pull_offset"] >= 0 else None,
        "behind": "lag",
        "last consumed": "last_ms:time",
    }
    if clients:
        columns["member"] = "client_id"
    below = f"\nbehind {total['lag']}, of them {total['inflight']} pulled; {stats.consume_tps:.1f} a second"
    if total["dead_letters"]:
        below += f"; dead letters: {total['dead_letters']}, see `rmqkit dlq show {name}`"
    none = f"group {name} has consumed nothing yet"
    output.report({**total, "queues": rows}, columns, rows, as_json=json, none=none, below=below)


def counts(admin: "Admin", group: str | None = None) -> dict[str, int]:
    """Return the number of dead letters of one group or of all; groups without any are left out."""
    found: dict[str, int] = {}
    for state in admin.dead_letters(group):
        if state.total:
            found[state.group] = found.get(state.group, 0) + state.total
    return found


def is_system_group(name: str) -> bool:
    from rmqkit.broker.names import SYSTEM_GROUPS

    return name in SYSTEM_GROUPS or name.startswith("CID_RMQ_SYS_")


def queue_row(queue: Any, each: Any) -> dict[str, Any]:
    """Return the row of a queue. Without a commit, the lag counts from offset 0."""
    done = max(0, each.consumer_offset)
    return {
        **queue_fields(queue),
        "broker_offset": each.broker_offset,
        "consumer_offset": each.consumer_offset,
        "pull_offset": each.pull_offset,
        "lag": max(0, each.broker_offset - done),
        "inflight": max(0, each.pull_offset - done),
        "last_ms": each.last_timestamp,
    }


def owners_of(admin: "Admin", name: str) -> dict[Any, str]:
    """Return the member of each queue; members that do not report are left out."""
    owners: dict[Any, str] = {}
    online = admin.consumer_connections(name)
    for member in online.connection_set if online else ():
        try:
            info = admin.consumer_running_info(name, member.client_id)
        except BrokerError as error:
            output.note(f"{member.client_id}: {error}")
            continue
        owners |= dict.fromkeys(info.mq_table, member.client_id)
    return owners


def line_of(admin: "Admin", name: str) -> dict[str, Any]:
    online = admin.consumer_connections(name)
    stats = admin.group_progress(name)
    rows = [queue_row(queue, each) for queue, each in stats.offset_table.items()]
    return {
        "group": name,
        "members": len(online.connection_set) if online else 0,
        "type": online.consume_type if online else None,
        "model": online.message_model if online else None,
        "consume_tps": stats.consume_tps,
        "topics": len({row["topic"] for row in rows}),
        "lag": sum(row["lag"] for row in rows),
        "last_ms": max((row["last_ms"] for row in rows), default=0),
    }


def reset(
    name: Group,
    topic: Topic,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="earliest|latest|OFFSET|TIME",
            help=f"earliest: the first message; latest: the end; or a time {TIME_WORDS}.",
        ),
    ],
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Set where a group continues in each queue of a topic: the first message, the end, an offset,
    or a time.

    Moving back delivers messages again, moving forward skips messages. A time means the first
    message that was stored then or later. A queue without the offset uses its first offset or its
    end instead, whichever is nearer.
    """
    place = {"earliest": "first", "latest": "last"}.get(to)
    offset = int(to) if to.isdigit() and len(to) < 13 else None
    timestamp_ms = None if place or offset is not None else time_of("--to", to, "earliest, latest, an offset, or a time")
    with admin_of(namesrv) as admin, known_topic(admin, topic):
        check_group(admin, name)
        online = admin.consumer_connections(name)
        moved = admin.move_group(name, topic, to=place, timestamp_ms=timestamp_ms, offset=offset)
    rows = [{**queue_fields(queue), "offset": each.offset, "way": each.way} for queue, each in moved.items()]
    members = len(online.connection_set) if online else 0
    output.report({"group": name, "members": members, "queues": rows}, MOVED, rows, as_json=json)
    if not json:
        for way in dict.fromkeys(row["way"] for row in rows):
            output.note(WAYS[way, members > 0])


def clone(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The group to copy from.", autocompletion=groups)],
    target: Annotated[str, typer.Argument(metavar="TO", help="The group to change.", autocompletion=groups)],
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="By default all topics of FROM.", autocompletion=topics)
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", help="Skip topics that FROM's online members no longer read.")
    ] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Copy one group's offsets to another group."""
    with admin_of(namesrv) as admin:
        check_group(admin, source)
        with known_topic(admin, topic or ""):
            moved = admin.clone_group(source, target, topic, offline=not online)
    rows = [{**queue_fields(queue), "offset": offset} for queue, offset in moved.items()]
    if not rows:
        raise Failed(
            f"group {source} has consumed nothing{f' of {topic}' if topic else ''}, so there are no offsets to copy"
        )
    output.report({"from": source, "group": target, "queues": rows}, MOVED, rows, as_json=json)
