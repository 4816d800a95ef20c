"""Liveness: who is taken out of the route table without having said goodbye.

- A connection that ends takes with it, at once, every broker whose last registration came by it. (Upstream takes only the
  first such broker, so the others of a broker container stay.)
- A broker that was silent for longer than its own timeout (120 s, or what its registration says) is
  found at that moment: the duty is due when the first timeout ends. (Upstream scans every 5 s, and so
  finds it up to 5 s later.) Registrations, heartbeats (904) and data-version queries (322) are signs of
  life; they move no due time, the duty finds a later one when it runs. The connection of a silent broker
  is closed as well, unless a living broker registered by it.

Source: `namesrv/.../routeinfo/RouteInfoManager.{scanNotActiveBroker,onChannelDestroy}`, `BrokerHousekeepingService.java`.
"""

from collections.abc import Callable

from rmqkit.nameserver.route_table import BrokerEntry, RouteTable
from rmqkit.runtime.connection import Connection, Outbox
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Log

SCAN = "scan-brokers"


class BrokerLiveness:
    def __init__(self, table: RouteTable, outbox: Outbox, duties: Duties, log: Log, interval_ms: Callable[[], int]) -> None:
        """`interval_ms`, the longest time between two scans, is asked at each: the setting is live."""
        self._table = table
        self._outbox = outbox
        self._duties = duties
        self._log = log
        self._interval_ms = interval_ms
        #: connections by which brokers have registered, by id
        self._connections: dict[int, Connection] = {}

    def start(self, now_ms: int) -> None:
        self._duties.add(SCAN, self.scan, now_ms + self._interval_ms())

    def registered(self, conn: Connection, member: BrokerEntry) -> None:
        """A broker has registered by this connection."""
        self._connections[conn.id] = conn
        self._duties.wake(SCAN, member.heard_ms + member.timeout_ms + 1)

    def closed(self, conn: Connection, reason: str) -> None:
        if self._connections.pop(conn.id, None) is None:
            return
        for broker_name, broker_id in self._table.unregister_connection(conn.id):
            self._log.info("broker-gone", broker_name=broker_name, broker_id=broker_id, peer=str(conn.peer), reason=reason)

    def scan(self, now_ms: int) -> int:
        """The duty: unregister silent brokers. Returns when to scan again."""
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
