"""BrokerLiveness: removes brokers from the route table that did not unregister.

- When a connection ends, every broker whose last registration came over it is removed at once.
  (Apache removes only the first such broker, so the remaining brokers of a container stay.)
- A broker that is silent for longer than its timeout (120 s, or the value in its registration) is
  removed as soon as the timeout ends, because the duty is due at the earliest end of a timeout.
  (Apache scans every 5 s, and so removes it up to 5 s later.) Registrations, heartbeats (904) and
  data-version queries (322) restart the timeout. They do not move the duty's due time; the duty
  computes the next one when it runs. The connection of a silent broker is closed too, unless a
  live broker registered over it.

Source: `namesrv/.../routeinfo/RouteInfoManager.{scanNotActiveBroker,onChannelDestroy}`,
`BrokerHousekeepingService.java`.
"""

from collections.abc import Callable

from rmqkit.nameserver.route_table import BrokerEntry, RouteTable
from rmqkit.runtime.connection import Connection, Outbox
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Log

SCAN = "scan-brokers"


class BrokerLiveness:
    """Removes brokers from the route table when their connection ends or their timeout expires."""

    def __init__(self, table: RouteTable, outbox: Outbox, duties: Duties, log: Log, interval_ms: Callable[[], int]) -> None:
        """`interval_ms` returns the longest time between two scans. It is a live setting."""
        self._table = table
        self._outbox = outbox
        self._duties = duties
        self._log = log
        self._interval_ms = interval_ms
        #: connections over which brokers registered, by connection id
        self._connections: dict[int, Connection] = {}

    def start(self, now_ms: int) -> None:
        self._duties.add(SCAN, self.scan, now_ms + self._interval_ms())

    def registered(self, conn: Connection, member: BrokerEntry) -> None:
        """Record that a broker has registered over this connection."""
        self._connections[conn.id] = conn
        self._duties.wake(SCAN, member.heard_ms + member.timeout_ms + 1)

    def closed(self, conn: Connection, reason: str) -> None:
        """Unregister the brokers whose last registration came over this connection."""
        if self._connections.pop(conn.id, None) is None:
            return
        for broker_name, broker_id in self._table.unregister_connection(conn.id):
            self._log.info("broker-gone", broker_name=broker_name, broker_id=broker_id, peer=str(conn.peer), reason=reason)

    def scan(self, now_ms: int) -> int:
        """Unregister silent brokers; return when to scan again."""
        late = self._table.expired(now_ms)
        if late:
            self._table.unregister([(broker_name, member.broker_id) for broker_name, member in late])
        for broker_name, member in late:
            self._log.warning(
                "broker-silent",
                broker_name=broker_name,
                broker_id=member.broker_id,
                address=member.address,
                timeout_ms=member.timeout_ms,
            )
            conn = self._connections.get(member.conn_id)
            if conn is not None and member.conn_id not in self._table.by_connection:
                self._outbox.abort(conn, f"broker {broker_name} was silent for {member.timeout_ms} ms")
        longest_ms = now_ms + max(1, self._interval_ms())
        expiry_ms = self._table.expiry_ms()
        return longest_ms if expiry_ms is None else min(longest_ms, expiry_ms)
