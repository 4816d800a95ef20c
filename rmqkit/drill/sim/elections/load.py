"""The simulated workload for a group whose master is elected: `load.py` with short timeouts.

A fault lasts only seconds, so a client that waited half a minute would miss it.
"""

from typing import Any

from rmqkit.drill.sim.acting_load import TIMES
from rmqkit.drill.sim.load import SimLoad

LOCK_MS = {"lock_interval_ms": 1_250, "lock_live_ms": 2_500}


class ElectionLoad(SimLoad):
    """Writers and readers of one drill."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.times = dict(TIMES)
        self.lock_times = dict(LOCK_MS)
