"""Simulated drills: the same engine, faults, promises and workload on a simulated cluster, by the thousand.

    rmqkit drill simulate --from 4711 --seeds 1 --verbose
    rmqkit drill simulate --break ack-before-sync                     # until it is found
    rmqkit drill simulate --family acting --seeds 2000                # slaves act for their masters

A seed draws mode, faults and settings and everything that happens then; the same seed gives the same `hash`. Which plans
there are says the family (`FAMILIES`): `replicas` (`sim/plans.py`), `acting` and `acting-3x3` (`sim/acting_plans.py`).
A seed ends as its verdict says; an exception that leaves a node is a broken promise, too. Seeds run in two processes. Exit
codes as those of drills: 0 every promise kept, 1 one is broken, 4 inconclusive.
"""

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from rmqkit.drill.contract import Fault
from rmqkit.drill.defects import table
from rmqkit.drill.engine import Engine, Outcome
from rmqkit.drill.history import History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises import PROMISES
from rmqkit.drill.promises.contract import Judgement
from rmqkit.drill.report.verdict_words import notes, plain
from rmqkit.drill.sim import acting_plans as acting
from rmqkit.drill.sim import plans
from rmqkit.drill.sim.acting_driver import ActingDriver
from rmqkit.drill.sim.driver import SimDriver
from rmqkit.drill.verdict import EXIT_CODES, Verdict

WORKERS = 2
#: seeds handed to a process at once
CHUNK = 5
#: violations that are printed of a seed, each with its story
TOLD_FACTS = 3
CRASHED = "a node ended"

Tell = Callable[[str], None]


class PlanFamily(NamedTuple):
    """A kind of plans, with their faults and their driver."""

    plan_of_seed: Callable[..., Plan]
    fault_of_plan: Callable[[Plan], tuple[Plan, Fault]]
    told: Callable[[Plan], Mapping[str, Any]]
    driver: Callable[..., SimDriver]
    #: promises that a seed may leave inconclusive: no broker took over
    may_lack: tuple[str, ...] = ()
    #: one seed in so many, where every family is drilled
    costs: int = 1


REPLICAS = "replicas"
TAKEOVERS = ("progress-forward",)
FAMILIES: Mapping[str, PlanFamily] = {
    REPLICAS: PlanFamily(plans.plan_of_seed, plans.fault_of_plan, plans.told, SimDriver),
    "acting": PlanFamily(acting.plan_of_seed, acting.fault_of_plan, acting.told, ActingDriver, TAKEOVERS),
    "acting-3x3": PlanFamily(
        partial(acting.plan_of_seed, groups=3, replicas=3), acting.fault_of_plan, acting.told, ActingDriver, TAKEOVERS, 20
    ),
}


class SeedResult(NamedTuple):
    """What a seed came to; all of it can go from one process to another."""

    seed: int
    family: str
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


class SimulatedRun(NamedTuple):
    """A seed's drill with all that it left."""

    plan: Plan
    driver: SimDriver
    outcome: Outcome | None
    error: str


def drill(plan: Plan, *, family: str = REPLICAS, keep_trace: bool = False) -> SimulatedRun:
    """Do a plan's drill in the simulator."""
    plan, fault = FAMILIES[family].fault_of_plan(plan)
    driver = FAMILIES[family].driver(plan, keep_trace=keep_trace)
    try:
        outcome = Engine(driver, fault, [make() for make in PROMISES.values()]).run()
    except Exception as error:  # out of a node: the process would have ended there
        return SimulatedRun(plan, driver, None, "".join(traceback.format_exception(error)))
    return SimulatedRun(plan, driver, outcome, "")


def simulate(seed: int, mode: str = "", breaks: Sequence[str] = (), family: str = REPLICAS) -> SeedResult:
    """One seed."""
    began_s = time.process_time()
    plan = FAMILIES[family].plan_of_seed(seed, mode=mode, breaks=breaks)
    planted = [table.DEFECTS[each] for each in breaks if each in table.DEFECTS]
    needed = {key: value for each in planted for key, value in each.settings.items()}
    run = drill(plan.changed(settings={**plan.settings, **needed}), family=family)
    broken: tuple[str, ...] = (CRASHED,)
    judgement, why, story = Judgement.BROKEN, "", run.error
    if run.outcome is not None:
        verdict = run.outcome.verdict
        broken = tuple(each.name for each in verdict.broken)
        judgement, why = _judged(verdict, FAMILIES[family].may_lack)
        story = _story(run) if judgement is not Judgement.VALID else ""
    return SeedResult(
        seed,
        family,
        plan_words(run.plan, family),
        judgement,
        why,
        broken,
        story,
        run.driver.world.trace_hash(),
        len(run.driver.history.sends),
        run.driver.now_ms(),
        round((time.process_time() - began_s) * 1000),
    )


