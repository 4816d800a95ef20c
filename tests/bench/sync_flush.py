"""Compares SYNC_FLUSH of two checkouts: messages per second, and the broker's CPU per message.

    python -m tests.bench.sync_flush [--against CHECKOUT] [--senders 64] [--connections 1]
                                     [--seconds 3] [--pairs 5] [--set KEY=VALUE ...]

A measurement is a broker process of one checkout with `flushDiskType=SYNC_FLUSH` on real files.
The load is raw frames over real sockets, from this process. `--senders` messages of 1 KiB are in
flight, and each reply lets the next message go. Each message is one `send` call, as from threads
that share a Java client. With `--burst` all messages that a read lets go are one call.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.bench.checkouts import Broker, Senders, compare

SETTINGS = ("flushDiskType=SYNC_FLUSH", "brokerRole=ASYNC_MASTER", "mappedFileSizeCommitLog=1073741824")
LEAD_S = 1.0


def measure(chosen: argparse.Namespace, checkout: Path) -> tuple[float, float]:
    """Return messages per second, and the broker's CPU time per message in µs."""
    with tempfile.TemporaryDirectory(prefix="sync-flush-") as folder:
        broker = Broker(checkout, Path(folder), (*SETTINGS, *chosen.set))
        try:
            senders = Senders(broker.node, chosen.senders, chosen.connections, chosen.burst)
            senders.run(LEAD_S)
            began_s, cpu_s = time.monotonic(), broker.cpu_s()
            count = senders.run(chosen.seconds)
            return count / (time.monotonic() - began_s), (broker.cpu_s() - cpu_s) * 1e6 / count
        finally:
            broker.end()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.sync_flush", description="SYNC_FLUSH of two checkouts.")
    parser.add_argument("--against", type=Path, help="the other checkout; without it only this one is measured")
    parser.add_argument("--senders", type=int, default=64)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--burst", action="store_true", help="send all messages that a read lets go in one call")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured seconds of each run (3)")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the broker")
    chosen = parser.parse_args(arguments)
    names = ("messages per second", "CPU of the broker, µs per message")
    compare(partial(measure, chosen), names, chosen.against, chosen.pairs)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
