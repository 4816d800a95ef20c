"""Draws plans of the family `elections`: controllers elect the master of a group.

A plan has one or three of our controllers (one of them with either log), one name server, one group
of two or three brokers in controller mode, and short timers. Most plans have
`allAckInSyncStateSet`, under which an acknowledged message survives every election. Without it only
the promises of the elections themselves hold (`OF_SOME_ACK`).

Disks are fast in half of the seeds. A sync takes up to 20 ms in a quarter of them, up to 80 ms in
another one: long enough for elections and power cuts in the middle of it. If a record takes several
transfers, links between members are slow in two of three seeds, so half of it may have arrived.

In a quarter of the seeds the controllers name a restarted master again in its epoch
(`sim/elected_cluster.py`).

The faults are series (`faults.py`). Power is cut of any machines at once, but only with
SYNC_FLUSH. With ASYNC_FLUSH it is cut of one broker. Then no other broker fails, except a master
that is killed just before the power of its slave is cut.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from rmqkit.drill.contract import DrillNode, Fault
from rmqkit.drill.plan import Flush, Mode, Plan, ReplicationMode
from rmqkit.drill.plugin import PROMISES
from rmqkit.drill.sim.elections.faults import ElectionSeries, draw_steps, is_unnoticed
from rmqkit.drill.sim.plans import SETTINGS

#: promises that hold without allAckInSyncStateSet
OF_SOME_ACK = (
    "nothing-unsent",
    "one-master-per-epoch",
    "epochs-equal",
    "lease-kept",
    "election-ends",
    "waits-bounded",
    "recovers",
)
#: `haTransferBatchSize` with which a record takes several transfers
HALVES = "64"
#: bytes of a record besides its body
RECORD_SIZE = 250
#: duration of a sync of an idle disk
FAST_US = (100, 2_000)


class ElectionExtras(NamedTuple):
    """What a seed draws in addition to its plan."""

    latency_us: int
    #: how often clients refresh routes
    route_ms: int
    #: `single` or `raft`, the log of the controllers
    log_type: str
    election_ms: int
    scan_ms: int
    snapshot_entries: int
    #: whether controllers tell brokers about elections (1008)
    notifies: bool
    #: whether a stranger sends forged notices (1008)
    is_forged: bool
    #: shortest and longest sync of a disk
    sync_us: tuple[int, int]
    #: whether controllers name a restarted master again in its epoch, as Apache's do. Then only the
    #: answers of its rivals keep it from other bytes in that epoch, so no rival may be away
    keeps_epochs: bool
    #: speed of the links between members; 0 for no limit
    member_bytes_per_s: int
    stranger: str = ""

    @classmethod
    def of(cls, plan: Plan) -> "ElectionExtras":
        chance = Random(f"{plan.seed}/election-extras")
        return cls(
            latency_us=chance.choice((60, 60, 60, 1_000, 5_000)),
            route_ms=chance.choice((300, 1_000)),
            log_type="raft" if plan.controllers > 1 else chance.choice(("raft", "single")),
            election_ms=chance.randint(300, 600),
            scan_ms=chance.randint(300, 1_000),
            snapshot_entries=chance.choice((10, 40, 1_000)),
            notifies=chance.random() < 0.8,
            is_forged=chance.random() < 0.3,
            sync_us=chance.choice((FAST_US, FAST_US, (2_000, 20_000), (20_000, 80_000))),
            keeps_epochs=is_unnoticed(plan),
            member_bytes_per_s=_slow_link(plan, chance),
        )

    def of_controllers(self) -> dict[str, Any]:
        return {
            "controllerType": self.log_type,
            "controllerElectionTimeoutMillis": self.election_ms,
            "scanInactiveMasterInterval": self.scan_ms,
            "controllerSnapshotEntries": self.snapshot_entries,
            "notifyBrokerRoleChanged": self.notifies,
        }


def _slow_link(plan: Plan, chance: Random) -> int:
    chance.random()  # seeds that find a defect depend on this draw
    factor = chance.choice((0, 2, 3))
    return factor * _load(plan) if plan.settings["haTransferBatchSize"] == HALVES else 0


def _load(plan: Plan) -> int:
    """Return about how many bytes of log the writers fill in a second, with the heads of pieces."""
    return plan.writers * plan.rate * (plan.body_size + RECORD_SIZE) * 8 // 5


def plan_of_seed(seed: int, *, mode: str = "", breaks: Sequence[str] = ()) -> Plan:
    """Return the plan of a seed. `mode` replaces the drawn one. Raises PlanError."""
    chance = Random(f"{seed}/election-plan")
    replication = ReplicationMode.SOME_ACK if chance.random() < 0.1 else ReplicationMode.ALL_ACK
    flush = chance.choice([Flush.ASYNC, Flush.SYNC, Flush.SYNC])
    chosen = Mode.parse(mode) if mode else Mode(replication, flush)
    is_all = chosen.replication is ReplicationMode.ALL_ACK
    replicas = chance.choice((2, 3))
    return Plan(
        seed=seed,
        fault=ElectionSeries.name,
        target="broker-a-0",
        mode=chosen,
        replicas=replicas,
        controllers=chance.choice((1, 3, 3)),
        settings={**SETTINGS, **_timers(chance), "minInSyncReplicas": str(chance.choice((1, 1, replicas - 1)))},
        breaks=tuple(breaks),
        promises=PROMISES if is_all else OF_SOME_ACK,
        writers=3,
        rate=chance.choice((6, 10, 14)),
        queues=chance.choice((1, 2, 3)),
        body_size=chance.choice((60, 200, 600)),
        send_timeout_ms=1_500,
        steady_max_ms=15_000,
        before_ms=chance.randint(300, 1_500),
        bite_max_ms=3_000,
        fault_ms=1_000,
        recover_max_ms=30_000,
        settle_ms=chance.randint(200, 1_000),
        drain_max_ms=20_000,
    )


def _timers(chance: Random) -> dict[str, str]:
    """Return settings of brokers with short heartbeats, so that an election takes seconds."""
    return {
        "brokerHeartbeatInterval": str(chance.randint(200, 400)),
        "controllerHeartBeatTimeoutMills": str(chance.randint(1_200, 2_500)),
        "syncBrokerMetadataPeriod": str(chance.randint(300, 1_500)),
        "checkSyncStateSetPeriod": str(chance.randint(300, 1_000)),
        "syncControllerMetadataPeriod": str(chance.randint(500, 3_000)),
        "haMaxTimeSlaveNotCatchup": str(chance.randint(800, 3_000)),
        # a record in several transfers: half of it may be there when the next master is elected
        "haTransferBatchSize": chance.choice(("32768", "32768", HALVES)),
    }


def members(plan: Plan) -> list[DrillNode]:
    return [DrillNode(f"broker-a-{number}", "broker-a", number) for number in range(plan.replicas)]


def controllers(plan: Plan) -> list[DrillNode]:
    return [DrillNode(f"ctl-{number}") for number in range(plan.controllers)]


def fault_of_plan(plan: Plan) -> tuple[Plan, Fault]:
    """Return the plan with its duration, and the series of faults."""
    series = ElectionSeries(draw_steps(plan, members(plan), controllers(plan)))
    return plan.changed(group="broker-a", fault_ms=series.lasts_ms), series


def told(plan: Plan) -> dict[str, Any]:
    """Return the mode and the size of the cluster as texts, for messages."""
    extras = ElectionExtras.of(plan)
    return {"mode": f"{plan.mode}, {plan.controllers} controllers ({extras.log_type})", "replicas": plan.replicas}
