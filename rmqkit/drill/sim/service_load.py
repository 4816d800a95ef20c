"""The workload of the families `timers`, `transactions` and `pop`; see `services/scripts.py`.

Plain writers go on, because their sends show that a group serves; pop takes their messages. Nobody
else reads them.
"""

from collections.abc import Callable

from rmqkit.client.message import MessageExt
from rmqkit.drill.history import History
from rmqkit.drill.plan import POP, TIMERS, TRANSACTIONS, Plan
from rmqkit.drill.services import scripts
from rmqkit.drill.sim.acting_load import APPS, CALM_TIMES, TICK_MS
from rmqkit.drill.sim.load import SimLoad
from rmqkit.drill.sim.pop_load import SimPoppers
from rmqkit.drill.sim.timer_load import SimTimers
from rmqkit.drill.sim.transaction_load import SimTransactions
from rmqkit.runtime.connection import Address
from rmqkit.sim.cluster import SimCluster

#: As in `acting_load.py`. Producers of transactions have machines of their own, because they die.
MACHINES = {
    **dict.fromkeys(("writer-0", "writer-2", scripts.TIMER_WRITER, scripts.TRANSACTION_READER, scripts.popper(0)), APPS[0]),
    **dict.fromkeys(("writer-1", scripts.TIMER_READER, scripts.popper(1)), APPS[1]),
}


class ServiceLoad(SimLoad):
    """Plain writers, and the clients of the plan's services."""

    readers = ()
    tick_ms = TICK_MS
    machines = MACHINES

    def __init__(
        self, cluster: SimCluster, plan: Plan, history: History, now_ms: Callable[[], int], *, name: str, broker: str
    ):
        super().__init__(cluster, plan, history, now_ms, name=name, broker=broker)
        self.given.clear()
        self.times = dict(CALM_TIMES)
        #: (node, wall time of its machine) → virtual time, in ms
        self.world_ms: Callable[[str, int], int] = lambda node, wall_ms: wall_ms - cluster.world.wall_start_ms

    def topics(self) -> list[str]:
        return [self.name, *self.services.topics()]

    def begin(self) -> None:
        self.begin_writers()
        if TIMERS in self.plan.services:
            SimTimers(self, self._stored_ms).begin()
        if TRANSACTIONS in self.plan.services:
            SimTransactions(self, self._stored_ms, self._node_at).begin()
        if POP in self.plan.services:
            SimPoppers(self, self._node_at, lambda node, wall_ms: self.world_ms(node, wall_ms)).begin()

    def join_late(self) -> None:
        """No group joins after the fault."""

    def _stored_ms(self, message: MessageExt) -> int:
        # Only masters append, so the clock is that of the master's machine.
        return self.world_ms(f"{message.broker_name}-0", message.store_timestamp_ms)

    def _node_at(self, address: Address) -> str:
        found = self.cluster.world.net.find(address)
        return found.name if found is not None else str(address)
