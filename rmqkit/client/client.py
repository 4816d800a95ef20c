"""Client: the sans-IO node behind the producers, consumers and admins of one client id.

It owns what they share: the connections (one per broker, opened on demand), the route cache, the
heartbeats, the timers, and the handlers of requests from brokers. A producer or consumer registers
its group here. The group is part of every heartbeat until UNREGISTER_CLIENT removes it when the
producer or consumer closes.

Two ways to make calls:

- `call` of remoting, with a callback, is for sends, where every microsecond counts.
- `ask` returns a promise for flows (`flow.py`). It turns error codes and lost connections into
  exceptions that say what to do.

Half-open connections. If a call times out in silence, remoting closes its connection, but by then
the timeout of a send is over. So the client probes:

- If sends wait for a response and nothing has arrived on their connection for `PROBE_AFTER_MS`, it
  sends a heartbeat with a short timeout. A broker that only waits for its disk or its slaves
  responds at once. A broker that is gone loses the connection, and its sends go to another broker
  while they still have time.
- A connection that does not open within that time, because packets are lost, is aborted too.
- If routes no longer contain a broker, perhaps because another one replaced it, the client sends it
  one heartbeat (`doubt`): pulls would wait long.

Source: `client/.../impl/factory/MQClientInstance.java`, `impl/MQClientAPIImpl.java`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rmqkit.client.access_denials import FailureLog, denial_of
from rmqkit.client.flow import Deferred, start
from rmqkit.client.heartbeats import Heartbeats
from rmqkit.client.name_servers import NameServers
from rmqkit.client.peer_calls import PEER_CALLS
from rmqkit.client.producers.transactions import TransactionQuestion
from rmqkit.client.requests import Requests
from rmqkit.client.routes import Routes
from rmqkit.client.timers import Timers
from rmqkit.errors import BrokerError, ClientClosed, ClientError, CorruptRecord, PeerUnreachable, RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome, Reply
from rmqkit.runtime.connection import Address, Connection
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting import TAG, Remoting, Sign
from rmqkit.wire.bodies import ConsumerData, ConsumerRunningInfo
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schema import Ext
from rmqkit.wire.schemas.groups import UnregisterClientRequest

T = TypeVar("T")
E = TypeVar("E", bound=Ext)

PROBE_AFTER_MS = 1000
#: Interval between two checks of connections with pending sends.
PROBE_CHECK_MS = 250
PROBE_TIMEOUT_MS = 500
CLOSE_TIMEOUT_MS = 3000
#: Codes on which Apache's producers retry (`DefaultMQProducer.retryResponseCodes`).
RETRIABLE_CODES = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)

_CODE_NAMES = {int(code): code.name for code in ResponseCode}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings that all parts of a client share."""

    client_id: str
    namesrv: tuple[Address, ...]
    route_refresh_ms: int = 30_000
    heartbeat_ms: int = 30_000
    #: Timeout of calls that specify none.
    call_timeout_ms: int = 3000
    #: Signs every request. None: requests are not signed.
    sign: Sign | None = None


