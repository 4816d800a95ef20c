"""The rows of the comparison with Apache's broker: the load of each row and the ratio to reach.

A **session** is one freshly started broker and the load's JVM. It is warmed up, then its rows run
one after another, each on its own topic. After each row the broker is asked how much it has stored.
A row's figure is a rate (more is better), or a time or size (less is better). The goal applies to
our figure divided by Apache's.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.bench.brokers import Running
from tests.bench.load import Load

QUEUES = 8
#: number of sends of the memory row
MILLION = 1_000_000
STORED_TIMEOUT_S = 30.0
ASYNC_FLUSH, SYNC_FLUSH, NOTHING = "ASYNC_FLUSH", "SYNC_FLUSH", ""


class CountsDiffer(RuntimeError):
    """Raised when the numbers of acknowledged, stored and read messages differ."""


@dataclass
class Session:
    """One broker under load. `scale` shortens counted loads for a trial run."""

    running: Running
    load: Load
    lead_s: float
    seconds: float
    warm_s: float
    scale: float = 1.0
    acknowledged: int = 0
    _at_window: list[tuple[float, float]] = field(default_factory=list)

    def topic(self, name: str) -> str:
        self.load.ask("topic", topic=name, queues=QUEUES, broker=self.running.broker)
        return name

    def do(self, command: str, topic: str, **fields: int | str) -> dict[str, Any]:
        """Run one load; return its figures with the CPU time of broker and client in the window."""
        self._at_window.clear()
        figure = self.load.ask(command, self._look, topic=topic, **fields)
        if len(self._at_window) == 2 and figure["within"]:
            broker_s, client_s = (end - begin for begin, end in zip(*self._at_window, strict=True))
            figure["cpuMicros"] = broker_s * 1e6 / figure["within"]
            figure["clientMicros"] = client_s * 1e6 / figure["within"]
        return figure

    def _look(self) -> None:
        self._at_window.append((self.running.cpu_s(), self.load.cpu_s()))

    def send(self, command: str, topic: str, **fields: int | str) -> dict[str, Any]:
        """Run a load of sends on an empty topic. Raises CountsDiffer."""
        figure = self.do(command, topic, leadMs=int(self.lead_s * 1000), runMs=int(self.seconds * 1000), **fields)
        return self.counted(topic, figure)

    def fill(self, topic: str, total: int, size: int = 1024) -> dict[str, Any]:
        return self.counted(topic, self.do("fill", topic, total=total, size=size))

    def counted(self, topic: str, figure: dict[str, Any]) -> dict[str, Any]:
        self.acknowledged += figure["done"]
        # Apache dispatches records to queues after it acknowledges them; under load, seconds later.
        deadline_s = time.monotonic() + STORED_TIMEOUT_S
        while (stored := self.load.ask("stored", topic=topic)["count"]) < figure["done"] and time.monotonic() < deadline_s:
            time.sleep(0.2)
        # A send that failed for the client may still have been stored.
        if not figure["done"] <= stored <= figure["done"] + figure["failed"] * 64:
            raise CountsDiffer(
                f"{self.running.name}, {topic}: {figure['done']} acknowledged, {figure['failed']} failed"
                f" ({figure['firstFailure']}), {stored} stored"
            )
        figure["stored"] = stored
        return figure

    def drain(self, topic: str, total: int) -> dict[str, Any]:
        """Run a load that reads the whole topic. Raises CountsDiffer."""
        figure = self.do("drain", topic, group=f"g-{topic}", total=total)
        if not figure["whole"] or figure["done"] != total or figure["distinct"] != total:
            raise CountsDiffer(
                f"{self.running.name}, {topic}: {total} stored, {figure['done']} read, {figure['distinct']} distinct"
            )
        return figure


class Row(NamedTuple):
    """A row of the comparison.

    `value` names the compared field of the figures; `less` says whether less is better. `flush` is
    the session's `flushDiskType`, "" for a row that starts brokers itself.
    """

    title: str
    unit: str
    goal: float
    flush: str
    run: Callable[[Session], Mapping[str, Any]]
    value: str = "perSecond"
    less: bool = False


def _threads(name: str, threads: int, size: int = 1024) -> Callable[[Session], Mapping[str, Any]]:
    return lambda session: session.send("sync", session.topic(name), threads=threads, size=size)


def _async(session: Session) -> Mapping[str, Any]:
    return session.send("async", session.topic("async"), inFlight=1024, size=1024)


def _batch(session: Session) -> Mapping[str, Any]:
    return session.send("sync", session.topic("batch"), threads=8, count=32, size=128)


def _drain(session: Session) -> Mapping[str, Any]:
    """Read the messages of the warm-up first, so that both sides have warm read paths."""
    session.drain("warm", session.load.ask("stored", topic="warm")["count"])
    topic = session.topic("drain")
    # A flooded broker may refuse some sends.
    stored = session.fill(topic, max(1000, int(300_000 * session.scale)))["stored"]
    return session.drain(topic, stored)


def _end_to_end(name: str, rate: int) -> Callable[[Session], Mapping[str, Any]]:
    def run(session: Session) -> Mapping[str, Any]:
        topic = session.topic(name)
        lead_ms, run_ms = int(session.lead_s * 1000), int(session.seconds * 1000)
        figure = session.do("e2e", topic, group=f"g-{name}", rate=rate, size=1024, leadMs=lead_ms, runMs=run_ms)
        if figure["failed"] or figure["done"] != figure["sent"]:
            raise CountsDiffer(
                f"{session.running.name}, {topic}: {figure['sent']} sent, {figure['done']} received,"
                f" {figure['failed']} failed ({figure['firstFailure']})"
            )
        return figure

    return run


def _memory(session: Session) -> Mapping[str, Any]:
    """Measure the memory after a million sends, and after the earlier rows of the session."""
    missing = int(MILLION * session.scale) - session.acknowledged
    if missing > 0:
        session.fill(session.topic("memory"), missing)
    memory = session.running.private_mb()
    return {"megabytes": sum(memory.values()), "sends": session.acknowledged, **memory}


def _start_up(session: Session) -> Mapping[str, Any]:
    raise AssertionError("start-up is measured without a session")


#: name -> row, in the order in which a session runs them
ROWS: dict[str, Row] = {
    "sync-1": Row("1 thread, 1 KiB", "msg/s", 1.3, ASYNC_FLUSH, _threads("sync-1", 1)),
    "sync-8": Row("8 threads, 1 KiB", "msg/s", 1.8, ASYNC_FLUSH, _threads("sync-8", 8)),
    "sync-64": Row("64 threads, 1 KiB", "msg/s", 1.8, ASYNC_FLUSH, _threads("sync-64", 64)),
    "small-64": Row("64 threads, 128 B", "msg/s", 1.8, ASYNC_FLUSH, _threads("small-64", 64, 128)),
    "async": Row("async, 1024 in flight, 1 KiB", "msg/s", 1.3, ASYNC_FLUSH, _async),
    "batch": Row("batches of 32 × 128 B, 8 threads", "msg/s", 0.9, ASYNC_FLUSH, _batch),
    "drain": Row("drain of 300,000 × 1 KiB", "msg/s", 1.0, ASYNC_FLUSH, _drain),
    "e2e-2k": Row(
        "send to listener at 2,000 msg/s, p99", "ms", 1.0, ASYNC_FLUSH, _end_to_end("e2e-2k", 2000), "p99Ms", less=True
    ),
    "e2e-5k": Row(
        "send to listener at 5,000 msg/s, p99", "ms", 1.0, ASYNC_FLUSH, _end_to_end("e2e-5k", 5000), "p99Ms", less=True
    ),
    "memory": Row("private memory after 1 M sends", "MB", 0.1, ASYNC_FLUSH, _memory, "megabytes", less=True),
    "flush-1": Row("SYNC_FLUSH, 1 thread, 1 KiB", "msg/s", 1.2, SYNC_FLUSH, _threads("flush-1", 1)),
    "flush-64": Row("SYNC_FLUSH, 64 threads, 1 KiB", "msg/s", 1.5, SYNC_FLUSH, _threads("flush-64", 64)),
    "start-up": Row("start-up to the first acknowledged send", "s", 0.2, NOTHING, _start_up, "seconds", less=True),
}


def warm_up(session: Session) -> None:
    """Let both JVMs compile what they need; only the number of sends is used later.

    Half of the time goes to single sends, the rest to batches and asynchronous sends, so that the
    code of every row is warm.
    """
    for name, command, share, load in (
        ("warm", "sync", 0.5, {"threads": 64, "size": 1024}),
        ("warm-batch", "sync", 0.25, {"threads": 8, "count": 32, "size": 128}),
        ("warm-async", "async", 0.25, {"inFlight": 1024, "size": 1024}),
    ):
        topic = session.topic(name)
        run_ms = int(session.warm_s * share * 1000)
        session.counted(topic, session.do(command, topic, leadMs=0, runMs=run_ms, **load))
