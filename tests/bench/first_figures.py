"""Measures send rates, start-up time and memory; compares with a bare loop and Apache's broker.

    python -m tests.bench.first_figures [--apache] [--rounds 3] [--json FILE] [--markdown FILE]

Each round starts the candidates one after another, in alternating order. It measures a candidate
with 1, 8 and 64 threads of Apache's benchmark producer (1 KiB) and stops it, so that nothing else
runs meanwhile. A rate is the median of the rounds. Only candidates of the same run are compared.

For our cluster each round also measures the time from `rmqkit cluster up` to the first acknowledged
send, and the private memory (USS) of every node before and after the load.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.bench import java_producer
from tests.bench.brokers import run_rmqkit, send_first
from tests.interop import apache

THREADS = (1, 8, 64)
SIZE = 1024
TOPIC = "BenchmarkTest"


class Running(NamedTuple):
    """A candidate that runs and answers requests.

    `pids` maps node name -> process id. `first_ack_s` is known for our cluster only.
    """

    namesrv: str
    pids: dict[str, int]
    first_ack_s: float | None = None


@dataclass
class Results:
    """The results of all rounds, by candidate."""

    rates: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    first_ack_s: list[float] = field(default_factory=list)
    memory_idle_mb: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    memory_loaded_mb: dict[str, dict[str, list[float]]] = field(default_factory=dict)


@contextmanager
def our_cluster() -> Iterator[Running]:
    """Run `rmqkit cluster up` in a temporary home, as a user's shell would."""
    with tempfile.TemporaryDirectory(prefix="figures-") as home:
        start_s = time.monotonic()
        up = run_rmqkit(home, "cluster", "up", "--any-port", "--json")
        try:
            if up.returncode:
                raise apache.ApacheError(f"cluster up failed ({up.returncode}): {up.stderr.strip()[-500:]}")
            told = json.loads(up.stdout)
            master = next(n for n in told["nodes"] if n["kind"] == "broker" and n["broker_id"] == 0)
            send_first(told["namesrv"], master["address"])
            took_s = time.monotonic() - start_s
            yield Running(told["namesrv"], {node["node"]: node["pid"] for node in told["nodes"]}, took_s)
        finally:
            run_rmqkit(home, "cluster", "down", "--purge")


@contextmanager
def bare_loop() -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.bare_loop"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        namesrv = process.stdout.readline().strip() if process.stdout else ""
        if not namesrv:
            raise apache.ApacheError("the bare loop did not start")
        yield Running(namesrv, {"loop": process.pid})
    finally:
        apache.end(process, clean=False)


@contextmanager
def apache_cluster() -> Iterator[Running]:
    """Run Apache's cluster with default file sizes and a heap that is more than large enough."""
    files = {"mappedFileSizeCommitLog": str(1 << 30), "mappedFileSizeConsumeQueue": str(300_000 * 20)}
    with apache.ApacheCluster(broker_properties=files, heap_mb=2048, small=False) as cluster:
        pids = {"nameserver": cluster.nameserver, "broker": cluster.broker}
        yield Running(cluster.namesrv, {node: process.pid for node, process in pids.items() if process})


CANDIDATES: dict[str, Callable[[], AbstractContextManager[Running]]] = {
    "rmqkit": our_cluster,
    "bare loop": bare_loop,
    "apache": apache_cluster,
}


def private_mb(pids: dict[str, int]) -> dict[str, float]:
    """Return the USS of each process in MB (10^6 bytes)."""
    return {node: psutil.Process(pid).memory_full_info().uss / 1e6 for node, pid in pids.items()}


def measure_round(name: str, results: Results, *, threads: tuple[int, ...], warm_s: float, seconds: float) -> None:
    with CANDIDATES[name]() as running:
        if running.first_ack_s is not None:
            results.first_ack_s.append(running.first_ack_s)
        _note(results.memory_idle_mb, name, private_mb(running.pids))
        for count in threads:
            figure = java_producer.measure(running.namesrv, count, size=SIZE, topic=TOPIC, warm_s=warm_s, seconds=seconds)
            results.rates.setdefault(name, {}).setdefault(count, []).append(figure.msg_per_s)
            results.failed[name] = results.failed.get(name, 0) + figure.failed
            print(f"{name}: {count} threads {figure.msg_per_s:,.0f} a second", file=sys.stderr, flush=True)
        _note(results.memory_loaded_mb, name, private_mb(running.pids))


def _note(table: dict[str, dict[str, list[float]]], name: str, memory: dict[str, float]) -> None:
    for node, megabytes in memory.items():
        table.setdefault(name, {}).setdefault(node, []).append(megabytes)


def as_json(results: Results) -> dict[str, Any]:
    """Return the medians and the values of the single rounds."""
    return {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
        "size": SIZE,
        "send_per_s": {
            name: {str(count): {"median": statistics.median(rates), "rounds": rates} for count, rates in by_count.items()}
            for name, by_count in results.rates.items()
        },
        "sends_failed": results.failed,
        "up_to_first_ack_s": _medians({"all": results.first_ack_s})["all"] if results.first_ack_s else None,
        "private_mb_idle": {name: _medians(nodes) for name, nodes in results.memory_idle_mb.items()},
        "private_mb_loaded": {name: _medians(nodes) for name, nodes in results.memory_loaded_mb.items()},
    }


def _medians(rows: dict[str, list[float]]) -> dict[str, Any]:
    return {key: {"median": round(statistics.median(row), 3), "rounds": row} for key, row in rows.items()}


def as_markdown(figures: dict[str, Any]) -> str:
    """Return the table for the README, one row per candidate."""
    rates = figures["send_per_s"]
    counts = list(next(iter(rates.values())))
    machine = figures["machine"]
    lines = [
        f"Messages a second, {figures['size']:,} bytes, Apache's benchmark producer, {machine['cores']} cores,"
        f" Python {machine['python']}:",
        "",
        "| broker | " + " | ".join(f"{count} thread{'s' if count != '1' else ''}" for count in counts) + " | private MB |",
        "|---|" + "---:|" * (len(counts) + 1),
    ]
    for name, by_count in rates.items():
        memory = sum(node["median"] for node in figures["private_mb_idle"][name].values())
        cells = " | ".join(f"{by_count[count]['median']:,.0f}" for count in counts)
        lines.append(f"| {name} | {cells} | {memory:,.0f} |")
    if figures["up_to_first_ack_s"]:
        lines += [
            "",
            f"`rmqkit cluster up` to the first acknowledged send: {figures['up_to_first_ack_s']['median']:.2f} s.",
        ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--apache", action="store_true", help="measure Apache's broker in the same run")
    parser.add_argument("--only", nargs="+", choices=list(CANDIDATES), help="measure only these candidates, in this order")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, nargs="+", default=list(THREADS))
    parser.add_argument("--warm", type=float, default=10.0, help="warm-up seconds of a measurement (10)")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured seconds (20)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    chosen = parser.parse_args(arguments)
    apache.require_tools()
    names = chosen.only or [name for name in CANDIDATES if chosen.apache or name != "apache"]
    results = Results()
    for number in range(chosen.rounds):
        for name in names if number % 2 == 0 else reversed(names):
            measure_round(name, results, threads=tuple(chosen.threads), warm_s=chosen.warm, seconds=chosen.seconds)
    figures = as_json(results)
    table = as_markdown(figures)
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n")
    if chosen.markdown:
        chosen.markdown.write_text(table)
    print(table, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
