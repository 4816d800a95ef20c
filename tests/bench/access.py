"""Measures what access control costs a broker: a signed and checked request against a plain one.

    python -m tests.bench.access [--pairs N] [--rounds N] [--write]

Two brokers run in this process (`inprocess.py`), one without access control and one with a user
that has a rule for the topic. Measurements of the two alternate. Signing is the client's work and
is not measured; the frames are signed before. Each figure is µs per request: the minimum of each
turn over the rounds, then the median over the pairs. `--write` writes `docs/performance/access.md`.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from rmqkit.wire.codes import RequestCode
from rmqkit.wire.remoting.frames import FrameBuffer
from tests.bench.inprocess import InProcess, frame, json_frame, properties
from tests.helpers.script import read_command
from tests.helpers.signing import ROOT, SETTINGS, signed

APP = ("app", "app-secret")
TOPIC = "AccessBench"
RULES = (("Topic:Access*", "Pub,Sub"), ("Group:bench", "Sub"))
PER_TURN, TURNS = 64, 64
PAGE = Path(__file__).parents[2] / "docs" / "performance" / "access.md"
#: µs that the issue of access control allows a signed send of 1 KiB
MOST_US = 15

Fields = dict[str, str]


class Work(NamedTuple):
    """A kind of request: its header's format and its body's size."""

    name: str
    is_json: bool
    size: int


WORKS = (
    Work("send of 1 KiB, JSON header", True, 1024),
    Work("send of 1 KiB, binary header", False, 1024),
    Work("send of 64 KiB, binary header", False, 65_536),
    Work("query of an offset, JSON header", True, 0),
)


def written(code: int, opaque: int, fields: Fields, body: bytes, *, is_json: bool) -> bytes:
    if not is_json:
        return frame(code, opaque, fields, body)
    plain = json_frame(code, opaque, fields)
    return (len(plain) - 4 + len(body)).to_bytes(4, "big") + plain[4:] + body


class Side:
    """One of the two brokers."""

    def __init__(self, *, is_secure: bool) -> None:
        self.server = InProcess("messageIndexEnable=false", *(SETTINGS if is_secure else ()))
        self._is_secure = is_secure
        topic = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6"}
        self._change(RequestCode.UPDATE_AND_CREATE_TOPIC, {**topic, "topicFilterType": "SINGLE_TAG"})
        if is_secure:
            self._change(RequestCode.AUTH_CREATE_USER, {"username": APP[0]}, {"password": APP[1]})
            entries = [{"resource": on, "actions": words.split(","), "decision": "Allow"} for on, words in RULES]
            self._change(RequestCode.AUTH_CREATE_ACL, {"subject": "User:app"}, {"policies": [{"entries": entries}]})
        self.server.idle()

    def _change(self, code: int, fields: Fields, body: object = None) -> None:
        data = json.dumps(body).encode() if body else b""
        whole = signed(ROOT, fields, data) if self._is_secure else fields
        self.server.receive(frame(code, 1, whole, data))

    def turns(self, work: Work) -> list[bytes]:
        """Return the input bytes of each turn."""
        server, body = self.server, bytes(work.size)
        per_turn = PER_TURN if work.size < 4096 else 4
        made = []
        for _ in range(TURNS):
            frames = []
            for _ in range(per_turn):
                server.number += 1
                code, fields = self._request(work, server.number)
                if self._is_secure:
                    fields = signed(APP, fields, body)
                frames.append(written(code, server.number, fields, body, is_json=work.is_json))
            made.append(b"".join(frames))
        return made

    def _request(self, work: Work, number: int) -> tuple[int, Fields]:
        queue_id = str(number % 8)
        if not work.size:
            return RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": queue_id}
        return RequestCode.SEND_MESSAGE_V2, {
            "a": "bench_producer", "b": TOPIC, "c": "TBW102", "d": "4", "e": queue_id, "f": "0",
            "g": str(1_760_000_000_000 + number), "h": "0", "i": properties(number), "j": "0", "k": "false",
            "m": "false", "n": "broker-a",
        }  # fmt: skip

    def least_us(self, work: Work, rounds: int) -> float:
        """Return the time per request in µs, from the minimum of each turn over the rounds."""
        least: list[int] = []
        per_turn = PER_TURN if work.size < 4096 else 4
        for _ in range(rounds):
            took = self.server.run(self.turns(work), 2000)
            least = [min(pair) for pair in zip(least or took, took, strict=True)]
        return sum(least) / 1000 / (per_turn * TURNS)

    def check(self, work: Work) -> None:
        """Raise AssertionError unless a request of this kind is answered with success."""
        conn = self.server.conn
        self.server.broker.received(conn, self.turns(work)[0])
        self.server.broker.settle()
        answers = FrameBuffer().feed(b"".join(map(bytes, conn.out)))
        assert answers
        assert {read_command(each).code for each in answers} == {0}
        self.server.turn()


def run(pairs: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the rows (off µs, on µs) of each kind of request."""
    found: dict[str, list[tuple[float, float]]] = {work.name: [] for work in WORKS}
    off, on = Side(is_secure=False), Side(is_secure=True)
    with off.server, on.server:
        for work in WORKS:
            for side in (off, on):
                side.check(work)
                side.least_us(work, 1)
        gc.freeze()
        for _ in range(pairs):
            for work in WORKS:
                found[work.name].append((off.least_us(work, rounds), on.least_us(work, rounds)))
    return found


def page(found: dict[str, list[tuple[float, float]]]) -> str:
    machine = f"{platform.system()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    pairs = len(next(iter(found.values())))
    lines = [
        "# What access control costs",
        "",
        "The table shows the time that a broker spends on a request without access control, and on a signed",
        "request that a rule allows. It is for operators who decide whether to turn on",
        "[access control](../do/access.md).",
        "",
        "`python -m tests.bench.access --write` generates this text. Two brokers run in one process, without",
        f"sockets, and are measured in turns, {pairs} times; the figures are medians, the range is that of the",
        f"differences. Java's client writes JSON headers by default. {machine}.",
        "",
        "| request | off µs | on µs | more |",
        "|---|---|---|---|",
    ]
    for name, rows in found.items():
        off, on = (statistics.median(column) for column in zip(*rows, strict=True))
        more = [on_us - off_us for off_us, on_us in rows]
        lines.append(
            f"| {name} | {off:.1f} | {on:.1f} | {statistics.median(more):.1f} µs ({min(more):.1f}–{max(more):.1f}) |"
        )
    lines += [
        "",
        "With access control a broker reads all fields of a header, also those that it does not use, signs",
        "them and the body with the user's key, and asks the rule of the request. Decisions are kept until",
        "the user or its rules change. A broker without access control executes none of this.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.access")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write docs/performance/access.md")
    given = parser.parse_args()
    found = run(given.pairs, given.rounds)
    text = page(found)
    print(text)
    if given.write:
        PAGE.write_text(text)
    more = statistics.median(on - off for off, on in found[WORKS[0].name])
    return 0 if more <= MOST_US else 1


if __name__ == "__main__":
    sys.exit(main())
