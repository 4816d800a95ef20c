"""Plans of the real drills in which a slave acts for its master (`make drills`).

Each drill has two broker groups. The fault hits one; the other accepts sends and escaped messages.
The plans combine faults, replicas, lock modes and escape strategies. Most use the timers of
`--preset fast-failover`, some use upstream's. `strict` needs three replicas: a quorum of two is
both of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmqkit.cluster.layout.presets import PRESETS
from rmqkit.drill.plan import Mode, Plan

FAULTS = ("kill", "pause", "isolate")
#: settings of every broker in these drills
ON: Mapping[str, str] = {
    "enableSlaveActingMaster": "true",
    "supportActingMaster": "true",
    "notifyMinBrokerIdChanged": "true",
}
#: duration of a fault with the timers of `fast-failover`; a slave then acts for at least 3 s
FAST_MS = 6_000


def plans() -> list[Plan]:
    """Return the 30 plans."""
    found = []
    for fault in FAULTS:
        for lock_mode in ("strict", "loose"):
            found += [_plan(fault, 3, lock_mode, escape, 11) for escape in ("auto", "remote")]
        found += [_plan(fault, 3, "strict", "auto", 12), _plan(fault, 3, "loose", "none", 13)]
        found += [_plan(fault, 2, "loose", "auto", seed) for seed in (14, 15)]
        found.append(_plan(fault, 3, "strict", "auto", 16, mode="quorum+sync-flush"))
        found.append(_plan(fault, 3, "strict", "auto", 17, is_fast=False))
    return found


def _plan(
    fault: str, replicas: int, lock_mode: str, escape: str, seed: int, *, mode: str = "quorum", is_fast: bool = True
) -> Plan:
    fast = {key: str(value) for key, value in PRESETS["fast-failover"]["settings"].items()} if is_fast else {}
    settings = {**ON, **fast, "lockMode": lock_mode, "escapeStrategy": escape}
    return Plan(
        fault=fault,
        mode=Mode.parse(mode),
        seed=seed,
        groups=2,
        replicas=replicas,
        settings=settings,
        fault_ms=FAST_MS if is_fast else 0,
    )


def settings(plan: Plan) -> dict[str, Any]:
    """Return the fields of a plan that a result records in addition to the common ones."""
    fast = plan.settings.get("brokerNotActiveTimeoutMillis")
    return {
        "replicas": plan.replicas,
        "locks": plan.settings["lockMode"],
        "escape": plan.settings["escapeStrategy"],
        "timers": "fast" if fast else "upstream's",
    }
