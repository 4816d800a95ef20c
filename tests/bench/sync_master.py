"""Compares SYNC_MASTER with one slave, ours and Apache's: `make bench-replicas ARGS="..."`.

    python -m tests.bench.sync_master [--rows sync-1 sync-64 catch-up] [--pairs 4] [--seconds 6]
                                      [--write]

A side is a name server, a master that waits for two copies (`inSyncReplicas=2`) and its slave, all
of one make. Both sides have the same configuration files and the default file sizes of the store. A
pair is a session of ours and one of Apache's, one after the other, never at the same time. The
order alternates from pair to pair. A session measures its rows in both regimes, as `bench-apache`
does (`rows.measure_rows`). After each row the slave's log must be as long as the master's, and all
acknowledged messages must be stored.

Catch-up: the slave is stopped, its store is removed, and it is started again. The rate is that of
its reports to the master (code 907), from the first one to the one at the end of the log. The row
belongs to the first minute. By then the log is one file; later it has several, and an Apache master
sends only the last one to an empty slave. Until the group is warm, the load counts from the start
of this slave.

Without `--write` the figures are only printed. With it, they are stored in
docs/performance/replicas.json and the page is regenerated. Needs Java 17 and Maven, like the
interop tests.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from rmqkit.wire import fastjson
from tests.bench import figures as kept
from tests.bench.against_apache import DOCS, FIGURES, PAGE, Known, add_pair, by_row, store
from tests.bench.brokers import APACHE, DEFAULT_FILES, OURS
from tests.bench.load import Load
from tests.bench.rows import (
    ASYNC_FLUSH,
    FIRST,
    FIRST_LOAD_S,
    QUEUES,
    WARM_AFTER_S,
    Row,
    Session,
    SessionFigures,
    measure_rows,
)
from tests.interop import apache
from tests.interop.acting import ActingCluster
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


#: a running master and its slave
Pair = Group | ActingCluster


class Replicated:
    """A running group, used like `brokers.Running`; CPU time is of master and slave together."""

    def __init__(self, name: str, group: Pair) -> None:
        self.name, self.group = name, group
        self.namesrv, self.broker = group.namesrv, group.master.address

    def cpu_s(self) -> float:
        return cpu_of(self.group.master) + cpu_of(self.group.slave)


def cpu_of(member: Member) -> float:
    times = psutil.Process(member.pid).cpu_times()
    return times.user + times.system


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
    session.began_s = time.monotonic()
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


def until_copied(group: Pair) -> None:
    """Wait until the slave has the whole log of its master. Raises TimeoutError."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while slave_acked(group.master) != group.master.log_end():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the slave does not reach the end of its master's log")
        time.sleep(_POLL_S)


def until_readable(group: Pair, topic: str) -> None:
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
    "sync-1": Row("1 thread, 1 KiB, two copies", "msg/s", 1.0, ASYNC_FLUSH, _threads("sync-1", 1)),
    "sync-64": Row("64 threads, 1 KiB, two copies", "msg/s", 1.0, ASYNC_FLUSH, _threads("sync-64", 64)),
    "catch-up": Row("a wiped slave catches up", "MB/s", 1.0, ASYNC_FLUSH, _catch_up, regime=FIRST),
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


