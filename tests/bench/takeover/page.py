"""Renders `docs/comparison.md` from `docs/performance/takeover.json`."""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.bench.against_apache import DOCS
from tests.bench.brokers import APACHE, OURS
from tests.bench.figures import save, wrapped_page
from tests.interop import apache

KEPT = DOCS / "performance" / "takeover.json"
PAGE = DOCS / "comparison.md"
FAULT_TITLES = {
    "kill": "The master is killed (SIGKILL) and started again",
    "pause": "The master stalls (SIGSTOP) and continues",
    "isolate": "The master's network is cut and restored",
}

Pairs = Sequence[Mapping[str, Mapping[str, Any]]]


class Line(NamedTuple):
    """A row of the table: `value` is a count, of the total `of` if that is given."""

    title: str
    value: str
    of: str = ""


LINES = (
    Line("due timers delivered during the outage", "timersDuring", "timers"),
    Line("timers delivered twice", "timersTwice"),
    Line("timers lost", "timersLost"),
    Line("committed transactions delivered during the outage", "committedDuring", "committed"),
    Line("committed transactions delivered twice", "committedTwice"),
    Line("surplus deliveries of committed transactions", "committedSurplus"),
    Line("committed transactions lost", "committedLost"),
    Line("rolled back, but delivered", "rolledBackDelivered"),
    Line("popped and not acked: redelivered during the outage", "unackedDuring", "unacked"),
    Line("popped and not acked: never redelivered", "unackedLost", "unacked"),
    Line("not popped before: popped during the outage", "leftDuring", "left"),
    Line("redelivered after the ack was confirmed", "givenAfterAck"),
    Line("never popped", "popLost"),
    Line("consumer offsets lost at the takeover, messages", "backAtTakeover"),
    Line("consumer offsets lost at the return, messages", "backAtReturn"),
)


def load() -> dict[str, Any]:
    """Return the stored figures, or those of no pair."""
    figures: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {"faults": {}}
    return figures


def keep(figures: Mapping[str, Any]) -> None:
    """Store the figures and regenerate the page."""
    save(KEPT, figures)
    PAGE.write_text(page(figures), encoding="utf-8")


def rows(fault: str, pairs: Pairs) -> list[str]:
    """Return the table's rows of a fault."""
    command = f'`make bench-takeover ARGS="--fault {fault} --pairs 1"`'
    found = [f"| {each.title} | {_cell(pairs, OURS, each)} | {_cell(pairs, APACHE, each)} | {command} |" for each in LINES]
    back = " | ".join(_back(pairs, make) for make in (OURS, APACHE))
    return [*found, f"| master takes messages again after its return | {back} | {command} |"]


def _cell(pairs: Pairs, make: str, line: Line) -> str:
    # Pairs of an earlier version may lack a count.
    values = [pair[make][line.value] for pair in pairs if line.value in pair[make]]
    if not values:
        return "–"
    of = f" of {statistics.median(pair[make][line.of] for pair in pairs):g}" if line.of else ""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:g}{of}" if low == high else f"{middle:g}{of} [{low:g}–{high:g}]"


def _back(pairs: Pairs, make: str) -> str:
    values = [pair[make]["backSeconds"] for pair in pairs]
    seen = [value for value in values if value is not None]
    if not seen:
        return "never"
    span = f"{statistics.median(seen):.1f} s [{min(seen):.1f}–{max(seen):.1f}]"
    return span if len(seen) == len(values) else f"{span}; never in {len(values) - len(seen)} of {len(values)}"


_TEXT = """# Comparison: a takeover with pending work

This page shows what happens to rmqkit and to Apache RocketMQ {version} at the same fault, while
timers, half messages and popped messages are pending. It is for operators who choose a broker for
these services.

Both sides have a name server, a group of a master and a slave (`enableSlaveActingMaster`), a second
group that takes what the acting slave cannot store (`enableRemoteEscape`), and the same settings.
One client, rmqkit's, makes the load and the counts on both sides.

{made}

{sections}
## How it is measured

1. The client sends timers, half messages without an outcome, and messages to pop, all to the first
   group. It pops and acks some, and pops some without an ack. A group commits offsets all the time.
2. The master fails and is away for 25 s. Meanwhile all timers are due, and the invisible time of
   the popped messages (10 s) ends. A cut network separates the master from everything: name server,
   slave, second group and client. The producer answers the brokers' checks with the outcomes of its
   transactions. The client pops at the heads of both groups, as the route names them.
3. The master returns. The client counts again once nothing is missing, or after 30 s. "Never"
   means not within 45 s of the return.

*Consumer offsets lost* compares the last offsets that the old head had confirmed with the offsets
that the new head returns to the first query. *Lost* means: neither in the first group nor in the
second at the end. Settings beside the defaults: {settings}. Timers: {timers}.

Medians of the pairs, with the smallest and the largest where they differ.
"""


def page(figures: Mapping[str, Any]) -> str:
    """Return the whole page."""
    parts = []
    for fault, title in FAULT_TITLES.items():
        pairs = figures["faults"].get(fault)
        if pairs:
            head = f"## {title}\n\nPairs: {len(pairs)}.\n\n| what | rmqkit | Apache | shown by |\n|---|---:|---:|---|\n"
            parts.append(head + "\n".join(rows(fault, pairs)) + "\n")
    timers = ", ".join(f"{name} {ms} ms" for name, ms in figures["timers"].items())
    settings = ", ".join(f"`{name}={value}`" for name, value in figures["settings"].items())
    made = f"`make bench-takeover` made this page. {figures['machine']} {figures['at'][:10]}."
    sections = "\n".join(parts)
    return wrapped_page(
        _TEXT.format(version=apache.VERSION, made=made, sections=sections, settings=settings, timers=timers)
    )
