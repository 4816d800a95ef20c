"""Compares transactions, pop and timers with Apache's broker, in pairs: `make bench-services`.

    python -m tests.bench.services [--rows transactions pop timers memory] [--pairs 3] [--write]

A pair is a session of ours and one of Apache's, one after the other, never at the same time. The
order alternates from pair to pair. A session is a fresh name server and broker with default
settings, warmed up with the loads of its rows. The load is one JVM with Apache's client
(`rmqkit.bench.Services`), the same for both sides.

After each row the counts must agree: every committed transaction is readable, every message is
popped once and acked, every timer is delivered once. Otherwise the row is left out of this pair,
and the exit code is 1 in the end.

The memory row stores a million timers, which takes minutes. Its figure hardly varies, so only the
first `--memory-pairs` pairs have it. Three pairs of all rows take about 13 minutes on two idle
cores. Without `--write` the figures are only printed. With it, they are stored in
docs/performance/services.json after each pair, and the page is regenerated.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rmqkit.wire import fastjson
from tests.bench import figures as kept
from tests.bench.against_apache import DOCS, FIGURES, PAGE, machine
from tests.bench.brokers import APACHE, JVMS, OURS, candidates
from tests.bench.load import Load, LoadError
from tests.bench.rows import ASYNC_FLUSH, MILLION, QUEUES, CountsDiffer, Session
from tests.interop import apache

KEPT = DOCS / "performance" / "services.json"
SECTION = DOCS / "performance" / "services.md"
TRANSACTION_THREADS = 32
POP_WORKERS = 8
POP_MESSAGES = 60_000
BURST_TIMERS = 50_000
#: time from the first send of the burst to its due second; all sends must fit into it
BURST_IN_MS = 20_000
PACED_PER_S = 1000
#: messages of one load of the memory row; it must end within the load's answer timeout
_PORTION = 50_000
_INDEXED_TIMEOUT_S = 300.0
_RUNTIME_INFO = 28


class Figure(NamedTuple):
    """One line of the table. `row` names its load; the goal applies to ours divided by theirs."""

    row: str
    title: str
    unit: str
    goal: float
    value: str
    less: bool = False

    def is_reached(self, ratio: float) -> bool:
        return ratio <= self.goal if self.less else ratio >= self.goal


FIGURES_OF_ROWS = (
    Figure("transactions", f"transactions, {TRANSACTION_THREADS} threads, 1 KiB", "tx/s", 1.2, "perSecond"),
    Figure("pop", f"pop and ack, {POP_WORKERS} workers, 1 KiB", "msg/s", 1.2, "perSecond"),
    Figure("timers", "timers accepted, 128 B", "msg/s", 1.2, "perSecond"),
    Figure("timers", f"{BURST_TIMERS:,} timers due in one second, delivered", "msg/s", 1.2, "deliveredPerSecond"),
    Figure("timers", f"lateness at {PACED_PER_S:,} msg/s, p50", "ms", 1.0, "late50Ms", less=True),
    Figure("timers", f"lateness at {PACED_PER_S:,} msg/s, p99", "ms", 1.0, "late99Ms", less=True),
    Figure("memory", "private memory, 10^6 timers wait", "MiB", 0.1, "mebibytes", less=True),
)


# --- the rows -------------------------------------------------------------------------------------


def _check(session: Session, what: str, figure: Mapping[str, Any], **equal: int) -> None:
    """Raise CountsDiffer if a load failed in part, or if a count is not what it should be."""
    wrong = {name: figure[name] for name, value in equal.items() if figure[name] != value}
    if wrong or figure["failed"]:
        failed = f"{figure['failed']} failed ({figure['firstFailure']})"
        raise CountsDiffer(f"{session.running.name}, {what}: {wrong} instead of {equal}, {failed}")


def _transactions(session: Session, topic: str = "transactions", seconds: float | None = None) -> dict[str, Any]:
    run_ms = int((session.seconds if seconds is None else seconds) * 1000)
    figure = session.do("transactions", session.topic(topic), threads=TRANSACTION_THREADS, size=1024, runMs=run_ms)
    _check(session, topic, figure, readable=figure["done"])
    return figure


def _pop(session: Session, topic: str = "pop", messages: int = POP_MESSAGES) -> dict[str, Any]:
    total = session.fill(session.topic(topic), max(1000, int(messages * session.scale)))["stored"]
    broker = session.running.broker
    figure = session.do("pop", topic, group=f"g-{topic}", broker=broker, workers=POP_WORKERS, total=total)
    _check(session, topic, figure, done=total, popped=total, distinct=total)
    return figure


def _timers(session: Session) -> dict[str, Any]:
    burst = max(500, int(BURST_TIMERS * session.scale))
    figure = session.do("burst", session.topic("burst"), total=burst, inMs=BURST_IN_MS)
    _check(session, "burst", figure, readable=burst)
    run_ms = int(session.seconds * 1000)
    paced = session.do("lateness", session.topic("paced"), group="g-paced", rate=PACED_PER_S, runMs=run_ms)
    _check(session, "paced", paced, received=paced["done"], distinct=paced["done"])
    return figure | {name: paced[name] for name in ("late50Ms", "late99Ms", "early")}


def _memory(session: Session) -> dict[str, Any]:
    """Store a million timers that are due in hours; measure once all of them are indexed."""
    topic = session.topic("pending")
    before = session.running.private_mb()
    total = max(1000, int(MILLION * session.scale))
    began_s = time.monotonic()
    sent = 0
    while sent < total:
        count = min(_PORTION, total - sent)
        figure = session.do("timers", topic, total=count, size=128, inMs=3_600_000, spreadMs=36_000_000)
        # A flooded broker may refuse some.
        if not figure["done"]:
            raise CountsDiffer(f"{session.running.name}, {topic}: nothing is accepted ({figure['firstFailure']})")
        sent += figure["done"]
    deadline_s = time.monotonic() + _INDEXED_TIMEOUT_S
    while time.monotonic() < deadline_s and int((told := runtime_info(session.running.broker))["timerCongestNum"]) < total:
        time.sleep(0.5)
    waiting = int(told["timerCongestNum"])
    if waiting < total:
        raise CountsDiffer(f"{session.running.name}: {total} timers sent, {waiting} wait")
    memory = session.running.private_mb()
    return {
        "mebibytes": memory["broker"] * 1e6 / 2**20,
        "before": before["broker"] * 1e6 / 2**20,
        "waiting": waiting,
        "seconds": time.monotonic() - began_s,
    }


def runtime_info(broker: str) -> dict[str, str]:
    """Return the broker's runtime information (code 28). Raises OSError."""
    _, body = apache.ask_whole(broker, _RUNTIME_INFO, {})
    table: dict[str, str] = fastjson.loads(body)["table"]
    return table


