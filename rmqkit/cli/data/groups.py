"""`rmqkit group ...`: shows and changes consumer groups."""

from typing import Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import admin_of, check_brokers, check_group, queue_fields
from rmqkit.cli.cluster_lookup import Json, Namesrv
from rmqkit.cli.commands import group
from rmqkit.cli.data.progress import NO_GROUPS, Group, clone, counts, progress, reset
from rmqkit.cli.errors import Failed
from rmqkit.cli.pop.groups import mode, pop
from rmqkit.wire.codes import Version

app = group("group")

PROGRESS: output.Columns = {**output.QUEUE, "offset": "offset", "end": "offset_max", "behind": "lag"}


@app.command(name="list")
def list_groups(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include system groups.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """List the groups, with the number of members online."""
    from rmqkit.broker.names import SYSTEM_GROUPS

    found = []
    with admin_of(namesrv) as admin:
        check_brokers(admin)
        dead = counts(admin)
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
                    "dead_letters": dead.get(name, 0),
                }
            )
    columns = {"group": "group", "members": "members", "model": "model", "retries": "retry_max_times"}
    columns["dead"] = "dead_letters"
    output.report(found, columns, as_json=json, none=NO_GROUPS)


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


app.command(name="progress")(progress)
app.command(name="reset")(reset)
app.command(name="clone")(clone)
app.command(name="pop")(pop)
app.command(name="mode")(mode)


@app.command(name="connections", help="List the members of a group; the same as members.")
@app.command()
def members(name: Group, namesrv: Namesrv = None, json: Json = False) -> None:
    """List the members of a group that are online."""
    with admin_of(namesrv) as admin:
        check_group(admin, name)
        found = members_of(admin, name)
    value = {"group": name, "members": found}
    output.report(value, output.CLIENT, found, as_json=json, none=f"no member of group {name} is online")


@app.command()
def info(name: Group, namesrv: Namesrv = None, json: Json = False) -> None:
    """Show members, subscriptions, and how far the group is in each queue."""
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
    output.report(found, output.CLIENT)
    output.report(progress, PROGRESS)


def progress_of(admin: Any, name: str, topic: str) -> list[dict[str, Any]]:
    """Return the group's offset in each queue of a topic, None where it never committed."""
    rows = []
    for queue, offset in admin.group_offsets(name, topic).items():
        end = admin.offset_max(queue)
        rows.append(
            {**queue_fields(queue), "offset": offset, "offset_max": end, "lag": None if offset is None else end - offset}
        )
    return rows


Retries = Annotated[
    int | None, typer.Option("--retries", min=-1, help="Redeliveries of a message before it goes to %DLQ%.")
]
Enable = Annotated[bool | None, typer.Option("--enable/--disable", help="Allow the group to consume.")]
Broadcast = Annotated[bool | None, typer.Option("--broadcast/--no-broadcast", help="Allow members to use broadcasting.")]
FromMin = Annotated[
    bool | None, typer.Option("--from-min/--no-from-min", help="Allow a new group to begin at the first message.")
]
Orderly = Annotated[bool | None, typer.Option("--orderly/--no-orderly", help="Mark the group as consuming in order.")]
RetryQueues = Annotated[int | None, typer.Option("--retry-queues", min=0, help="Number of queues of its retry topic.")]


@app.command()
def create(
    name: Group,
    retries: Retries = None,
    enable: Enable = None,
    broadcast: Broadcast = None,
    from_min: FromMin = None,
    orderly: Orderly = None,
    retry_queues: RetryQueues = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="Only at the brokers of this cluster.")] = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Create a group, or change one.

    Settings without an option keep their values; in a new group they get Apache's defaults.
    """
    changes = {
        "retry_max_times": retries,
        "consume_enable": enable,
        "consume_broadcast_enable": broadcast,
        "consume_from_min_enable": from_min,
        "consume_message_orderly": orderly,
        "retry_queue_nums": retry_queues,
    }
    from rmqkit.wire.bodies import SubscriptionGroupConfig

    with admin_of(namesrv) as admin:
        config = admin.groups().get(name) or SubscriptionGroupConfig()
        for field, value in changes.items():
            if value is not None:
                setattr(config, field, value)
        at = admin.create_group(name, config=config, cluster=cluster)
    said = {"group": name, "brokers": at, **settings_of(config)}
    output.answer(said, f"group {name} is at {', '.join(at)}", as_json=json)


app.command(name="update", help="Change a group; the same as create.")(create)


def settings_of(config: Any) -> dict[str, Any]:
    return {
        "retry_max_times": config.retry_max_times,
        "retry_queue_nums": config.retry_queue_nums,
        "consume_enable": config.consume_enable,
        "consume_broadcast_enable": config.consume_broadcast_enable,
        "consume_from_min_enable": config.consume_from_min_enable,
        "consume_message_orderly": config.consume_message_orderly,
    }


@app.command()
def show(name: Group, namesrv: Namesrv = None, json: Json = False) -> None:
    """Show a group's settings at each broker."""
    with admin_of(namesrv) as admin:
        check_group(admin, name)
        found = {broker: admin.group_config(name, broker) for broker in admin.masters()}
    rows = [{"broker_name": broker, **settings_of(config)} for broker, config in found.items() if config is not None]
    columns = {name.replace("_", " "): name for name in rows[0]} if rows else {}
    none = f"group {name} has members online but no settings at any broker"
    output.report({"group": name, "brokers": rows}, columns, rows, as_json=json, none=none)


