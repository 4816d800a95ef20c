"""Compares SYNC_MASTER with one slave, ours and Apache's: `make bench-replicas ARGS="..."`.

    python -m tests.bench.sync_master [--rows sync-1 sync-64 catch-up] [--pairs 5] [--seconds 6]
                                      [--write]

A side is a name server, a master that waits for two copies (`inSyncReplicas=2`) and its slave, all
of one make. Both sides have the same configuration files and the default file sizes of the store. A
pair is a session of ours and one of Apache's, one after the other, never at the same time. The
order alternates from pair to pair. After each row the slave's log must be as long as the master's,
and all acknowledged messages must be stored.

Catch-up: the slave is stopped, its store is removed, and it is started again. The rate is that of
its reports to the master (code 907), from the first one to the one at the end of the log. The log
is one file, so that Apache's slave also copies all of it.

Without `--write` the figures are only printed. With it, they are stored in
docs/performance/replicas.json and the page is regenerated. Needs Java 17 and Maven, like the
interop tests.
"""

import argparse
import datetime
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from rmqkit.wire import fastjson
from tests.bench import figures as kept
from tests.bench.against_apache import DOCS, FIGURES, PAGE, machine
from tests.bench.brokers import APACHE, DEFAULT_FILES, OURS
from tests.bench.load import Load
from tests.bench.rows import QUEUES, Session, put_under_load
from tests.interop import apache
from tests.interop.groups import Group, Member

KEPT = DOCS / "performance" / "replicas.json"
SECTION = DOCS / "performance" / "replicas.md"
HEAP_MB = 1024
#: number of messages that a slave with an empty store copies
CATCH_UP_MESSAGES = 400_000
_HA_STATUS = 907
_SETTINGS = {**DEFAULT_FILES, "slaveTimeout": "3000", "syncFlushTimeout": "5000", "haAcceptAnonymous": "true"}
_TIMEOUT_S = 120.0
_POLL_S = 0.02


class Replicated:
    """A running group, used like `brokers.Running`; CPU time is of master and slave together."""

    def __init__(self, name: str, group: Group) -> None:
        self.name, self.group = name, group
        self.namesrv, self.broker = group.namesrv, group.master.address

    def cpu_s(self) -> float:
        return cpu_of(self.group.master) + cpu_of(self.group.slave)


def cpu_of(member: Member) -> float:
    times = psutil.Process(member.pid).cpu_times()
    return times.user + times.system


class Row(NamedTuple):
    title: str
    unit: str
    goal: float
    run: Callable[[Session], Mapping[str, Any]]


def _threads(name: str, threads: int) -> Callable[[Session], Mapping[str, Any]]:
    def run(session: Session) -> Mapping[str, Any]:
        figure = session.send("sync", session.topic(name), threads=threads, size=1024)
        until_copied(session.running.group)
        return figure

    return run


def _catch_up(session: Session) -> Mapping[str, Any]:
    group = session.running.group
    session.fill(session.topic("catch-up"), max(1000, int(CATCH_UP_MESSAGES * session.scale)))
    until_copied(group)
    end = group.master.log_end()
    group.slave.stop()
    shutil.rmtree(group.slave.store)
    began_s = time.monotonic()
    before_s = cpu_of(group.master)
    group.slave.start()
    reports = watch(group, end)
    (first_s, first), (last_s, last) = reports[0], reports[-1]
    until_readable(group, "catch-up")
    readable_s = time.monotonic()
    megabytes = (last - first) / 1e6
    return {
        "perSecond": megabytes / (last_s - first_s) if last_s > first_s else 0.0,
        "megabytes": end / 1e6,
        "wholeSeconds": last_s - began_s,
        "readableSeconds": readable_s - began_s,
        "masterCpuMicrosPerMb": (cpu_of(group.master) - before_s) * 1e6 / (end / 1e6),
        "slaveCpuMicrosPerMb": cpu_of(group.slave) * 1e6 / (end / 1e6),
    }


def watch(group: Group, end: int) -> list[tuple[float, int]]:
    """Return (time, the slave's report), from the first report above zero to the one at `end`.

    Raises TimeoutError.
    """
    seen: list[tuple[float, int]] = []
    deadline_s = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline_s:
        acked = slave_acked(group.master)
        if acked > 0 and (not seen or acked > seen[-1][1]):
            seen.append((time.monotonic(), acked))
        if acked >= end:
            return seen
        time.sleep(_POLL_S)
    raise TimeoutError(f"the slave has {seen[-1:]} of {end}")


