"""The rows of the comparison with Apache's broker: the load of each row and the ratio to reach.

`measure_rows` measures rows of any table in both regimes; `bench-replicas` has a table of its own.

A **session** is one freshly started broker and the load's JVM. Its rows run one after another, each
on its own topic, twice: in the first minute of the broker, and when it is warm. After each row the
broker is asked how much it has stored. A row's figure is a rate (more is better), or a time or size
(less is better). The goals apply to our figure divided by Apache's.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.bench.brokers import Running
from tests.bench.load import Load

QUEUES = 8
#: number of sends of the memory row
MILLION = 1_000_000
STORED_TIMEOUT_S = 30.0
ASYNC_FLUSH, SYNC_FLUSH, NOTHING = "ASYNC_FLUSH", "SYNC_FLUSH", ""
#: a broker is warm when it has been under load for so long
WARM_AFTER_S = 60.0
#: the regimes in which a row is measured
FIRST, WARM = "first", "warm"
#: load before the first measured row
FIRST_LOAD_S = 3.0
#: least time of load between the two passes of a session
WARM_LOAD_S = 10.0
#: (row, regime) -> the figures of a side
SessionFigures = dict[tuple[str, str], Mapping[str, Any]]


class CountsDiffer(RuntimeError):
    """Raised when the numbers of acknowledged, stored and read messages differ."""


@dataclass
class Session:
    """One broker under load. `scale` shortens counted loads for a trial run.

    `regime` is part of the topics' names, so that a row can run again on an empty topic.
    `began_s` is when the youngest process under load was started.
    """

    running: Running
    load: Load
    lead_s: float
    seconds: float
    scale: float = 1.0
    acknowledged: int = 0
    regime: str = FIRST
    began_s: float = field(default_factory=time.monotonic)
    _at_window: list[tuple[float, float]] = field(default_factory=list)

    def name(self, row: str) -> str:
        """Return the topic of a row in the current regime."""
        return row if self.regime == FIRST else f"{row}-{self.regime}"

    def topic(self, row: str) -> str:
        """Create the topic of a row in the current regime."""
        name = self.name(row)
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
    the session's `flushDiskType`, "" for a row that starts brokers itself. `warm_goal` is the goal
    for a warm broker if it differs, `cpu_goal` the goal for the broker's CPU time per message.
    `regime` names the only regime of a row that is measured once.
    """

    title: str
    unit: str
    goal: float
    flush: str
    run: Callable[[Session], Mapping[str, Any]]
    value: str = "perSecond"
    less: bool = False
    warm_goal: float | None = None
    cpu_goal: float | None = None
    regime: str = ""

    def goal_in(self, regime: str) -> float:
        return self.goal if regime == FIRST or self.warm_goal is None else self.warm_goal


def _threads(name: str, threads: int, size: int = 1024) -> Callable[[Session], Mapping[str, Any]]:
    return lambda session: session.send("sync", session.topic(name), threads=threads, size=size)


def _async(session: Session) -> Mapping[str, Any]:
    return session.send("async", session.topic("async"), inFlight=1024, size=1024)


def _batch(session: Session) -> Mapping[str, Any]:
    return session.send("sync", session.topic("batch"), threads=8, count=32, size=128)