def measure(chosen: argparse.Namespace) -> Known:
    """Measure all pairs; with `--write` the figures are stored after each pair."""
    began_s = time.monotonic()
    known: Known = {}
    names = [name for name in ROWS if name in chosen.rows]
    method = {"warm_after_s": chosen.warm_after, "lead_s": chosen.lead, "seconds": chosen.seconds, "queues": QUEUES}
    with Load() as load:
        for number in range(chosen.pairs):
            order = (OURS, APACHE) if number % 2 == 0 else (APACHE, OURS)
            add_pair(known, {side: _session(side, names, load, chosen) for side in order})
            if chosen.write:
                store(KEPT, known, method)
            print(f"pair {number + 1} of {chosen.pairs}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    return known


def _session(side: str, names: Sequence[str], load: Load, chosen: argparse.Namespace) -> SessionFigures:
    with replicated(side) as running, load.session(running.namesrv):
        session = Session(running, load, chosen.lead, chosen.seconds, chosen.scale)
        return measure_rows(session, ROWS, names, chosen.warm_after)


_OUTDATED = "Rows without a regime are left out ({}): run `make bench-replicas ARGS=--write`."
_TEXT = """# Replicas: a master that waits for its slave

The table compares masters that wait for their slave: rmqkit's and Apache's. It is for operators who
choose between ASYNC_MASTER and SYNC_MASTER.

{table}

A ratio is rmqkit's figure divided by Apache's: the median of the pairs, with the smallest and the
largest. A ratio in bold misses its goal. {remark}

{machine}

`make bench-replicas` starts a name server, a SYNC_MASTER with `inSyncReplicas=2` and its slave. All
of them are rmqkit's or all are Apache's, on the same cores as the client. The master replies to a
send when the slave has acknowledged it. *First minute* and *warm* are the regimes of `make bench-apache`:
the first row begins after {first_load_s:g} s of load, and the rows are measured again after {warm_after_s:g} s of
load or more. Each row runs for {lead_s:g} s before the measured window of {seconds:g} s. CPU is user and system
time in µs per message of the window (rmqkit / Apache). Rates and CPU are those of the warm group.

Catch-up: the benchmark removes the slave's store and starts the slave again. The rate is that of
the slave's reports, from its first report to the one that names the end of the log ({megabytes:,.0f} MB). The
row has no warm figure: the slave is a new process by nature, and its master is in its first minute.
After a minute of load the log would have several files, and Apache's master sends only the last one
to an empty slave. The warm rows follow after {warm_after_s:g} s of load of the new slave. The times count from
the start of its process:

| until | time |
|---|---|
| the slave has the whole log | {whole} |
| all messages can be read from the slave's queues | {readable} |
"""


def median(pairs: Sequence[Mapping[str, Mapping[str, Any]]], side: str, value: str) -> float:
    return statistics.median(pair[side].get(value, 0.0) for pair in pairs)


def section(figures: Mapping[str, Any]) -> str:
    """Return the section of the page."""
    rows = figures["rows"]
    caught = rows.get("catch-up", {}).get(FIRST, ())
    whole, readable = (
        " and ".join(f"{median(caught, side, value):.1f} s ({side})" for side in (OURS, APACHE)) if caught else "–"
        for value in ("wholeSeconds", "readableSeconds")
    )
    outdated = [ROWS[name].title for name in ROWS if name in rows and not kept.has_regime(rows[name])]
    return kept.wrapped_page(
        _TEXT.format(
            table="\n".join(kept.table(ROWS, rows, "CPU of master and slave, µs")),
            remark=_OUTDATED.format("; ".join(outdated)) if outdated else kept.missed_text(ROWS, rows),
            machine=f"{figures['machine']} {max(row['at'] for row in rows.values())[:10]}.",
            megabytes=median(caught, OURS, "megabytes") if caught else 0,
            whole=whole,
            readable=readable,
            first_load_s=FIRST_LOAD_S,
            **{**kept.DEFAULT_METHOD, **figures["method"]},
        )
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-replicas", description="Masters that wait for a slave, in pairs.")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0, help="measured seconds of each load (6)")
    parser.add_argument("--lead", type=float, default=1.0, help="unmeasured seconds before them (1)")
    parser.add_argument("--warm-after", type=float, default=WARM_AFTER_S, help="a group is warm after these seconds (60)")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the messages of catch-up, for a trial (1)")
    parser.add_argument("--write", action="store_true", help="store the figures and regenerate the page")
    chosen = parser.parse_args(arguments)
    apache.require_tools()
    known = measure(chosen)
    if chosen.write:
        SECTION.write_text(section(kept.load(KEPT)))
        PAGE.write_text(kept.render(kept.load(FIGURES), FIGURES.parent))
    for name, passes in by_row(known).items():
        print(kept.row_line(ROWS[name], passes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
