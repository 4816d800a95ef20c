"""Generates the table of figures in the README from what the benches store (`tests/bench`).

A line shows one or more figures of one unit, as `1.36 / 1.46 / 1.69`. A bold ratio says that Apache
is ahead. `docs/performance.md` has every row. `APART` names those that the README leaves to it; a
test requires that Apache is ahead in none of them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench import against_apache, elections, figures, services, sync_master
from tests.bench.brokers import APACHE, OURS
from tests.bench.rows import FIRST, WARM

Pairs = Sequence[Mapping[str, Mapping[str, Any]]]
#: the timers of the elections that the README shows
TIMERS = "fast"


class Cell(NamedTuple):
    """A figure: the file that has it, its row, and the name of the value."""

    file: Path
    row: str
    value: str = "perSecond"

    def pairs(self) -> Pairs:
        """Return the pairs of the warm brokers; of the first minute if there are no others."""
        known = figures.load(self.file)["rows"][self.row]
        found: Pairs = known.get("pairs") or known.get(WARM) or known[FIRST]
        return found


class Line(NamedTuple):
    """A line of the table."""

    title: str
    cells: tuple[Cell, ...]
    #: decimal places; None: three digits
    digits: int | None = None
    #: whether less is better
    less: bool = False


def _apache(*rows: str, value: str = "perSecond") -> tuple[Cell, ...]:
    return tuple(Cell(against_apache.FIGURES, row, value) for row in rows)


LINES = (
    Line("sync sends of 1 KiB, 1 / 8 / 64 threads, msg/s", _apache("sync-1", "sync-8", "sync-64")),
    Line("async sends of 1 KiB, msg/s", _apache("async")),
    Line("batches of 32 × 128 B, msg/s", _apache("batch")),
    Line(
        "broker's CPU per message: 8 / 64 threads / async / batches, µs",
        _apache("sync-8", "sync-64", "async", "batch", value="cpuMicros"),
        1,
        less=True,
    ),
    Line("SYNC_FLUSH, 1 / 64 threads, msg/s", _apache("flush-1", "flush-64")),
    Line(
        "SYNC_MASTER with one slave, 1 / 64 threads, msg/s",
        (Cell(sync_master.KEPT, "sync-1"), Cell(sync_master.KEPT, "sync-64")),
    ),
    Line(
        "transactions, msg/s / pop and ack, msg/s",
        (Cell(services.KEPT, "transactions"), Cell(services.KEPT, "pop")),
    ),
    Line(
        "timers accepted / delivered, msg/s",
        (Cell(services.KEPT, "timers"), Cell(services.KEPT, "timers", "deliveredPerSecond")),
    ),
    Line("drain of 300,000 × 1 KiB, msg/s", _apache("drain")),
    Line("send to listener at 2,000 / 5,000 msg/s, p99 ms", _apache("e2e-2k", "e2e-5k", value="p99Ms"), 1, less=True),
    Line("start-up to the first acknowledged send, s", _apache("start-up", value="seconds"), 1, less=True),
    Line("private memory after a million sends, MB", _apache("memory", value="megabytes"), less=True),
)
#: rows of `docs/performance.md` that are like another row of the README
APART = ("small-64",)


def tables() -> dict[str, str]:
    """Return the generated table by its mark."""
    lines = ["| load | rmqkit | Apache 5.5.0 | ratio |", "|---|---:|---:|---:|"]
    lines += [_line(each) for each in LINES]
    return {"figures": "\n".join([*lines, _election_line()])}


def _line(line: Line) -> str:
    found = [(cell.pairs(), cell.value) for cell in line.cells]
    sides = [[statistics.median(pair[side][value] for pair in pairs) for pairs, value in found] for side in (OURS, APACHE)]
    ratios = [statistics.median(figures.ratios(pairs, value)) for pairs, value in found]
    cells = [
        line.title,
        *(" / ".join(figures.number(value, line.digits) for value in values) for values in sides),
        " / ".join(ratio_text(ratio, less=line.less) for ratio in ratios),
    ]
    return f"| {' | '.join(cells)} |"


def ratio_text(ratio: float, *, less: bool) -> str:
    """Return a ratio as text, in bold if Apache is ahead."""
    return f"**{ratio:.2f}**" if (ratio > 1 if less else ratio < 1) else f"{ratio:.2f}"


def _election_line() -> str:
    known = json.loads(elections.KEPT.read_text(encoding="utf-8"))["sets"][TIMERS]["pairs"]
    medians = [elections.medians(known, fault, "acked") for fault in elections.FAULTS]
    ours, theirs, ratios = (" / ".join(f"{value:.2g}" for value in values) for values in zip(*medians, strict=True))
    title = "[election](docs/failover/elections.md), master killed / stopped, to the next acknowledged message, s"
    return f"| {title} | {ours} | {theirs} | {ratios} |"
