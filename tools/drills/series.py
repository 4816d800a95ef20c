"""The series of real drills whose results stand in `docs/drills.md` (`make drills`).

    python -m tools.drills.series                       # both lists, results into docs/drills/
    python -m tools.drills.series --list replicas       # fifty faults of one group of two: about 15 minutes
    python -m tools.drills.series --list takeovers      # thirty in which a slave acts (`takeovers.py`): about 20 minutes
    python -m tools.drills.series --list replicas --only pause --seconds 3 --out some.json

Each drill has a cluster of its own. A drill that is inconclusive is repeated once, because a busy
machine can be the reason. The result then keeps the reason of the first try. Runs that are not
valid keep their folder. The last lines of the output name the drills that are not valid and end
with the verdict of the whole series. Exit codes are those of a drill: 0 valid, 1 broken,
4 inconclusive.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rmqkit.cluster.layout.home import home_folder
from rmqkit.drill.plan import Flush, Mode, Plan, ReplicationMode
from rmqkit.drill.promises.contract import Judgement
from rmqkit.drill.real.runner import with_own_cluster
from rmqkit.drill.report import verdict_words
from rmqkit.drill.verdict import EXIT_CODES
from rmqkit.errors import RmqkitError
from tools import docs
from tools.drills import takeovers
from tools.pages.drills import RESULTS, repeated

SEEDS = (1, 2)


def plans() -> list[Plan]:
    """Fifty: faults × modes × seeds, one way at a time, the pool, and faults of the slave."""
    found = []
    for fault in ("kill", "pause", "isolate"):
        for replication in ReplicationMode:
            for flush in (Flush.ASYNC, Flush.SYNC):
                found += [_plan(fault, Mode(replication, flush), seed) for seed in SEEDS]
    for fault in ("isolate-in", "isolate-out", "isolate-ha"):
        found += [_plan(fault, Mode(replication, Flush.ASYNC), 3) for replication in ReplicationMode]
    found += [_plan("kill", Mode(replication, Flush.POOL), 4) for replication in ReplicationMode]
    found += [_plan(fault, Mode(), 5, target="slave") for fault in ("kill", "pause")]
    return found


def _plan(fault: str, mode: Mode, seed: int, target: str = "master") -> Plan:
    return Plan(fault=fault, mode=mode, seed=seed, target=target, replicas=2)


Drill = Callable[[Plan, Path], dict[str, Any]]


def drill_repeated(plan: Plan, home: Path, drill: Drill) -> dict[str, Any]:
    """The result of `drill`, of a second try if the first is inconclusive."""
    result = drill(plan, home)
    if result["judgement"] != Judgement.INCONCLUSIVE:
        return result
    return {**drill(plan, home), "first_try": result["why"]}


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
        "figures": verdict_words.figures(done.history, verdict),
        "promises": {
            each.name: {
                "judgement": str(each.finding.judgement),
                "facts": each.finding.facts,
                "counts": dict(each.finding.counts),
            }
            for each in verdict.promises
        },
    }


class Series(NamedTuple):
    plans: Callable[[], list[Plan]]
    results: Path
    #: what a result says of its plan beside what all say
    more: Callable[[Plan], Mapping[str, Any]]


LISTS: Mapping[str, Series] = {
    "replicas": Series(plans, RESULTS["replicas"], lambda plan: {}),
    "takeovers": Series(takeovers.plans, RESULTS["takeovers"], takeovers.settings),
}


def main(argv: Sequence[str] | None = None, drill: Drill = do) -> int:
    """The exit code of the worst drill."""
    parser = argparse.ArgumentParser(prog="python -m tools.drills.series")
    parser.add_argument("--list", default="", choices=["", *LISTS], help="one of the lists alone")
    parser.add_argument("--only", default="", help="drills of this fault alone")
    parser.add_argument("--seconds", type=float, help="how long a fault lasts")
    parser.add_argument(
        "--out", type=Path, help="write the results of --list here, not into docs/; a part of a list is only written so"
    )
    given = parser.parse_args(argv)
    if given.out is not None and not given.list:
        parser.error("--out wants --list")
    lists = [LISTS[given.list]] if given.list else list(LISTS.values())
    logging.getLogger("rmqkit").addHandler(logging.NullHandler())
    logging.getLogger("rmqkit").propagate = False
    results = [result for series in lists for result in _do_all(series, given, drill)]
    print("\n".join(summary(results)), flush=True)
    return EXIT_CODES[judgement_of(results)]


def _do_all(series: Series, given: argparse.Namespace, drill: Drill) -> list[dict[str, Any]]:
    """The results of a list, written where they belong. A part of a list never replaces the results of the whole."""
    wanted = [plan for plan in series.plans() if given.only in ("", plan.fault)]
    if given.seconds is not None:
        wanted = [plan.changed(fault_ms=round(given.seconds * 1000)) for plan in wanted]
    results = []
    for number, plan in enumerate(wanted, 1):
        result = {**drill_repeated(plan, home_folder(), drill), **series.more(plan)}
        results.append(result)
        print(f"{number:2}/{len(wanted)} {line(result)}", flush=True)
    is_whole = not given.only and given.seconds is None
    if given.out is not None or is_whole:
        out = given.out or series.results
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if given.out is None and is_whole:
        docs.write(["drills.md"])
    return results


def line(result: Mapping[str, Any]) -> str:
    """One drill in a line: what was done, its verdict, the folder of its run and the reasons."""
    words = [f"{result['fault']} {result['target']} {result['mode']} seed {result['seed']}"]
    words += [str(result[key]) for key in ("replicas", "locks", "escape", "timers") if key in result]
    verdict = " ".join(filter(None, (str(result["judgement"]), result.get("run", ""), result.get("why", ""))))
    again = f" (second try; the first was inconclusive: {result['first_try']})" if "first_try" in result else ""
    return f"{' '.join(words)}: {verdict}{again}"


def judgement_of(results: Sequence[Mapping[str, Any]]) -> Judgement:
    """Broken if one drill is, else inconclusive if one is (or there are none), else valid."""
    found = {each["judgement"] for each in results} or {Judgement.INCONCLUSIVE}
    return next(each for each in (Judgement.BROKEN, Judgement.INCONCLUSIVE, Judgement.VALID) if each in found)


def summary(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The drills that are not valid, one a line, and the verdict of the series as the last line."""
    lines = [f"  {line(each)}" for each in results if each["judgement"] != Judgement.VALID]
    judgements = [str(each["judgement"]) for each in results]
    counts = ", ".join(f"{judgements.count(each)} {each}" for each in Judgement if each in judgements)
    verdict = judgement_of(results)
    heading = ["not valid:"] if lines else []
    again = repeated(results)
    return [*heading, *lines, f"{len(results)} drills: {counts or 'none'}{again}: {verdict}, exit {EXIT_CODES[verdict]}"]


if __name__ == "__main__":
    sys.exit(main())
