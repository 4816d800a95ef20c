"""The driver of simulated drills with timers, transactions and pop: `acting_driver.py`, their load.

Steady means that each service has worked within the last `FRESH_MS`. At the end the driver waits
until nothing is pending.
"""

from rmqkit.drill.sim.acting_driver import ActingDriver
from rmqkit.drill.sim.driver import TOPIC
from rmqkit.drill.sim.load import SimLoad
from rmqkit.drill.sim.service_load import ServiceLoad

#: two timers are rarely further apart, and a transaction's check takes about as long
FRESH_MS = 2_500


class ServiceDriver(ActingDriver):
    """As `ActingDriver`, for plans with services."""

    def _made_load(self) -> SimLoad:
        load = ServiceLoad(self.cluster, self.plan, self.history, self.now_ms, name=TOPIC, broker=self._broker)
        load.world_ms = self.world_ms
        return load

    def _load_lacks(self) -> str:
        return str(self._load.services.lacking(self.now_ms() - FRESH_MS))

    def caught_up(self) -> bool:
        return not self._load.services.waits_for() and super().caught_up()
