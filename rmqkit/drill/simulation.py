"""Simulated drills: the same engine, faults, promises and workload on a simulated cluster.

    rmqkit drill simulate --from 4711 --seeds 1 --verbose
    rmqkit drill simulate --break ack-before-sync                     # until it is found
    rmqkit drill simulate --family acting --seeds 2000                # slaves act for their masters
    rmqkit drill simulate --family acting --secure                    # with access control and TLS

A seed determines the mode, the faults, the settings and everything that happens afterwards. So the
same seed always gives the same `hash`. The family (`FAMILIES`) decides which plans seeds draw:
`replicas` (`sim/plans.py`), `acting` and `acting-3x3` (`sim/acting_plans.py`), `elections`
(`sim/elections/plans.py`), `timers`, `transactions` and `pop` (`sim/service_plans.py`).

The result of a seed is the judgement of its verdict. An exception that escapes from a node counts
as a broken promise (`CRASHED`). Seeds run in `WORKERS` processes. Exit codes are those of drills: 0
if every promise was kept, 1 if one was broken, 4 if a seed was inconclusive.
"""

import gc
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from rmqkit.drill.contract import Fault
from rmqkit.drill.defects import table
from rmqkit.drill.engine import Engine, Outcome
from rmqkit.drill.history import History, HistoryRow
from rmqkit.drill.plan import SERVICES, Plan
from rmqkit.drill.promises import PROMISES
from rmqkit.drill.promises.contract import Judgement
from rmqkit.drill.report.verdict_words import notes, plain
from rmqkit.drill.sim import acting_plans as acting
from rmqkit.drill.sim import plans
from rmqkit.drill.sim import service_plans as services
from rmqkit.drill.sim.acting_driver import ActingDriver
from rmqkit.drill.sim.driver import SimDriver
from rmqkit.drill.sim.elections import plans as elections
from rmqkit.drill.sim.elections.driver import ElectionDriver
from rmqkit.drill.sim.service_driver import ServiceDriver
from rmqkit.drill.verdict import EXIT_CODES, Verdict

WORKERS = 2
#: seeds that a worker process receives at a time
CHUNK = 5
#: most violations printed for each broken promise of a seed, each with its story
TOLD_FACTS = 3
CRASHED = "a node ended"

Tell = Callable[[str], None]


class PlanFamily(NamedTuple):
    """A kind of plans, with their faults and their driver."""

    plan_of_seed: Callable[..., Plan]
    fault_of_plan: Callable[[Plan], tuple[Plan, Fault]]
    told: Callable[[Plan], Mapping[str, Any]]
    driver: Callable[..., SimDriver]
    #: promises that may be inconclusive in a valid seed, because no broker took over
    may_lack: tuple[str, ...] = ()
    #: if every family is run, this one gets 1/costs of the seeds, because its seeds are slow
    costs: int = 1


REPLICAS = "replicas"
TAKEOVERS = ("progress-forward",)
FAMILIES: Mapping[str, PlanFamily] = {
    REPLICAS: PlanFamily(plans.plan_of_seed, plans.fault_of_plan, plans.told, SimDriver),
    "acting": PlanFamily(acting.plan_of_seed, acting.fault_of_plan, acting.told, ActingDriver, TAKEOVERS),
    "acting-3x3": PlanFamily(
        partial(acting.plan_of_seed, groups=3, replicas=3), acting.fault_of_plan, acting.told, ActingDriver, TAKEOVERS, 20
    ),
    "elections": PlanFamily(elections.plan_of_seed, elections.fault_of_plan, elections.told, ElectionDriver),
    **{
        service: PlanFamily(
            partial(services.plan_of_seed, service=service), services.fault_of_plan, acting.told, ServiceDriver
        )
        for service in SERVICES
    },
}


class SeedResult(NamedTuple):
    """The result of one seed. It can be pickled, because workers return it."""

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
    """The drill of one seed with its driver, and so its history.

    `outcome` is None if an exception escaped from a node; `error` is then the traceback.
    """

    plan: Plan
    driver: SimDriver
    outcome: Outcome | None
    error: str