ROWS: dict[str, Callable[[Session], dict[str, Any]]] = {
    "transactions": _transactions,
    "pop": _pop,
    "timers": _timers,
    "memory": _memory,
}


def warm_up(session: Session, names: Sequence[str], seconds: float) -> None:
    """Let both JVMs compile the paths of the rows, on topics of their own."""
    if "transactions" in names:
        _transactions(session, "warm-transactions", seconds / 2)
    if "pop" in names:
        _pop(session, "warm-pop", POP_MESSAGES // 2)
    if "timers" in names:
        session.do("burst", session.topic("warm-burst"), total=max(500, int(10_000 * session.scale)), inMs=5000)


# --- pairs ----------------------------------------------------------------------------------------


def measure(chosen: argparse.Namespace) -> dict[str, list[dict[str, Mapping[str, Any]]]]:
    """Return, for each row, the pairs: side → figures."""
    known: dict[str, list[dict[str, Mapping[str, Any]]]] = {name: [] for name in ROWS if name in chosen.rows}
    began_s = time.monotonic()
    chosen.failed = False
    with Load("JSON") as load:
        for number in range(chosen.pairs):
            names = [name for name in known if name != "memory" or number < chosen.memory_pairs]
            pair: dict[str, dict[str, Mapping[str, Any]]] = {name: {} for name in names}
            for side in (OURS, APACHE) if number % 2 == 0 else (APACHE, OURS):
                for name, figure in _session(side, names, load, chosen).items():
                    pair[name][side] = figure
            for name in names:
                if len(pair[name]) == 2:
                    known[name].append(pair[name])
            if chosen.write:
                _keep(known, chosen)
            print(f"pair {number + 1} of {chosen.pairs}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    return known


def _session(side: str, names: Sequence[str], load: Load, chosen: argparse.Namespace) -> dict[str, Mapping[str, Any]]:
    done: dict[str, Mapping[str, Any]] = {}
    with candidates(chosen.jvm)[side]({"flushDiskType": ASYNC_FLUSH}) as running, load.session(running.namesrv):
        session = Session(running, load, 0.0, chosen.seconds, chosen.scale)
        warm_up(session, names, chosen.warm)
        for name in names:
            began_s = time.monotonic()
            try:
                done[name] = ROWS[name](session)
            except (CountsDiffer, LoadError) as error:
                chosen.failed = True
                print(f"{side:>7} {name:>12}: FAILED: {error}", file=sys.stderr, flush=True)
                continue
            _told(side, name, done[name], time.monotonic() - began_s)
    return done


def _told(side: str, name: str, figure: Mapping[str, Any], took_s: float) -> None:
    lines = [f"{figure[each.value]:,.1f} {each.unit} ({each.title})" for each in FIGURES_OF_ROWS if each.row == name]
    cpu = f", {figure['cpuMicros']:.1f} µs CPU" if "cpuMicros" in figure else ""
    early = f", {figure['early']} EARLY" if figure.get("early") else ""
    print(f"{side:>7} {name:>12}: {'; '.join(lines)}{cpu}{early}  [{took_s:.0f} s]", file=sys.stderr, flush=True)


def _keep(known: Mapping[str, Sequence[Mapping[str, Mapping[str, Any]]]], chosen: argparse.Namespace) -> None:
    figures = kept.load(KEPT)
    figures["machine"] = machine()
    figures["method"] = {
        "warm_s": chosen.warm,
        "seconds": chosen.seconds,
        "queues": QUEUES,
        "scale": chosen.scale,
        "jvm": "-Xms{0}m -Xmx{0}m {1}".format(*JVMS[chosen.jvm]).strip(),
    }
    for name, pairs in known.items():
        if pairs:
            figures["rows"][name] = {"at": kept.now(), "pairs": list(pairs)}
    kept.save(KEPT, figures)


# --- the page -------------------------------------------------------------------------------------

_TEXT = """# Services: transactions, pop, timers

The table compares the services beside plain sends: rmqkit's broker and Apache's. It is for
operators who use transactions, pop consumers or delivery times.

{table}

{machine}

`make bench-services` starts a name server and one broker, all rmqkit's or all Apache's, on the same
cores as the client. The client is one JVM with `rocketmq-client` 5.5.0
(`rmqkit.bench.Services`), with headers as JSON, its default. Topics have {queues} queues. Apache's broker runs with
`{jvm}`. A ratio is rmqkit's figure divided by Apache's, the median of the pairs, with
the smallest and the largest. For ms and MiB, less is better. CPU is that of the broker in µs per
message (rmqkit / Apache).

- **Transactions**: each thread sends a half message with `TransactionMQProducer` and commits it.
  They do so for {seconds:g} s. The rate counts until every committed message can be read.
- **Pop and ack**: each worker pops up to 32 messages and acks each with a request of its own. Every
  message must be popped once.
- **Timers accepted**: messages with a delivery time, sent asynchronously with 1,024 in flight.
- **Timers due in one second**: the rate counts from the due second until the last one can be read.
- **Lateness**: from the due time to Java's listener, with messages due 3 to 6 s after their send.
  Both brokers round due times to a second (`timerPrecisionMs`).
- **Memory**: private memory of the broker's process, without pages of files, while a million timers
  wait.
"""


def row_line(each: Figure, pairs: Sequence[Mapping[str, Mapping[str, Any]]]) -> str:
    """Return one line of the table."""
    found = kept.ratios(pairs, each.value)
    ours, theirs = (f"{statistics.median(pair[side][each.value] for pair in pairs):,.0f}" for side in (OURS, APACHE))
    cpu = "–"
    if each.value == "perSecond" and all("cpuMicros" in pair[side] for pair in pairs for side in (OURS, APACHE)):
        medians = (statistics.median(pair[side]["cpuMicros"] for pair in pairs) for side in (OURS, APACHE))
        cpu = " / ".join(f"{value:.1f}" for value in medians)
    ratio = statistics.median(found)
    span = f"{ratio:.2f} [{min(found):.2f}–{max(found):.2f}]"
    goal = f"{'≤' if each.less else '≥'} {each.goal:g}"
    mark = "yes" if each.is_reached(ratio) else "**no**"
    return f"| {each.title} | {each.unit} | {ours} | {theirs} | {span} | {goal} | {mark} | {cpu} | {len(found)} |"


def table(rows: Mapping[str, Sequence[Mapping[str, Mapping[str, Any]]]]) -> list[str]:
    return [row_line(each, rows[each.row]) for each in FIGURES_OF_ROWS if rows.get(each.row)]


def section(figures: Mapping[str, Any]) -> str:
    """Return the section of the page."""
    rows = figures["rows"]
    lines = [
        "| load | | rmqkit | Apache | ratio, median [min–max] | goal | reached | broker's CPU | pairs |",
        "|---|---|---:|---:|---:|---:|---|---:|---:|",
        *table({name: known["pairs"] for name, known in rows.items()}),
    ]
    when = max(known["at"] for known in rows.values())[:10]
    return kept.wrapped_page(
        _TEXT.format(table="\n".join(lines), machine=f"{figures['machine']} {when}.", **figures["method"])
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-services", description="Transactions, pop and timers, in pairs.")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--memory-pairs", type=int, default=1, help="pairs that have the memory row (1)")
    parser.add_argument("--seconds", type=float, default=6.0, help="measured seconds of each timed load (6)")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds of warm-up of each session (10)")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the counted loads, for a trial (1)")
    parser.add_argument("--jvm", choices=list(JVMS), default="1g", help="flags of Apache's broker (1g)")
    parser.add_argument("--write", action="store_true", help="store the figures and regenerate the page")
    chosen = parser.parse_args(arguments)
    apache.require_tools()
    known = measure(chosen)
    if chosen.write and KEPT.exists():
        SECTION.write_text(section(kept.load(KEPT)))
        PAGE.write_text(kept.render(kept.load(FIGURES), FIGURES.parent))
    print("\n".join(table(known)))
    return 1 if chosen.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
