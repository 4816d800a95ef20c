"""Measures send rates with Apache's own benchmark producer against any name server.

    python -m tests.bench.java_producer --namesrv 127.0.0.1:9876 --threads 1 8 64

`org.apache.rocketmq.example.benchmark.Producer` of rocketmq-example sends messages of one size from
a number of threads. Each thread waits for its answer before it sends the next message. The producer
samples its counters every second, and every `-ri` ms reports the mean rate of the last nine
seconds. The reports of the warm-up are discarded, and the figure is the median of the rest.

The producer uses the binary header (it sets `rocketmq.serialize.type=ROCKETMQ` itself). Its topic
`BenchmarkTest` has 1,024 queues on an Apache broker. Other topics are created by their first send.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.interop import apache

MAIN = "org.apache.rocketmq.example.benchmark.Producer"
# The producer keeps ten samples of one second, so its first non-empty report covers seconds 1 to
# 10.
WINDOW_S = 10
_REPORT = re.compile(
    r"Send TPS: (?P<tps>\d+) \| Max RT\(ms\): (?P<rt_max>\d+) \| Average RT\(ms\):\s+(?P<rt>[\d.]+|NaN)"
    r" \| Send Failed: (?P<failed>\d+) \| Response Failed: (?P<refused>\d+)"
)


class Report(NamedTuple):
    """One report of the producer: messages per second, response times, failures so far."""

    tps: int
    rt_mean_ms: float
    rt_max_ms: int
    failed: int


class Figure(NamedTuple):
    """The result of one run. `rates` are those of the counted reports, in messages per second."""

    threads: int
    size: int
    msg_per_s: float
    rates: list[int]
    rt_mean_ms: float
    failed: int


def parse_report(line: str) -> Report | None:
    """Return the report in a line of the producer's output, None for any other line."""
    found = _REPORT.search(line)
    if found is None or "[Complete]" in line or found["rt"] == "NaN":
        return None
    return Report(int(found["tps"]), float(found["rt"]), int(found["rt_max"]), int(found["failed"]) + int(found["refused"]))


def reports(
    namesrv: str,
    threads: int,
    *,
    size: int = 1024,
    topic: str = "BenchmarkTest",
    interval_ms: int = 5_000,
    heap_mb: int = 512,
) -> Iterator[Report]:
    """Run the producer and yield its reports; it is stopped when the caller stops iterating."""
    args = ["-n", namesrv, "-w", str(threads), "-s", str(size), "-t", topic, "-ri", str(interval_ms)]
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        process = apache.start_java(MAIN, args, home=Path(home), heap_mb=heap_mb, small=False)
        last = ""
        try:
            for line in process.stdout or ():
                last = line.strip() or last
                report = parse_report(line)
                if report is not None:
                    yield report
        finally:
            apache.end(process, clean=False)
        raise apache.ApacheError(f"the benchmark producer ended: {last}")


def measure(
    namesrv: str,
    threads: int,
    *,
    size: int = 1024,
    topic: str = "BenchmarkTest",
    warm_s: float = 10.0,
    seconds: float = 20.0,
) -> Figure:
    """Return the median rate over `seconds`, after a warm-up of `warm_s`.

    Raises ApacheError if all sends fail.
    """
    counted: list[Report] = []
    start_s = time.monotonic()
    # A report covers the last ten seconds. Reports that cover part of the warm-up do not count.
    first_s = start_s + warm_s + WINDOW_S
    for report in reports(namesrv, threads, size=size, topic=topic):
        now_s = time.monotonic()
        if now_s >= first_s:
            counted.append(report)
        if counted and now_s >= start_s + warm_s + seconds:
            break
    if not any(report.tps for report in counted):
        raise apache.ApacheError(f"nothing was sent with {threads} threads; {counted[-1].failed} sends failed")
    return Figure(
        threads=threads,
        size=size,
        msg_per_s=statistics.median(report.tps for report in counted),
        rates=[report.tps for report in counted],
        rt_mean_ms=statistics.median(report.rt_mean_ms for report in counted),
        failed=counted[-1].failed,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Send rates of Apache's benchmark producer.")
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--size", type=int, default=1024, help="bytes of a message body")
    parser.add_argument("--topic", default="BenchmarkTest")
    parser.add_argument("--warm", type=float, default=10.0, help="warm-up seconds (10)")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured seconds (20)")
    chosen = parser.parse_args(arguments)
    for threads in chosen.threads:
        figure = measure(
            chosen.namesrv, threads, size=chosen.size, topic=chosen.topic, warm_s=chosen.warm, seconds=chosen.seconds
        )
        print(json.dumps(figure._asdict()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