def _drain(session: Session) -> Mapping[str, Any]:
    """Read the messages of the warm-up first, so that both sides have used their read paths."""
    warm = session.name("load")
    session.drain(warm, session.load.ask("stored", topic=warm)["count"])
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
    "sync-8": Row("8 threads, 1 KiB", "msg/s", 1.8, ASYNC_FLUSH, _threads("sync-8", 8), warm_goal=1.3, cpu_goal=0.5),
    "sync-64": Row("64 threads, 1 KiB", "msg/s", 1.8, ASYNC_FLUSH, _threads("sync-64", 64), warm_goal=1.3, cpu_goal=0.5),
    "small-64": Row(
        "64 threads, 128 B", "msg/s", 1.8, ASYNC_FLUSH, _threads("small-64", 64, 128), warm_goal=1.3, cpu_goal=0.5
    ),
    "async": Row("async, 1024 in flight, 1 KiB", "msg/s", 1.3, ASYNC_FLUSH, _async, cpu_goal=0.5),
    "batch": Row("batches of 32 × 128 B, 8 threads", "msg/s", 1.0, ASYNC_FLUSH, _batch, warm_goal=0.9, cpu_goal=1.0),
    "drain": Row("drain of 300,000 × 1 KiB", "msg/s", 1.5, ASYNC_FLUSH, _drain),
    "e2e-2k": Row(
        "send to listener at 2,000 msg/s, p99", "ms", 1.0, ASYNC_FLUSH, _end_to_end("e2e-2k", 2000), "p99Ms", less=True
    ),
    "e2e-5k": Row(
        "send to listener at 5,000 msg/s, p99", "ms", 1.0, ASYNC_FLUSH, _end_to_end("e2e-5k", 5000), "p99Ms", less=True
    ),
    "memory": Row("private memory after 1 M sends", "MB", 0.1, ASYNC_FLUSH, _memory, "megabytes", less=True, regime=WARM),
    "flush-1": Row("SYNC_FLUSH, 1 thread, 1 KiB", "msg/s", 1.2, SYNC_FLUSH, _threads("flush-1", 1)),
    "flush-64": Row("SYNC_FLUSH, 64 threads, 1 KiB", "msg/s", 1.5, SYNC_FLUSH, _threads("flush-64", 64)),
    "start-up": Row(
        "start-up to the first acknowledged send", "s", 0.2, NOTHING, _start_up, "seconds", less=True, regime=FIRST
    ),
}


def put_under_load(session: Session, seconds: float) -> None:
    """Send for this time; only the number of sends is used later.

    Half of the time goes to single sends, the rest to batches and asynchronous sends, so that both
    JVMs compile the code of every row.
    """
    for row, command, share, load in (
        ("load", "sync", 0.5, {"threads": 64, "size": 1024}),
        ("load-batch", "sync", 0.25, {"threads": 8, "count": 32, "size": 128}),
        ("load-async", "async", 0.25, {"inFlight": 1024, "size": 1024}),
    ):
        topic = session.topic(row)
        run_ms = int(seconds * share * 1000)
        session.counted(topic, session.do(command, topic, leadMs=0, runMs=run_ms, **load))


def measure_rows(session: Session, rows: Mapping[str, Row], names: Sequence[str], warm_after_s: float) -> SessionFigures:
    """Measure rows in the first minute of a fresh broker, and again once it is warm."""
    done: SessionFigures = {}
    put_under_load(session, FIRST_LOAD_S)
    _pass(session, rows, names, done)
    session.regime = WARM
    put_under_load(session, max(WARM_LOAD_S, warm_after_s - (time.monotonic() - session.began_s)))
    _pass(session, rows, names, done)
    return done


def _pass(session: Session, rows: Mapping[str, Row], names: Sequence[str], done: SessionFigures) -> None:
    """Measure the rows in the session's regime."""
    for name in names:
        if rows[name].regime in ("", session.regime):
            began_s = time.monotonic()
            figure = done[name, session.regime] = rows[name].run(session)
            tell(session.running.name, session.name(name), rows[name], figure, time.monotonic() - began_s)


def tell(side: str, name: str, row: Row, figure: Mapping[str, Any], took_s: float) -> None:
    """Print a figure as progress."""
    cpu = figure.get("cpuMicros")
    with_cpu = "" if cpu is None else f", {cpu:.1f} µs CPU a message"
    failed = f", {figure['failed']} FAILED ({figure['firstFailure']})" if figure.get("failed") else ""
    line = f"{side:>7} {name:>13}: {figure[row.value]:,.2f} {row.unit}{with_cpu}{failed}"
    print(f"{line}  [{took_s:.0f} s]", file=sys.stderr, flush=True)
