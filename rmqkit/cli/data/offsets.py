"""`rmqkit offset ...`: shows and sets the offsets of groups."""

from typing import Annotated

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import admin_of, check_group, choose_queue, known_topic, queue_fields
from rmqkit.cli.cluster_lookup import Json, Namesrv, Topic
from rmqkit.cli.commands import group
from rmqkit.cli.complete import topics
from rmqkit.cli.data.groups import PROGRESS, progress_of
from rmqkit.cli.data.progress import MOVED, Group, reset
from rmqkit.cli.errors import UsageError
from rmqkit.cli.times import TIME_WORDS, show_time, time_of

app = group("offset")


@app.command()
def show(
    name: Group,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="By default all topics of the group.", autocompletion=topics)
    ] = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show how far a group has consumed each queue, and how far behind it is."""
    with admin_of(namesrv) as admin:
        check_group(admin, name)
        if topic is None:
            rows = [row for each in admin.topics_of_group(name) for row in progress_of(admin, name, each)]
        else:
            with known_topic(admin, topic):
                rows = progress_of(admin, name, topic)
    none = f"group {name} has consumed nothing yet"
    output.report({"group": name, "queues": rows}, PROGRESS, rows, as_json=json, none=none)


@app.command(name="set")
def set_offset(
    name: Group,
    topic: Topic,
    queue: Annotated[str, typer.Argument(metavar="[BROKER:]ID", help="Id of the queue.")],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="Offset of the next message to consume.")],
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Set a group's offset in one queue, whether it has members online or not."""
    with admin_of(namesrv) as admin:
        with known_topic(admin, topic):
            chosen = choose_queue(admin.queues(topic), queue)
        first, end = max(0, admin.offset_min(chosen)), admin.offset_max(chosen)
        if not first <= offset <= end:
            raise UsageError(f"offset {offset}: must be from {first} to {end} in {chosen.broker_name}:{chosen.queue_id}")
        admin.reset_group_offset(name, chosen, offset)
    text = f"group {name} is at {offset} in {topic} {chosen.broker_name}:{chosen.queue_id}"
    output.answer({"group": name, **queue_fields(chosen), "offset": offset}, text, as_json=json)


app.command(name="reset")(reset)


@app.command(name="by-time")
def by_time(
    topic: Topic,
    when: Annotated[str, typer.Argument(metavar="TIME", help=f"A time {TIME_WORDS}.")],
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show the offset of each queue's first message that was stored at a time or later."""
    timestamp_ms = time_of("TIME", when)
    with admin_of(namesrv) as admin, known_topic(admin, topic):
        found = {queue: admin.offset_for_time(queue, timestamp_ms) for queue in admin.queues(topic)}
    rows = [{**queue_fields(queue), "offset": offset} for queue, offset in found.items()]
    if not json:
        output.note(f"stored at {show_time(timestamp_ms)} or later")
    value = {"topic": topic, "time_ms": timestamp_ms, "queues": rows}
    output.report(value, MOVED, rows, as_json=json)
