"""MasterWatch: replaces the masters that died. Only the leader acts on it.

The controller examines a set at once when the connection of its master closes, when the heartbeats
of its master are overdue, and when this controller begins to lead. It examines all sets every
`scanInactiveMasterInterval`. So a set without a master gets one when a candidate returns, even if
no broker asks, and a failed change is repeated without end.

Source: `controller/.../ControllerManager.onBrokerInactive`,
`controller/.../impl/DLedgerController.scanInactiveMasterAndTriggerReelect`.
"""

from collections.abc import Callable, Iterable

from rmqkit.controller.contract import ControllerLog
from rmqkit.controller.decision_queue import DecisionQueue
from rmqkit.controller.heartbeats import HeartbeatTable, LiveMember
from rmqkit.controller.sets.decisions import Resolution, replace_master
from rmqkit.controller.sets.election import elect
from rmqkit.controller.sets.table import BrokerSets
from rmqkit.runtime.connection import Connection
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Clock, Log
from rmqkit.settings.node_sections import ControllerSettings
from rmqkit.wire.codes import ResponseCode

EXPIRE = "controller-heartbeats"
SCAN = "controller-masters"


class MasterWatch:
    """Watches the members of all broker sets. `replaced` counts the masters that it replaced."""

    def __init__(
        self,
        sets: BrokerSets,
        live: HeartbeatTable,
        controller_log: ControllerLog,
        queue: DecisionQueue,
        *,
        settings: Callable[[], ControllerSettings],
        clock: Clock,
        duties: Duties,
        log: Log,
    ) -> None:
        """`settings` returns the settings of now; some of them are live."""
        self.replaced = 0
        self._sets = sets
        self._live = live
        self._controller_log = controller_log
        self._queue = queue
        self._settings = settings
        self._clock = clock
        self._duties = duties
        self._log = log
        #: sets whose examination waits in the queue
        self._examined: set[str] = set()
        duties.add(EXPIRE, self._expire, None)
        duties.add(SCAN, self._scan, None)

    def start(self, now_ms: int) -> None:
        self._live.start(now_ms)
        self._duties.wake(SCAN, now_ms + self._settings().scan_inactive_master_interval_ms)
        self._duties.wake(SCAN, self._live.graced_until_ms())

    def watch_timeout(self, member: LiveMember) -> None:
        """Wake when the timeout of this heartbeat, which has just arrived, is over."""
        self._duties.wake(EXPIRE, member.expires_ms)

    def closed(self, conn: Connection, reason: str) -> None:
        """Remove the members of a connection that ended, and replace the masters among them."""
        gone = self._live.closed(conn)
        for broker_name, broker_id in gone:
            self._log.warning("broker-gone", broker_name=broker_name, broker_id=broker_id, reason=reason)
        self.examine(broker_name for broker_name, _ in gone)

    def leadership_changed(self) -> None:
        """Examine all sets if this controller leads now."""
        self.examine(list(self._sets.sets))

    def examine(self, broker_names: Iterable[str]) -> None:
        """Replace the masters of these sets that are dead."""
        if not self._controller_log.leadership.is_self:
            return
        for broker_name in dict.fromkeys(broker_names):
            if broker_name not in self._examined and self._needs_master(broker_name):
                self._examined.add(broker_name)
                self._replace(broker_name)

    def _needs_master(self, broker_name: str) -> bool:
        brokers = self._sets.get(broker_name)
        if brokers is None or brokers.master_epoch == 0:
            return False
        if brokers.master_id is None:
            return elect(brokers, self._live, unclean=self._settings().elect_unclean) is not None
        return self._live.is_dead(broker_name, brokers.master_id, self._clock.mono_ms)

    def _replace(self, broker_name: str) -> None:
        def decide() -> Resolution:
            unclean = self._settings().elect_unclean
            return replace_master(self._sets, self._live, broker_name, self._clock.mono_ms, unclean=unclean)

        def answered(decision: Resolution) -> None:
            self._examined.discard(broker_name)
            if decision.code == ResponseCode.SUCCESS and decision.events:
                self.replaced += 1

        self._queue.submit(decide, answered)

    def _expire(self, now_ms: int) -> int | None:
        late = self._live.expire(now_ms)
        for (broker_name, broker_id), member in late:
            self._log.warning(
                "broker-silent",
                broker_name=broker_name,
                broker_id=broker_id,
                address=member.address,
                timeout_ms=member.timeout_ms,
            )
        self.examine(broker_name for (broker_name, _), _ in late)
        return self._live.expiry_ms()

    def _scan(self, now_ms: int) -> int:
        self.examine(list(self._sets.sets))
        return now_ms + self._settings().scan_inactive_master_interval_ms
