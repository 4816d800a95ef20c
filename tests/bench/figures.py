"""Stores the figures of the comparison with Apache as JSON, and renders `docs/performance.md`.

A row that is measured again replaces its old figures; the other rows are unchanged. Therefore the
page can be measured in parts. It gives the dates of the measurements.
"""

import datetime
import json
import re
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.brokers import APACHE, OURS
from tests.bench.rows import FIRST, FIRST_LOAD_S, ROWS, WARM, WARM_AFTER_S, Row

Figures = dict[str, Any]
DEFAULT_METHOD = {"warm_after_s": WARM_AFTER_S, "lead_s": 1.0, "seconds": 4.0, "queues": 8, "jvm": ""}

_HEAD = """# Performance

This page compares rmqkit's broker with Apache RocketMQ's broker 5.5.0 under the same load from
Apache's own Java client. It is for operators who size a machine, and for developers who change the
hot path of the broker.

"""

_METHOD = """A ratio is rmqkit's figure divided by Apache's. For ms, MB, s and CPU, less is better. A figure in
bold misses its goal.

{missed}
[What limits the slower rows](#what-limits-the-slower-rows) has the reasons.

*First minute* is a broker that has been under load for {first_load_s:g} s when its first row begins. *Warm* is the
same broker after {warm_after_s:g} s of load or more. Java has compiled its hot code by then.

*CPU* is user and system time in µs per message of the measured window (rmqkit / Apache). The
broker's column has the broker process, the client's column the Java client. CPU per message tells
how much load a core can serve, whatever the client costs. The rates do not: when both cores are
full, a ratio cannot exceed (client + Apache) / client, even if rmqkit's broker needs very little.
Rates and CPU are those of the warm broker where a row has both.

## How it was measured

{machine}

`make bench-apache` measures in pairs. For one half of a pair it starts a name server and one
broker, fresh and alone, in a temporary folder. It measures all rows on topics of {queues} queues, puts
the broker under load with single sends, batches and asynchronous sends until it is warm, and
measures all rows again. For the other half it does the same with the other broker. The order
alternates from pair to pair. Before each broker is put under load, cached pages fill the memory of the machine, as
on a server that has run for days ([why](#the-memory-of-the-machine)).

The table shows the median of the ratios of all pairs, with the smallest and the largest. Each row
runs for {lead_s:g} s before the measured window of {seconds:g} s.

The load is one JVM with `rocketmq-client` 5.5.0 for both brokers
(`tests/interop/driver/src/main/java/rmqkit/bench`). Its threads share one producer and send
synchronously in closed loops, with binary headers and without compression. Apache's
`benchmark.Producer` does the same. After each row the benchmark checks the counts: the broker has
stored every acknowledged message, and the consumer has read every sent message once. Apache's
broker runs with `{jvm}`. Both brokers flush asynchronously unless the row says
otherwise.

Private memory is the memory of name server and broker that is not a page of a file. End-to-end
times start at the moment a message was *due* to be sent.
"""


def load(path: Path) -> Figures:
    figures: Figures = json.loads(path.read_text()) if path.exists() else {"rows": {}}
    return figures


def now() -> str:
    """Return the present time (UTC), as figures keep it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def save(path: Path, figures: Figures) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")


def ratios(pairs: Sequence[Mapping[str, Mapping[str, Any]]], value: str) -> list[float]:
    """Return our value divided by Apache's, pair by pair."""
    return [pair[OURS][value] / pair[APACHE][value] for pair in pairs if pair[APACHE][value]]


def table(rows: Mapping[str, Row], known: Mapping[str, Mapping[str, Any]], cpu_title: str) -> list[str]:
    """Return the table of the rows that have figures of a regime.

    `cpu_title` is the title of the column of the brokers' CPU.
    """
    return [
        f"| load | | rmqkit | Apache | ratio, first minute | ratio, warm | {cpu_title} | client's CPU, µs | pairs |",
        "|---|---|---:|---:|---|---|---|---:|---:|",
        *(row_line(row, known[name]) for name, row in rows.items() if has_regime(known.get(name, {}))),
    ]


def has_regime(known: Mapping[str, Any]) -> bool:
    """Return whether a row's figures belong to a regime; older benches stored them without."""
    return FIRST in known or WARM in known


