"""The master's side of HA: accepts slaves, sends each of them the log, and closes dead connections.

Every broker listens for slaves, slaves included. The master sends nothing before a slave's first
report. It closes a connection, and logs the reason, in these cases:

- The slave reports an offset beyond the end of this log. That is no acknowledgement: the peer is no
  slave of this master, or it has bytes that this master never had.
- The slave's reports go backwards.
- Access control does not admit the connection (`broker/access/broker_access.py`).
- The slave needs bytes that retention has already removed here.

Source: `store/.../ha/DefaultHAService.java`, `store/.../ha/DefaultHAConnection.java`.
"""

from typing import Protocol

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.replication.acks import Acks
from rmqkit.broker.replication.ha_connection import TURN_MAX, HaConnections, ReplicaLink
from rmqkit.broker.replication.members import ReplicaMembers
from rmqkit.runtime.connection import Address, Connection
from rmqkit.store.contract import StorageEngine

#: longest time between two looks at the connections
SCAN_MS = 1000
#: slave connections that may be open at a time, those without a first report included
LINKS_MAX = 64


class Admission(Protocol):
    """Decides about a connection. `is_claimed`: a member of the group has claimed it (906)."""

    def __call__(self, conn: Connection, *, is_claimed: bool) -> str: ...


class HaServer:
    """The HA port: one `ReplicaLink` for each open slave connection."""

    def __init__(
        self, context: BrokerContext, store: StorageEngine, connections: HaConnections, members: ReplicaMembers, acks: Acks
    ) -> None:
        self._context = context
        self._store = store
        self._members = members
        self._acks = acks
        self.links = connections.links
        self._refused = connections.refused
        #: returns why a connection gets no data, "" if it may (access control)
        self.admission: Admission = lambda conn, *, is_claimed: ""
        #: reports are ignored until the store is ready
        self._is_started = False
        #: bytes that may still be sent in the second that began at `_second_ms`
        #: (haFlowControlEnable)
        self._budget = 0
        self._second_ms = 0
        context.duties.add("ha-links", self._scan, None)
        context.duties.add("ha-flow", self._next_second, None)

    def start(self) -> None:
        self._is_started = True

    # --- connections ------------------------------------------------------------------------------

    def opened(self, conn: Connection) -> None:
        now_ms = self._context.clock.mono_ms
        if len(self.links) >= LINKS_MAX:
            self._close(conn, f"{LINKS_MAX} slave connections are open already, which is the limit")
            return
        link = self.links[conn.id] = conn.state = self._make_link(conn, now_ms)
        self._members.adopt(link)
        self._context.duties.wake("ha-links", now_ms + min(SCAN_MS, self._context.config.ha.heartbeat_ms))
        self._context.log.info("replica-connected", peer=str(conn.peer))

    def _make_link(self, conn: Connection, now_ms: int) -> ReplicaLink:
        return ReplicaLink(conn, now_ms)

    def received(self, conn: Connection, data: bytes) -> None:
        link = self.links.get(conn.id)
        if link is None or conn.closing:
            return
        link.read_ms = self._context.clock.mono_ms
        reported = link.reports.feed(data)
        if reported is not None:
            self._reported(link, reported)

    def closed(self, conn: Connection, reason: str) -> None:
        link = self.links.pop(conn.id, None)
        if link is not None:
            self._context.log.info("replica-gone", **_log_fields(link), acked=link.acked, reason=conn.closing or reason)
            self._members.forget(link)

    def close_all(self, reason: str) -> None:
        for link in self.links.values():
            self._context.outbox.close(link.conn, reason)

    def _close(self, conn: Connection, reason: str) -> None:
        self._context.log.warning("replica-refused", peer=str(conn.peer), reason=reason)
        host = Address(conn.peer.host, 0)
        self._refused.pop(host, None)
        self._refused[host] = reason
        while len(self._refused) > LINKS_MAX:
            del self._refused[next(iter(self._refused))]
        self._context.outbox.abort(conn, reason)

    # --- reports and transfers --------------------------------------------------------------------

    def _reported(self, link: ReplicaLink, reported: int) -> None:
        context, store = self._context, self._store
        if not self._is_started:
            return
        fault = self.admission(link.conn, is_claimed=link.binding is not None) if link.sent < 0 else ""
        if fault:
            self._close(link.conn, fault)
            return
        if reported < 0 or reported > store.offset_written:
            self._close(link.conn, f"it reports {reported}, and this log ends at {store.offset_written}")
            return
        if link.sent < 0:
            link.begin(reported, store, context.config.commit_log.mapped_file_size_commit_log)
            if link.sent < store.offset_min:
                self._close(link.conn, f"it wants {reported}, and this log begins at {store.offset_min}")
                return
            self._refused.pop(Address(link.peer.host, 0), None)
            context.log.info("replica-begins", **_log_fields(link), offset=link.sent)
        elif reported < link.acked:
            self._close(link.conn, f"its reports went back from {link.acked} to {reported}")
            return
        link.acked = reported
        self._acks.changed()
        self.pump(link)

    def settle(self) -> None:
        """Send to each slave what the log has gained in this turn."""
        end = self._store.offset_written
        for link in self.links.values():
            if 0 <= link.sent < end:
                self.pump(link)

    def pump(self, link: ReplicaLink) -> None:
        """Send the slave missing bytes: at most `TURN_MAX`, and within the flow control budget."""
        context, store = self._context, self._store
        ha = context.config.ha
        if link.sent < store.offset_min:
            self._close(link.conn, f"it needs {link.sent}, and this log begins at {store.offset_min}")
            return
        room = TURN_MAX
        if ha.flow_control:
            room = min(room, self._budget_now())
            if room <= 0:
                return
        before = link.bytes_sent
        pieces = link.pieces(store, ha.batch_size, room)
        if pieces:
            link.written_ms = context.clock.mono_ms
            self._budget -= link.bytes_sent - before
            context.outbox.send(link.conn, *pieces)

    def _budget_now(self) -> int:
        now_ms = self._context.clock.mono_ms
        if now_ms >= self._second_ms + 1000:
            self._second_ms = now_ms
            self._budget = self._context.config.ha.bytes_per_second_max
        if self._budget <= 0:
            self._context.duties.wake("ha-flow", self._second_ms + 1000)
        return self._budget

    def _next_second(self, now_ms: int) -> None:
        self.settle()

    # --- heartbeats -------------------------------------------------------------------------------

    def _scan(self, now_ms: int) -> int | None:
        ha = self._context.config.ha
        for link in list(self.links.values()):
            if now_ms - link.read_ms > ha.housekeeping_ms:
                self._context.outbox.abort(link.conn, f"received nothing for {now_ms - link.read_ms} ms")
            elif link.sent >= 0 and now_ms - link.written_ms >= ha.heartbeat_ms:
                link.written_ms = now_ms
                self._context.outbox.send(link.conn, link.head(0))
            if 0 <= link.sent < self._store.offset_written:
                self.pump(link)
        return now_ms + min(SCAN_MS, ha.heartbeat_ms) if self.links else None


def _log_fields(link: ReplicaLink) -> dict[str, object]:
    bound = link.binding
    return {"peer": str(link.peer), "broker_id": "anonymous" if bound is None else bound.broker_id}