def drill(plan: Plan, *, family: str = REPLICAS, keep_trace: bool = False) -> SimulatedRun:
    """Run the drill of a plan in the simulator."""
    plan, fault = FAMILIES[family].fault_of_plan(plan)
    driver = FAMILIES[family].driver(plan, keep_trace=keep_trace)
    try:
        outcome = Engine(driver, fault, [make() for make in PROMISES.values()]).run()
    except Exception as error:  # escaped from a node: a real process would have ended
        return SimulatedRun(plan, driver, None, "".join(traceback.format_exception(error)))
    return SimulatedRun(plan, driver, outcome, "")


def simulate(
    seed: int, mode: str = "", breaks: Sequence[str] = (), family: str = REPLICAS, *, secure: bool = False
) -> SeedResult:
    """Run the drill of one seed and return its result. `secure`: with access control and TLS."""
    began_s = time.process_time()
    with _collecting_once():
        done = _simulated(seed, mode, breaks, family, secure=secure)
    return done._replace(cpu_ms=round((time.process_time() - began_s) * 1000))


def _simulated(seed: int, mode: str, breaks: Sequence[str], family: str, *, secure: bool) -> SeedResult:
    """Return the result of a seed, which refers to no part of its world, without `cpu_ms`."""
    plan = FAMILIES[family].plan_of_seed(seed, mode=mode, breaks=breaks).changed(secure=secure)
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
        0,
    )


@contextmanager
def _collecting_once() -> Iterator[None]:
    """Collect garbage once, at the end of a seed.

    Until then the world of the seed lives, and walking it is in vain. At the end its objects are in
    the youngest generation. The oldest, which holds the program, is not walked. The first
    collection closes the coroutines that still wait. What they hold survives it; the second one
    frees that.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        gc.collect(1)
        if was_enabled:
            gc.enable()


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
    """Return the timeline, and the first violations with the rows of their messages."""
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
    *,
    secure: bool = False,
) -> Iterator[SeedResult]:
    """Yield the result of each seed, in the order of the seeds."""
    one = partial(simulate, mode=mode, breaks=tuple(breaks), family=family, secure=secure)
    if workers < 2 or len(seeds) < 2 * CHUNK:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(one, seeds, chunksize=CHUNK)


def find(
    defect: str, seeds: Iterable[int], mode: str = "", family: str = "", *, secure: bool = False
) -> tuple[int, SeedResult | None]:
    """Plant a defect in one seed after another, until the defect's promise is broken.

    Return how many seeds that took, and the result of the last one; None if no seed found the
    defect. Without a family, use the family of the defect.
    """
    planted = table.DEFECTS[defect]
    wanted, family = planted.promise, family or planted.family
    count = 0
    for count, seed in enumerate(seeds, 1):
        done = simulate(seed, mode, (defect,), family, secure=secure)
        if wanted in done.broken:
            return count, done
    return count, None


def tell(
    done: SeedResult, out: Tell, *, verbose: bool = False, defect: str = "", mode: str = "", secure: bool = False
) -> None:
    """Print a seed that is not valid; with `verbose`, every seed.

    `defect`, `mode` and `secure` are the options of the caller. They are part of the command that
    repeats the seed.
    """
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
        asked += " --secure" if secure else ""
        out(f"  repeat: rmqkit drill simulate{family} --from {done.seed} --seeds 1{asked}")


def summary(ends: Sequence[SeedResult]) -> str:
    """Return one line about all seeds."""
    counts = Counter(str(each.judgement) for each in ends)
    cpu_ms = sorted(each.cpu_ms for each in ends) or [0]
    mean_ms = sum(cpu_ms) / len(cpu_ms)
    words = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return (
        f"{len(ends)} {'seed' if len(ends) == 1 else 'seeds'}: {words}; {sum(each.sends for each in ends):,} sends, "
        f"{sum(each.virtual_ms for each in ends) / 3_600_000:.1f} virtual hours; "
        f"CPU per seed: mean {mean_ms:.0f} ms, longest {cpu_ms[-1]} ms; "
        f"{3_600_000 / max(mean_ms, 1):,.0f} seeds per core-hour"
    )


def exit_code(ends: Iterable[SeedResult]) -> int:
    """Return 1 if a seed is broken, else 4 if one is inconclusive, else 0."""
    codes = {EXIT_CODES[each.judgement] for each in ends}
    return 1 if 1 in codes else max(codes, default=0)
