"""Measures how much 1,000 hostile sockets slow down a good client.

    python -m tests.bench.hostile [--pairs N] [--write]

There is one broker process. One good client sends 1 KiB messages one after another, at a steady
pace. It does so alone (calm) and alternately while another process holds 1,000 sockets open on the
same broker:

- 600 are silent,
- 300 send a byte of an endless frame every second,
- 100 have requested more answers than they read.

The figure is the ratio of the good client's 99th percentile, hostile to calm, pair by pair. The
goal is at most 1.5. `--write` writes `docs/performance/hostile.md`.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.helpers.script import write_command
from tests.hostile.good import pull_from
from tests.hostile.process import Good, Node, running

SILENT, DRIPPING, LAZY = 600, 300, 100
SENDS = 1000
PACE_S = 0.0005
WANTED = 1.5
PAGE = Path(__file__).parents[2] / "docs" / "performance" / "hostile.md"


def hold(port: int) -> None:
    """Run the hostile process: open the sockets, report that, and continue until stdin ends."""
    import select
    import socket

    def connect(read_buffer: int = 0) -> socket.socket:
        sock = socket.socket()
        if read_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_buffer)
        sock.connect(("127.0.0.1", port))
        return sock

    silent = [connect() for _ in range(SILENT)]
    dripping = [connect() for _ in range(DRIPPING)]
    frame = (1_000_000).to_bytes(4, "big") + b"\x00\x00\x10\x00"
    for sock in dripping:
        sock.sendall(frame)
    lazy = [connect(8192) for _ in range(LAZY)]
    for sock in lazy:
        sock.sendall(b"".join(write_command(11, pull_from("0"), opaque=each) for each in range(20)))
    print("ready", len(silent) + len(dripping) + len(lazy), flush=True)
    while not select.select([sys.stdin], [], [], 1.0)[0]:
        for sock in dripping:
            sock.sendall(b"{")


class Hostile:
    """The hostile process, which `module` runs with `--hold PORT`."""

    module = "tests.bench.hostile"

    def __init__(self, node: Node) -> None:
        command = [sys.executable, "-m", self.module, "--hold", str(node.port)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"ready")

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


def measured(good: Good) -> tuple[float, float]:
    """Return (p50, p99) of the latency of sends in µs."""
    took_us = []
    next_s = time.perf_counter()
    for _ in range(SENDS):
        next_s = max(next_s + PACE_S, time.perf_counter())
        while time.perf_counter() < next_s:
            pass
        began_s = time.perf_counter()
        good.send()
        took_us.append((time.perf_counter() - began_s) * 1e6)
    took_us.sort()
    return took_us[len(took_us) // 2], took_us[len(took_us) * 99 // 100]


def run(pairs: int) -> tuple[list[tuple[float, float, float, float]], int]:
    """Return rows of (calm p50, calm p99, hostile p50, hostile p99) in µs, and the memory growth.

    The growth is that of the broker's private memory, in bytes.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as node:
        good = Good(node)
        for _ in range(32):
            good.send(b"y" * 8000)
        measured(good)
        before = node.private_bytes()
        grown = 0
        for _ in range(pairs):
            calm = measured(good)
            hostile = Hostile(node)
            measured_now = measured(good)
            grown = max(grown, node.private_bytes() - before)
            hostile.end()
            rows.append((*calm, *measured_now))
            time.sleep(0.2)
    return rows, grown


def page(rows: list[tuple[float, float, float, float]], grown: int) -> str:
    ratios = [hostile / calm for _, calm, _, hostile in rows]
    sockets = SILENT + DRIPPING + LAZY
    machine = f"{platform.system()}, {os.cpu_count()} cores shared by all of them, Python {platform.python_version()}"
    spread = f"{min(ratios):.2f}–{max(ratios):.2f}"
    lines = [
        "# Hostile peers",
        "",
        f"The table shows how much {sockets:,} hostile sockets slow a well-behaved client down. It is for",
        "operators whose brokers can be reached by clients that they do not control.",
        "",
        "`python -m tests.bench.hostile --write` generates this text. It runs one broker process. One",
        f"client sends 1 KiB messages one after the other, {SENDS} per round. Rounds alternate between calm",
        "and hostile. In a hostile round another process holds these sockets:",
        "",
        f"- {SILENT} send nothing.",
        f"- {DRIPPING} send one byte of an endless frame every second.",
        f"- {LAZY} have asked for 20 pulls of 256 KiB each and read nothing.",
        "",
        f"{machine}.",
        "",
        "| pair | calm p50 µs | calm p99 µs | hostile p50 µs | hostile p99 µs | p99 ratio |",
        "|---|---|---|---|---|---|",
    ]
    for number, (calm50, calm99, hostile50, hostile99) in enumerate(rows, 1):
        ratio = hostile99 / calm99
        lines.append(f"| {number} | {calm50:.0f} | {calm99:.0f} | {hostile50:.0f} | {hostile99:.0f} | {ratio:.2f} |")
    lines += [
        "",
        f"The median of the p99 ratios is {statistics.median(ratios):.2f} ({spread}). The goal is at most {WANTED}. The",
        f"broker's private memory grew by {grown / 1048576:.1f} MiB at most.",
        "",
        "[Operations](../operations.md) lists the limits that hold such peers, and what happens at each",
        "limit. The tests in `tests/hostile` exceed them one by one.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hostile")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write docs/performance/hostile.md")
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.hold:
        hold(told.hold)
        return 0
    rows, grown = run(told.pairs)
    text = page(rows, grown)
    print(text)
    if told.write:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text)
    return 0 if statistics.median(hostile / calm for _, calm, _, hostile in rows) <= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
