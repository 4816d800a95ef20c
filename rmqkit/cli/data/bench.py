"""`rmqkit bench ...`: measures rates and latency percentiles of a cluster, as seen from here."""

import re
import secrets
import time
from typing import Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import admin_of, check_brokers, known_topic
from rmqkit.cli.cluster_lookup import Json, Namesrv, find_namesrv
from rmqkit.cli.commands import group
from rmqkit.cli.complete import topics
from rmqkit.cli.errors import Failed, UsageError
from rmqkit.cli.times import UNITS_MS

app = group("bench")

TOPIC = "rmqkit-bench"
QUEUES = 8
COUNT_MAX = 100_000_000
FORGET_TRIES = 10
FORGET_PAUSE_S = 0.02

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Created if it does not exist; its messages stay.", autocompletion=topics)
]
Size = Annotated[int, typer.Option("--size", min=1, max=1_000_000, help="Size of a body in bytes.")]
Count = Annotated[int | None, typer.Option("--count", min=1, max=COUNT_MAX, help="End after this many messages.")]
Duration = Annotated[
    str | None,
    typer.Option("--duration", metavar="10s", help="End after this time; send and e2e: by default 10s without --count."),
]
InFlight = Annotated[int, typer.Option("--in-flight", min=1, max=10_000, help="Messages in flight at a time.")]
Threads = Annotated[
    int,
    typer.Option(
        "--threads",
        min=0,
        max=1000,
        help="Send from this many threads, each waiting for its answer, instead of --in-flight.",
    ),
]
Batch = Annotated[int, typer.Option("--batch", min=1, max=1000, help="Messages per request.")]
Rate = Annotated[
    float | None, typer.Option("--rate", min=0.001, help="Messages per second; by default as many as possible.")
]
Timeout = Annotated[float, typer.Option("--timeout", min=0.001, help="Timeout of a send in seconds.")]


