"""Draws plans of the families `timers`, `transactions` and `pop`: a takeover with that service.

The cluster is that of the family `acting`: two groups of two or three brokers with short timers.
The master of the first group is killed, paused or isolated, and in some seeds a second fault of the
group or of the other group follows. Clocks stay right and no machine loses its power: the families
`acting` and `replicas` cover that.

A family checks the promise of its service, and the promises without which its result would mean
nothing.
"""

from collections.abc import Callable, Sequence
from random import Random

from rmqkit.drill.contract import DrillError, DrillNode, Fault
from rmqkit.drill.plan import POP, TIMERS, TRANSACTIONS, Flush, Mode, Plan, ReplicationMode
from rmqkit.drill.sim import acting_faults as stories
from rmqkit.drill.sim.acting_faults import ActingSeries, Drawing, spread
from rmqkit.drill.sim.acting_plans import STRICT, ActingExtras, members, timers
from rmqkit.drill.sim.plans import AHEAD, AUTO, SETTINGS

#: the promise of each service
PROMISE_OF = {TIMERS: "timer-kept", TRANSACTIONS: "transaction-atomic", POP: "pop-kept"}
ALWAYS = ("acknowledged-survive", "logs-equal", "one-master", "recovers")
AWAY = ("kill", "kill", "pause", "isolate")


class ServiceDrawing(Drawing):
    """Draws only from the faults of this family."""

    def away(self, node: DrillNode) -> str:
        return self.chance.choice(AWAY)


def other_group(draw: Drawing) -> None:
    """The master of the other group is away too, for a part of the takeover."""
    draw.add(0, draw.long_ms() + 1_000, draw.group[0], draw.away(draw.group[0]))
    for node in draw.others:
        if not node.broker_id:
            draw.add(draw.chance.randint(0, 3_000), draw.chance.randint(500, 2_000), node, draw.away(node))


def slave_only(draw: Drawing) -> None:
    """A slave is away; nobody acts."""
    draw.add(0, draw.long_ms(), draw.group[1], draw.away(draw.group[1]))


STORIES: Sequence[Callable[[Drawing], None]] = (
    stories.takeover,
    stories.takeover,
    stories.takeover,
    stories.takeover,
    stories.flapping,
    stories.again,
    other_group,
    slave_only,
)


def plan_of_seed(seed: int, *, service: str, mode: str = "", breaks: Sequence[str] = ()) -> Plan:
    """Return the plan of a seed. `mode` replaces the drawn one. Raises PlanError."""
    chance = Random(f"{seed}/{service}-plan")
    replication = chance.choice([ReplicationMode.ASYNC, *[ReplicationMode.QUORUM] * 3])
    chosen = Mode.parse(mode) if mode else Mode(replication, chance.choice([Flush.ASYNC, Flush.SYNC]))
    auto = chosen.replication is ReplicationMode.QUORUM and chance.random() < 0.7
    return Plan(
        seed=seed,
        fault=ActingSeries.name,
        target="broker-a:0",
        mode=chosen,
        groups=2,
        replicas=chance.choice((2, 2, 3)),
        settings={
            **SETTINGS,
            **timers(chance, seed),
            **_of_services(chance),
            AUTO: str(auto).lower(),
            AHEAD: "true",
            STRICT: "false",
        },
        breaks=tuple(breaks),
        promises=(PROMISE_OF[service], *ALWAYS),
        services=(service,),
        # The second writer lets the client choose the group, so both groups have popped messages.
        writers=2 if service == POP else 1,
        rate=chance.choice((6, 12)) if service == POP else 4,
        queues=chance.choice((1, 2, 3)),
        body_size=60,
        send_timeout_ms=1_500,
        timer_rate=chance.choice((6, 15)),
        transaction_rate=chance.choice((6, 15)),
        steady_max_ms=12_000,
        before_ms=chance.randint(500, 3_000),
        bite_max_ms=3_000,
        fault_ms=1_000,
        recover_max_ms=15_000,
        settle_ms=chance.randint(200, 1_000),
        drain_max_ms=20_000,
    )


def _of_services(chance: Random) -> dict[str, str]:
    return {
        "recallMessageEnable": "true",
        "timerPrecisionMs": str(chance.choice((100, 200, 1_000))),
        "timerFlushIntervalMs": str(chance.choice((200, 1_000))),
        "transactionTimeOut": str(chance.choice((600, 1_500))),
        "transactionCheckInterval": str(chance.choice((500, 1_500))),
        # Few revive queues, so that checkpoints wait behind others that are not acked.
        "reviveQueueNum": str(chance.choice((1, 2))),
        "transactionOpBatchInterval": str(chance.choice((0, 300, 3_000))),
    }


def fault_of_plan(plan: Plan) -> tuple[Plan, Fault]:
    """Return the plan with its target and duration, and the series of faults.

    Raises DrillError if the series breaks no broker.
    """
    extras = ActingExtras.of(plan)
    draw = ServiceDrawing(plan, members(plan), [DrillNode(f"ns-{number}") for number in range(extras.nameservers)])
    draw.chance.choice(STORIES)(draw)
    steps = spread(draw.steps)
    first = next((step for step in steps if step.node.broker), None)
    if first is None:
        raise DrillError("the series of faults breaks no broker")
    series = ActingSeries(steps)
    target = f"{first.node.broker}:{first.node.broker_id}"
    return plan.changed(target=target, group=first.node.broker, fault_ms=series.lasts_ms), series