class ConsumerPart(Protocol):
    """What the client needs from a push or pull consumer."""

    group: str

    def heartbeat_data(self) -> ConsumerData | None:
        """Return the consumer's part of a heartbeat, or None if brokers must not list the group."""

    def members_changed(self) -> None:
        """Rebalance soon: the members of the group changed (40)."""

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets (220)."""

    def consumed_offsets(self) -> dict[MessageQueue, int]:
        """Return the consumed offset of each queue (221)."""

    def running_info(self) -> ConsumerRunningInfo:
        """Return the state of the consumer (307)."""

    async def close(self) -> None:
        """Store the offsets and leave the group."""


class Client(BaseNode):
    """The node of one client id."""

    def __init__(self, name: str, ports: Ports, settings: ClientSettings) -> None:
        super().__init__(name, ports)
        self.settings = settings
        self.log = ports.log
        self.failures = FailureLog(self.log, self.clock)
        self.timers = Timers(self.clock, self.duties)
        self.remoting = Remoting(
            self,
            outbox=self.outbox,
            clock=self.clock,
            duties=self.duties,
            log=self.log,
            tables={TAG: PEER_CALLS},
            on_closed=self._link_closed,
        )
        self.remoting.sign = settings.sign
        self.name_servers = NameServers(self, settings.namesrv)
        self.routes = Routes(self)
        self.heartbeats = Heartbeats(self)
        self.requests = Requests(self)
        #: Groups of open producers, with the number of producers of each.
        self.producer_groups: dict[str, int] = {}
        self.consumers: dict[str, ConsumerPart] = {}
        #: by producer group: gets the questions of brokers about transactions
        self.checkers: dict[str, Callable[[TransactionQuestion], None]] = {}
        #: Returns the stacks of the program's threads. None in simulations.
        self.stacks: Callable[[], str] | None = None
        self.stopping = False
        self._number = 0
        #: Number of sends that wait for a response, by connection.
        self._sends: dict[Connection, int] = {}
        #: Of such a connection: its number of reads at the last check, and the ms since a new one.
        self._reads: dict[Connection, tuple[int, int]] = {}
        self._probed_ms = 0
        self.duties.add("client-probes", self._probe, None)

    # --- node contract

    def start(self) -> None:
        self.routes.start()
        self.heartbeats.start()

    def stop(self) -> None:
        if not self.stopping:
            self.stopping = True
            start(self._stop())

    async def _stop(self) -> None:
        self.requests.drop(None, ClientClosed(f"client {self.settings.client_id} is closing"))
        for group in list(self.consumers):
            await self.consumers[group].close()
        for group in list(self.producer_groups):
            await self._unregister(producer_group=group)
        for conn in list(self.remoting.links.values()):
            self.outbox.close(conn, "client is closing")
        self.stopped = True

    def opened(self, conn: Connection) -> None:
        self.remoting.opened(conn)
        self.heartbeats.connected(conn.peer)

    def received(self, conn: Connection, data: bytes) -> None:
        self.remoting.received(conn, data)

    def closed(self, conn: Connection, reason: str) -> None:
        self.remoting.closed(conn, reason)

    def next_number(self) -> int:
        """Return a new number, for the name of a duty."""
        self._number += 1
        return self._number

    # --- members

    def add_producer(self, group: str) -> None:
        """Register an open producer of a group."""
        self.producer_groups[group] = self.producer_groups.get(group, 0) + 1
        self.heartbeats.soon()

    async def remove_producer(self, group: str) -> None:
        """Remove a producer of a group. The last one unregisters the group at the brokers."""
        left = self.producer_groups.get(group, 0) - 1
        if left > 0:
            self.producer_groups[group] = left
        elif self.producer_groups.pop(group, None) is not None:
            await self._unregister(producer_group=group)

    def add_consumer(self, consumer: ConsumerPart) -> None:
        """Register a consumer.

        Raises ClientError if the group already has a consumer here: a client id can be in a group
        only once.
        """
        if consumer.group in self.consumers:
            raise ClientError(
                f"group {consumer.group} has a consumer in client {self.settings.client_id} already; "
                "set another instance_name for the second one"
            )
        self.consumers[consumer.group] = consumer
        self.heartbeats.soon()

    async def remove_consumer(self, consumer: ConsumerPart) -> None:
        """Remove a consumer, and unregister its group if brokers know it."""
        if self.consumers.get(consumer.group) is consumer:
            known = consumer.heartbeat_data() is not None
            del self.consumers[consumer.group]
            if known:
                await self._unregister(consumer_group=consumer.group)

    async def _unregister(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        request = UnregisterClientRequest(
            client_id=self.settings.client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        waiting = [
            self.try_call(address, RequestCode.UNREGISTER_CLIENT, request, timeout_ms=CLOSE_TIMEOUT_MS)
            for address in self.routes.addresses(masters_only=consumer_group is None)
            if address in self.remoting.links
        ]
        for promise in waiting:
            await promise

    # --- calls

    def ask(
        self,
        to: Address,
        code: int,
        ext: Ext | Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
        accept: frozenset[int] = frozenset({0}),
    ) -> Deferred[Reply]:
        """Return a promise of a broker's response.

        It fails with BrokerError if the code is not in `accept` (AccessDenied if access control
        refused), or with PeerUnreachable if there is no response.
        """
        promise: Deferred[Reply] = Deferred()

        def ended(outcome: Outcome) -> None:
            if isinstance(outcome, CallFailed):
                promise.fail(unreachable(outcome))
            elif outcome.code in accept:
                promise.resolve(outcome)
            else:
                promise.fail(refused(outcome, code))

        self.remoting.call(to, code, ext, body, timeout_ms=timeout_ms or self.settings.call_timeout_ms, then=ended)
        return promise

    def try_call(
        self, to: Address, code: int, ext: Ext | None = None, body: bytes = b"", *, timeout_ms: int | None = None
    ) -> Deferred[Outcome]:
        """Like `ask`, but the promise's value is the response or the failure."""
        promise: Deferred[Outcome] = Deferred()
        timeout_ms = timeout_ms or self.settings.call_timeout_ms
        self.remoting.call(to, code, ext, body, timeout_ms=timeout_ms, then=promise.resolve)
        return promise

    def retire_link(self, address: Address) -> None:
        """Make new calls open a new connection (GO_AWAY). Calls on the old one may still be
        answered.
        """
        self.remoting.links.pop(address, None)

    # --- half-open connections

    def send_began(self, conn: Connection) -> None:
        """Count a send that waits for a response on this connection, and start probing if it is the
        first.
        """
        count = self._sends.get(conn, 0)
        self._sends[conn] = count + 1
        if not count:
            now_ms = self.clock.mono_ms
            if not self._reads:
                self._probed_ms = now_ms
            self._reads[conn] = conn.state.received_count, 0
            self.duties.wake("client-probes", now_ms + PROBE_CHECK_MS)

    def send_ended(self, conn: Connection) -> None:
        """Count the end of such a send."""
        left = self._sends.get(conn, 0) - 1
        if left > 0:
            self._sends[conn] = left
        else:
            self._sends.pop(conn, None)
            self._reads.pop(conn, None)

    def _probe(self, now_ms: int) -> int | None:
        # Cap the gap: a long one means that this node itself was paused and could not read.
        passed_ms = min(now_ms - self._probed_ms, 2 * PROBE_CHECK_MS)
        self._probed_ms = now_ms
        for conn in list(self._sends):
            count, silent_ms = self._reads[conn]
            silent_ms += passed_ms
            if conn.state.received_count != count:
                count, silent_ms = conn.state.received_count, 0
            self._reads[conn] = count, silent_ms
            if conn.closing:
                continue
            if not conn.is_open and silent_ms >= PROBE_AFTER_MS + PROBE_TIMEOUT_MS:
                self.outbox.abort(conn, "no connection in time")
            elif conn.is_open and silent_ms >= PROBE_AFTER_MS:
                body = self.heartbeats.body()
                self.remoting.call(conn, RequestCode.HEART_BEAT, None, body, timeout_ms=PROBE_TIMEOUT_MS, then=_ignore)
        return now_ms + PROBE_CHECK_MS if self._sends else None

    def doubt(self, address: Address) -> None:
        """Send one heartbeat to a broker that routes no longer contain.

        If it does not respond within `PROBE_AFTER_MS`, the connection closes, its calls fail, and
        the consumers turn to the broker that replaced it.
        """
        if address in self.remoting.links:
            body = self.heartbeats.body()
            self.remoting.call(address, RequestCode.HEART_BEAT, None, body, timeout_ms=PROBE_AFTER_MS, then=_ignore)

    def _link_closed(self, conn: Connection) -> None:
        self._sends.pop(conn, None)
        self._reads.pop(conn, None)


