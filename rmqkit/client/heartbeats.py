"""Heartbeats register a client's groups and subscriptions with the brokers, and keep them
registered.

The client sends a heartbeat

- every 30 s to every known broker, to slaves only if it has consumers;
- to all of them at once when a producer or consumer is added or changes;
- to a single broker when its connection opens, because a broker forgets a client whose connection
  closes;
- 1 s later to a broker that refused one. A starting broker listens before it has recovered, and its
  consumers would otherwise stall until the next round. After a refusal by access control the next
  round is soon enough.

A broker that becomes unreachable is logged once, and again when it is back.

Source: `client/.../impl/factory/MQClientInstance.java` (`sendHeartbeatToAllBroker`,
`prepareHeartbeatData`).
"""

from typing import TYPE_CHECKING

from rmqkit.client.access_denials import denial_of
from rmqkit.client.flow import Deferred, gather, start
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import HeartbeatData, ProducerData
from rmqkit.wire.codes import RequestCode

if TYPE_CHECKING:
    from rmqkit.client.client import Client

_DUTY = "client-heartbeats"
REFUSED_PAUSE_MS = 1000


class Heartbeats:
    """Sends the heartbeats of one client."""

    def __init__(self, client: "Client") -> None:
        #: Version of each broker, from its last response.
        self.versions: dict[Address, int] = {}
        self._client = client
        self._unreachable: dict[Address, None] = {}
        #: Brokers that refused a heartbeat and get another one soon.
        self._refused: dict[Address, None] = {}
        #: Number of heartbeats in flight, by broker.
        self._in_flight: dict[Address, int] = {}
        client.duties.add(_DUTY, self._run, None)

    def start(self) -> None:
        """Send a heartbeat to new brokers whenever a route changes."""
        self._client.routes.on_change.append(lambda topic: self.new_brokers())

    def body(self) -> bytes:
        """Return the encoded heartbeat: the client id, producer groups, and consumers."""
        client = self._client
        consumers = [data for each in client.consumers.values() if (data := each.heartbeat_data()) is not None]
        return HeartbeatData(
            client_id=client.settings.client_id,
            consumer_data_set=consumers,
            producer_data_set=[ProducerData(group_name=group) for group in client.producer_groups],
        ).encode()

    def soon(self) -> None:
        """Send a heartbeat to all brokers in this turn or the next, because something changed."""
        self._client.duties.wake(_DUTY, self._client.clock.mono_ms)

    def new_brokers(self) -> None:
        """Send a heartbeat to brokers without a connection: they are new."""
        for address in self._addresses():
            if address not in self._client.remoting.links:
                self._beat(address, self.body())

    async def beat_all(self) -> None:
        """Send one round, and wait until every broker has responded or failed."""
        body = self.body()
        await gather([self._beat(address, body) for address in self._addresses()])

    def connected(self, address: Address) -> None:
        # Skip it if a heartbeat is in flight: that may have opened the connection.
        """Send a heartbeat over a new connection."""
        if address not in self._in_flight and address in self._addresses():
            self._beat(address, self.body())

    def _addresses(self) -> list[Address]:
        client = self._client
        if client.stopping or not (client.consumers or client.producer_groups):
            return []
        return client.routes.addresses(masters_only=not client.consumers)

    def _run(self, now_ms: int) -> int | None:
        if not (self._client.consumers or self._client.producer_groups):
            return None
        start(self.beat_all())
        return now_ms + self._client.settings.heartbeat_ms

    def _beat(self, address: Address, body: bytes) -> Deferred[None]:
        end: Deferred[None] = Deferred()

        def answered(outcome: Outcome) -> None:
            self._in_flight[address] -= 1
            if not self._in_flight[address]:
                del self._in_flight[address]
            self._answered(address, outcome)
            end.resolve(None)

        self._in_flight[address] = self._in_flight.get(address, 0) + 1
        timeout_ms = self._client.settings.call_timeout_ms
        self._client.remoting.call(address, RequestCode.HEART_BEAT, None, body, timeout_ms=timeout_ms, then=answered)
        return end

    def _answered(self, address: Address, outcome: Outcome) -> None:
        log = self._client.log
        if isinstance(outcome, CallFailed):
            self._client.routes.missed(address)
            if address not in self._unreachable and not self._client.stopping:
                self._unreachable[address] = None
                log.warning("broker-unreachable", broker=str(address), error=outcome.text)
            return
        self.versions[address] = outcome.version
        if address in self._unreachable:
            del self._unreachable[address]
            log.info("broker-reachable", broker=str(address))
        if (denial := denial_of(outcome, RequestCode.HEART_BEAT)) is not None:
            self._client.failures.warning("heartbeat-refused", denial)
        elif not outcome.is_ok and address not in self._refused:
            log.warning("heartbeat-refused", broker=str(address), code=outcome.code, remark=outcome.remark)
            self._refused[address] = None
            self._client.timers.after(REFUSED_PAUSE_MS, lambda: self._retry(address))

    def _retry(self, address: Address) -> None:
        del self._refused[address]
        if address in self._addresses():
            self._beat(address, self.body())
