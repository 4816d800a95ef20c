"""Broker processes of any checkout, and senders over raw sockets, for benches of two checkouts.

`compare` measures the checkouts in turns, and prints the medians and ratios. The order changes from
pair to pair, so a machine that becomes slower or faster favours neither.
"""

import os
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from tests.bench.alternating import HERE
from tests.bench.inprocess import send_frame
from tests.hostile.process import Node

FRAMES = 8192
QUEUES = 8
BODY = b"x" * 1024


class Broker:
    """A broker process that runs the code of `checkout`."""

    def __init__(self, checkout: Path, folder: Path, settings: Sequence[str]) -> None:
        self._lifeline, write_end = os.pipe()
        folder.mkdir(exist_ok=True)
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
        try:
            self.node = Node(self._process, log)
        except BaseException:
            self._end_process()
            raise

    def cpu_s(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def end(self) -> None:
        self.node.close_sockets()
        self._end_process()

    def _end_process(self) -> None:
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
        self._is_ending = False
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
                if not self._is_ending:
                    self._send(sock, count)
        return self.answered - before

    def finish(self) -> None:
        """Wait for the messages in flight; no more are sent."""
        self._is_ending = True
        while self.answered < self._sent:
            self.run(0.01)

    def _send(self, sock: socket.socket, count: int) -> None:
        chosen = [self._frames[(self._sent + each) % FRAMES] for each in range(count)]
        self._sent += count
        for part in [b"".join(chosen)] if self._burst else chosen:
            sock.sendall(part)


def compare(measure: Callable[[Path], tuple[float, ...]], names: Sequence[str], other: Path | None, pairs: int) -> None:
    """Print the figures of both checkouts, run by run, and the ratios of each figure."""
    sides = [HERE] if other is None else [HERE, other.resolve()]
    found: dict[Path, list[tuple[float, ...]]] = {side: [] for side in sides}
    for number in range(pairs):
        for side in sides if number % 2 == 0 else reversed(sides):
            found[side].append(measure(side))
            print(side.name, *(f"{value:,.1f}" for value in found[side][-1]), flush=True)
    for number, name in enumerate(names):
        ours, *rest = [[each[number] for each in found[side]] for side in sides]
        text = f"{name}: {statistics.median(ours):,.1f}"
        for theirs in rest:
            ratios = [one / another for one, another in zip(ours, theirs, strict=True)]
            text += f" and {statistics.median(theirs):,.1f} in the other checkout; ratio"
            text += f" {statistics.median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}]"
        print(text)
