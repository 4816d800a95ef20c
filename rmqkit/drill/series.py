"""The series of real drills whose results stand in `docs/drills.md` (`make drills`).

    python -m rmqkit.drill.series                # all of them, about 20 minutes; results into docs/drills/results.json
    python -m rmqkit.drill.series --only pause --seconds 3 --out some.json
    python -m rmqkit.drill.series --render       # only the table of docs/drills.md, from results.json

Each has a cluster of its own: one name server, one group of two brokers. Runs that are not valid keep their folder.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rmqkit.cluster.home import home_folder
from rmqkit.drill import report_words
from rmqkit.drill.doing import with_own_cluster
from rmqkit.drill.plan import Flush, Mode, Plan, Replication
from rmqkit.drill.promises.contract import Judgement
from rmqkit.errors import RmqkitError

RESULTS, PAGE = Path("docs/drills/results.json"), Path("docs/drills.md")
BEGIN, END = "<!-- results: python -m rmqkit.drill.series -->", "<!-- end of results -->"
SEEDS = (1, 2)


def plans() -> list[Plan]:
    """Fifty: faults × modes × seeds, one way at a time, the pool, and faults of the slave."""
    found = []
    for fault in ("kill", "pause", "isolate"):
        for replication in Replication:
            for flush in (Flush.ASYNC, Flush.SYNC):
                found += [_plan(fault, Mode(replication, flush), seed) for seed in SEEDS]
    for fault in ("isolate-in", "isolate-out", "isolate-ha"):
        found += [_plan(fault, Mode(replication, Flush.ASYNC), 3) for replication in Replication]
    found += [_plan("kill", Mode(replication, Flush.POOL), 4) for replication in Replication]
    found += [_plan(fault, Mode(), 5, target="slave") for fault in ("kill", "pause")]
    return found


def _plan(fault: str, mode: Mode, seed: int, target: str = "master") -> Plan:
    return Plan(fault=fault, mode=mode, seed=seed, target=target, replicas=2)


def do(plan: Plan, home: Path) -> dict[str, Any]:
    """One drill; what is kept of it."""
    told: dict[str, Any] = {"fault": plan.fault, "target": plan.target, "mode": str(plan.mode), "seed": plan.seed}
    try:
        done = with_own_cluster(plan, home, lambda text: None)
    except RmqkitError as error:
        return {**told, "judgement": str(Judgement.INCONCLUSIVE), "why": str(error)}
    verdict = done.outcome.verdict
    if verdict.judgement is Judgement.VALID:
        shutil.rmtree(done.run)
    else:
        told["run"] = done.run.name
    return {
        **told,
        "judgement": str(verdict.judgement),
        "why": verdict.why,
        "proof": verdict.proof,
        "counts": dict(verdict.counts),
        "figures": report_words.figures(done.history, verdict),
        "promises": {
            each.name: {
                "judgement": str(each.finding.judgement),
                "facts": each.finding.facts,
                "counts": dict(each.finding.counts),
            }
            for each in verdict.promises
        },
    }


# --- the table

SURVIVE = "acknowledged-survive"
#: of these only what is longest is told
LONGEST = {
    "from a slave, s": "fault → first read served from a slave, s",
    "acknowledged again, s": "fault's end → first send acknowledged, s",
}


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """One row for each fault and mode; times are the longest of its drills."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for each in results:
        groups.setdefault((each["fault"], each["target"], each["mode"]), []).append(each)
    kept = sum(each["judgement"] == Judgement.VALID for each in results)
    lines = [
        f"{len(results)} drills, {kept} of them valid: {_sum(results, 'acknowledged'):,} messages acknowledged,"
        f" {_lost(results):,} of those that were promised lost; {_sum(results, 'unknown'):,} sends unknown.",
        "",
        "| fault | of the | mode | drills | verdict | acknowledged | unknown | lost | read " + " | ".join(LONGEST) + " |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (fault, target, mode), rows in groups.items():
        verdicts = ", ".join(dict.fromkeys(str(each["judgement"]) for each in rows))
        figures = [_longest(rows, name) for name in LONGEST.values()]
        numbers = f"{_sum(rows, 'acknowledged'):,} | {_sum(rows, 'unknown'):,} | {_lost(rows):,}"
        lines.append(f"| {fault} | {target} | {mode} | {len(rows)} | {verdicts} | {numbers} | {' | '.join(figures)} |")
    return "\n".join([BEGIN, *lines, END]) + "\n"


def _sum(rows: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(int(each.get("counts", {}).get(name, 0)) for each in rows)


def _lost(rows: Iterable[Mapping[str, Any]]) -> int:
    return sum(int(each.get("promises", {}).get(SURVIVE, {}).get("counts", {}).get("broken", 0)) for each in rows)


def _longest(rows: Iterable[Mapping[str, Any]], name: str) -> str:
    found = [float(each["figures"][name]) for each in rows if name in each.get("figures", {})]
    return f"{max(found):.2f}" if found else "–"


def render(results: Sequence[Mapping[str, Any]], page: Path) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(before + markdown(results).rstrip("\n") + rest.partition(END)[2], encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every drill is valid."""
    parser = argparse.ArgumentParser(prog="python -m rmqkit.drill.series")
    parser.add_argument("--only", default="", help="drills of this fault alone")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long a fault lasts")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--render", action="store_true", help="do nothing, make the table of the page")
    given = parser.parse_args(argv)
    if given.render:
        render(json.loads(given.out.read_text(encoding="utf-8")), PAGE)
        return 0
    logging.getLogger("rmqkit").addHandler(logging.NullHandler())
    logging.getLogger("rmqkit").propagate = False
    wanted = [plan.changed(fault_ms=round(given.seconds * 1000)) for plan in plans() if given.only in ("", plan.fault)]
    results = []
    for number, plan in enumerate(wanted, 1):
        results.append(do(plan, home_folder()))
        last = results[-1]
        told = f"{last['judgement']} {last.get('run', '')} {last.get('why', '')}".strip()
        print(f"{number:2}/{len(wanted)} {plan.fault} {plan.target} {plan.mode} seed {plan.seed}: {told}", flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if given.out == RESULTS and not given.only:
        render(results, PAGE)
    return 0 if all(each["judgement"] == Judgement.VALID for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
