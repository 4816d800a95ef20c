"""Heartbeats to the name servers, and the detection of a stall of this broker.

Each `brokerHeartbeatInterval`, every name server that has this broker registered gets a heartbeat
(904, one way; 322 if it does not know 904). A name server removes a broker that it has not heard
from for `brokerNotActiveTimeoutMillis`.

So if a turn begins that long after the last heartbeat was sent, the name servers may have removed
this broker. Its process or machine was stalled (SIGSTOP, a migrated virtual machine, a disk that
hung). The broker checks this before it serves any request that arrived in the meantime. Only the
monotonic clock counts: setting the wall clock changes nothing.

Source: `broker/.../BrokerController.sendHeartbeat`,
`BrokerOuterAPI.{sendHeartbeat,sendHeartbeatViaDataVersion}`.
"""

from collections.abc import Callable

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.registration import Registration
from rmqkit.broker.roles.role import Duty, RoleState
from rmqkit.broker.tables.topics import TopicTable
from rmqkit.runtime.connection import Address
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.nameserver import BrokerHeartbeatRequest, QueryDataVersionRequest

DUTY = "roles-heartbeat"
NEVER_MS = 2**62


class Liveness:
    """Sends this broker's heartbeats, and knows when the last one was due."""

    def __init__(
        self,
        context: BrokerContext,
        role: RoleState,
        registration: Registration,
        topics: TopicTable,
        knows_heartbeats: Callable[[Address], bool],
    ) -> None:
        """`knows_heartbeats` returns whether a name server knows 904."""
        self._context = context
        self._role = role
        self._registration = registration
        self._topics = topics
        self._knows_heartbeats = knows_heartbeats
        #: a turn that begins at this monotonic time in ms, or later, comes after a stall
        self.stalled_at_ms = NEVER_MS
        self._beaten_ms = 0
        self._context.duties.add(DUTY, self._run, None)

    def start(self) -> None:
        self._beat(self._context.clock.mono_ms)
        self._context.duties.wake(DUTY, self._context.clock.mono_ms)

    def stop(self) -> None:
        self.stalled_at_ms = NEVER_MS

    def silence_ms(self) -> int:
        """Return the ms since the last heartbeat."""
        return self._context.clock.mono_ms - self._beaten_ms

    def _run(self, now_ms: int) -> int | None:
        if self.stalled_at_ms == NEVER_MS:
            return None
        self._beat(now_ms)
        if self._role.does(Duty.HEARTBEAT):
            self._send()
        return now_ms + self._context.config.acting.heartbeat_ms

    def _send(self) -> None:
        context = self._context
        identity, address = context.config.identity, context.address_text
        heartbeat = BrokerHeartbeatRequest(
            cluster_name=identity.broker_cluster_name, broker_addr=address, broker_name=identity.broker_name
        )
        for nameserver in self._registration.registered:
            if not self._knows_heartbeats(nameserver):
                version = QueryDataVersionRequest(
                    broker_name=identity.broker_name,
                    broker_addr=address,
                    cluster_name=identity.broker_cluster_name,
                    broker_id=identity.broker_id,
                )
                body = self._topics.version.encode()
                context.remoting.oneway(nameserver, RequestCode.QUERY_DATA_VERSION, version, body)
            else:
                context.remoting.oneway(nameserver, RequestCode.BROKER_HEARTBEAT, heartbeat)

    def _beat(self, now_ms: int) -> None:
        self._beaten_ms = now_ms
        self.stalled_at_ms = now_ms + self._context.config.acting.not_active_ms
