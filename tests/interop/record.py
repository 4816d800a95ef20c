"""Records traffic between Apache's Java client, broker and name server as golden frames.

    python -m tests.interop.record frames     writes tests/wire/golden/*.bin and index.toml
    python -m tests.interop.record store      writes tests/store/golden/ and its index.toml
    python -m tests.interop.record census     prints the codes seen on each link, writes nothing

Both servers listen on 127.0.0.2 and advertise 127.0.0.1, where proxies listen on the same ports. So
every advertised address leads through a proxy, and no frame needs rewriting. `picks.py` lists the
exchanges to keep; the first exchange that matches a row is kept.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import apache
from .picks import (
    ACTING_NEW_PICKS,
    ACTING_PICKS,
    BINARY_PICKS,
    BROKER_PICKS,
    BY_HAND,
    COMPRESSED_PICKS,
    NAMESERVER_PICKS,
    Pick,
    Test,
)
from .store_sample import record_store
from .tape import ONEWAY_FLAG, Proxy, Seen, Tape

TESTS = Path(__file__).parent.parent
INSIDE = "127.0.0.2"
APACHE_VERSION = "5.5.0"
# Keeps this machine's addresses out of client ids and message ids.
NO_MACHINE = {"java.net.preferIPv4Stack": "true", "interop.client.ip": "127.0.0.1"}


@contextmanager
def recorded(tape: Tape, *, wait: bool = True, **cluster: Any) -> Iterator[apache.ApacheCluster]:
    """Run an Apache cluster behind proxies that write to `tape`."""
    ports = apache.free_ports()
    proxies = [
        Proxy(tape, "nameserver", (apache.HOST, ports[0]), (INSIDE, ports[0])),
        Proxy(tape, "broker", (apache.HOST, ports[1]), (INSIDE, ports[1])),
    ]
    try:
        servers = apache.ApacheCluster(bind=INSIDE, ports=ports, properties=NO_MACHINE, **cluster)
        try:
            servers.start_nameserver()
            servers.start_broker(wait=wait)
            yield servers
        finally:
            servers.stop()
    finally:
        for proxy in proxies:
            proxy.close()


def run_driver(namesrv: str, *checks: str, env: dict[str, str] | None = None) -> None:
    with tempfile.TemporaryDirectory(prefix="driver-") as home:
        process = apache.start_java(
            "rmqkit.interop.Driver",
            [namesrv, *checks],
            home=Path(home),
            env=env,
            properties=NO_MACHINE,
        )
        # Not communicate(): it would close the standard input, which is the JVM's lifeline.
        out = process.stdout.read() if process.stdout else ""
        process.wait()
    failed = [line for line in out.splitlines() if '"ok":false' in line]
    if process.returncode:
        print("\n".join(line[:300] for line in failed) or out[-2000:], file=sys.stderr)


BY_HAND_OPAQUE = 7_000_000


def _asked(number: int) -> Test:
    return lambda request, response: request.header["opaque"] == BY_HAND_OPAQUE + number


def _by_hand_picks(tape: Tape) -> list[Pick]:
    answers = {q.header["opaque"]: s.header["code"] for q, s in tape.exchanges() if s is not None}
    return [
        Pick(asked.name, asked.code, answers.get(BY_HAND_OPAQUE + number), _asked(number), "the request is written by hand")
        for number, asked in enumerate(BY_HAND)
    ]


RUNS: dict[str, list[Pick]] = {
    "json": NAMESERVER_PICKS + BROKER_PICKS,
    "hand": [],
    "binary": BINARY_PICKS,
    "acting": ACTING_PICKS,
    "acting_new": ACTING_NEW_PICKS,
    "compressed": COMPRESSED_PICKS,
}


def record_run(run: str) -> Tape:
    tape = Tape()
    with recorded(tape, **CLUSTERS[run]) as servers:
        PLAYS[run](servers, tape)
    return tape


def _play_json(servers: apache.ApacheCluster, tape: Tape) -> None:
    run_driver(servers.namesrv, "all")
    servers.stop_broker()


def _play_hand(servers: apache.ApacheCluster, tape: Tape) -> None:
    for number, asked in enumerate(BY_HAND):
        address = servers.namesrv if asked.link == "nameserver" else servers.broker_address
        apache.ask(address, asked.code, asked.fields, asked.body, opaque=BY_HAND_OPAQUE + number, version=asked.version)


def _play_binary(servers: apache.ApacheCluster, tape: Tape) -> None:
    checks = ("send_sync", "send_batch", "send_properties", "pull_plain", "push_rebalance", "push_resume", "admin_topic")
    run_driver(servers.namesrv, *checks, "admin_cluster", env=BINARY_ENV)


def _play_until(code: int, answered: bool = True) -> Callable[[apache.ApacheCluster, Tape], None]:
    def play(servers: apache.ApacheCluster, tape: Tape) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = [q for q, s in tape.exchanges() if q.header["code"] == code and (s is not None or not answered)]
            if found:
                return
            time.sleep(0.5)

    return play


BINARY_ENV = {"ROCKETMQ_SERIALIZE_TYPE": "ROCKETMQ"}
CLUSTERS: dict[str, dict[str, Any]] = {
    "json": {},
    "hand": {},
    "binary": {"env": BINARY_ENV},
    "acting": {
        "broker_properties": {
            "enableSlaveActingMaster": "true",
            "forceRegister": "false",
            "registerNameServerPeriod": "10000",
        }
    },
    "acting_new": {"broker_properties": {"enableSlaveActingMaster": "true", "compatibleWithOldNameSrv": "false"}},
    "compressed": {"broker_properties": {"compressedRegister": "true"}, "wait": False},
}
PLAYS = {
    "json": _play_json,
    "hand": _play_hand,
    "binary": _play_binary,
    "acting": _play_until(322),
    "acting_new": _play_until(901),
    "compressed": _play_until(103),
}


def pick(tape: Tape, picks: list[Pick]) -> Iterator[tuple[Pick, Seen, Seen | None]]:
    """Yield the first matching exchange for each row; report rows without a match on stderr."""
    exchanges = list(tape.exchanges())
    for row in picks:
        for request, response in exchanges:
            oneway = bool(request.header["flag"] & ONEWAY_FLAG)
            answered = None if oneway or response is None else response.header["code"]
            if request.header["code"] == row.code and answered == row.answer and row.test(request, response):
                yield row, request, None if oneway else response
                break
        else:
            print(f"nothing fits {row.name} ({row.code} -> {row.answer})", file=sys.stderr)


def save_frames(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.bin"):
        old.unlink()
    entries: list[str] = []
    for run, picks in RUNS.items():
        tape = record_run(run)
        for row, request, response in pick(tape, picks or _by_hand_picks(tape)):
            for part, seen in (("request", request), ("response", response)):
                if seen is not None:
                    name = f"{row.name}.{part}"
                    (folder / f"{name}.bin").write_bytes(seen.raw)
                    entries.append(_entry(name, row, seen, request))
    head = (
        f"# Frames that passed between Apache RocketMQ {APACHE_VERSION}'s client, broker and name server, byte for byte.\n"
        "# Written by `python -m tests.interop.record frames`; sizes are bytes.\n\n"
    )
    (folder / "index.toml").write_text(head + "\n".join(entries))


def _entry(name: str, row: Pick, seen: Seen, request: Seen) -> str:
    near = (
        "broker"
        if seen.header.get("extFields", {}).get("brokerAddr") or row.code in (103, 104, 322, 901, 904)
        else "client"
    )
    sides = (near, seen.link) if seen.upward else (seen.link, near)
    lines = [
        f"[{json.dumps(name)}]",
        f'from = "{sides[0]}"',
        f'to = "{sides[1]}"',
        f"code = {seen.header['code']}",
    ]
    if seen is not request:
        lines.append(f"response_to = {request.header['code']}")
    lines += [
        f'header = "{"ROCKETMQ" if seen.codec else "JSON"}"',
        f"opaque = {seen.header['opaque']}",
        f"flag = {seen.header['flag']}",
        f"size = {len(seen.raw)}",
        f"body_size = {len(seen.body)}",
    ]
    if row.note:
        lines.append(f"note = {json.dumps(row.note, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def census() -> None:
    for run in RUNS:
        tape = record_run(run)
        seen: Counter[tuple[str, str, int, Any]] = Counter()
        for request, response in tape.exchanges():
            way = "up" if request.upward else "down"
            oneway = request.header["flag"] & ONEWAY_FLAG
            answer = "one-way" if oneway else response.header["code"] if response else "unanswered"
            seen[request.link, way, request.header["code"], answer] += 1
        for key in sorted(seen, key=str):
            print(run, *key, seen[key])


def main(arguments: list[str]) -> int:
    actions: dict[str, Callable[[], None]] = {
        "frames": lambda: save_frames(TESTS / "wire" / "golden"),
        "store": lambda: record_store(TESTS / "store" / "golden", run_driver),
        "census": census,
    }
    if len(arguments) != 1 or arguments[0] not in actions:
        print(f"usage: python -m tests.interop.record {'|'.join(actions)}", file=sys.stderr)
        return 2
    actions[arguments[0]]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
