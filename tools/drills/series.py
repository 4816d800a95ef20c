"""Runs the series of real drills whose results are in `docs/drills.md` (`make drills`).

    python -m tools.drills.series                       # all lists, results into docs/drills/
    python -m tools.drills.series --list replicas       # 50 faults of one group of two: 15 minutes
    python -m tools.drills.series --list takeovers      # 30 in which a slave acts: 20 minutes
    python -m tools.drills.series --list services       # 12 with timers, transactions, pop: 8 min
    python -m tools.drills.series --list elections      # 15 with controllers: 12 minutes
    python -m tools.drills.series --list replicas --only pause --seconds 3 --out some.json

Each drill has its own cluster. An inconclusive drill is repeated once, because a busy machine can
be the reason. The result then records the reason of the first try. The folders of runs that are not
valid are kept. The last lines of the output name the drills that are not valid, and give the
verdict of the whole series. Exit codes are those of a drill: 0 valid, 1 broken, 4 inconclusive.
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
from rmqkit.drill.plan import PLAIN, Flush, Mode, Plan
from rmqkit.drill.promises.contract import Judgement
from rmqkit.drill.real.runner import with_own_cluster
from rmqkit.drill.report import verdict_words
from rmqkit.drill.verdict import EXIT_CODES
from rmqkit.errors import RmqkitError
from tools import docs
from tools.drills import elections, services, takeovers
from tools.pages.drills import RESULTS, repeated

SEEDS = (1, 2)


def plans() -> list[Plan]:
    """Return 50 plans: faults × modes × seeds, partial isolations, pool flush, slave faults."""
    found = []
    for fault in ("kill", "pause", "isolate"):
        for replication in PLAIN:
            for flush in (Flush.ASYNC, Flush.SYNC):
                found += [_plan(fault, Mode(replication, flush), seed) for seed in SEEDS]
    for fault in ("isolate-in", "isolate-out", "isolate-ha"):
        found += [_plan(fault, Mode(replication, Flush.ASYNC), 3) for replication in PLAIN]
    found += [_plan("kill", Mode(replication, Flush.POOL), 4) for replication in PLAIN]
    found += [_plan(fault, Mode(), 5, target="slave") for fault in ("kill", "pause")]
    return found


def _plan(fault: str, mode: Mode, seed: int, target: str = "master") -> Plan:
    return Plan(fault=fault, mode=mode, seed=seed, target=target, replicas=2)


Drill = Callable[[Plan, Path], dict[str, Any]]


def drill_repeated(plan: Plan, home: Path, drill: Drill) -> dict[str, Any]:
    """Run `drill` and return its result. If it is inconclusive, run it once more."""
    result = drill(plan, home)
    if result["judgement"] != Judgement.INCONCLUSIVE:
        return result
    return {**drill(plan, home), "first_try": result["why"]}


def do(plan: Plan, home: Path) -> dict[str, Any]:
    """Run one drill on its own cluster and return what the results file records of it."""
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
    """A list of plans and the file of their results."""

    plans: Callable[[], list[Plan]]
    results: Path
    #: returns fields of a plan that the results of this list record in addition to the common ones
    more: Callable[[Plan], Mapping[str, Any]]


LISTS: Mapping[str, Series] = {
    "replicas": Series(plans, RESULTS["replicas"], lambda plan: {}),
    "takeovers": Series(takeovers.plans, RESULTS["takeovers"], takeovers.settings),
    "services": Series(services.plans, RESULTS["services"], services.settings),
    "elections": Series(elections.plans, RESULTS["elections"], elections.settings),
}


def main(argv: Sequence[str] | None = None, drill: Drill = do) -> int:
    """Run the chosen drills and return the exit code of the worst one."""
    parser = argparse.ArgumentParser(prog="python -m tools.drills.series")
    parser.add_argument("--list", default="", choices=["", *LISTS], help="run only this list")
    parser.add_argument("--only", default="", help="run only drills of this fault")
    parser.add_argument("--seconds", type=float, help="set the duration of each fault")
    parser.add_argument(
        "--out", type=Path, help="write the results of --list here, not into docs/; required to store part of a list"
    )
    given = parser.parse_args(argv)
    if given.out is not None and not given.list:
        parser.error("--out needs --list")
    lists = [LISTS[given.list]] if given.list else list(LISTS.values())
    logging.getLogger("rmqkit").addHandler(logging.NullHandler())
    logging.getLogger("rmqkit").propagate = False
    results = [result for series in lists for result in _do_all(series, given, drill)]
    print("\n".join(summary(results)), flush=True)
    return EXIT_CODES[judgement_of(results)]


def _do_all(series: Series, given: argparse.Namespace, drill: Drill) -> list[dict[str, Any]]:
    """Run a list and write its results; part of a list never replaces the results of the whole."""
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
    """Return one line about a drill: its plan, verdict, run folder and reasons."""
    words = [f"{result['fault']} {result['target']} {result['mode']} seed {result['seed']}"]
    words += [str(result[key]) for key in ("replicas", "locks", "escape", "timers", "load") if key in result]
    verdict = " ".join(filter(None, (str(result["judgement"]), result.get("run", ""), result.get("why", ""))))
    again = f" (second try; the first was inconclusive: {result['first_try']})" if "first_try" in result else ""
    return f"{' '.join(words)}: {verdict}{again}"


def judgement_of(results: Sequence[Mapping[str, Any]]) -> Judgement:
    """Return the worst judgement: broken, inconclusive or valid; inconclusive without any drill."""
    found = {each["judgement"] for each in results} or {Judgement.INCONCLUSIVE}
    return next(each for each in (Judgement.BROKEN, Judgement.INCONCLUSIVE, Judgement.VALID) if each in found)


def summary(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line per drill that is not valid; the last line is the verdict of the series."""
    lines = [f"  {line(each)}" for each in results if each["judgement"] != Judgement.VALID]
    judgements = [str(each["judgement"]) for each in results]
    counts = ", ".join(f"{judgements.count(each)} {each}" for each in Judgement if each in judgements)
    verdict = judgement_of(results)
    heading = ["not valid:"] if lines else []
    again = repeated(results)
    return [*heading, *lines, f"{len(results)} drills: {counts or 'none'}{again}: {verdict}, exit {EXIT_CODES[verdict]}"]


if __name__ == "__main__":
    sys.exit(main())
