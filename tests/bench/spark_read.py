"""Measures how fast Spark reads a topic, compared with other ways: `make bench-spark ARGS="..."`.

    python -m tests.bench.spark_read [--rows 1k 64] [--rounds 5] [--scale 0.1] [--write]

One name server, one broker and one Spark session on `local[2]` share the same cores. A topic of 8
queues is filled. Then every contender reads all of it, in turn. A round is one read by each, and
ratios are those within a round. All columns are read, and Spark discards the rows
(`format("noop")`). A first round that does not count warms up JVM, workers and page cache.

    arrow      spark.read.format("rocketmq"): record batches
    tuples     the same reader and pulls, but a Python tuple per message (`spark_tuples`)
    consumer   no Spark: one PullConsumer, polled until it has seen every message
    parquet    Spark's own scan of the same rows in uncompressed Parquet files
    prebuilt   no reading: Spark gets the same batch again and again (`spark_prebuilt`)
    tuned      as arrow, from a broker with higher limits of messages per answer

Each must read as many rows as there are messages, or the run fails. Without `--write` the figures
are only printed.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from rmqkit import Message
from rmqkit.api import Admin, Producer, PullConsumer
from tests.bench import figures as kept
from tests.bench.against_apache import DOCS, FIGURES, PAGE, machine
from tests.bench.brokers import Running, ours

KEPT = DOCS / "performance" / "spark.json"
SECTION = DOCS / "performance" / "spark.md"
QUEUES = 8
BATCH = 128
#: broker settings that an operator would choose for a cluster that feeds a lake
TUNED = {"maxTransferCountOnMessageInMemory": "1024", "maxTransferBytesOnMessageInMemory": str(2 * 1024 * 1024)}
BASE = "arrow"
CONTENDERS = (BASE, "tuples", "consumer", "parquet", "prebuilt", "tuned")
#: contender -> the goal for arrow's rate divided by this contender's
GOALS = {"tuples": 1.5, "parquet": 0.6}


class Row(NamedTuple):
    title: str
    body_size: int
    messages: int


ROWS = {"1k": Row("1 KiB", 1024, 600_000), "64": Row("64 B", 64, 1_200_000)}
TITLES = {
    "arrow": "`rocketmq`, Arrow batches",
    "tuples": "*tuples*: one tuple per message",
    "consumer": "`PullConsumer` loop, no Spark",
    "parquet": "*Parquet*, uncompressed",
    "prebuilt": "*prebuilt* batches, nothing is read",
    "tuned": "`rocketmq`, *tuned* broker",
}


class Bench(NamedTuple):
    """The cluster, topic and data that the contenders of one row read."""

    spark: Any
    plain: Running
    tuned: Running
    topic: str
    messages: int
    parquet: str


def fill(running: Running, topic: str, row: Row, messages: int) -> None:
    """Send messages like an application's: with a key, a tag and an incompressible body."""
    body = os.urandom(row.body_size)
    with Admin(namesrv=running.namesrv) as admin, Producer("bench", namesrv=running.namesrv) as producer:
        admin.create_topic(topic, queue_nums=QUEUES)
        queues = producer.queues(topic)
        sent = []
        for number, begin in enumerate(range(0, messages, BATCH)):
            batch = [
                Message(topic, body, keys=f"order-{at}", tags="paid", properties={"region": "north"})
                for at in range(begin, min(begin + BATCH, messages))
            ]
            sent.append(producer.send_batch_async(batch, queue=queues[number % QUEUES]))
            if len(sent) > 64:
                sent.pop(0).result(60)
        for each in sent:
            each.result(60)


