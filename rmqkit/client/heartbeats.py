"""Heartbeats: they keep a client's groups and subscriptions known to the brokers.

One goes to every known broker every 30 s (to slaves only when there are consumers), to all at once when a producer or
consumer comes or changes, and to a single broker when its connection has just been opened, since a broker forgets a
client whose connection is gone. A broker that cannot be reached is said once, and again once it is back. One that refuses
(it is starting: it listens before it has recovered) is asked again after a second, or its consumers would stand still until
the next round.

Source: `client/.../impl/factory/MQClientInstance.java` (`sendHeartbeatToAllBroker`, `prepareHeartbeatData`).
"""

from typing import TYPE_CHECKING

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
    def __init__(self, client: "Client") -> None:
        #: version of each broker as its last answer had it
        self.versions: dict[Address, int] = {}
        self._client = client
        self._unreachable: dict[Address, None] = {}
        #: those that refused, and are asked again soon
        self._refused: dict[Address, None] = {}
        #: beats without an answer
        self._under_way: dict[Address, int] = {}
        client.duties.add(_DUTY, self._run, None)

    def start(self) -> None:
        self._client.routes.on_change.append(lambda topic: self.new_brokers())

    def body(self) -> bytes:
        client = self._client
        consumers = [data for each in client.consumers.values() if (data := each.heartbeat_data()) is not None]
        return HeartbeatData(
            client_id=client.settings.client_id,
            consumer_data_set=consumers,
            producer_data_set=[ProducerData(group_name=group) for group in client.producer_groups],
        ).encode()

    def soon(self) -> None:
        """Something has changed: all brokers hear of it in this turn or the next."""
        self._client.duties.wake(_DUTY, self._client.clock.mono_ms)

    def new_brokers(self) -> None:
        """Brokers that were not known before."""
        for address in self._addresses():
            if address not in self._client.remoting.links:
                self._beat(address, self.body())

    async def beat_all(self) -> None:
        """One round, ended when every broker has answered or failed."""
        body = self.body()
        await gather([self._beat(address, body) for address in self._addresses()])

    def connected(self, address: Address) -> None:
        # A beat that is under way to it may be what opened the connection.
        if address not in self._under_way and address in self._addresses():
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
            self._under_way[address] -= 1
            if not self._under_way[address]:
                del self._under_way[address]
            self._answered(address, outcome)
            end.resolve(None)

        self._under_way[address] = self._under_way.get(address, 0) + 1
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
        if not outcome.is_ok and address not in self._refused:
            log.warning("heartbeat-refused", broker=str(address), code=outcome.code, remark=outcome.remark)
            self._refused[address] = None
            self._client.timers.after(REFUSED_PAUSE_MS, lambda: self._again(address))

    def _again(self, address: Address) -> None:
        del self._refused[address]
        if address in self._addresses():
            self._beat(address, self.body())
