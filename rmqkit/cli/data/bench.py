"""`rmqkit bench ...`: how fast a cluster is, as seen from here: rates, and percentiles of latencies."""

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
    str, typer.Argument(metavar="TOPIC", help="Made when it is not there; its messages stay.", autocompletion=topics)
]
Size = Annotated[int, typer.Option("--size", min=1, max=1_000_000, help="Bytes of a body.")]
Count = Annotated[int | None, typer.Option("--count", min=1, max=COUNT_MAX, help="End after so many messages.")]
Duration = Annotated[str | None, typer.Option("--duration", metavar="10s", help="End after so long; 10s without --count.")]
InFlight = Annotated[int, typer.Option("--in-flight", min=1, max=10_000, help="Messages on their way at a time.")]
Threads = Annotated[
    int, typer.Option("--threads", min=0, max=1000, help="Threads that each wait for their answer instead.")
]
Batch = Annotated[int, typer.Option("--batch", min=1, max=1000, help="Messages in one request.")]
Rate = Annotated[float | None, typer.Option("--rate", min=0.001, help="Messages a second; as many as go otherwise.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds a message may take.")]


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
    """Send messages; the latency is from the call to the broker's answer. Exit code 1 when any failed."""
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
    fill: Annotated[int | None, typer.Option("--fill", min=1, max=COUNT_MAX, help="First send so many messages.")] = None,
    size: Size = 1024,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Read a topic from its first message; the latency is that of a poll. Ends when all is read."""
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
    rate: Annotated[float | None, typer.Option("--rate", min=0.0, help="Messages a second; 0: as many as go.")] = 1000.0,
    timeout: Timeout = 3.0,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Send at a rate and consume at the same time; the latency is from when a message was due to the listener.

    Exit code 1 when any message was lost.
    """
    from rmqkit.cli.data.bench_runs import STAMP, BenchListener, BenchSender, Load

    if size < STAMP.size:
        raise UsageError(f"--size {size}: an end-to-end body holds its time, so it has {STAMP.size} bytes at least")
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
    """A group of this run that has consumed everything so far, so that it misses nothing and reads nothing old."""
    with admin_of(addresses) as admin:
        admin.create_group(name)
        for queue in admin.queues(topic):
            admin.set_group_offset(name, queue, admin.offset_max(queue))


def forget_group(addresses: str, name: str) -> None:
    """A pull that was waiting when the consumer left may make the group again, so it is looked at once more."""
    with admin_of(addresses) as admin:
        for _ in range(FORGET_TRIES):
            admin.delete_group(name, clean_offset=True)
            time.sleep(FORGET_PAUSE_S)
            if name not in admin.groups():
                return


def wait_for_share(consumer: Any, topic: str) -> None:
    """Until the consumer has its queues: what is sent before would count the time until it had."""
    until_s = time.monotonic() + 10
    while not any(queue.topic == topic for queue in consumer.assignment):
        if time.monotonic() > until_s:
            raise Failed(f"no queue of {topic} was given to the consumer")
        time.sleep(0.01)


def seconds_of(text: str | None, count: int | None) -> float | None:
    """Raises UsageError."""
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
