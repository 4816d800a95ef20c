"""Plans of the real drills with timers, transactions and pop (`make drills`).

Each drill has two groups of three brokers with the timers of `--preset fast-failover`, and all
three loads. The fault hits the master of the first group; the other group accepts what escapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmqkit.cluster.layout.presets import PRESETS
from rmqkit.drill.plan import SERVICES, Mode, Plan
from tools.drills.takeovers import FAST_MS, FAULTS, ON

#: mode → seeds
MODES: Mapping[str, tuple[int, ...]] = {"quorum": (21, 22), "quorum+sync-flush": (23,), "async": (24,)}


def plans() -> list[Plan]:
    """Return the 12 plans."""
    return [_plan(fault, mode, seed) for fault in FAULTS for mode, seeds in MODES.items() for seed in seeds]


def _plan(fault: str, mode: str, seed: int) -> Plan:
    fast = {key: str(value) for key, value in PRESETS["fast-failover"]["settings"].items()}
    return Plan(
        fault=fault,
        mode=Mode.parse(mode),
        seed=seed,
        groups=2,
        replicas=3,
        settings={**ON, **fast, "escapeStrategy": "auto"},
        services=SERVICES,
        fault_ms=FAST_MS,
    )


def settings(plan: Plan) -> dict[str, Any]:
    """Return the fields of a plan that a result records in addition to the common ones."""
    return {"replicas": plan.replicas, "load": ",".join(plan.services)}
