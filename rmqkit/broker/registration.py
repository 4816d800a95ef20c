"""Registration with the name servers: the whole table at the start and every 30 s, changed topics at once.

Each name server is told on its own; one that is down or slow delays none of the others. A name server refuses an id's
first registration when it carries exactly one topic, so the whole table always goes first (a changed topic that cannot
be told alone is told by the next whole registration). Who creates a topic is answered once the name servers know it
(`when_told`), as upstream does: its clients ask for the route next and look again only after 30 s.

The connection stays open: closing it is what tells the name server at once that this broker is gone.

Source: `broker/.../out/BrokerOuterAPI.registerBrokerAll`, `broker/.../BrokerController.registerBrokerAll`.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rmqkit.broker.replication.ha_state import CONNECTING, NO_MASTER
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome, Reply
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import RegisterBrokerBody, TopicConfigAndMappingTable, TopicConfigTable
from rmqkit.wire.codes import PermName, RequestCode
from rmqkit.wire.record import body_crc
from rmqkit.wire.schemas.nameserver import (
    QueryDataVersionRequest,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    UnregisterBrokerRequest,
)

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker

PERIOD_MS_MIN = 10_000
PERIOD_MS_MAX = 60_000
#: a name server that could not be told is tried again after this
RETRY_MS = 1000
#: how long the creator of a topic waits for the name servers at most
TOLD_MS_MAX = 2000
#: a slave that seeks its master registers again after twice this, then twice as long, up to `RETRY_MS`: the answer tells it
SEEK_MS = 25


class Registration:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.nameservers = [Address.parse(text) for text in broker.config.network.namesrv_addrs]
        #: name servers that have taken the whole table, and since when; the text of the last failure by name server
        self.registered: dict[Address, int] = {}
        self.failures: dict[Address, str] = {}
        self._running = False
        #: counts the times that it was started: what is answered to an earlier time is not listened to
        self._round = 0
        self._untold = 0
        self._seek_ms = SEEK_MS
        self._waiting: list[Callable[[], None]] = []
        broker.duties.add("registration-told", self._stop_waiting, None)

    def start(self) -> None:
        """Register from now on; nothing when it does already."""
        if self._running:
            return
        self._running = True
        self._round += 1
        for address in self.nameservers:
            run = partial(self._register, address)
            self._broker.duties.add(self._duty(address), run, self._broker.clock.mono_ms)

    def hurry(self) -> None:
        """Register now."""
        for address in self.nameservers:
            self._broker.duties.wake(self._duty(address), self._broker.clock.mono_ms)

    def topics_changed(self, names: list[str]) -> None:
        """Tell these topics now, to the name servers that know us."""
        if not self._running:
            return
        body = self._body(self._broker.topics.snapshot(names))
        for address in self.registered:
            self._untold += 1
            self._send(address, body)

    def when_told(self, then: Callable[[], None]) -> None:
        """Call `then` when the changes so far have been answered by the name servers, or after `TOLD_MS_MAX`."""
        if not self._untold:
            then()
            return
        self._waiting.append(then)
        self._broker.duties.wake("registration-told", self._broker.clock.mono_ms + TOLD_MS_MAX)

    def _stop_waiting(self, now_ms: int) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def leave(self) -> None:
        """Say goodbye, until the next `start`; best effort, a connection that closes says the same."""
        if not self._running:
            return
        self._running = False
        identity = self._broker.config.identity
        goodbye = UnregisterBrokerRequest(
            broker_name=identity.broker_name,
            broker_addr=self._broker.address_text,
            cluster_name=identity.broker_cluster_name,
            broker_id=identity.broker_id,
        )
        for address in self.nameservers:
            self._broker.duties.remove(self._duty(address))
            if address in self.registered:
                self._broker.remoting.oneway(address, RequestCode.UNREGISTER_BROKER, goodbye)
        self.registered.clear()
        self._stop_waiting(self._broker.clock.mono_ms)

    def _duty(self, address: Address) -> str:
        return f"register-{address}"

    def _register(self, address: Address, now_ms: int) -> int:
        if self._broker.roles.is_cut_off:
            return now_ms + RETRY_MS  # who is heard again first asks whether somebody has taken its place
        if self._broker.config.registration.force_register or address not in self.registered:
            self._send(address, self._body(self._broker.topics.snapshot()), whole=True)
        else:
            self._ask_version(address)
        if self._broker.replication.state in (NO_MASTER, CONNECTING) and not self._broker.roles.is_masterless:
            # A slave whose master is not known, or not where it was: name servers may know better by now.
            self._seek_ms = min(RETRY_MS, 2 * self._seek_ms)
            return now_ms + self._seek_ms
        self._seek_ms = SEEK_MS
        period_ms = self._broker.config.registration.register_name_server_period_ms
        return now_ms + min(PERIOD_MS_MAX, max(PERIOD_MS_MIN, period_ms))

    def _ask_version(self, address: Address) -> None:
        """With `forceRegister` off: send the table only when the name server's copy is another one.

        Source: `BrokerOuterAPI.needRegister`. Asking counts as a sign of life there.
        """
        broker = self._broker
        identity = broker.config.identity
        request = QueryDataVersionRequest(
            broker_name=identity.broker_name,
            broker_addr=broker.address_text,
            cluster_name=identity.broker_cluster_name,
            broker_id=identity.broker_id,
        )

        round_asked = self._round

        def answered(outcome: Outcome) -> None:
            if not self._running or self._round != round_asked:
                return
            if isinstance(outcome, CallFailed) or outcome.ext.get("changed") != "false":
                self._send(address, self._body(broker.topics.snapshot()), whole=True)

        timeout_ms = broker.config.registration.register_broker_timeout_ms
        body = broker.topics.version.encode()
        broker.remoting.call(address, RequestCode.QUERY_DATA_VERSION, request, body, timeout_ms=timeout_ms, then=answered)

    def _body(self, table: TopicConfigTable) -> bytes:
        """Topics with the broker's own permission laid over them, as upstream registers them."""
        mask = self._broker.config.topics.broker_permission
        both = PermName.PERM_READ | PermName.PERM_WRITE
        if mask & both != both:
            topics = {
                name: replace(config, perm=config.perm & mask | config.perm & ~both)
                for name, config in table.topic_config_table.items()
            }
            table = TopicConfigTable(data_version=table.data_version, topic_config_table=topics)
        whole = TopicConfigAndMappingTable(data_version=table.data_version, topic_config_table=table.topic_config_table)
        return RegisterBrokerBody(topic_config_serialize_wrapper=whole).encode()

    def _send(self, address: Address, body: bytes, whole: bool = False) -> None:
        broker = self._broker
        identity, acting = broker.config.identity, broker.config.acting
        request = RegisterBrokerRequest(
            broker_name=identity.broker_name,
            broker_addr=broker.address_text,
            cluster_name=identity.broker_cluster_name,
            ha_server_addr=broker.ha_address_text,
            broker_id=identity.broker_id,
            compressed=False,
            body_crc32=body_crc(body),
            enable_acting_master=acting.enable or None,
            # A stall begins up to a heartbeat after the last one: this broker notices before others may take its place.
            heartbeat_timeout_millis=acting.not_active_ms + acting.heartbeat_ms if acting.enable else None,
        )
        round_sent = self._round

        def answered(outcome: Outcome) -> None:
            if not whole:
                self._told_one()
            if self._running and self._round == round_sent:
                self._answered(address, whole, outcome)

        timeout_ms = broker.config.registration.register_broker_timeout_ms
        broker.remoting.call(address, RequestCode.REGISTER_BROKER, request, body, timeout_ms=timeout_ms, then=answered)

    def _told_one(self) -> None:
        self._untold -= 1
        if not self._untold:
            self._stop_waiting(self._broker.clock.mono_ms)

    def _answered(self, address: Address, whole: bool, outcome: Outcome) -> None:
        if not isinstance(outcome, CallFailed) and outcome.is_ok:
            if self._broker.replication.is_slave:
                self._learn(outcome)
            if address not in self.registered and whole:
                self.registered[address] = self._broker.clock.mono_ms
                self.failures.pop(address, None)
                self._broker.log.info("registered", nameserver=str(address))
                self._broker.roles.hint()
            return
        text = outcome.text if isinstance(outcome, CallFailed) else f"code {outcome.code}: {outcome.remark}"
        self.registered.pop(address, None)
        if self.failures.get(address) != text:
            self.failures[address] = text
            self._broker.log.warning("register-failed", nameserver=str(address), reason=text)
        self._broker.duties.wake(self._duty(address), self._broker.clock.mono_ms + RETRY_MS)

    def _learn(self, reply: Reply) -> None:
        """Where a slave finds its master. An answer without an address changes nothing: the master may be away for now."""
        try:
            said = reply.read(RegisterBrokerResponse)
            master = Address.parse(said.master_addr) if said.master_addr else None
            master_ha = Address.parse(said.ha_server_addr) if said.ha_server_addr else None
        except (RemoteProtocolError, ValueError) as error:
            self._broker.log.warning("master-address-unreadable", reason=str(error))
            return
        self._broker.replication.follow.learned(master, master_ha)

    def connection_closed(self, address: Address) -> None:
        """The name server has forgotten us with the connection: register again at once, it may be back already."""
        if self._running and address in self.registered:
            del self.registered[address]
            self._broker.duties.wake(self._duty(address), self._broker.clock.mono_ms + RETRY_MS)
