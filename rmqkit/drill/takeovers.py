"""The series of real drills in which a slave acts for its master (`make drills`): what is done, and the table of it.

    python -m rmqkit.drill.series --list takeovers      # results into docs/drills/takeovers.json, a table into the page

Two broker groups: one is broken, the other takes the sends and what escapes. Faults × replicas × lock modes × escape
strategies, with the timers of `--preset fast-failover`, and some with upstream's. `strict` wants three replicas: of two a
quorum is both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rmqkit.cluster.presets import PRESETS
from rmqkit.drill.plan import Mode, Plan
from rmqkit.drill.promises.contract import Judgement

FAULTS = ("kill", "pause", "isolate")
BEGIN, END = "<!-- takeovers: python -m rmqkit.drill.series -->", "<!-- end of takeovers -->"
#: of every broker of these drills
ON: Mapping[str, str] = {
    "enableSlaveActingMaster": "true",
    "supportActingMaster": "true",
    "notifyMinBrokerIdChanged": "true",
}
#: so long a fault lasts with the timers of `fast-failover`: a slave acts for three seconds or more
FAST_MS = 6_000


def plans() -> list[Plan]:
    """Thirty."""
    found = []
    for fault in FAULTS:
        for lock_mode in ("strict", "loose"):
            found += [_plan(fault, 3, lock_mode, escape, 11) for escape in ("auto", "remote")]
        found += [_plan(fault, 3, "strict", "auto", 12), _plan(fault, 3, "loose", "none", 13)]
        found += [_plan(fault, 2, "loose", "auto", seed) for seed in (14, 15)]
        found.append(_plan(fault, 3, "strict", "auto", 16, mode="quorum+sync-flush"))
        found.append(_plan(fault, 3, "strict", "auto", 17, is_fast=False))
    return found


def _plan(
    fault: str, replicas: int, lock_mode: str, escape: str, seed: int, *, mode: str = "quorum", is_fast: bool = True
) -> Plan:
    fast = {key: str(value) for key, value in PRESETS["fast-failover"].settings.items()} if is_fast else {}
    settings = {**ON, **fast, "lockMode": lock_mode, "escapeStrategy": escape}
    return Plan(
        fault=fault,
        mode=Mode.parse(mode),
        seed=seed,
        groups=2,
        replicas=replicas,
        settings=settings,
        fault_ms=FAST_MS if is_fast else 0,
    )


def told(plan: Plan) -> dict[str, Any]:
    """What a result says of its plan, beside what every drill's says."""
    fast = plan.settings.get("brokerNotActiveTimeoutMillis")
    return {
        "replicas": plan.replicas,
        "locks": plan.settings["lockMode"],
        "escape": plan.settings["escapeStrategy"],
        "timers": "fast" if fast else "upstream's",
    }


# --- the table

#: of the stages, in seconds
STAGES = {
    "noticed": "fault → noticed by the name server, s",
    "acts": "fault → a slave acts, s",
    "read": "fault → first read served from a slave, s",
    "lock": "fault → lock granted, s",
    "delayed": "fault → delayed message released, s",
    "pre-online": "fault's end → pre-online done, s",
    "clients back": "fault's end → first send acknowledged, s",
}
#: how often something came again, per drill
AGAIN = {
    "takeover": "messages given again at takeover",
    "return": "messages given again at return",
    "delayed": "delayed messages released twice",
}


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """A row for each fault, replicas, locks, escape and timers: medians of the stages, and the most of what came again."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for each in results:
        key = (each["fault"], str(each["replicas"]), each["locks"], each["escape"], each["timers"], each["mode"])
        groups.setdefault(key, []).append(each)
    kept = sum(each["judgement"] == Judgement.VALID for each in results)
    lines = [
        f"{len(results)} drills, {kept} of them valid{repeated(results)}:"
        f" {total(results, 'acknowledged'):,} messages acknowledged and"
        f" {_count(results, 'delay-kept', 'acknowledged'):,} delayed ones, {_broken(results):,} broken facts;"
        f" {_figures(results, 'delayed messages escaped'):,.0f} delayed messages escaped.",
        "",
        f"| fault | replicas | locks | escape | timers | drills | verdict | {' | '.join(STAGES)} |"
        f" again at {' | again at '.join(list(AGAIN)[:2])} | delayed twice |",
        "|" + "---|" * (7 + len(STAGES) + len(AGAIN)),
    ]
    for (fault, replicas, locks, escape, timers, mode), rows in groups.items():
        verdicts = ", ".join(dict.fromkeys(str(each["judgement"]) for each in rows))
        sync = ", SYNC_FLUSH" if mode.endswith("sync-flush") and not mode.endswith("async-flush") else ""
        cells = [fault, replicas, locks, escape, timers + sync, str(len(rows)), verdicts]
        cells += [_median(rows, name) for name in STAGES.values()] + [_most(rows, name) for name in AGAIN.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([BEGIN, *lines, END]) + "\n"


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(str(each["figures"][name]).replace(",", "")) for each in rows if name in each.get("figures", {})]


def _median(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    found = _values(rows, name)
    return f"{statistics.median(found):.2f}" if found else "–"


def _most(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    found = _values(rows, name)
    return f"{max(found):,.0f}" if found else "–"


def _figures(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return sum(_values(rows, name))


def repeated(results: Sequence[Mapping[str, Any]]) -> str:
    """How many drills were repeated, as the end of a clause; "" for none."""
    count = sum("first_try" in each for each in results)
    return f" ({count} repeated because the first try was inconclusive)" if count else ""


def total(rows: Iterable[Mapping[str, Any]], name: str) -> int:
    """The sum of one of the drills' counts."""
    return sum(int(each.get("counts", {}).get(name, 0)) for each in rows)


def _count(rows: Sequence[Mapping[str, Any]], promise: str, name: str) -> int:
    return sum(int(each.get("promises", {}).get(promise, {}).get("counts", {}).get(name, 0)) for each in rows)


def _broken(rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(one["counts"].get("broken", 0)) for each in rows for one in each.get("promises", {}).values())
