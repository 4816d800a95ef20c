"""Measures how fast Spark ingests a topic: `make bench-lake ARGS="--old CHECKOUT"`.

    python -m tests.bench.lake_write [--old CHECKOUT] [--rounds 5] [--messages 600000] [--write]

One name server and one broker hold a topic of 8 queues with messages of 1 KiB. Each contender is a
process of its own with a Spark session (`local[2]`), and they take turns. A process ingests the
topic twice, each time into an empty folder: the first ingest warms up JVM and workers, the second
one counts.

    delta     `rmqkit.spark.pipelines.ingest` of this checkout: a Delta table
    old       the same function of the checkout `--old`; of revision ae3071a7 it is the table format
              of rmqkit 0.2
    parquet   Spark's own Parquet sink behind the same source: a streaming query without a table

Each must have written as many rows as there are messages, or the run fails.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench import figures as kept
from tests.bench.against_apache import DOCS, machine
from tests.bench.alternating import HERE
from tests.bench.brokers import ours
from tests.bench.spark_read import QUEUES, Row, fill

KEPT = DOCS / "performance" / "lake.json"
SECTION = DOCS / "performance" / "lake.md"
TOPIC = "bench-lake"
BODY_BYTES = 1024
BASE = "delta"
TITLES = {
    "delta": "`pipeline ingest`: a Delta table",
    "old": "`pipeline ingest` of rmqkit 0.2: its own table format",
    "parquet": "Spark's Parquet sink, no table",
}

#: contender → rows per second of each round
Rates = Mapping[str, Sequence[float]]


# --- one contender, in a process of its own


def ingest_once(spark: Any, contender: str, namesrv: str, folder: str) -> int:
    """Ingest the topic into `folder`; return the number of rows written."""
    if contender != "parquet":
        from rmqkit.spark.pipelines.ingest import ingest

        return ingest(spark, TOPIC, folder, namesrv=namesrv).rows
    rows = spark.readStream.format("rocketmq").option("namesrv", namesrv).option("subscribe", TOPIC)
    rows = rows.option("startingOffsets", "earliest").load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.option("path", f"{folder}/rows").trigger(availableNow=True).start()
    query.awaitTermination()
    return int(spark.read.parquet(f"{folder}/rows").count())


def contend(contender: str, namesrv: str, folder: str) -> None:
    """Ingest twice; print the second one's rows and seconds, and the package's folder, as JSON."""
    import rmqkit
    from rmqkit.spark import session

    spark = session("bench", master="local[2]", conf={"spark.driver.memory": "2g", "spark.local.dir": folder})
    try:
        ingest_once(spark, contender, namesrv, f"{folder}/first")
        began_s = time.monotonic()
        rows = ingest_once(spark, contender, namesrv, f"{folder}/second")
        took_s = time.monotonic() - began_s
        print(json.dumps({"rows": rows, "seconds": took_s, "checkout": str(Path(rmqkit.__file__).parents[1])}))
    finally:
        spark.stop()


# --- all of them


def rate(contender: str, checkout: Path, namesrv: str, messages: int) -> float:
    """Return the rows per second of one contender."""
    with tempfile.TemporaryDirectory(prefix="bench-lake-", ignore_cleanup_errors=True) as folder:
        # The old checkout has no such module: this file runs with the package of that checkout.
        command = [sys.executable, __file__, "--contend", contender, "--namesrv", namesrv, "--folder", folder]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(checkout), str(HERE)))}
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(f"{contender} failed:\n{ran.stderr[-2000:]}")
    found = json.loads(ran.stdout.splitlines()[-1])
    if (found["rows"], found["checkout"]) != (messages, str(checkout)):
        raise SystemExit(f"{contender} of {checkout} wrote not {messages} rows, but {found}")
    return float(found["rows"] / found["seconds"])


def measure(checkouts: Mapping[str, Path], messages: int, rounds: int) -> Rates:
    found: dict[str, list[float]] = {contender: [] for contender in checkouts}
    with ours({}) as running:
        fill(running, TOPIC, Row("1 KiB", BODY_BYTES, messages), messages)
        for number in range(rounds):
            for contender in checkouts if number % 2 == 0 else reversed(list(checkouts)):
                found[contender].append(rate(contender, checkouts[contender], running.namesrv, messages))
            told = ", ".join(f"{each} {rates[-1]:,.0f}" for each, rates in found.items())
            print(f"round {number + 1}: {told}", file=sys.stderr)
    return found


_TEXT = """# Spark: writing a lake

The table compares the speed of `rmqkit pipeline ingest` with that of Spark's own Parquet files. It
is for engineers who size an ingest.

{table}

{machine}

`make bench-lake` fills a topic of {queues} queues with {messages:,} messages of 1 KiB. Each contender is a
process with a Spark session (`local[2]`) on the same two cores as the broker. It ingests the topic
twice, and the second ingest counts. The contenders take turns. The figures are medians of {rounds}
rounds. "Delta / this" is the rate of the Delta table divided by the rate of this row in the same
round, with the smallest and the largest. MB counts message bodies.

Spark's Parquet sink writes neither partitions by topic and hour nor statistics of a table, and only
a reader that knows its folder of metadata skips the files of a failed task.
"""


def table(found: Rates) -> str:
    lines = ["| written by | rows/s | MB/s | Delta / this |", "|---|---:|---:|---:|"]
    for contender, rates in found.items():
        median = statistics.median(rates)
        ratios = [ours / other for ours, other in zip(found[BASE], rates, strict=True)]
        ratio = "–" if contender == BASE else f"{statistics.median(ratios):.2f} [{min(ratios):.2f}–{max(ratios):.2f}]"
        lines.append(f"| {TITLES[contender]} | {median:,.0f} | {median * BODY_BYTES / 1e6:,.0f} | {ratio} |")
    return "\n".join(lines)


def section(figures: Mapping[str, Any]) -> str:
    """Return the section of the page."""
    return _TEXT.format(
        table=table(figures["rates"]),
        machine=kept.wrapped(f"{figures['machine']} {figures['at'][:10]}."),
        queues=QUEUES,
        messages=figures["messages"],
        rounds=len(figures["rates"][BASE]),
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-lake", description="How fast Spark ingests a topic.")
    parser.add_argument("--old", type=Path, help="a checkout with another lake, to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=600_000)
    parser.add_argument("--write", action="store_true", help="store the figures and regenerate the section")
    for name in ("--contend", "--namesrv", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.contend:
        contend(chosen.contend, chosen.namesrv, chosen.folder)
        return 0
    checkouts = {BASE: HERE, **({"old": chosen.old.resolve()} if chosen.old else {}), "parquet": HERE}
    found = measure(checkouts, chosen.messages, chosen.rounds)
    if chosen.write:
        kept.save(KEPT, {"machine": machine(), "at": kept.now(), "messages": chosen.messages, "rates": found})
        SECTION.write_text(section(kept.load(KEPT)), encoding="utf-8")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