def slave_acked(master: Member) -> int:
    """Return the slave's last report, -1 without a slave."""
    header, body = apache.ask_whole(master.address, _HA_STATUS, {})
    links = fastjson.loads(body).get("haConnectionInfo") or [] if header["code"] == 0 else []
    return max((int(link["slaveAckOffset"]) for link in links), default=-1)


def until_copied(group: Group) -> None:
    """Wait until the slave has the whole log of its master. Raises TimeoutError."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while slave_acked(group.master) != group.master.log_end():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the slave does not reach the end of its master's log")
        time.sleep(_POLL_S)


def until_readable(group: Group, topic: str) -> None:
    """Wait until the slave's queues end where the master's do; they lag behind the log.

    Raises TimeoutError.
    """
    deadline_s = time.monotonic() + _TIMEOUT_S
    for queue_id in range(QUEUES):
        end = group.master.offset_max(topic, queue_id)
        while group.slave.offset_max(topic, queue_id) != end:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the slave's queue {queue_id} does not reach {end}")
            time.sleep(_POLL_S)


ROWS: dict[str, Row] = {
    "sync-1": Row("1 thread, 1 KiB, two copies", "msg/s", 1.0, _threads("sync-1", 1)),
    "sync-64": Row("64 threads, 1 KiB, two copies", "msg/s", 1.0, _threads("sync-64", 64)),
    "catch-up": Row("a wiped slave catches up", "MB/s", 1.0, _catch_up),
}


@contextmanager
def replicated(side: str) -> Iterator[Replicated]:
    """Run a group of one make; yield it once its slave is in sync."""
    make = "ours" if side == OURS else "apache"
    with tempfile.TemporaryDirectory(prefix="replicas-") as home:
        group = Group(Path(home), master=make, slave=make, settings=_SETTINGS, heap_mb=HEAP_MB, small=False)
        try:
            group.master.start()
            group.slave.start()
            deadline_s = time.monotonic() + _TIMEOUT_S
            while slave_acked(group.master) < 0:
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"{side}: the slave does not report")
                time.sleep(_POLL_S)
            yield Replicated(side, group)
        finally:
            group.close()


def measure(chosen: argparse.Namespace) -> dict[str, list[dict[str, Mapping[str, Any]]]]:
    known: dict[str, list[dict[str, Mapping[str, Any]]]] = {name: [] for name in ROWS if name in chosen.rows}
    with Load() as load:
        for number in range(chosen.pairs):
            pair: dict[str, dict[str, Mapping[str, Any]]] = {name: {} for name in known}
            for side in (OURS, APACHE) if number % 2 == 0 else (APACHE, OURS):
                for name, figure in _session(side, list(known), load, chosen).items():
                    pair[name][side] = figure
            for name in known:
                known[name].append(pair[name])
            if chosen.write:
                _keep(known, chosen)
    return known


def _session(side: str, names: Sequence[str], load: Load, chosen: argparse.Namespace) -> dict[str, Mapping[str, Any]]:
    done: dict[str, Mapping[str, Any]] = {}
    with replicated(side) as running, load.session(running.namesrv):
        session = Session(running, load, chosen.lead, chosen.seconds, chosen.scale)
        put_under_load(session, chosen.warm)
        for name in names:
            figure = done[name] = ROWS[name].run(session)
            cpu = f", {figure['cpuMicros']:.1f} µs CPU a message" if "cpuMicros" in figure else ""
            failed = f", {figure['failed']} FAILED ({figure['firstFailure']})" if figure.get("failed") else ""
            print(f"{side:>7} {name:>9}: {figure['perSecond']:,.1f} {ROWS[name].unit}{cpu}{failed}", file=sys.stderr)
    return done


def _keep(known: Mapping[str, Sequence[Mapping[str, Mapping[str, Any]]]], chosen: argparse.Namespace) -> None:
    figures = kept.load(KEPT)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    figures["machine"] = machine()
    figures["method"] = {"warm_s": chosen.warm, "lead_s": chosen.lead, "seconds": chosen.seconds, "queues": QUEUES}
    for name, pairs in known.items():
        figures["rows"][name] = {"at": now, "pairs": list(pairs)}
    kept.save(KEPT, figures)


_TEXT = """# Replicas: a master that waits for its slave

