"""Draws plans of the family `acting`: groups whose slaves act for their masters, and their faults.

A plan has several groups of two or three brokers with short timers, one or two name servers,
delayed messages that escape to another group, and ordered consumers with locks (loose or strict).
The faults are series (`acting_faults.py`). A master loses its power only with SYNC_FLUSH, so it
returns with everything that it acknowledged. The family `replicas` covers masters that return with
less.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from rmqkit.drill.contract import DrillError, DrillNode, Fault
from rmqkit.drill.plan import Flush, Mode, Plan, ReplicationMode
from rmqkit.drill.sim.acting_faults import ActingSeries, draw_steps
from rmqkit.drill.sim.plans import AHEAD, AUTO, SETTINGS

ACTING = "enableSlaveActingMaster"
STRICT = "lockInStrictMode"
#: delays of the levels 1, 2 and 3: a message that an acting master has to release was sent at most
#: this long before the fault
LEVELS = ("1s 2s 3s", "1s 3s 5s")
#: resolutions of timers; clients send at multiples of the first one
TIMERS_MS = (100, 200, 200, 400)
#: how often the progress of the delay levels is saved
SAVES_MS = (500, 500, 4_000)


class ActingExtras(NamedTuple):
    """What a seed draws in addition to its plan."""

    latency_us: int
    nameservers: int
    scan_ms: int
    notifies: bool
    #: how often clients refresh routes
    route_ms: int
    #: lease of a lock at the broker; a consumer trusts its lock for half of that
    lease_ms: int
    #: whether there is a group whose listener fails for some messages
    retries: bool
    #: resolution of all timers: turns of different nodes begin together, and do more each
    timer_ms: int
    stranger: str = ""

    @classmethod
    def of(cls, plan: Plan) -> "ActingExtras":
        chance = Random(f"{plan.seed}/acting-extras")
        return cls(
            latency_us=chance.choice((60, 60, 60, 1_000, 5_000)),
            nameservers=chance.choice((1, 1, 2)),
            scan_ms=chance.randint(250, 500),
            notifies=chance.random() < 0.8,
            route_ms=chance.choice((700, 2_000)),
            lease_ms=chance.choice((2_500, 5_000)),
            retries=chance.random() < 0.4,
            timer_ms=chance.choice(TIMERS_MS),
        )

    def of_nameservers(self) -> dict[str, Any]:
        return {
            "supportActingMaster": True,
            "notifyMinBrokerIdChanged": self.notifies,
            "scanNotActiveBrokerInterval": self.scan_ms,
        }


def plan_of_seed(seed: int, *, mode: str = "", breaks: Sequence[str] = (), groups: int = 2, replicas: int = 2) -> Plan:
    """Return the plan of a seed. `mode` replaces the drawn one. Raises PlanError."""
    chance = Random(f"{seed}/acting-plan")
    replication = chance.choice([ReplicationMode.ASYNC, *[ReplicationMode.QUORUM] * 3])
    flush = chance.choice([Flush.ASYNC, Flush.SYNC])
    chosen = Mode.parse(mode) if mode else Mode(replication, flush)
    auto = chosen.replication is ReplicationMode.QUORUM and chance.random() < 0.7
    return Plan(
        seed=seed,
        fault=ActingSeries.name,
        target="broker-a:0",
        mode=chosen,
        groups=groups,
        replicas=replicas,
        settings={**SETTINGS, **timers(chance, seed), AUTO: _text(auto), AHEAD: _text(chance.random() < 0.5)},
        breaks=tuple(breaks),
        writers=3,
        rate=chance.choice((6, 10, 14)),
        queues=chance.choice((1, 2, 3)),
        body_size=chance.choice((60, 200, 600)),
        send_timeout_ms=1_500,
        steady_max_ms=12_000,
        # Halved after it is drawn, so that the rest of a seed's plan stays as it was.
        before_ms=chance.randint(300, 1_500) // 2,
        bite_max_ms=3_000,
        fault_ms=1_000,
        recover_max_ms=15_000,
        settle_ms=chance.randint(200, 1_000),
        drain_max_ms=20_000,
    )


def timers(chance: Random, seed: int) -> dict[str, str]:
    """Return settings of brokers with short heartbeats, so that a takeover takes seconds."""
    # Drawn from these bounds, so that the rest of a seed's plan stays as it was.
    heartbeat_ms = 200 + chance.randint(200, 400) // 2
    return {
        ACTING: "true",
        "enableRemoteEscape": "true",
        STRICT: _text(chance.random() < 0.5),
        "brokerHeartbeatInterval": str(heartbeat_ms),
        "sendHeartbeatTimeoutMillis": str(heartbeat_ms + 200),
        "brokerNotActiveTimeoutMillis": str(chance.randint(1_000, 2_000)),
        "syncBrokerMemberGroupPeriod": str(200 + chance.randint(200, 400) // 2),
        "messageDelayLevel": Random(f"{seed}/acting-levels").choice(LEVELS),
        "flushDelayOffsetInterval": str(chance.choice(SAVES_MS)),
    }


def _text(is_so: bool) -> str:
    return str(is_so).lower()


def members(plan: Plan) -> list[DrillNode]:
    """Return all brokers, group by group."""
    names = [f"broker-{chr(ord('a') + group)}" for group in range(plan.groups)]
    return [DrillNode(f"{name}-{number}", name, number) for name in names for number in range(plan.replicas)]


def fault_of_plan(plan: Plan) -> tuple[Plan, Fault]:
    """Return the plan with its target and duration, and the series of faults.

    Raises DrillError if the series breaks no broker.
    """
    extras = ActingExtras.of(plan)
    steps = draw_steps(plan, members(plan), [DrillNode(f"ns-{number}") for number in range(extras.nameservers)])
    first = next((step for step in steps if step.node.broker), None)
    if first is None:
        raise DrillError("the series of faults breaks no broker")
    series = ActingSeries(steps)
    target = f"{first.node.broker}:{first.node.broker_id}"
    seen = {**plan.seen, "lockMaxLiveTime": str(extras.lease_ms)}
    return plan.changed(target=target, group=first.node.broker, fault_ms=series.lasts_ms, seen=seen), series


def told(plan: Plan) -> dict[str, Any]:
    """Return the mode and the size of the cluster as texts, for messages."""
    auto = "-auto" if plan.settings.get(AUTO) == "true" else ""
    locks = "strict" if plan.settings.get(STRICT) == "true" else "loose"
    extras = ActingExtras.of(plan)
    return {
        "mode": f"{plan.mode.replication}{auto}+{plan.mode.flush}, {locks} locks, {extras.nameservers} name servers",
        "replicas": f"{plan.groups} x {plan.replicas}",
    }
