"""Compares SYNC_FLUSH of two checkouts: messages per second, and the broker's CPU per message.

    python -m tests.bench.sync_flush [--against CHECKOUT] [--senders 64] [--connections 1]
                                     [--seconds 3] [--pairs 5] [--set KEY=VALUE ...]

A measurement is a broker process of one checkout with `flushDiskType=SYNC_FLUSH` on real files.
The load is raw frames over real sockets, from this process. `--senders` messages of 1 KiB are in
flight, and each reply lets the next message go. Each message is one `send` call, as from threads
that share a Java client. With `--burst` all messages that a read lets go are one call.

The checkouts take turns, and their order alternates from pair to pair. So a machine that becomes
slower or faster favours neither.
"""

import argparse
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.bench.alternating import HERE
from tests.bench.inprocess import send_frame
from tests.hostile.process import Node

SETTINGS = ("flushDiskType=SYNC_FLUSH", "brokerRole=ASYNC_MASTER", "mappedFileSizeCommitLog=1073741824")
LEAD_S = 1.0
FRAMES = 8192
QUEUES = 8
BODY = b"x" * 1024


class Figure(NamedTuple):
    """Messages per second, and CPU time of the broker in µs per message."""

    per_second: float
    cpu_us: float


class Broker:
    """A broker process that runs the code of `checkout`."""

    def __init__(self, checkout: Path, folder: Path, settings: Sequence[str]) -> None:
        self._lifeline, write_end = os.pipe()
        command = [sys.executable, "-m", "rmqkit.process", "--lifeline", str(self._lifeline), "--log-format", "json"]
        own = ("listenPort=0", "bindAddress=127.0.0.1", "brokerIP1=127.0.0.1", f"storePathRootDir={folder}/store")
        for setting in (*own, "brokerName=broker-a", *settings):
            command += ["--set", setting]
        # PYTHONPATH takes precedence over the installed package, which is one of the two checkouts.
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        log = folder / "log"
        with open(log, "wb") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, pass_fds=[self._lifeline], cwd=folder, env=environment
            )
        os.close(self._lifeline)
        self._write_end = write_end
        self.node = Node(self._process, log)

    def cpu_s(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def end(self) -> None:
        self.node.close_sockets()
        self._process.kill()
        self._process.wait()
        os.close(self._write_end)


class Senders:
    """Closed-loop senders on shared connections."""

    def __init__(self, node: Node, senders: int, connections: int, burst: bool) -> None:
        self.answered = 0
        self._burst = burst
        self._frames = [send_frame(number, BODY, queue_id=number % QUEUES) for number in range(FRAMES)]
        self._sent = 0
        self._selector = selectors.DefaultSelector()
        self._rest: dict[socket.socket, bytes] = {}
        for number in range(connections):
            sock = node.connect()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(sock, selectors.EVENT_READ)
            self._rest[sock] = b""
            self._send(sock, senders // connections + (number < senders % connections))

    def run(self, seconds: float) -> int:
        """Send for this long. Return the number of messages answered."""
        before, until_s = self.answered, time.monotonic() + seconds
        while time.monotonic() < until_s:
            for key, _ in self._selector.select(1.0):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                data = self._rest[sock] + sock.recv(65_536)
                at = count = 0
                while at + 4 <= len(data):
                    size = int.from_bytes(data[at : at + 4], "big") + 4
                    if at + size > len(data):
                        break
                    # The response code is in the first bytes of a binary header.
                    assert data[at + 8 : at + 10] == b"\0\0", data[at : at + size]
                    at += size
                    count += 1
                self._rest[sock] = data[at:]
                self.answered += count
                self._send(sock, count)
        return self.answered - before

    def _send(self, sock: socket.socket, count: int) -> None:
        chosen = [self._frames[(self._sent + each) % FRAMES] for each in range(count)]
        self._sent += count
        for part in [b"".join(chosen)] if self._burst else chosen:
            sock.sendall(part)


def measure(checkout: Path, chosen: argparse.Namespace) -> Figure:
    with tempfile.TemporaryDirectory(prefix="sync-flush-") as folder:
        broker = Broker(checkout, Path(folder), (*SETTINGS, *chosen.set))
        try:
            senders = Senders(broker.node, chosen.senders, chosen.connections, chosen.burst)
            senders.run(LEAD_S)
            began_s, cpu_s = time.monotonic(), broker.cpu_s()
            count = senders.run(chosen.seconds)
            return Figure(count / (time.monotonic() - began_s), (broker.cpu_s() - cpu_s) * 1e6 / count)
        finally:
            broker.end()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.sync_flush", description="SYNC_FLUSH of two checkouts.")
    parser.add_argument("--against", type=Path, help="the other checkout; without it only this one is measured")
    parser.add_argument("--senders", type=int, default=64)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--burst", action="store_true", help="send the next messages of one read in one call")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured seconds of each run (3)")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the broker")
    chosen = parser.parse_args(arguments)
    sides = [HERE] if chosen.against is None else [HERE, chosen.against.resolve()]
    found: dict[Path, list[Figure]] = {side: [] for side in sides}
    for number in range(chosen.pairs):
        for side in sides if number % 2 == 0 else reversed(sides):
            found[side].append(measure(side, chosen))
            print(side.name, *(f"{value:,.1f}" for value in found[side][-1]), flush=True)
    for side in sides:
        rate, cpu_us = (statistics.median(each) for each in zip(*found[side], strict=True))
        print(f"{side.name}: {rate:,.0f} messages per second, {cpu_us:.1f} µs of CPU per message")
    if len(sides) == 2:
        ours, theirs = found[sides[0]], found[sides[1]]
        for number, name in enumerate(Figure._fields):
            ratios = [one[number] / other[number] for one, other in zip(ours, theirs, strict=True)]
            print(f"{name}: {statistics.median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}] of the other checkout")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
