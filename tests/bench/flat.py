"""Measures whether sends and pulls cost more with many topics, queues, connections or messages.

    python -m tests.bench.flat [--markdown docs/performance/flat.md] [--rounds 8]

Each case has one broker in this process (`inprocess.py`), so other processes hardly influence the
comparison. The load is timed, something is made to grow, and the same load is timed again.
Connections are real sockets in the shell's loop.
"""

import argparse
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from rmqkit import config, plugins
from rmqkit.broker.node import Broker
from rmqkit.shell.log import stderr_log
from rmqkit.shell.loop import Loop
from tests.bench.inprocess import TOPIC, InProcess, pull_frame, send_frame

TURNS, PER_TURN = 64, 64
MANY = 1000
DESCRIPTORS = 4096

_HEAD = """# Cost of a message in a large broker

The table shows whether the cost of a message grows with the number of topics, queues, connections,
long polls or stored messages. Operators need it to plan a large broker.

`python -m tests.bench.flat --markdown docs/performance/flat.md` generates the table. Each row is
one broker, measured before and after it grew. The figures are µs per message in the broker,
without the later work of the index: 64 sends of 1 KiB per turn, and pulls of 32 × 1 KiB.
Connections are real sockets, and their turns include the system calls of the network.

| what grows | from | to | send before | send after | pull before | pull after |
|---|---:|---:|---:|---:|---:|---:|
"""

#: returns the input of each turn for a number of rounds
Make = Callable[[int], list[bytes]]


class Case(NamedTuple):
    what: str
    start: str
    end: str
    sends: tuple[float, float]
    pulls: tuple[float, float] | None = None

    @property
    def line(self) -> str:
        cells = [f"{number:.2f}" for pair in (self.sends, self.pulls) if pair for number in pair]
        return f"| {self.what} | {self.start} | {self.end} | {' | '.join([*cells, '–', '–'][:4])} |"


def least_us(run: Callable[[], list[int]], messages: int, rounds: int) -> float:
    least = run()
    for _ in range(rounds - 1):
        least = [min(pair) for pair in zip(least, run(), strict=True)]
    return sum(least) / 1000 / messages


