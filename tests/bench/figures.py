"""The figures of the comparison with Apache's broker: kept as JSON, row by row, and rendered as `docs/performance.md`.

A row that is measured again takes the place of what was known of it; the others stay. So the page can be made in parts,
and says of each row when it was measured.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.brokers import APACHE, OURS
from tests.bench.rows import ROWS

Figures = dict[str, Any]

_HEAD = """# Performance

Our broker beside Apache RocketMQ's broker 5.5.0, under the same load from Apache's own Java client.

"""

_METHOD = """
## How it was measured

{machine}

`make bench-apache` starts one of the two alone (a name server and one broker, fresh, in a temporary folder), warms it up
for {warm_s:g} s with each kind of send, does all rows on topics of {queues} queues, stops it, and does the same with the
other; that is a pair. The order turns from pair to pair. A ratio is ours divided by Apache's of the same pair; the table
has the median of the pairs, with the smallest and the largest. Each row has {lead_s:g} s of lead that does not count, and
{seconds:g} s that do.

The load is one JVM with `rocketmq-client` 5.5.0 for both sides (`tests/interop/driver/src/main/java/rmqkit/bench`): closed
loops of synchronous sends from threads that share a producer, binary headers, no compression, as Apache's
`benchmark.Producer` does it. After each row the broker is asked what it holds: what was acknowledged is stored, and what
was sent is read, once. Apache's broker runs with `{jvm}`; both flush asynchronously unless the row
says otherwise.

*CPU* is user and system time in µs for each message of the window, of the broker's process (ours / Apache's) and of the
client's (with ours / with Apache's). When both cores are full a ratio cannot exceed (client + Apache) / client, however
little our broker needs. Private memory is what is not a page of a file, name server and broker together. End-to-end times
run from the moment a message was *due* to be sent.
"""


def load(path: Path) -> Figures:
    figures: Figures = json.loads(path.read_text()) if path.exists() else {"rows": {}}
    return figures


def save(path: Path, figures: Figures) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")


def ratios(pairs: Sequence[Mapping[str, Mapping[str, Any]]], value: str) -> list[float]:
    """Ours divided by Apache's, pair by pair."""
    return [pair[OURS][value] / pair[APACHE][value] for pair in pairs if pair[APACHE][value]]


def is_reached(name: str, ratio: float) -> bool:
    row = ROWS[name]
    return ratio <= row.goal if row.less else ratio >= row.goal


def row_line(name: str, known: Mapping[str, Any]) -> str:
    """One line of the table."""
    row = ROWS[name]
    pairs = known["pairs"]
    found = ratios(pairs, row.value)
    ratio = statistics.median(found)
    span = f"{ratio:.2f} [{min(found):.2f}–{max(found):.2f}]"
    goal = f"{'≤' if row.less else '≥'} {row.goal:g}"
    mark = "yes" if is_reached(name, ratio) else "**no**"
    cpu, client = (
        " / ".join(_number(_median(pairs, side, value), 1) for side in (OURS, APACHE))
        for value in ("cpuMicros", "clientMicros")
    )
    cells = (row.title, row.unit, *(_number(_median(pairs, side, row.value)) for side in (OURS, APACHE)))
    return f"| {' | '.join(cells)} | {span} | {goal} | {mark} | {cpu} | {client} | {len(found)} |"


def _median(pairs: Sequence[Mapping[str, Mapping[str, Any]]], side: str, value: str) -> float | None:
    known = [pair[side][value] for pair in pairs if value in pair[side]]
    return statistics.median(known) if known else None


def _number(value: float | None, digits: int | None = None) -> str:
    if value is None:
        return "–"
    if digits is not None:
        return f"{value:,.{digits}f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def render(figures: Figures, sections: Path) -> str:
    """The page: the table, the method, and the texts that stand in the folder `sections`."""
    lines = [
        "| load | | rmqkit | Apache | ratio, median [min–max] | goal | reached | broker's CPU | client's CPU | pairs |",
        "|---|---|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    rows = figures["rows"]
    lines += [row_line(name, rows[name]) for name in ROWS if name in rows]
    times = sorted(row["at"] for row in rows.values())
    machine = figures.get("machine", "")
    when = f" Rows of {times[0][:10]}" + (f" to {times[-1][:10]}." if times[0][:10] != times[-1][:10] else ".")
    method = {"warm_s": 10.0, "lead_s": 1.0, "seconds": 6.0, "queues": 8, "jvm": "", **figures.get("method", {})}
    text = _HEAD + "\n".join(lines) + "\n" + _METHOD.format(machine=machine + when, **method)
    for path in sorted(sections.glob("*.md")) if sections.is_dir() else ():
        # The texts lie a folder deeper than the page.
        text += "\n" + path.read_text().strip().replace("](../", "](") + "\n"
    return text