@app.command()
def send(
    topic: Topic = TOPIC,
    size: Size = 1024,
    count: Count = None,
    duration: Duration = None,
    in_flight: InFlight = 64,
    threads: Threads = 0,
    batch: Batch = 1,
    rate: Rate = None,
    timeout: Timeout = 3.0,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Measure sends; the latency is from the call to the broker's answer.

    Exit code 1 if any failed.
    """
    seconds = seconds_of(duration, count)
    addresses = find_namesrv(namesrv)
    make_topic(addresses, topic)
    from rmqkit import Producer
    from rmqkit.cli.data.bench_runs import BenchSender, Load

    load = Load(topic, size, count, seconds, rate, in_flight, threads, batch, secrets.token_bytes(8))
    progress = output.ProgressBar("sent", count)
    with Producer("rmqkit-bench", namesrv=addresses, send_msg_timeout_ms=round(timeout * 1000)) as producer:
        run = BenchSender(producer, load, progress.show)
        run.run()
    progress.clear()
    how = {"threads": threads} if threads else {"in_flight": in_flight}
    said = {"bench": "send", "topic": topic, "size": size, "batch": batch, **how, **run.measured.fields()}
    finish(said, json, run.measured.error)


@app.command()
def consume(
    topic: Topic = TOPIC,
    count: Count = None,
    duration: Duration = None,
    fill: Annotated[int | None, typer.Option("--fill", min=1, max=COUNT_MAX, help="First send this many messages.")] = None,
    size: Size = 1024,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Measure reads of a topic from its first message; the latency is that of a poll.

    Ends after the last message.
    """
    addresses = find_namesrv(namesrv)
    seconds = None if duration is None else seconds_of(duration, None)
    from rmqkit import Producer, PullConsumer
    from rmqkit.cli.data.bench_runs import BenchSender, Load, read

    load = Load(topic, size, count, seconds)
    if fill is not None:
        make_topic(addresses, topic)
        with Producer("rmqkit-bench", namesrv=addresses) as producer:
            filling = BenchSender(
                producer, Load(topic, size, fill, None, None, 256), output.ProgressBar("filled", fill).show
            )
            filling.run()
        if filling.measured.failed:
            raise Failed(f"{filling.measured.failed} messages could not be sent: {filling.measured.error}")
    else:
        with admin_of(addresses) as admin, known_topic(admin, topic):
            admin.route(topic)
    progress = output.ProgressBar("read", count)
    with PullConsumer(namesrv=addresses, pull_threshold_for_queue=4096) as consumer:
        measured = read(consumer, load, progress.show)
    progress.clear()
    if not measured.messages:
        output.note(f"topic {topic} has no messages; --fill sends some first")
    finish({"bench": "consume", "topic": topic, **measured.fields()}, json, "")


@app.command()
def e2e(
    topic: Topic = TOPIC,
    size: Size = 1024,
    count: Count = None,
    duration: Duration = None,
    in_flight: InFlight = 64,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.0, help="Messages per second; 0 means as many as possible.")
    ] = 1000.0,
    timeout: Timeout = 3.0,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Send at a rate, consume at the same time, and measure the latency end to end.

    The latency is from the due time of a send to the listener. Exit code 1 if any message was lost.
    """
    from rmqkit.cli.data.bench_runs import STAMP, BenchListener, BenchSender, Load

    if size < STAMP.size:
        raise UsageError(
            f"--size {size}: must be at least {STAMP.size}, because an end-to-end body begins with its send time"
        )
    seconds = seconds_of(duration, count)
    addresses = find_namesrv(namesrv)
    make_topic(addresses, topic)
    from rmqkit import Producer, PushConsumer

    name = f"rmqkit-bench-{secrets.token_hex(4)}"
    begin_at_the_end(addresses, name, topic)
    load = Load(topic, size, count, seconds, rate or None, in_flight, run_id=secrets.token_bytes(8))
    hearing = BenchListener(load)
    progress = output.ProgressBar("sent", count)
    consumer = PushConsumer(name, namesrv=addresses, consume_from="first")
    consumer.subscribe(topic)
    try:
        with Producer("rmqkit-bench", namesrv=addresses, send_msg_timeout_ms=round(timeout * 1000)) as producer:
            consumer.start(hearing)
            wait_for_share(consumer, topic)
            run = BenchSender(producer, load, progress.show)
            hearing.measured.began_ns = run.measured.began_ns
            run.run()
            hearing.wait(run.sent)
    finally:
        progress.clear()
        consumer.close()
        forget_group(addresses, name)
    lost = max(0, run.sent - hearing.seen)
    said = {
        "bench": "e2e",
        "topic": topic,
        "size": size,
        "rate": rate,
        **hearing.measured.fields(),
        "failed": run.measured.failed,
        "lost": lost,
        "duplicates": hearing.duplicates,
        "send": run.measured.fields(),
    }
    finish(said, json, run.measured.error or (f"{lost} messages did not arrive" if lost else ""))


def begin_at_the_end(addresses: str, name: str, topic: str) -> None:
    """Create a group whose offsets are the ends of the queues: it reads only new messages."""
    with admin_of(addresses) as admin:
        admin.create_group(name)
        for queue in admin.queues(topic):
            admin.set_group_offset(name, queue, admin.offset_max(queue))


def forget_group(addresses: str, name: str) -> None:
    """Delete a group; repeat until it is gone.

    A pull that was still waiting when the consumer left may create the group again.
    """
    with admin_of(addresses) as admin:
        for _ in range(FORGET_TRIES):
            admin.delete_group(name, clean_offset=True)
            time.sleep(FORGET_PAUSE_S)
            if name not in admin.groups():
                return


def wait_for_share(consumer: Any, topic: str) -> None:
    """Wait until the consumer has a queue.

    Earlier messages would count the wait as latency. Raises Failed.
    """
    until_s = time.monotonic() + 10
    while not any(queue.topic == topic for queue in consumer.assignment):
        if time.monotonic() > until_s:
            raise Failed(f"the consumer got no queue of {topic} within 10 s")
        time.sleep(0.01)


def seconds_of(text: str | None, count: int | None) -> float | None:
    """Return the length of a run in seconds, None if only `count` ends it. Raises UsageError."""
    if text is None:
        return 10.0 if count is None else None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", text)
    if found is None or float(found[1]) == 0:
        raise UsageError(f"--duration {text}: must be a time such as 10s or 2m")
    return float(found[1]) * UNITS_MS[found[2] or "s"] / 1000


def make_topic(addresses: str, topic: str) -> None:
    with admin_of(addresses) as admin:
        check_brokers(admin)
        if topic not in admin.topics():
            admin.create_topic(topic, queue_nums=QUEUES)


def finish(said: dict[str, Any], json: bool, error: str) -> None:
    if json:
        output.document(said)
    else:
        rows = [("consumed" if said["bench"] == "e2e" else "", said)]
        if "send" in said:
            rows.append(("sent", said["send"]))
        columns = ("messages", "seconds", "a second", "MiB/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms")
        named = len(rows) > 1
        output.table(("", *columns) if named else columns, [row_of(each, name if named else None) for name, each in rows])
        for what in ("failed", "lost", "duplicates"):
            if said.get(what):
                output.note(f"{said[what]} {what}")
    if error:
        raise Failed(error)


def row_of(said: dict[str, Any], name: str | None) -> tuple[Any, ...]:
    latency = ["-" if each is None else f"{each:.2f}" for each in said["latency_ms"].values()]
    cells = (
        said["messages"],
        f"{said['seconds']:.1f}",
        f"{said['per_second']:.0f}",
        f"{said['mib_per_second']:.1f}",
        *latency,
    )
    return cells if name is None else (name, *cells)
