"""Plans of the real drills in which controllers elect another master (`make drills`).

Each drill has three controllers and one group of three brokers. The fault hits the master; with
`kill-leader` also the controller that leads. Each fault runs with allAckInSyncStateSet (mode
all-ack) and without it (some-ack), and with all-ack also with timers, transactions and pop. A
silent master loses its place after 10 s, as at RocketMQ's. The controllers elect a leader of their
own after 3 s, not 1 s, because the machine of the series is shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmqkit.drill.plan import CONTROLLERS, ELECTED, SERVICES, Flush, Mode, Plan
from rmqkit.drill.real.services.table import NO_LOAD

FAULTS = ("kill", "pause", "isolate", "isolate-controllers", "kill-leader")
REPLICAS = 3
SETTINGS: Mapping[str, str] = {"controllerElectionTimeoutMillis": "3000"}


def plans() -> list[Plan]:
    """Return the 15 plans."""
    all_ack, some_ack = (Mode(each, Flush.ASYNC) for each in ELECTED)
    return [
        _plan(fault, mode, services, seed)
        for mode, services, seed in ((all_ack, (), 31), (some_ack, (), 32), (all_ack, SERVICES, 33))
        for fault in FAULTS
    ]


def _plan(fault: str, mode: Mode, services: tuple[str, ...], seed: int) -> Plan:
    # On real processes 0 means: as long as the controllers need to notice, and 4 s more.
    return Plan(
        fault=fault,
        mode=mode,
        services=services,
        seed=seed,
        replicas=REPLICAS,
        controllers=CONTROLLERS,
        settings=SETTINGS,
        fault_ms=0,
    )


def settings(plan: Plan) -> dict[str, Any]:
    """Return the fields of a plan that a result records in addition to the common ones."""
    return {"load": ", ".join(plan.services) or NO_LOAD}