def row_line(row: Row, known: Mapping[str, Any]) -> str:
    """Return one line of the table. `known` has the pairs by regime."""
    pairs = known.get(WARM) or known[FIRST]
    values = (number(_median(pairs, side, row.value)) for side in (OURS, APACHE))
    ratios_of = (_ratio_cell(row, known.get(regime, ()), regime) for regime in (FIRST, WARM))
    cells = (row.title, row.unit, *values, *ratios_of, _cpu_cell(row, pairs), _pair_cell(pairs, "clientMicros"))
    return f"| {' | '.join(cells)} | {len(pairs)} |"


def _ratio_cell(row: Row, pairs: Sequence[Mapping[str, Mapping[str, Any]]], regime: str) -> str:
    found = ratios(pairs, row.value)
    if not found:
        return "–"
    goal = row.goal_in(regime)
    shown = _marked(f"{statistics.median(found):.2f}", missed_ratio(row, pairs, regime) is None)
    return f"{shown} [{min(found):.2f}–{max(found):.2f}], goal {'≤' if row.less else '≥'} {goal:g}"


def _cpu_cell(row: Row, pairs: Sequence[Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the broker's CPU time of both sides, and their ratio with its goal."""
    shown, ratio = _pair_cell(pairs, "cpuMicros"), _cpu_ratio(pairs)
    goal = row.cpu_goal
    if goal is None or ratio is None:
        return shown
    return f"{shown} = {_marked(f'{ratio:.2f}', ratio <= goal)}, goal ≤ {goal:g}"


def missed_ratio(row: Row, pairs: Sequence[Mapping[str, Mapping[str, Any]]], regime: str) -> float | None:
    """Return the median ratio of a row's pairs if it misses the goal of this regime, else None."""
    found = ratios(pairs, row.value)
    if not found:
        return None
    ratio, goal = statistics.median(found), row.goal_in(regime)
    return None if (ratio <= goal if row.less else ratio >= goal) else ratio


def _cpu_ratio(pairs: Sequence[Mapping[str, Mapping[str, Any]]]) -> float | None:
    """Return the median ratio of the broker's CPU times; None if not all pairs have them."""
    if not pairs or not all("cpuMicros" in pair[side] for pair in pairs for side in (OURS, APACHE)):
        return None
    return statistics.median(ratios(pairs, "cpuMicros"))


def missed_text(rows: Mapping[str, Row], known_rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a sentence with the rows that miss a goal, and by which ratio."""
    shown = []
    for name, row in rows.items():
        known = known_rows.get(name, {})
        missed = [
            f"{regime} {ratio:.2f}"
            for regime, key in (("first minute", FIRST), ("warm", WARM))
            if (ratio := missed_ratio(row, known.get(key, ()), key)) is not None
        ]
        goal, cpu = row.cpu_goal, _cpu_ratio(known.get(WARM) or known.get(FIRST, ()))
        if goal is not None and cpu is not None and cpu > goal:
            missed.append(f"CPU {cpu:.2f}")
        if missed:
            shown.append(f"{row.title} ({', '.join(missed)})")
    return f"Below a goal: {'; '.join(shown)}." if shown else "All rows reach their goals."


def _marked(text: str, is_reached: bool) -> str:
    return text if is_reached else f"**{text}**"


def _pair_cell(pairs: Sequence[Mapping[str, Mapping[str, Any]]], value: str) -> str:
    return " / ".join(number(_median(pairs, side, value), 1) for side in (OURS, APACHE))


def _median(pairs: Sequence[Mapping[str, Mapping[str, Any]]], side: str, value: str) -> float | None:
    known = [pair[side][value] for pair in pairs if value in pair[side]]
    return statistics.median(known) if known else None


def number(value: float | None, digits: int | None = None) -> str:
    """Return a figure as text: three digits, or all of them before the point. None is a dash."""
    if value is None:
        return "–"
    if digits is not None:
        return f"{value:,.{digits}f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def render(figures: Figures, sections: Path) -> str:
    """Return the page: the table, the method, and the texts in the folder `sections`."""
    rows = figures["rows"]
    lines = table(ROWS, rows, "broker's CPU, µs")
    times = sorted(row["at"] for row in rows.values())
    machine = figures.get("machine", "")
    when = f" Rows of {times[0][:10]}" + (f" to {times[-1][:10]}." if times[0][:10] != times[-1][:10] else ".")
    text = _HEAD + "\n".join(lines) + "\n\n"
    text += wrapped_page(
        _METHOD.format(
            machine=machine + when,
            missed=missed_text(ROWS, rows),
            first_load_s=FIRST_LOAD_S,
            **{**DEFAULT_METHOD, **figures.get("method", {})},
        )
    )
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
