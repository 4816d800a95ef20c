"""Simulated drills: the same engine, faults, promises and workload on a simulated cluster, by the thousand.

    python -m rmqkit.drill.simulated --seeds 2000
    python -m rmqkit.drill.simulated --from 4711 --seeds 1 --verbose
    python -m rmqkit.drill.simulated --break ack-before-sync          # until it is found

A seed draws mode, faults and settings (`sim_plans.py`) and everything that happens then; the same seed gives the same
`hash`. A seed ends as its verdict says; an exception that leaves a node is a broken promise, too. Seeds run in two
processes. Exit codes as those of drills: 0 every promise kept, 1 one is broken, 4 inconclusive.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rmqkit.drill import defects
from rmqkit.drill.engine import Engine, Outcome
from rmqkit.drill.history import History, Row
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises import PROMISES
from rmqkit.drill.promises.contract import Judgement
from rmqkit.drill.sim_driver import SimDriver
from rmqkit.drill.sim_plans import fault_of_plan, plan_of_seed, told
from rmqkit.drill.verdict import EXIT_CODES

#: seeds in which a planted defect must be found
FIND_WITHIN = 200
WORKERS = 2
#: seeds handed to a process at once
CHUNK = 5
#: broken facts of a seed that are told, and events of the story of each
TOLD_FACTS = 3
CRASHED = "a node ended"

Tell = Callable[[str], None]


class Simulated(NamedTuple):
    """What a seed came to; all of it can go from one process to another."""

    seed: int
    plan: str
    judgement: Judgement
    why: str
    #: promises that are broken, or `CRASHED`
    broken: tuple[str, ...]
    story: str
    hash: str
    sends: int
    virtual_ms: int
    cpu_ms: int


class Run(NamedTuple):
    """A seed's drill with all that it left."""

    plan: Plan
    driver: SimDriver
    outcome: Outcome | None
    error: str


def drill(plan: Plan, *, keep_trace: bool = False) -> Run:
    """Do a plan's drill in the simulator."""
    plan, fault = fault_of_plan(plan)
    driver = SimDriver(plan, keep_trace=keep_trace)
    try:
        outcome = Engine(driver, fault, [make() for make in PROMISES.values()]).run()
    except Exception as error:  # out of a node: the process would have ended there
        return Run(plan, driver, None, "".join(traceback.format_exception(error)))
    return Run(plan, driver, outcome, "")


def simulate(seed: int, mode: str = "", breaks: Sequence[str] = ()) -> Simulated:
    """One seed."""
    began_s = time.process_time()
    run = drill(plan_of_seed(seed, mode=mode, breaks=breaks))
    broken: tuple[str, ...] = (CRASHED,)
    judgement, why, story = Judgement.BROKEN, "", run.error
    if run.outcome is not None:
        verdict = run.outcome.verdict
        broken = tuple(each.name for each in verdict.broken)
        judgement, why = verdict.judgement, verdict.why
        story = _story(run) if judgement is not Judgement.VALID else ""
    return Simulated(
        seed,
        plan_words(run.plan),
        judgement,
        why,
        broken,
        story,
        run.driver.world.trace_hash(),
        len(run.driver.history.sends),
        run.driver.now_ms(),
        round((time.process_time() - began_s) * 1000),
    )


def plan_words(plan: Plan) -> str:
    words = told(plan)
    breaks = f", broken: {', '.join(plan.breaks)}" if plan.breaks else ""
    return f"{words['mode']}, {words['replicas']} replicas, {plan.fault} {plan.target}{breaks}"


def _story(run: Run) -> str:
    """The time line, and what is broken with the story of its message."""
    assert run.outcome is not None
    history = run.driver.history
    lines = [f"    {row.invoke_ms:6} ms  {row.key} {row.value}".rstrip() for row in history.events]
    for checked in run.outcome.verdict.broken:
        lines.append(f"  {checked.name}: {checked.text}: {dict(checked.finding.counts)}")
        for broken in checked.finding.broken[:TOLD_FACTS]:
            lines.append(f"    {broken.key or '-'}: {broken.what}")
            lines += [f"      {_row(row)}" for row in _of_message(history, broken.key)]
    return "\n".join(lines)