@app.command()
def running(
    name: Group,
    client: Annotated[str | None, typer.Argument(metavar="CLIENT", help="Client id of a member; by default all.")] = None,
    stack: Annotated[bool, typer.Option("--stack", help="Also show the stack traces of its threads.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show what members report: subscriptions, queues, messages in their buffers, rates."""
    with admin_of(namesrv) as admin:
        check_group(admin, name)
        if client is None:
            online = admin.consumer_connections(name)
            ids = sorted(each.client_id for each in online.connection_set) if online else []
            if not ids:
                raise Failed(f"no member of group {name} is online")
        else:
            ids = [client]
        found = {each: admin.consumer_running_info(name, each, stack=stack) for each in ids}
    if json:
        output.document({"group": name, "members": [running_fields(each, info) for each, info in found.items()]})
        return
    for each, info in found.items():
        print_running(running_fields(each, info))


def running_fields(client: str, info: Any) -> dict[str, Any]:
    return {
        "client_id": client,
        "properties": info.properties,
        "subscriptions": {each.topic: each.sub_string for each in info.subscription_set},
        "queues": [
            {
                **queue_fields(queue),
                "committed": each.commit_offset,
                "held": each.cached_msg_count,
                "held_min": each.cached_msg_min_offset,
                "held_max": each.cached_msg_max_offset,
                "held_mib": each.cached_msg_size_in_mib,
                "locked": each.locked,
                "dropped": each.droped,
                "last_pull_ms": each.last_pull_timestamp,
                "last_consume_ms": each.last_consume_timestamp,
            }
            for queue, each in sorted(info.mq_table.items())
        ],
        "pops": [
            {
                **queue_fields(queue),
                "not_acked": each.wait_ack_count,
                "dropped": each.droped,
                "last_pop_ms": each.last_pop_timestamp,
            }
            for queue, each in sorted(info.mq_pop_table.items())
        ],
        "rates": {
            topic: {
                "ok_tps": each.consume_ok_tps,
                "failed_tps": each.consume_failed_tps,
                "failed": each.consume_failed_msgs,
                "took_ms": each.consume_rt,
                "pull_tps": each.pull_tps,
                "pull_ms": each.pull_rt,
            }
            for topic, each in sorted(info.status_table.items())
        },
        "stacks": info.jstack,
    }


def print_running(said: dict[str, Any]) -> None:
    print(f"# {said['client_id']}")
    for name, value in sorted(said["properties"].items()):
        print(f"{name} = {value}")
    for topic, expression in said["subscriptions"].items():
        print(f"subscribes to {topic}: {expression}")
    columns = {**output.QUEUE, "committed": "committed", "held": "held", "locked": "locked"}
    columns |= {"last pull": "last_pull_ms:time", "last consumed": "last_consume_ms:time"}
    if said["queues"] or not said["pops"]:
        output.report(said["queues"], columns)
    if said["pops"]:
        output.report(said["pops"], {**output.QUEUE, "not acked": "not_acked", "last pop": "last_pop_ms:time"})
    if said["rates"]:
        rates = [{"topic": topic, **each} for topic, each in said["rates"].items()]
        columns = {"topic": "topic", "ok/s": "ok_tps:.1f", "failed/s": "failed_tps:.1f"}
        columns |= {"ms each": "took_ms:.1f", "pulled/s": "pull_tps:.1f"}
        output.report(rates, columns)
    if said["stacks"]:
        print(said["stacks"])


@app.command()
def delete(
    name: Group,
    forget: Annotated[bool, typer.Option("--forget", help="Also delete its offsets.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Delete a group."""
    with admin_of(namesrv) as admin:
        check_group(admin, name)
        admin.delete_group(name, clean_offset=forget)
    output.answer({"group": name, "deleted": True}, f"group {name} is deleted", as_json=json)