def decoded(reply: Reply, decode: Callable[[bytes], T]) -> T:
    """Decode the body of a response. Raises BrokerError if it is invalid for this request."""
    try:
        return decode(reply.body)
    except (RemoteProtocolError, CorruptRecord, ValueError) as error:
        raise _unreadable(reply, error) from None


def fields(reply: Reply, schema: type[E]) -> E:
    """Return the ext fields of a response. Raises BrokerError if one is missing or invalid."""
    try:
        return reply.read(schema)
    except RemoteProtocolError as error:
        raise _unreadable(reply, error) from None


def _unreadable(reply: Reply, error: Exception) -> BrokerError:
    text = f"{reply.address} sent a response that cannot be decoded: {error}"
    return BrokerError(text, code=reply.code, remark=reply.remark, address=str(reply.address))


def _ignore(outcome: Outcome) -> None:
    pass


def refused(reply: Reply, request: int) -> BrokerError:
    """Return the exception for a response with an error code; AccessDenied if the user lacks a
    right. `request` is the request's code.
    """
    if (denial := denial_of(reply, request)) is not None:
        return denial
    name = str(reply.code)
    if reply.code in _CODE_NAMES:
        name += f" {_CODE_NAMES[reply.code]}"
    return BrokerError(
        f"{reply.address} answered {name}{': ' if reply.remark else ''}{reply.remark}",
        code=reply.code,
        remark=reply.remark,
        address=str(reply.address),
        retriable=reply.code in RETRIABLE_CODES,
    )


def unreachable(failed: CallFailed) -> PeerUnreachable:
    """Return the exception for a call without a response."""
    return PeerUnreachable(
        f"{failed.address} gave no answer: {failed.text}",
        kind=failed.kind,
        address=str(failed.address),
        maybe_stored=failed.maybe_done,
    )
