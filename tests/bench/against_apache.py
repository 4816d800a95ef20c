"""Compares our broker with Apache's, in pairs: `make bench-apache ARGS="..."`.

    python -m tests.bench.against_apache [--rows sync-1 batch ...] [--pairs 3] [--seconds 4]
                                         [--jvm 1g|shipped] [--figures FILE] [--page FILE]

A pair is a session of ours and one of Apache's. They run one after the other, never at the same
time, and the order alternates from pair to pair. Rows with different flush modes need separate
sessions; the start-up row needs none. A session measures its rows in the first minute of the
broker, then puts it under load until it is warm, and measures them again.

When the last pair of the requested rows is done, their figures replace those in the file, so rows
can be measured one by one. Then the page is generated from all known figures. Needs Java 17 and
Maven, like the interop tests.
"""

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.bench import figures as kept
from tests.bench.brokers import APACHE, JVMS, OURS, candidates, start_up_s
from tests.bench.load import Load
from tests.bench.rows import (
    ASYNC_FLUSH,
    FIRST,
    NOTHING,
    QUEUES,
    ROWS,
    SYNC_FLUSH,
    WARM_AFTER_S,
    Session,
    SessionFigures,
    measure_rows,
    tell,
)
from tests.interop import apache

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = DOCS / "performance" / "figures.json"
PAGE = DOCS / "performance.md"

#: (row, regime) -> pairs: side -> its figures
Known = dict[tuple[str, str], list[dict[str, Mapping[str, Any]]]]


def main(arguments: Sequence[str]) -> int:
    chosen = _parse(arguments)
    apache.require_tools()
    measure(chosen)
    figures = kept.load(chosen.figures)
    if not figures["rows"]:
        print(f"error: {chosen.figures} has no rows yet", file=sys.stderr)
        return 1
    chosen.page.write_text(kept.render(figures, chosen.figures.parent))
    for name in ROWS:
        if name in figures["rows"]:
            print(kept.row_line(ROWS[name], figures["rows"][name]))
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-apache", description="Our broker against Apache's, in pairs.")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="measured seconds of each load (4)")
    parser.add_argument("--lead", type=float, default=1.0, help="unmeasured seconds before them (1)")
    parser.add_argument("--warm-after", type=float, default=WARM_AFTER_S, help="a broker is warm after these seconds (60)")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the counted loads, for a trial (1)")
    parser.add_argument("--jvm", choices=list(JVMS), default="1g", help="flags of Apache's broker (1g)")
    parser.add_argument("--figures", type=Path, default=FIGURES)
    parser.add_argument("--page", type=Path, default=PAGE)
    return parser.parse_args(arguments)


def measure(chosen: argparse.Namespace) -> None:
    """Measure all pairs of the rows; intermediate figures are saved after each pair."""
    began_s = time.monotonic()
    known: Known = {}
    with Load() as load:
        for number in range(chosen.pairs):
            order = (OURS, APACHE) if number % 2 == 0 else (APACHE, OURS)
            for flush in (ASYNC_FLUSH, SYNC_FLUSH, NOTHING):
                names = [name for name in ROWS if name in chosen.rows and ROWS[name].flush == flush]
                sides = {side: _session(side, flush, names, load, chosen) for side in order if names}
                add_pair(known, sides)
            _keep(known, chosen)
            print(f"pair {number + 1} of {chosen.pairs}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)


def _session(side: str, flush: str, names: Sequence[str], load: Load, chosen: argparse.Namespace) -> SessionFigures:
    """Measure the rows of one side that share a broker."""
    if flush == NOTHING:
        load.page_cache.fill()
        return {(name, FIRST): _start_up(side, name, chosen.jvm) for name in names}
    with candidates(chosen.jvm)[side]({"flushDiskType": flush}) as running, load.session(running.namesrv):
        session = Session(running, load, chosen.lead, chosen.seconds, chosen.scale)
        return measure_rows(session, ROWS, names, chosen.warm_after)


def _start_up(side: str, name: str, jvm: str) -> Mapping[str, Any]:
    figure = {"seconds": start_up_s(side, jvm)}
    tell(side, name, ROWS[name], figure, figure["seconds"])
    return figure


def add_pair(known: Known, sides: Mapping[str, SessionFigures]) -> None:
    """Add the figures of two sessions to the pairs."""
    for key in sides.get(OURS, {}):
        known.setdefault(key, []).append({side: figures[key] for side, figures in sides.items()})


def by_row(known: Known) -> dict[str, dict[str, list[dict[str, Mapping[str, Any]]]]]:
    """Return row -> regime -> pairs."""
    found: dict[str, dict[str, list[dict[str, Mapping[str, Any]]]]] = {}
    for (name, regime), pairs in known.items():
        found.setdefault(name, {})[regime] = pairs
    return found


def _keep(known: Known, chosen: argparse.Namespace) -> None:
    method = {
        "warm_after_s": chosen.warm_after,
        "lead_s": chosen.lead,
        "seconds": chosen.seconds,
        "queues": QUEUES,
        "jvm": "-Xms{0}m -Xmx{0}m {1}".format(*JVMS[chosen.jvm]).strip(),
    }
    store(chosen.figures, known, method)


def store(path: Path, known: Known, method: Mapping[str, Any]) -> None:
    """Replace the stored figures of the measured rows."""
    figures = kept.load(path)
    figures["machine"] = machine()
    figures["method"] = method
    for name, passes in by_row(known).items():
        figures["rows"][name] = {"at": kept.now(), **passes}
    kept.save(path, figures)


def machine() -> str:
    cores, memory_gb = psutil.cpu_count(), psutil.virtual_memory().total / 1e9
    return (
        f"{cores} cores shared by broker, name server and client, {memory_gb:.0f} GB, {platform.system()}"
        f" {platform.release().split('-')[0]}, {python()}, Java {_java_version()}."
    )


def python() -> str:
    """Return the version of the interpreter; for the system's own one, also whose package it is.

    Systems compile theirs with profile-guided optimization. Others may lack it.
    """
    version = f"Python {platform.python_version()}"
    if sys.base_prefix != "/usr":
        return version
    return f"{version} of {platform.freedesktop_os_release()['PRETTY_NAME']}"


def _java_version() -> str:
    told = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    return told.split('"')[1] if '"' in told else "unknown"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