def sends_us(server: InProcess, rounds: int, *, topics: int = 1, queues: int = 4) -> float:
    """Time 64 sends per turn, in rotation over the topics, then over the queues."""
    body = bytes(1024)

    def run() -> list[int]:
        turns = []
        for _ in range(TURNS):
            frames = []
            for _ in range(PER_TURN):
                server.number += 1
                topic = TOPIC if topics == 1 else f"{TOPIC}-{server.number % topics}"
                frames.append(send_frame(server.number, body, topic=topic, queue_id=server.number // topics % queues))
            turns.append(b"".join(frames))
        return server.run(turns, 2000)

    run()
    return least_us(run, TURNS * PER_TURN, rounds)


def pulls_us(server: InProcess, rounds: int) -> float:
    """Time pulls of the first 1,024 messages of a queue, the oldest part of a long log."""
    turns = [pull_frame(number, number * 32, suspend_ms=0) for number in range(32)]
    return least_us(lambda: server.run(turns, 300), 32 * 32, rounds)


def started(stack: ExitStack, *settings: str) -> InProcess:
    server = stack.enter_context(InProcess("messageIndexEnable=false", *settings))
    server.make_topic(TOPIC, 4)
    return server


def topics(rounds: int) -> Case:
    with ExitStack() as stack:
        server = started(stack)
        few = sends_us(server, rounds), pulls_us(server, rounds)
        for number in range(MANY):
            server.make_topic(f"{TOPIC}-{number}", 4)
        many = sends_us(server, rounds, topics=MANY), pulls_us(server, rounds)
    return Case("topics, sends go to each in turn", "1", f"{MANY:,}", (few[0], many[0]), (few[1], many[1]))


def queues(rounds: int) -> Case:
    with ExitStack() as stack:
        server = started(stack)
        few = sends_us(server, rounds), pulls_us(server, rounds)
        server.make_topic(TOPIC, MANY)
        many = sends_us(server, rounds, queues=MANY), pulls_us(server, rounds)
    return Case("queues of the topic", "4", f"{MANY:,}", (few[0], many[0]), (few[1], many[1]))


def waiting(rounds: int) -> Case:
    """Grow the number of pulls that wait at queues without new messages."""
    with ExitStack() as stack:
        server = started(stack)
        few = sends_us(server, rounds), pulls_us(server, rounds)
        server.make_topic("Quiet", MANY)
        for number in range(MANY):
            server.receive(pull_frame(number, 0, topic="Quiet", queue_id=number, suspend_ms=60_000), server.connect())
        assert server.broker.view.arrivals.count == MANY
        many = sends_us(server, rounds), pulls_us(server, rounds)
    return Case("long polls on other queues", "0", f"{MANY:,}", (few[0], many[0]), (few[1], many[1]))


def log(rounds: int) -> Case:
    """Grow the log to a million messages in files of 8 MiB, and the index with it."""
    with ExitStack() as stack:
        server = stack.enter_context(InProcess("mappedFileSizeCommitLog=8388608"))
        server.make_topic(TOPIC, 4)
        store, duties = server.broker.store, server.broker.duties
        duties.remove("store-index")
        few = sends_us(server, rounds), pulls_us(server, rounds)
        duties.add("store-index", store.index.run, server.clock.mono_ms)  # type: ignore[attr-defined]
        for _ in range(1_000_000 // (250 * PER_TURN)):
            for data in server.sends(250, PER_TURN, 1024, queues=4):
                server.receive(data)
            server.idle()
        duties.remove("store-index")
        files = (store.offset_max - store.offset_min) >> 23
        many = sends_us(server, rounds), pulls_us(server, rounds)
    return Case(
        "messages in the log and the index", "0", f"1,000,000 in {files} files", (few[0], many[0]), (few[1], many[1])
    )


def connections(rounds: int) -> Case:
    """Grow the number of idle connections; one connection sends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(DESCRIPTORS, hard)), hard))
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="flat-"))
        values = ["brokerName=broker-a", "brokerIP1=127.0.0.1", "messageIndexEnable=false", f"storePathRootDir={folder}"]
        settings = config.load([], values, "broker")
        loop = Loop(log=stderr_log("bench"))
        stack.callback(loop.close)
        parts = plugins.load(entry_points=False).broker_parts(settings)
        broker = Broker("bench", loop.ports(folder), settings, parts)
        loop.add(broker)
        port = loop.listen(broker, "remoting", "127.0.0.1", 0)
        loop.start()
        while not broker.serving:
            loop.turn(10)

        def connect() -> socket.socket:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(3):
                loop.turn(0)
            return client

        client = connect()
        # Creates the topic, which takes additional turns.
        client.sendall(send_frame(1, bytes(1024)))
        client.settimeout(0.01)
        while True:
            loop.turn(10)
            try:
                client.recv(1 << 20)
                break
            except TimeoutError:
                continue
        client.settimeout(None)
        body, number = bytes(1024), 0

        def run() -> list[int]:
            nonlocal number
            took = []
            for _ in range(TURNS):
                data = b"".join(send_frame(number + each, body) for each in range(32))
                number += 32
                client.sendall(data)
                began = time.perf_counter_ns()
                loop.turn(0)
                took.append(time.perf_counter_ns() - began)
                client.recv(1 << 20)
            return took

        few = least_us(run, TURNS * 32, rounds)
        for _ in range(MANY):
            connect()
        assert loop.stream_count == MANY + 1
        many = least_us(run, TURNS * 32, rounds)
    return Case("idle connections", "0", f"{MANY:,}", (few, many))


CASES: dict[str, Callable[[int], Case]] = {
    "topics": topics,
    "queues": queues,
    "connections": connections,
    "waiting": waiting,
    "log": log,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Whether costs stay flat as things grow.")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    chosen = parser.parse_args(arguments)
    text = _HEAD
    for name in chosen.cases:
        line = CASES[name](chosen.rounds).line
        print(line, flush=True)
        text += line + "\n"
    if chosen.markdown:
        chosen.markdown.parent.mkdir(parents=True, exist_ok=True)
        chosen.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