def rocketmq(bench: Bench, running: Running, name: str = "rocketmq") -> Any:
    return (
        bench.spark.read.format(name)
        .option("namesrv", running.namesrv)
        .option("subscribe", bench.topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
    )


def drain(frame: Any) -> int:
    """Make Spark produce and discard every row; return their number."""
    observed = _observation()
    frame.observe(observed, _count()).write.format("noop").mode("overwrite").save()
    return int(observed.get["rows"])


def _observation() -> Any:
    from pyspark.sql import Observation

    return Observation()


def _count() -> Any:
    from pyspark.sql import functions

    return functions.count(functions.lit(1)).alias("rows")


def poll_all(bench: Bench) -> int:
    seen = 0
    with PullConsumer(namesrv=bench.plain.namesrv) as consumer:
        queues = consumer.queues(bench.topic)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek(queue, 0)
        while seen < bench.messages:
            messages = consumer.poll(timeout_ms=10_000)
            if not messages:
                break
            seen += sum(1 for message in messages if message.body)
    return seen


READS: Mapping[str, Callable[[Bench], int]] = {
    "arrow": lambda bench: drain(rocketmq(bench, bench.plain)),
    "tuples": lambda bench: drain(rocketmq(bench, bench.plain, "rocketmq-tuples")),
    "consumer": poll_all,
    "parquet": lambda bench: drain(bench.spark.read.parquet(bench.parquet)),
    "prebuilt": lambda bench: drain(rocketmq(bench, bench.plain, "rocketmq-prebuilt")),
    "tuned": lambda bench: drain(rocketmq(bench, bench.tuned)),
}


def timed(name: str, bench: Bench) -> dict[str, float]:
    """Time one read; return rows per second, and µs of CPU per row of broker and readers."""
    broker = bench.tuned if name == "tuned" else bench.plain
    cpu_s, python_s, jvm_s, began_s = broker.cpu_s(), *_own_cpu_s(), time.monotonic()
    rows = READS[name](bench)
    took_s = time.monotonic() - began_s
    if rows != bench.messages:
        raise RuntimeError(f"{name} read {rows} rows of {bench.messages}")
    return {
        "perSecond": rows / took_s,
        "brokerMicros": (broker.cpu_s() - cpu_s) * 1e6 / rows,
        "pythonMicros": (_own_cpu_s()[0] - python_s) * 1e6 / rows,
        "jvmMicros": (_own_cpu_s()[1] - jvm_s) * 1e6 / rows,
    }


def _own_cpu_s() -> tuple[float, float]:
    """Return CPU seconds of this process with Spark's workers, and of the JVM; no cluster nodes."""
    python_s = jvm_s = 0.0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            words = process.cmdline()
            if "rmqkit.process" in words:
                continue
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        if words and words[0].endswith("java"):
            jvm_s += times.user + times.system
        else:
            python_s += times.user + times.system
    return python_s, jvm_s


@contextmanager
def session(folder: str) -> Iterator[Any]:
    from rmqkit.spark import session as make
    from tests.bench.spark_prebuilt import PrebuiltSource
    from tests.bench.spark_tuples import TupleSource

    root = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    spark = make("bench", master="local[2]", conf={"spark.driver.memory": "2g", "spark.local.dir": folder})
    try:
        spark.dataSource.register(TupleSource)
        spark.dataSource.register(PrebuiltSource)
        yield spark
    finally:
        spark.stop()


def measure(chosen: argparse.Namespace) -> dict[str, list[dict[str, dict[str, float]]]]:
    """Measure and return row -> rounds -> contender -> figures."""
    known: dict[str, list[dict[str, dict[str, float]]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        ours({}) as plain,
        ours(TUNED) as tuned,
        session(folder) as spark,
    ):
        for name in chosen.rows:
            messages = max(QUEUES, int(ROWS[name].messages * chosen.scale))
            bench = Bench(spark, plain, tuned, f"bench-{name}", messages, f"{folder}/{name}.parquet")
            for running in (plain, tuned):
                fill(running, bench.topic, ROWS[name], messages)
            rocketmq(bench, plain).write.option("compression", "uncompressed").parquet(bench.parquet)
            known[name] = []
            for number in range(chosen.rounds + 1):
                order = chosen.contenders if number % 2 == 0 else chosen.contenders[::-1]
                figures = {contender: timed(contender, bench) for contender in order}
                told = ", ".join(f"{each} {figures[each]['perSecond']:,.0f}" for each in chosen.contenders)
                print(f"{name} {'warm-up' if not number else f'round {number}'}: {told}", file=sys.stderr)
                if number:
                    known[name].append(figures)
    return known


_TEXT = """# Spark: reading a topic

The table compares rmqkit's Spark source with other ways to read the same rows. It is for engineers
who size a Spark job that reads topics.

{table}

{machine}

`make bench-spark` runs one broker and one Spark session (`local[2]`) on the same cores. The topics
have {queues} queues. Each message has a key, a tag and a property. Every reader selects all columns and
writes to `format("noop")`. The readers take turns, and each reads every message once per round.

The figures are medians of {rounds} rounds, after one that does not count. "Arrow / this" is the Arrow
reader's rate divided by the rate of this reader in the same round, with the smallest and the
largest. MB counts message bodies. CPU is µs per row: of the broker, of Python (Spark's workers, or
the consumer's process) and of the JVM.

- *Tuples* is the same reader with the same pulls. It passes one Python tuple per message to Spark.
- *Parquet* is Spark's own scan of the same rows and columns, without broker and Python.
- *Prebuilt* is a Python source that reads nothing. It passes the same Arrow batch to Spark again
  and again. It shows what Spark itself needs for rows from Python, and no source can be faster.
- *Tuned* is a broker with {tuned}.
  By default a reply holds 32 messages or 256 KiB.

{distance}
"""


def line(name: str, contender: str, rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> str:
    row = ROWS[name]
    rate = _median(rounds, contender, "perSecond")
    found = [each[BASE]["perSecond"] / each[contender]["perSecond"] for each in rounds]
    goal = GOALS.get(contender)
    ratio = "–" if contender == BASE else f"{statistics.median(found):.2f} [{min(found):.2f}–{max(found):.2f}]"
    reached = "–" if goal is None else "yes" if statistics.median(found) >= goal else "**no**"
    cpu = " / ".join(f"{_median(rounds, contender, value):.1f}" for value in ("brokerMicros", "pythonMicros", "jvmMicros"))
    wanted = f"≥ {goal:g}" if goal is not None else "–"
    megabytes = rate * row.body_size / 1e6
    return (
        f"| {row.title} | {TITLES[contender]} | {rate:,.0f} | {megabytes:,.0f} | {ratio} | {wanted} | {reached} | {cpu} |"
    )


def _median(rounds: Sequence[Mapping[str, Mapping[str, float]]], contender: str, value: str) -> float:
    return statistics.median(each[contender][value] for each in rounds)


def table(known: Mapping[str, Sequence[Mapping[str, Mapping[str, float]]]]) -> str:
    lines = [
        "| body | read by | rows/s | MB/s | Arrow / this | goal | reached | CPU broker / Python / JVM |",
        "|---|---|---:|---:|---:|---:|---|---:|",
    ]
    for name, rounds in known.items():
        lines += [line(name, contender, rounds) for contender in CONTENDERS if contender in rounds[0]]
    return "\n".join(lines)


def section(figures: Mapping[str, Any]) -> str:
    """Return the section of the page."""
    return _TEXT.format(
        table=table(figures["rows"]),
        machine=kept.wrapped(f"{figures['machine']} {figures['at'][:10]}."),
        queues=QUEUES,
        rounds=max(len(rounds) for rounds in figures["rows"].values()),
        tuned="\n  and ".join(f"`{key}={value}`" for key, value in TUNED.items()),
        distance=distance(figures["rows"]),
    )


def distance(known: Mapping[str, Sequence[Mapping[str, Mapping[str, float]]]]) -> str:
    """Say how far any Python source stays behind Parquet, and how far ours is behind that limit."""
    told = []
    for name, rounds in known.items():
        if not {"parquet", "prebuilt"} <= rounds[0].keys():
            continue
        bound, reached = (
            statistics.median(each[upper]["perSecond"] / each[lower]["perSecond"] for each in rounds)
            for upper, lower in (("prebuilt", "parquet"), (BASE, "prebuilt"))
        )
        told.append(
            f"- {ROWS[name].title}: *prebuilt* has {bound:.2f} of Parquet's rate,"
            f" and the Arrow reader {reached:.2f} of *prebuilt*'s."
        )
    if told:
        told.append("\nThe distance to *prebuilt* comes from a broker and a reader that share the cores with Spark.")
    return "\n".join(told)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-spark", description="How fast Spark reads a topic.")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the messages, for a trial (1)")
    parser.add_argument("--write", action="store_true", help="store the figures and regenerate the page")
    chosen = parser.parse_args(arguments)
    known = measure(chosen)
    if chosen.write:
        figures = {"machine": machine(), "at": kept.now(), "rows": known}
        kept.save(KEPT, figures)
        SECTION.write_text(section(figures))
        PAGE.write_text(kept.render(kept.load(FIGURES), FIGURES.parent))
    print(table(known))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