def _judged(verdict: Verdict, may_lack: Sequence[str]) -> tuple[Judgement, str]:
    unclear = [each.name for each in verdict.promises if each.finding.judgement is Judgement.INCONCLUSIVE]
    if verdict.judgement is Judgement.INCONCLUSIVE and unclear and set(unclear) <= set(may_lack):
        return Judgement.VALID, ""
    return verdict.judgement, verdict.why


def plan_words(plan: Plan, family: str = REPLICAS) -> str:
    words = FAMILIES[family].told(plan)
    breaks = f", broken: {', '.join(plan.breaks)}" if plan.breaks else ""
    return f"{words['mode']}, {words['replicas']} replicas, {plan.fault} {plan.target}{breaks}"


def _story(run: SimulatedRun) -> str:
    """The time line, and what is broken with the story of its message."""
    assert run.outcome is not None
    history = run.driver.history
    lines = [f"    {row.invoke_ms:6} ms  {plain(row.key)} {row.value}".rstrip() for row in history.events]
    for checked in run.outcome.verdict.broken:
        lines += [f"  {checked.name}: {checked.text}", f"    {notes(checked)}"]
        for broken in checked.finding.broken[:TOLD_FACTS]:
            lines.append(f"    {broken.key or '-'}: {broken.what}")
            lines += [f"      {_row(row)}" for row in _of_message(history, broken.key)]
    return "\n".join(lines)


def _of_message(history: History, key: str) -> Iterable[HistoryRow]:
    return (row for row in history.story(key) if row.kind != "event") if key else ()


def _row(row: HistoryRow) -> str:
    place = f"{row.broker} queue {row.queue} offset {row.offset}"
    return f"{row.invoke_ms}-{row.complete_ms} ms {row.client} {row.kind} {row.outcome} {row.status} {place}"


# --- many


def many(
    seeds: Sequence[int],
    mode: str = "",
    breaks: Sequence[str] = (),
    workers: int = WORKERS,
    family: str = REPLICAS,
) -> Iterator[SeedResult]:
    """Each seed's end, in the order of the seeds."""
    one = partial(simulate, mode=mode, breaks=tuple(breaks), family=family)
    if workers < 2 or len(seeds) < 2 * CHUNK:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(one, seeds, chunksize=CHUNK)


def find(defect: str, seeds: Iterable[int], mode: str = "", family: str = "") -> tuple[int, SeedResult | None]:
    """Plant a defect until its promise finds it: how many seeds it took, and the one that did (None: none). Without a
    family in that of the defect."""
    planted = table.DEFECTS[defect]
    wanted, family = planted.promise, family or planted.family
    count = 0
    for count, seed in enumerate(seeds, 1):
        done = simulate(seed, mode, (defect,), family)
        if wanted in done.broken:
            return count, done
    return count, None


def tell(done: SeedResult, out: Tell, *, verbose: bool = False, defect: str = "", mode: str = "") -> None:
    """Print a seed that is not valid, or every seed. `defect` and `mode` are those that were asked for."""
    if done.judgement is Judgement.VALID and not verbose:
        return
    what = ", ".join(done.broken) or done.why
    out(f"seed {done.seed}: {done.judgement} {what}".rstrip())
    out(f"  plan: {done.plan}; {done.virtual_ms} ms, {done.sends} sends, hash {done.hash}")
    if done.story:
        out(done.story)
    if done.judgement is not Judgement.VALID:
        family = "" if done.family == REPLICAS else f" --family {done.family}"
        asked = (f" --mode {mode}" if mode else "") + (f" --break {defect}" if defect else "")
        out(f"  repeat: rmqkit drill simulate{family} --from {done.seed} --seeds 1{asked}")


def summary(ends: Sequence[SeedResult]) -> str:
    """The drills in one line."""
    counts = Counter(str(each.judgement) for each in ends)
    cpu_ms = sorted(each.cpu_ms for each in ends) or [0]
    words = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return (
        f"{len(ends)} {'seed' if len(ends) == 1 else 'seeds'}: {words}; {sum(each.sends for each in ends):,} sends, "
        f"{sum(each.virtual_ms for each in ends) / 3_600_000:.1f} virtual hours; "
        f"CPU per seed: mean {sum(cpu_ms) / len(cpu_ms):.0f} ms, longest {cpu_ms[-1]} ms"
    )


def exit_code(ends: Iterable[SeedResult]) -> int:
    """1 if a seed is broken, else 4 if one is inconclusive, else 0."""
    codes = {EXIT_CODES[each.judgement] for each in ends}
    return 1 if 1 in codes else max(codes, default=0)
