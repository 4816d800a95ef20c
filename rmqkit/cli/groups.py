"""`rmqkit group ...`: consumer groups."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.asking import admin_of, nearest, queue_fields
from rmqkit.cli.commands import group
from rmqkit.cli.finding import Json, Namesrv
from rmqkit.cli.usage import Failed
from rmqkit.wire.codes import Version

app = group("Consumer groups.")

Group = Annotated[str, typer.Argument(metavar="GROUP")]


@app.callback()
def group_group() -> None:
    """Consumer groups: which there are, their members, how far they are."""


@app.command(name="list")
def list_groups(
    everything: Annotated[bool, typer.Option("--all", "-a", help="The system's own groups as well.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """The groups, with how many members are online."""
    from rmqkit.broker.names import SYSTEM_GROUPS

    found = []
    with admin_of(namesrv) as admin:
        for name, config in admin.groups().items():
            if name in SYSTEM_GROUPS and not everything:
                continue
            online = admin.consumer_connections(name)
            found.append(
                {
                    "group": name,
                    "members": len(online.connection_set) if online else 0,
                    "model": online.message_model if online else None,
                    "retry_max_times": config.retry_max_times,
                    "consume_enable": config.consume_enable,
                }
            )
    if json:
        output.document(found)
    elif found:
        rows = [(each["group"], each["members"], each["model"] or "-", each["retry_max_times"]) for each in found]
        output.table(("group", "members", "model", "retries"), rows)
    else:
        output.note("no groups; the first consumer with a group makes one, or `rmqkit group create`")


def members_of(admin: Any, name: str) -> list[dict[str, Any]]:
    online = admin.consumer_connections(name)
    return [
        {
            "client_id": each.client_id,
            "address": each.client_addr,
            "language": str(each.language),
            "version": version_name(each.version),
        }
        for each in sorted(online.connection_set if online else (), key=lambda each: each.client_id)
    ]


def version_name(number: int) -> str:
    try:
        return Version(number).name
    except ValueError:
        return str(number)


@app.command()
def members(name: Group, namesrv: Namesrv = None, json: Json = False) -> None:
    """Who of a group is online."""
    with admin_of(namesrv) as admin:
        check_group(admin, name)
        found = members_of(admin, name)
    if json:
        output.document({"group": name, "members": found})
    elif found:
        rows = [tuple(each.values()) for each in found]
        output.table(("client", "address", "language", "version"), rows)
    else:
        output.note(f"nobody of group {name} is online")


@app.command()
def info(name: Group, namesrv: Namesrv = None, json: Json = False) -> None:
    """Members, subscriptions, and how far the group is in each queue."""
    with admin_of(namesrv) as admin:
        check_group(admin, name)
        found = members_of(admin, name)
        online = admin.consumer_connections(name)
        topics = sorted({*admin.topics_of_group(name), *(online.subscription_table if online else ())})
        progress = [row for topic in topics for row in progress_of(admin, name, topic)]
    subscriptions = {topic: data.sub_string for topic, data in sorted(online.subscription_table.items())} if online else {}
    if json:
        output.document({"group": name, "members": found, "subscriptions": subscriptions, "progress": progress})
        return
    output.table(("client", "address", "language", "version"), [tuple(each.values()) for each in found])
    print_progress(progress)


def progress_of(admin: Any, name: str, topic: str) -> list[dict[str, Any]]:
    """Where the group is in each queue of a topic; `offset` is None where it never committed."""
    rows = []
    for queue, offset in admin.group_offsets(name, topic).items():
        end = admin.offset_max(queue)
        rows.append(
            {**queue_fields(queue), "offset": offset, "offset_max": end, "lag": None if offset is None else end - offset}
        )
    return rows


def print_progress(rows: list[dict[str, Any]]) -> None:
    output.table(
        ("topic", "broker", "queue", "offset", "end", "behind"),
        [tuple("-" if cell is None else cell for cell in row.values()) for row in rows],
    )


def check_group(admin: Any, name: str) -> None:
    """Raises Failed, with the nearest name, for a group that no broker knows."""
    known = admin.groups()
    if name not in known and admin.consumer_connections(name) is None:
        raise Failed(f"there is no group {name}{nearest(name, list(known))}")


@app.command()
def create(name: Group, namesrv: Namesrv = None, json: Json = False) -> None:
    """Make a group."""
    with admin_of(namesrv) as admin:
        at = admin.create_group(name)
    if json:
        output.document({"group": name, "brokers": at})
    else:
        print(f"group {name} is at {', '.join(at)}")


@app.command()
def delete(
    name: Group,
    forget: Annotated[bool, typer.Option("--forget", help="Forget how far it has consumed, too.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Delete a group."""
    with admin_of(namesrv) as admin:
        check_group(admin, name)
        admin.delete_group(name, clean_offset=forget)
    if json:
        output.document({"group": name, "deleted": True})
    else:
        print(f"group {name} is deleted")
