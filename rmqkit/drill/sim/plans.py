"""Draws the plan of a simulated drill from a seed: mode, faults and settings.

Timers are short and files are small. A master may return with less than its slaves have
(`rewinds`). Then the mode promises only that acknowledged messages are on a slave, or nothing.
Queues continue at a lower offset, other messages get the offsets of the lost ones, and readers may
have seen both. So the promises about offsets (`OF_PLACES`) are checked only where that cannot
happen.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from rmqkit.drill.contract import DrillNode, Fault
from rmqkit.drill.plan import Flush, Mode, Plan, ReplicationMode
from rmqkit.drill.plugin import PROMISES
from rmqkit.drill.promises.table import Harm, Where, cell
from rmqkit.drill.sim.faults import SERIES, SINGLE, Series, draw_steps, single

AUTO = "enableAutoInSyncReplicas"
AHEAD = "haTruncateAhead"
#: short timers, and files that roll
SETTINGS = {
    "haSendHeartbeatInterval": "250",
    "haHousekeepingInterval": "1000",
    "slaveTimeout": "600",
    "syncFlushTimeout": "800",
    "flushConsumerOffsetInterval": "1000",
    # "2000" in some seeds, so that a power cut loses much
    "flushIntervalCommitLog": "300",
    "mappedFileSizeCommitLog": str(64 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 100),
    # Two blocks of slots. Each batch of the index reads and writes the blocks of its slots.
    "maxHashSlotNum": "5000",
}
#: share of the seeds in which the only slave is silent for long
LONG_CHANCE = 0.05
#: promises about offsets, which a group need not keep after a rewind (see above)
OF_PLACES = ("everything-delivered", "queue-order", "offsets-stable", "commits-forward")


def plan_of_seed(seed: int, *, mode: str = "", breaks: Sequence[str] = ()) -> Plan:
    """Return the plan of a seed. `mode` replaces the drawn one. Raises PlanError."""
    chance = Random(f"{seed}/plan")
    replication = chance.choice([ReplicationMode.ASYNC, ReplicationMode.SYNC, *[ReplicationMode.QUORUM] * 3])
    auto = chance.random() < 0.6
    flush = chance.choice([Flush.ASYNC, Flush.ASYNC, Flush.SYNC, Flush.SYNC, Flush.POOL])
    replicas = chance.choice((2, 2, 3))
    truncates = chance.random() < 0.4
    fault = chance.choice([*SINGLE, *[SERIES] * 9])
    target = "master" if chance.random() < 0.7 else "slave"
    chosen = Mode.parse(mode) if mode else Mode(replication, flush)
    settings = {**SETTINGS, AUTO: str(auto and chosen.replication is ReplicationMode.QUORUM).lower()}
    settings[AHEAD] = str(truncates).lower()
    if chance.random() < 0.4:
        settings |= {"flushIntervalCommitLog": "2000", "flushCommitLogThoroughInterval": "5000"}
    plan = Plan(
        seed=seed,
        fault=fault,
        target=target,
        group="broker-a",
        mode=chosen,
        replicas=replicas,
        settings=settings,
        breaks=tuple(breaks),
        writers=3,
        rate=chance.choice((8, 14, 20)),
        queues=chance.choice((1, 2, 3)),
        body_size=chance.choice((60, 200, 900)),
        send_timeout_ms=1_500,
        steady_max_ms=10_000,
        before_ms=chance.randint(300, 1_500),
        bite_max_ms=3_000,
        fault_ms=chance.randint(500, 3_000),
        recover_max_ms=12_000,
        settle_ms=chance.randint(200, 1_000),
        # a client notices only after half a minute that its pull waits at a machine without power
        drain_max_ms=36_000,
    )
    if chance.random() >= LONG_CHANCE:
        return plan
    # The only slave is silent for longer than any wait may take, and writers have a long timeout.
    silent = chance.choice(("pause", "isolate", "isolate-ha"))
    return plan.changed(fault=silent, target="slave", replicas=2, fault_ms=7_000, send_timeout_ms=9_000)


def members(plan: Plan) -> list[DrillNode]:
    """Return the brokers of the only group."""
    return [DrillNode(f"broker-a-{number}", "broker-a", number) for number in range(plan.replicas)]


def fault_of_plan(plan: Plan) -> tuple[Plan, Fault]:
    """Return the plan with its target, duration and promises, and its fault."""
    nodes = members(plan)
    if plan.fault != SERIES:
        fault = single(plan.fault)
        harms = [(fault.harm, plan.target == "master")]
        if fault.name == "isolate-ha" and plan.replicas < 2:
            fault = single("isolate")
        return plan.changed(promises=_promised(plan, harms)), fault
    steps = draw_steps(plan, nodes)
    series = Series(steps)
    harms = [(step.fault.harm, step.node == nodes[0]) for step in steps]
    target = steps[0].node.name
    return plan.changed(target=target, fault_ms=series.lasts_ms, promises=_promised(plan, harms)), series


def rewinds(mode: Mode, harms: Iterable[tuple[Harm, bool]]) -> bool:
    """Return whether the master may come back with less than it had.

    `harms` are pairs: the harm, and whether it hits the master.
    """
    return any(
        hits_master and cell(mode, harm, copies=copies).where is not Where.MASTER
        for harm, hits_master in harms
        for copies in (1, 2)
    )


def _promised(plan: Plan, harms: Sequence[tuple[Harm, bool]]) -> tuple[str, ...]:
    if plan.promises:
        return plan.promises
    gone = OF_PLACES if rewinds(plan.mode, harms) else ()
    return tuple(name for name in PROMISES if name not in gone)


def told(plan: Plan) -> dict[str, Any]:
    """Return the mode and the number of replicas as texts, for messages."""
    auto = "-auto" if plan.settings.get(AUTO) == "true" else ""
    cuts = ", haTruncateAhead" if plan.settings.get(AHEAD) == "true" else ""
    return {"mode": f"{plan.mode.replication}{auto}+{plan.mode.flush}{cuts}", "replicas": plan.replicas}
