"""The series of real drills whose results stand in `docs/drills.md` (`make drills`).

    python -m rmqkit.drill.series                       # both lists, results into docs/drills/
    python -m rmqkit.drill.series --list replicas       # fifty faults of one group of two: about 15 minutes
    python -m rmqkit.drill.series --list takeovers      # thirty in which a slave acts (`takeovers.py`): about 20 minutes
    python -m rmqkit.drill.series --list replicas --only pause --seconds 3 --out some.json
    python -m rmqkit.drill.series --render              # only the tables of docs/drills.md, from the results

Each drill has a cluster of its own. Runs that are not valid keep their folder.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rmqkit.cluster.home import home_folder
from rmqkit.drill import report_words, takeovers
from rmqkit.drill.doing import with_own_cluster
from rmqkit.drill.plan import Flush, Mode, Plan, Replication
from rmqkit.drill.promises.contract import Judgement
from rmqkit.errors import RmqkitError

RESULTS, TAKEOVERS, PAGE = Path("docs/drills/results.json"), Path("docs/drills/takeovers.json"), Path("docs/drills.md")
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


def render(table: str, page: Path) -> None:
    """Put a table between its own marks, which are its first and last line."""
    begin, end = table.splitlines()[0], table.splitlines()[-1]
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    page.write_text(before + table.rstrip("\n") + rest.partition(end)[2], encoding="utf-8")


class Series(NamedTuple):
    plans: Callable[[], list[Plan]]
    results: Path
    markdown: Callable[[Sequence[Mapping[str, Any]]], str]
    #: what a result says of its plan beside what all say
    told: Callable[[Plan], Mapping[str, Any]]


LISTS: Mapping[str, Series] = {
    "replicas": Series(plans, RESULTS, markdown, lambda plan: {}),
    "takeovers": Series(takeovers.plans, TAKEOVERS, takeovers.markdown, takeovers.told),
}


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every drill is valid."""
    parser = argparse.ArgumentParser(prog="python -m rmqkit.drill.series")
    parser.add_argument("--list", default="", choices=["", *LISTS], help="one of the lists alone")
    parser.add_argument("--only", default="", help="drills of this fault alone")
    parser.add_argument("--seconds", type=float, help="how long a fault lasts")
    parser.add_argument("--out", type=Path, help="write the results of --list here, and no table")
    parser.add_argument("--render", action="store_true", help="do nothing, make the tables of the page")
    given = parser.parse_args(argv)
    if given.out is not None and not given.list:
        parser.error("--out wants --list")
    lists = [LISTS[given.list]] if given.list else list(LISTS.values())
    if given.render:
        for series in lists:
            render(series.markdown(json.loads((given.out or series.results).read_text(encoding="utf-8"))), PAGE)
        return 0
    logging.getLogger("rmqkit").addHandler(logging.NullHandler())
    logging.getLogger("rmqkit").propagate = False
    return max([_do_all(series, given) for series in lists])


def _do_all(series: Series, given: argparse.Namespace) -> int:
    """0 when every drill of the list is valid."""
    wanted = [plan for plan in series.plans() if given.only in ("", plan.fault)]
    if given.seconds is not None:
        wanted = [plan.changed(fault_ms=round(given.seconds * 1000)) for plan in wanted]
    out = given.out or series.results
    results = []
    for number, plan in enumerate(wanted, 1):
        results.append({**do(plan, home_folder()), **series.told(plan)})
        last = results[-1]
        told = f"{last['judgement']} {last.get('run', '')} {last.get('why', '')}".strip()
        beside = " ".join(str(value) for value in series.told(plan).values())
        words = f"{plan.fault} {plan.target} {plan.mode} seed {plan.seed} {beside}".rstrip()
        print(f"{number:2}/{len(wanted)} {words}: {told}", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if given.out is None and not given.only:
        render(series.markdown(results), PAGE)
    return 0 if all(each["judgement"] == Judgement.VALID for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
