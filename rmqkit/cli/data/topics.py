"""`rmqkit topic ...`: shows and changes topics."""

from typing import Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import (
    admin_of,
    check_brokers,
    is_system_topic,
    known_topic,
    node_named,
    queue_fields,
    system_topics,
)
from rmqkit.cli.cluster_lookup import Json, Namesrv, Topic
from rmqkit.cli.commands import group
from rmqkit.cli.errors import UsageError

app = group("topic")

Broker = Annotated[str | None, typer.Option("--broker", help="Only at this broker: name, name:id or address.")]
ClusterName = Annotated[str | None, typer.Option("--cluster", help="Only at the brokers of this cluster.")]
PERMISSIONS = {"r": 4, "w": 2, "rw": 6, "wr": 6}


@app.command(name="list")
def list_topics(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include system topics.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """List the names of the topics, one per line."""
    with admin_of(namesrv) as admin:
        check_brokers(admin)
        fixed = system_topics(admin)
        found = [{"topic": name, "system": is_system_topic(name, fixed)} for name in admin.topics()]
    shown = [each for each in found if everything or not each["system"]]
    if json:
        output.document(shown)
        return
    for each in shown:
        print(each["topic"])
    if not shown:
        output.note("no topics; the first `rmqkit send` to a topic creates it, or `rmqkit topic create`")


@app.command()
def create(
    topic: Topic,
    queues: Annotated[int, typer.Option("--queues", min=1, max=65535, help="Number of queues at each broker.")] = 8,
    read_queues: Annotated[
        int | None, typer.Option("--read-queues", min=0, help="Number of readable queues; by default --queues.")
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option("--write-queues", min=0, help="Number of writable queues; by default --queues.")
    ] = None,
    perm: Annotated[str, typer.Option("--perm", metavar="rw|r|w", help="Permission: read, write or both.")] = "rw",
    order: Annotated[bool, typer.Option("--order", help="Mark the topic as ordered (RocketMQ's order flag).")] = False,
    broker: Broker = None,
    cluster: ClusterName = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Create a topic, or change one."""
    if perm not in PERMISSIONS:
        raise UsageError(f"--perm {perm}: must be rw, r or w")
    with admin_of(namesrv) as admin:
        check_brokers(admin)
        at = admin.create_topic(
            topic,
            queue_nums=queues,
            read_queue_nums=read_queues,
            write_queue_nums=write_queues,
            perm=PERMISSIONS[perm],
            order=order,
            broker=node_named(broker, namesrv),
            cluster=cluster,
        )
    output.answer({"topic": topic, "brokers": at}, f"topic {topic} is at {', '.join(at)}", as_json=json)


@app.command()
def delete(topic: Topic, cluster: ClusterName = None, namesrv: Namesrv = None, json: Json = False) -> None:
    """Delete a topic and its messages."""
    with admin_of(namesrv) as admin:
        with known_topic(admin, topic):
            admin.route(topic)
        admin.delete_topic(topic, cluster=cluster)
    output.answer({"topic": topic, "deleted": True}, f"topic {topic} is deleted", as_json=json)


@app.command(name="status", help="Show the queues of a topic; the same as info.")
@app.command()
def info(topic: Topic, namesrv: Namesrv = None, json: Json = False) -> None:
    """Show the queues of a topic, and the number of messages in each."""
    with admin_of(namesrv) as admin, known_topic(admin, topic):
        stats = admin.topic_stats(topic)
    rows = [
        {
            **queue_fields(queue),
            "offset_min": at.min_offset,
            "offset_max": at.max_offset,
            "messages": at.max_offset - at.min_offset,
            "last_update_ms": at.last_update_timestamp,
        }
        for queue, at in stats.items()
    ]
    columns = {"broker": "broker_name", "queue": "queue_id", "first": "offset_min", "next": "offset_max"}
    columns |= {"messages": "messages", "last message": "last_update_ms:time"}
    held = sum(row["messages"] for row in rows)
    output.report({"topic": topic, "messages": held, "queues": rows}, columns, rows, as_json=json)


@app.command()
def route(topic: Topic, namesrv: Namesrv = None, json: Json = False) -> None:
    """Show which brokers have a topic, as the name server reports to clients."""
    with admin_of(namesrv) as admin, known_topic(admin, topic):
        found = admin.route(topic)
    addresses = {data.broker_name: dict(sorted(data.broker_addrs.items())) for data in found.broker_datas}
    rows: list[dict[str, Any]] = [
        {
            "broker_name": data.broker_name,
            "read_queues": data.read_queue_nums,
            "write_queues": data.write_queue_nums,
            "perm": data.perm,
            "addresses": {str(key): value for key, value in addresses.get(data.broker_name, {}).items()},
        }
        for data in sorted(found.queue_datas, key=lambda data: data.broker_name)
    ]
    columns: output.Columns = {
        "broker": "broker_name",
        "read queues": "read_queues",
        "write queues": "write_queues",
        "may": lambda row: ("r" if row["perm"] & 4 else "-") + ("w" if row["perm"] & 2 else "-"),
        "addresses": lambda row: ", ".join(f"{key} {value}" for key, value in row["addresses"].items()),
    }
    output.report({"topic": topic, "order": found.order_topic_conf, "brokers": rows}, columns, rows, as_json=json)


@app.command()
def stats(topic: Topic, namesrv: Namesrv = None, json: Json = False) -> None:
    """Show the rates of a topic (per second and in 24 hours), and how far each group is behind."""
    from rmqkit.cli.data.stats import RATES, rate_rows

    with admin_of(namesrv) as admin, known_topic(admin, topic):
        found = rate_rows(admin.topic_rates(topic))
        queues = admin.topic_stats(topic)
    held = sum(each.max_offset - each.min_offset for each in queues.values())
    below = f"\n{held} messages in {len(queues)} queues; `rmqkit topic info {topic}` has each"
    value = {"topic": topic, "messages": held, "queues": len(queues), "rates": found}
    output.report(value, RATES, found, as_json=json, below=below)


@app.command()
def perm(
    topic: Topic,
    may: Annotated[
        str | None, typer.Argument(metavar="rw|r|w|-", help="The new permission; without it, show the current one.")
    ] = None,
    broker: Broker = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show or change the permission of a topic at each broker; `-` forbids everything.

    Producers follow it from their next route on, within 30 s.
    """
    if may is not None and may not in {*PERMISSIONS, "-"}:
        raise UsageError(f"{may}: must be rw, r, w or -")
    broker = node_named(broker, namesrv)
    with admin_of(namesrv) as admin:
        with known_topic(admin, topic):
            names = [broker] if broker else sorted(data.broker_name for data in admin.route(topic).broker_datas)
        if may is not None:
            before = admin.set_topic_perm(topic, PERMISSIONS.get(may, 0), broker)
        else:
            found = {name: admin.topic_config(topic, name) for name in names}
            before = {name: config.perm for name, config in found.items() if config is not None}
    rows = [{"broker_name": name, "perm": perm_name(value)} for name, value in before.items()]
    if json:
        if may is not None:
            rows = [{"broker_name": row["broker_name"], "perm": may, "before": row["perm"]} for row in rows]
        output.document({"topic": topic, "brokers": rows})
    elif may is None:
        output.report(rows, {"broker": "broker_name", "may": "perm"})
    else:
        for row in rows:
            print(f"topic {topic} at {row['broker_name']}: {may} (was {row['perm']})")


def perm_name(perm: int) -> str:
    return (("r" if perm & 4 else "") + ("w" if perm & 2 else "")) or "-"


@app.command()
def clean(
    expired: Annotated[bool, typer.Option("--expired-queues", help="Remove queues without messages (code 306).")] = False,
    unused: Annotated[bool, typer.Option("--unused-topics", help="Remove queues of deleted topics (code 316).")] = False,
    broker: Broker = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Remove queues of deleted topics and of expired messages. Without an option, both."""
    broker = node_named(broker, namesrv)
    done: dict[str, list[str]] = {}
    with admin_of(namesrv) as admin:
        if unused or not expired:
            done["unused_topics"] = admin.clean_unused_topics(broker)
        if expired or not unused:
            done["expired_queues"] = admin.clean_expired_queues(broker)
    if json:
        output.document(done)
        return
    for what, at in done.items():
        print(f"{what.replace('_', ' ')}: cleaned at {', '.join(at) or 'no broker'}")
