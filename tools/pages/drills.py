"""Generates the tables of docs/drills.md: the results of the series of real drills.

`tools/drills/series.py` runs the series and writes the results files.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rmqkit.drill.promises.contract import Judgement

Result = Mapping[str, Any]

_FOLDER = Path(__file__).parents[2] / "docs" / "drills"
#: series -> the file of its last results
RESULTS: Mapping[str, Path] = {
    "replicas": _FOLDER / "results.json",
    "takeovers": _FOLDER / "takeovers.json",
    "services": _FOLDER / "services.json",
    "elections": _FOLDER / "elections.json",
}


def tables() -> dict[str, str]:
    found = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in RESULTS.items()}
    return {
        "results": replicas_table(found["replicas"]),
        "takeovers": takeovers_table(found["takeovers"]),
        "services": services_table(found["services"]),
        "elections": elections_table(found["elections"]),
    }


# --- faults of one group

SURVIVE = "acknowledged-survive"
#: column -> figure; the column shows the longest time of a row's drills
LONGEST = {
    "from a slave, s": "fault → first read served from a slave, s",
    "acknowledged again, s": "fault's end → first send acknowledged, s",
}


def replicas_table(results: Sequence[Result]) -> str:
    """Return the table with one row per fault and mode; times are the longest of its drills."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for each in results:
        groups.setdefault((each["fault"], each["target"], each["mode"]), []).append(each)
    lines = [
        f"{len(results)} drills, {_valid(results)} of them valid{repeated(results)}.",
        f"They acknowledged {_sum(results, 'acknowledged'):,} messages, and lost {_broken(results, SURVIVE):,} of those"
        " that their mode promises to keep.",
        f"The outcome of {_sum(results, 'unknown'):,} sends is unknown.",
        "",
        "| fault | target | mode | drills | verdict | acknowledged | unknown | lost | read " + " | ".join(LONGEST) + " |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (fault, target, mode), rows in groups.items():
        figures = [_longest(rows, name) for name in LONGEST.values()]
        numbers = f"{_sum(rows, 'acknowledged'):,} | {_sum(rows, 'unknown'):,} | {_broken(rows, SURVIVE):,}"
        cells = [fault, target, mode, str(len(rows)), _verdicts(rows), numbers, *figures]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# --- takeovers

#: column -> figure, the duration of a stage of a takeover in seconds
STAGES = {
    "noticed": "fault → noticed by the name server, s",
    "acts": "fault → a slave acts, s",
    "read": "fault → first read served from a slave, s",
    "lock": "fault → lock granted, s",
    "delayed": "fault → delayed message released, s",
    "pre-online": "fault's end → pre-online done, s",
    "clients back": "fault's end → first send acknowledged, s",
}
#: column -> figure, a number of messages that a drill received more than once
AGAIN = {
    "redelivered at takeover": "messages given again at takeover",
    "redelivered at return": "messages given again at return",
    "released twice": "delayed messages released twice",
}


def takeovers_table(results: Sequence[Result]) -> str:
    """Return the table with one row per fault, replicas, locks, escape and timers.

    Stages are medians of the row's drills, repetitions the highest count.
    """
    groups: dict[tuple[str, ...], list[Result]] = {}
    for each in results:
        key = (each["fault"], str(each["replicas"]), each["locks"], each["escape"], each["timers"], each["mode"])
        groups.setdefault(key, []).append(each)
    delayed = sum(_count(each, "delay-kept", "acknowledged") for each in results)
    escaped = sum(_values(results, "delayed messages escaped"))
    lines = [
        f"{len(results)} drills, {_valid(results)} of them valid{repeated(results)}.",
        f"They acknowledged {_sum(results, 'acknowledged'):,} messages and {delayed:,} delayed ones,"
        f" with {_broken(results):,} violations of a promise.",
        f"{escaped:,.0f} delayed messages escaped.",
        "",
        f"| fault | replicas | locks | escape | timers | drills | verdict | {' | '.join(STAGES)} | {' | '.join(AGAIN)} |",
        "|" + "---|" * (7 + len(STAGES) + len(AGAIN)),
    ]
    for (fault, replicas, locks, escape, timers, mode), rows in groups.items():
        sync = ", SYNC_FLUSH" if mode.endswith("sync-flush") and not mode.endswith("async-flush") else ""
        cells = [fault, replicas, locks, escape, timers + sync, str(len(rows)), _verdicts(rows)]
        cells += [_median(rows, name) for name in STAGES.values()] + [_most(rows, name) for name in AGAIN.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# --- timers, transactions and pop

#: column -> figure, the duration of a stage in seconds; the column shows the median
SERVICE_STAGES = {
    "timer": "fault → timer released, s",
    "transaction": "fault → transaction resolved, s",
    "pop ack": "fault → pop ack accepted, s",
}
#: column -> promise and counts; the column shows their sum over the row's drills
SERVICE_COUNTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "timers": ("timer-kept", ("acknowledged",)),
    "escaped": ("timer-kept", ("escaped",)),
    "twice": ("timer-kept", ("released twice",)),
    "transactions": ("transaction-atomic", ("acknowledged",)),
    "asked about": ("transaction-atomic", ("asked about",)),
    "committed twice": ("transaction-atomic", ("released twice",)),
    "popped": ("pop-kept", ("popped",)),
    "popped after the ack": ("pop-kept", ("again after the ack, allowed", "broken")),
}


def services_table(results: Sequence[Result]) -> str:
    """Return the table with one row per fault and mode."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for each in results:
        groups.setdefault((each["fault"], each["mode"]), []).append(each)
    timers, halves, popped = (
        sum(_count(each, name, count) for each in results)
        for name, count in (("timer-kept", "delivered"), ("transaction-atomic", "acknowledged"), ("pop-kept", "popped"))
    )
    lines = [
        f"{len(results)} drills, {_valid(results)} of them valid{repeated(results)}.",
        f"They delivered {timers:,} timers, and had {halves:,} transactions and {popped:,} popped messages.",
        f"There were {_broken(results):,} violations of a promise.",
        "",
        f"| fault | mode | drills | verdict | {' | '.join((*SERVICE_STAGES, *SERVICE_COUNTS))} |",
        "|" + "---|" * (4 + len(SERVICE_STAGES) + len(SERVICE_COUNTS)),
    ]
    for (fault, mode), rows in groups.items():
        cells = [fault, mode, str(len(rows)), _verdicts(rows), *(_median(rows, name) for name in SERVICE_STAGES.values())]
        for promise, counts in SERVICE_COUNTS.values():
            cells.append(f"{sum(_count(each, promise, count) for each in rows for count in counts):,}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# --- elections

#: column -> figure, the duration of a stage in seconds; the column shows the median
ELECTION_STAGES = {
    "elected": "fault → another master elected, s",
    "serves": "fault → the elected master serves, s",
    "slave again": "fault's end → slave of the new master, s",
}
#: column -> promise and count
ELECTION_COUNTS: Mapping[str, tuple[str, str]] = {
    "acknowledged": (SURVIVE, "acknowledged"),
    "unknown": (SURVIVE, "unknown"),
    "promise broken": (SURVIVE, "broken"),
    "lost, as the mode allows": (SURVIVE, "lost where nothing is promised"),
    "epochs with a master": ("one-master-per-epoch", "epochs with a master"),
}


def elections_table(results: Sequence[Result]) -> str:
    """Return the table with one row per mode, fault and load."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for each in results:
        groups.setdefault((each["mode"].partition("+")[0], each["fault"], each["load"]), []).append(each)
    lines = [
        f"{len(results)} drills, {_valid(results)} of them valid{repeated(results)}.",
        f"They acknowledged {_sum(results, 'acknowledged'):,} messages, with {_broken(results):,} violations of a promise.",
        "",
        f"| mode | fault | load | drills | verdict | {' | '.join((*ELECTION_STAGES, *ELECTION_COUNTS))} |",
        "|" + "---|" * (5 + len(ELECTION_STAGES) + len(ELECTION_COUNTS)),
    ]
    for (mode, fault, load), rows in groups.items():
        cells = [mode, fault, load, str(len(rows)), _verdicts(rows)]
        cells += [_median(rows, name) for name in ELECTION_STAGES.values()]
        cells += [f"{sum(_count(each, *count) for each in rows):,}" for count in ELECTION_COUNTS.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# --- figures of several results


def repeated(results: Iterable[Result]) -> str:
    """Return how many drills were repeated, as the end of a clause; "" if none was."""
    count = sum("first_try" in each for each in results)
    return f" ({count} repeated because the first try was inconclusive)" if count else ""


def _valid(rows: Iterable[Result]) -> int:
    return sum(each["judgement"] == Judgement.VALID for each in rows)


def _verdicts(rows: Iterable[Result]) -> str:
    return ", ".join(dict.fromkeys(str(each["judgement"]) for each in rows))


def _sum(rows: Iterable[Result], name: str) -> int:
    return sum(int(each.get("counts", {}).get(name, 0)) for each in rows)


def _count(row: Result, promise: str, name: str) -> int:
    return int(row.get("promises", {}).get(promise, {}).get("counts", {}).get(name, 0))


def _broken(rows: Iterable[Result], promise: str = "") -> int:
    """Return the number of violations of a promise, of all promises if `promise` is ""."""
    return sum(_count(each, name, "broken") for each in rows for name in each.get("promises", {}) if promise in ("", name))


def _values(rows: Iterable[Result], name: str) -> list[float]:
    return [float(str(each["figures"][name]).replace(",", "")) for each in rows if name in each.get("figures", {})]


def _longest(rows: Iterable[Result], name: str) -> str:
    found = _values(rows, name)
    return f"{max(found):.2f}" if found else "–"


def _median(rows: Iterable[Result], name: str) -> str:
    found = _values(rows, name)
    return f"{statistics.median(found):.2f}" if found else "–"


def _most(rows: Iterable[Result], name: str) -> str:
    found = _values(rows, name)
    return f"{max(found):,.0f}" if found else "–"