The table compares masters that wait for their slave: rmqkit's and Apache's. It is for operators who
choose between ASYNC_MASTER and SYNC_MASTER.

{table}

{machine}

`make bench-replicas` starts a name server, a SYNC_MASTER with `inSyncReplicas=2` and its slave. All
of them are rmqkit's or all are Apache's, on the same cores as the client. The master replies to a
send when the slave has acknowledged it. There are {pairs} pairs. Each row runs {seconds:g} s after {warm_s:g} s of
warm-up. The ratio is the median of the pairs, with the smallest and the largest. CPU is that of
master and slave together, in µs per message (rmqkit / Apache).

Catch-up: the benchmark removes the slave's store and starts the slave again. The rate is that of
the slave's reports, from its first report to the one that names the end of the log ({megabytes:,.0f} MB). The
times count from the start of the slave's process:

| until | time |
|---|---|
| the slave has the whole log | {whole} |
| all messages can be read from the slave's queues | {readable} |
"""


def row_line(name: str, known: Mapping[str, Any]) -> str:
    row, pairs = ROWS[name], known["pairs"]
    found = kept.ratios(pairs, "perSecond")
    ratio = statistics.median(found)
    mark = "yes" if ratio >= row.goal else "**no**"
    ours, theirs = (f"{median(pairs, side, 'perSecond'):,.0f}" for side in (OURS, APACHE))
    both = " / ".join(f"{median(pairs, side, 'cpuMicros'):.1f}" for side in (OURS, APACHE)) if name != "catch-up" else "–"
    span = f"{ratio:.2f} [{min(found):.2f}–{max(found):.2f}]"
    return f"| {row.title} | {row.unit} | {ours} | {theirs} | {span} | ≥ {row.goal:g} | {mark} | {both} | {len(found)} |"


def median(pairs: Sequence[Mapping[str, Mapping[str, Any]]], side: str, value: str) -> float:
    return statistics.median(pair[side].get(value, 0.0) for pair in pairs)


def section(figures: Mapping[str, Any]) -> str:
    """Return the section of the page."""
    rows = figures["rows"]
    lines = [
        "| load | | rmqkit | Apache | ratio, median [min–max] | goal | reached | CPU | pairs |",
        "|---|---|---:|---:|---:|---:|---|---:|---:|",
        *(row_line(name, rows[name]) for name in ROWS if name in rows),
    ]
    caught = rows.get("catch-up", {"pairs": []})["pairs"]
    whole, readable = (
        " and ".join(f"{median(caught, side, value):.1f} s ({side})" for side in (OURS, APACHE)) if caught else "–"
        for value in ("wholeSeconds", "readableSeconds")
    )
    return _TEXT.format(
        table="\n".join(lines),
        machine=kept.wrapped(f"{figures['machine']} {max(row['at'] for row in rows.values())[:10]}."),
        pairs=max(len(row["pairs"]) for row in rows.values()),
        megabytes=median(caught, OURS, "megabytes") if caught else 0,
        whole=whole,
        readable=readable,
        **{key: figures["method"][key] for key in ("seconds", "warm_s")},
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-replicas", description="Masters that wait for a slave, in pairs.")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="measured seconds of each load (6)")
    parser.add_argument("--lead", type=float, default=1.0, help="unmeasured seconds before them (1)")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds of warm-up of each session (10)")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the messages of catch-up, for a trial (1)")
    parser.add_argument("--write", action="store_true", help="store the figures and regenerate the page")
    chosen = parser.parse_args(arguments)
    lacking = apache.missing_tools()
    if lacking:
        print(f"error: the benchmark needs Java 17 and Maven; {lacking}", file=sys.stderr)
        return 1
    known = measure(chosen)
    if chosen.write:
        SECTION.write_text(section(kept.load(KEPT)))
        PAGE.write_text(kept.render(kept.load(FIGURES), FIGURES.parent))
    for name, pairs in known.items():
        print(row_line(name, {"pairs": pairs}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
