"""Stores the figures of the comparison with Apache as JSON, and renders `docs/performance.md`.

A row that is measured again replaces its old figures; the other rows are unchanged. Therefore the
page can be measured in parts. It gives the dates of the measurements.
"""

import json
import re
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.brokers import APACHE, OURS
from tests.bench.rows import ROWS

Figures = dict[str, Any]

_HEAD = """# Performance

This page compares rmqkit's broker with Apache RocketMQ's broker 5.5.0 under the same load from
Apache's own Java client. It is for operators who size a machine, and for developers who change the
hot path of the broker.

"""

_METHOD = """
A ratio is rmqkit's figure divided by Apache's. The goal states the ratio that the row should reach.
For ms, MB and s, less is better.

## How it was measured

{machine}

`make bench-apache` measures in pairs. For one half of a pair it starts a name server and one
broker, fresh and alone, in a temporary folder. It warms the broker up for {warm_s:g} s with single sends,
batches and asynchronous sends. It then measures all rows on topics of {queues} queues and stops the
broker. For the other half it does the same with the other broker. The order alternates from pair to
pair.

The table shows the median of the ratios of all pairs, with the smallest and the largest. Each row
runs for {lead_s:g} s before the measured window of {seconds:g} s.

The load is one JVM with `rocketmq-client` 5.5.0 for both brokers
(`tests/interop/driver/src/main/java/rmqkit/bench`). Its threads share one producer and send
synchronously in closed loops, with binary headers and without compression. Apache's
`benchmark.Producer` does the same. After each row the benchmark checks the counts: the broker has
stored every acknowledged message, and the consumer has read every sent message once. Apache's
broker runs with `{jvm}`. Both brokers flush asynchronously unless the row says
otherwise.

*CPU* is user and system time in µs per message of the measured window. The broker's column has the
broker process (rmqkit / Apache). The client's column has the client (with rmqkit / with Apache).
When both cores are full, a ratio cannot exceed (client + Apache) / client, even if rmqkit's broker
needs very little. Private memory is the memory of name server and broker that is not a page of a
file. End-to-end times start at the moment a message was *due* to be sent.
"""


def load(path: Path) -> Figures:
    figures: Figures = json.loads(path.read_text()) if path.exists() else {"rows": {}}
    return figures


def save(path: Path, figures: Figures) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")


def ratios(pairs: Sequence[Mapping[str, Mapping[str, Any]]], value: str) -> list[float]:
    """Return our value divided by Apache's, pair by pair."""
    return [pair[OURS][value] / pair[APACHE][value] for pair in pairs if pair[APACHE][value]]


def is_reached(name: str, ratio: float) -> bool:
    row = ROWS[name]
    return ratio <= row.goal if row.less else ratio >= row.goal


def row_line(name: str, known: Mapping[str, Any]) -> str:
    """Return one line of the table."""
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
    """Return the page: the table, the method, and the texts in the folder `sections`."""
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
    text = _HEAD + "\n".join(lines) + "\n" + _METHOD.format(machine=wrapped(machine + when), **method)
    for path in sorted(sections.glob("*.md")) if sections.is_dir() else ():
        # Each text is a page one folder deeper, so its headings and links need one more level.
        section = re.sub(r"^#", "##", path.read_text().strip(), flags=re.MULTILINE)
        text += "\n" + section.replace("](../", "](") + "\n"
    return text


def wrapped(text: str) -> str:
    """Wrap prose at 100 columns; it contains values of unknown length."""
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def wrapped_page(text: str) -> str:
    """Wrap each paragraph of a page that has a line above 100 columns; tables stay."""
    return "\n\n".join(map(_wrapped_block, text.split("\n\n")))


def _wrapped_block(block: str) -> str:
    lines = block.split("\n")
    if block.startswith(("|", "-", "#", "1.")) or max(map(len, lines)) <= 100:
        return block
    return wrapped(" ".join(lines))
