"""Measures what TLS costs a broker, and how much half-open handshakes slow a good client down.

    python -m tests.bench.tls [--pairs N] [--write]

Two broker processes run, one in plain text and one enforcing. Rounds alternate between them, and on
the second one between calm and half-open. In a half-open round another process holds 1,000
connections whose handshake is not over:

- 500 have sent nothing,
- 500 have sent a whole ClientHello, which the broker has answered, and nothing since.

The figures are the broker's processor time per message (or connection), and the ratio of the good
client's 99th percentile, half-open to calm. `--write` writes `docs/performance/tls.md`.
"""

import argparse
import os
import platform
import ssl
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rmqkit.tls.contexts import client_context
from tests.bench.hostile import Hostile, measured
from tests.helpers.certificates import Certificates
from tests.hostile.process import Good, Node, running

SILENT, BEGUN = 500, 500
CONNECTIONS = 100
SIZES = (1024, 65_536)
MESSAGES = 1000
PAGE = Path(__file__).parents[2] / "docs" / "performance" / "tls.md"


class GoodOverTls(Good):
    """A well-behaved client with TLS."""

    def __init__(self, node: Node, context: ssl.SSLContext) -> None:
        super().__init__(node)
        self.sock = context.wrap_socket(self.sock, server_hostname="localhost")


class HalfOpen(Hostile):
    """The process that holds connections whose handshake is not over."""

    module = "tests.bench.tls"


class Cost(NamedTuple):
    """The broker's processor time in µs, for each kind of work."""

    plain: dict[str, float]
    tls: dict[str, float]


def hold(port: int) -> None:
    """Run the hostile process: open the connections, report that, and wait until stdin ends."""
    import socket

    connected = [socket.create_connection(("127.0.0.1", port)) for _ in range(SILENT + BEGUN)]
    for sock in connected[:BEGUN]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
        sock.recv(1)  # the broker has answered
    print("ready", len(connected), flush=True)
    sys.stdin.read()


def processor_us(node: Node, work: Callable[[], object], times: int) -> float:
    """Return the processor time that the broker spends per time of `work`."""
    before = node.stats.cpu_times()
    for _ in range(times):
        work()
    after = node.stats.cpu_times()
    return (after.user + after.system - before.user - before.system) * 1e6 / times


def costs(node: Node, connect: Callable[[], Good]) -> dict[str, float]:
    good = connect()
    found = {}
    for size in SIZES:
        body = b"x" * size
        good.send(body)
        found[f"send of {size // 1024} KiB"] = processor_us(node, partial(good.send, body), MESSAGES)
    found["new connection with one send"] = processor_us(node, lambda: connect().send(), CONNECTIONS)
    node.close_sockets()
    return found


def run(pairs: int) -> tuple[list[Cost], list[tuple[float, float, float, float]]]:
    """Return the costs of each round, and rows of (calm p50, calm p99, half-open p50 and p99)."""
    paid, rows = [], []
    with tempfile.TemporaryDirectory() as folder:
        certificates = Certificates(Path(folder) / "certificates")
        made = certificates.pair("server")
        context = client_context(certificates.client())
        settings = (
            "tls.server.mode=enforcing",
            f"tls.server.certPath={made.cert}",
            f"tls.server.keyPath={made.key}",
            "tlsHandshakeMillis=600000",
        )
        # Polls while the client is busy would count as processor time.
        common = ("spinPolls=0",)
        folders = [Path(folder) / name for name in ("plain", "tls")]
        for each in folders:
            each.mkdir()
        with running(folders[0], *common) as plain, running(folders[1], *common, *settings) as secure:
            for _ in range(pairs):
                paid.append(Cost(costs(plain, lambda: Good(plain)), costs(secure, lambda: GoodOverTls(secure, context))))
                good = GoodOverTls(secure, context)
                measured(good)
                calm = measured(good)
                half_open = HalfOpen(secure)
                rows.append((*calm, *measured(good)))
                half_open.end()
                secure.close_sockets()
    return paid, rows


def page(paid: list[Cost], rows: list[tuple[float, float, float, float]]) -> str:
    machine = f"{platform.system()}, {os.cpu_count()} cores shared by all of them, Python {platform.python_version()}"
    ratios = [half / calm for _, calm, _, half in rows]
    lines = [
        "# What TLS costs",
        "",
        "The first table shows the processor time that a broker spends with and without TLS. The second",
        "shows how much half-open handshakes slow a well-behaved client down. It is for operators who",
        "decide whether to [encrypt connections](../do/encrypt.md).",
        "",
        "`python -m tests.bench.tls --write` generates this text. One client sends one message after the",
        f"other on one connection, to a broker in plain text and to one with TLS in turns, {len(paid)} times.",
        "The brokers do not poll while they wait (`spinPolls = 0`).",
        f"TLS 1.3, {ssl.OPENSSL_VERSION.rsplit(' ', 3)[0]}, a P-256 certificate. {machine}.",
        "",
        "| broker's processor time | plain µs | TLS µs | more |",
        "|---|---|---|---|",
    ]
    for what in paid[0].plain:
        plain = statistics.median(each.plain[what] for each in paid)
        tls = statistics.median(each.tls[what] for each in paid)
        lines.append(f"| {what} | {plain:.0f} | {tls:.0f} | {tls - plain:.0f} µs |")
    lines += [
        "",
        f"In a half-open round another process holds {SILENT + BEGUN:,} connections to the broker with TLS:",
        f"{SILENT} have sent nothing, and {BEGUN} have sent a ClientHello and do not go on.",
        "",
        "| pair | calm p50 µs | calm p99 µs | half-open p50 µs | half-open p99 µs | p99 ratio |",
        "|---|---|---|---|---|---|",
    ]
    for number, (calm50, calm99, half50, half99) in enumerate(rows, 1):
        lines.append(f"| {number} | {calm50:.0f} | {calm99:.0f} | {half50:.0f} | {half99:.0f} | {half99 / calm99:.2f} |")
    lines += [
        "",
        f"The median of the p99 ratios is {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}).",
        "Such a connection is closed after `tlsHandshakeMillis`, and above `tlsHandshakesMax` the oldest is.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tls")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write docs/performance/tls.md")
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.hold:
        hold(given.hold)
        return 0
    text = page(*run(given.pairs))
    print(text)
    if given.write:
        PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