def _of_message(history: History, key: str) -> Iterable[Row]:
    return (row for row in history.story(key) if row.kind != "event") if key else ()


def _row(row: Row) -> str:
    place = f"{row.broker} queue {row.queue} offset {row.offset}"
    return f"{row.invoke_ms}-{row.complete_ms} ms {row.client} {row.kind} {row.outcome} {row.status} {place}"


# --- many


def many(seeds: Sequence[int], mode: str = "", breaks: Sequence[str] = (), workers: int = WORKERS) -> Iterator[Simulated]:
    """Each seed's end, in the order of the seeds."""
    if workers < 2 or len(seeds) < 2 * CHUNK:
        for seed in seeds:
            yield simulate(seed, mode, breaks)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(simulate, seeds, [mode] * len(seeds), [tuple(breaks)] * len(seeds), chunksize=CHUNK)


def find(defect: str, seeds: Iterable[int], mode: str = "") -> tuple[int, Simulated | None]:
    """Plant a defect until its promise finds it: how many seeds it took, and the one that did (None: none)."""
    wanted = defects.DEFECTS[defect].promise
    count = 0
    for count, seed in enumerate(seeds, 1):
        done = simulate(seed, mode, (defect,))
        if wanted in done.broken:
            return count, done
    return count, None


def kept_seeds(path: Path) -> list[int]:
    """The seeds of a `seeds.toml`: those that once failed, each with what it was."""
    with open(path, "rb") as file:
        return [int(each["seed"]) for each in tomllib.load(file)["seeds"]]


def tell(done: Simulated, out: Tell, *, verbose: bool = False, defect: str = "") -> None:
    """A seed that is not as it should be, or every one."""
    if done.judgement is Judgement.VALID and not verbose:
        return
    what = ", ".join(done.broken) or done.why
    out(f"seed {done.seed}: {done.judgement} {what}".rstrip())
    out(f"  plan: {done.plan}; {done.virtual_ms} ms, {done.sends} sends, hash {done.hash}")
    if done.story:
        out(done.story)
    if done.judgement is not Judgement.VALID:
        out(f"  again: rmqkit drill simulate --from {done.seed} --seeds 1" + (f" --break {defect}" if defect else ""))


def summary(ends: Sequence[Simulated]) -> str:
    """One line over all."""
    counts = Counter(str(each.judgement) for each in ends)
    cpu_ms = sorted(each.cpu_ms for each in ends) or [0]
    words = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return (
        f"{len(ends)} seeds: {words}; {sum(each.sends for each in ends)} sends, "
        f"{sum(each.virtual_ms for each in ends) / 3_600_000:.1f} virtual hours; CPU a seed: "
        f"{sum(cpu_ms) / len(cpu_ms):.0f} ms, longest {cpu_ms[-1]} ms"
    )


def exit_code(ends: Iterable[Simulated]) -> int:
    """Broken before inconclusive before kept."""
    codes = {EXIT_CODES[each.judgement] for each in ends}
    return 1 if 1 in codes else max(codes, default=0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rmqkit.drill.simulated")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--from", type=int, default=1, dest="first")
    parser.add_argument("--mode", default="", help="of all seeds, instead of the drawn ones")
    parser.add_argument(
        "--break", default="", dest="defect", help="plant this defect (all: one after another), until found"
    )
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--verbose", action="store_true", help="a line for each seed")
    given = parser.parse_args(argv)
    if given.defect:
        return _find_all(given.defect, range(given.first, given.first + FIND_WITHIN), given.mode)
    seeds = range(given.first, given.first + given.seeds)
    ends = []
    for done in many(seeds, given.mode, workers=given.workers):
        ends.append(done)
        tell(done, lambda line: print(line, flush=True), verbose=given.verbose)
    print(summary(ends))
    return exit_code(ends)


def _find_all(defect: str, seeds: Sequence[int], mode: str) -> int:
    missed = 0
    for name in defects.DEFECTS if defect == "all" else [defect]:
        count, done = find(name, seeds, mode)
        missed += done is None
        found = f"{count} seeds, {defects.DEFECTS[name].promise}, seed {done.seed}" if done else f"not in {count} seeds"
        print(f"{name}: {found}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
