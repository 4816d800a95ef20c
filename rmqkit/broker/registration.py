"""Registration with the name servers: the whole table at the start and every 30 s, changed topics at once.

Each name server gets requests of its own, so one that is down or slow delays no other. A name server refuses an id's
first registration if it carries exactly one topic, so the whole table always goes first. (A changed topic that a name
server did not take alone reaches it with the next whole registration.) The creator of a topic gets its answer when the
name servers know the topic (`when_known`), as upstream does: clients ask for the route next, and ask again only after
30 s.

The connection stays open: a name server takes its end for the end of the broker.

`node.py` wires the callbacks to the parts that are built later.

Source: `broker/.../out/BrokerOuterAPI.registerBrokerAll`, `broker/.../BrokerController.registerBrokerAll`.
"""

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.tables.topics import TopicTable
from rmqkit.config import BrokerRole
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

PERIOD_MS_MIN = 10_000
PERIOD_MS_MAX = 60_000
#: pause after a registration that a name server did not take
RETRY_MS = 1000
#: longest time that the creator of a topic waits for the name servers
KNOWN_MS_MAX = 2000
#: a slave without a master registers again after twice this, then twice as long, up to `RETRY_MS`: the answer names it
SEEK_MS = 25
DUTY = "registration-told"


class Registration:
    def __init__(self, context: BrokerContext, topics: TopicTable) -> None:
        self._context = context
        self._topics = topics
        self.nameservers = [Address.parse(text) for text in context.config.network.namesrv_addrs]
        #: name servers that have taken the whole table, and since when; the text of the last failure by name server
        self.registered: dict[Address, int] = {}
        self.failures: dict[Address, str] = {}
        #: whether no name server has answered for so long that another broker may have taken this one's place
        self.is_cut_off: Callable[[], bool] = lambda: False
        #: whether this slave looks for its master, and name servers may know one
        self.is_seeking_master: Callable[[], bool] = lambda: False
        #: a name server has taken the whole table for the first time since `start`
        self.on_registered: Callable[[], None] = lambda: None
        #: a name server has answered a slave: addresses of the master and of its HA listener, None while it knows none
        self.on_master: Callable[[Address | None, Address | None], None] = lambda master, master_ha: None
        self._running = False
        #: counts the calls of `start`: an answer to a request from before the last one changes nothing
        self._round = 0
        #: requests about single topics that have no answer yet
        self._unanswered = 0
        self._seek_ms = SEEK_MS
        self._waiting: list[Callable[[], None]] = []
        context.duties.add(DUTY, self._stop_waiting, None)

    def start(self) -> None:
        """Register from now on. Without effect after an earlier `start`."""
        if self._running:
            return
        self._running = True
        self._round += 1
        for address in self.nameservers:
            run = partial(self._register, address)
            self._context.duties.add(self._duty(address), run, self._context.clock.mono_ms)

    def hurry(self) -> None:
        """Register now."""
        for address in self.nameservers:
            self._context.duties.wake(self._duty(address), self._context.clock.mono_ms)

    def topics_changed(self, names: list[str]) -> None:
        """Register these topics now at the name servers that have taken the whole table."""
        if not self._running:
            return
        body = self._body(self._topics.snapshot(names))
        for address in self.registered:
            self._unanswered += 1
            self._send(address, body)

    def when_known(self, then: Callable[[], None]) -> None:
        """Call `then` when the name servers have answered the changes so far, or after `KNOWN_MS_MAX`."""
        if not self._unanswered:
            then()
            return
        self._waiting.append(then)
        self._context.duties.wake(DUTY, self._context.clock.mono_ms + KNOWN_MS_MAX)

    def _stop_waiting(self, now_ms: int) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def leave(self) -> None:
        """Unregister until the next `start`. Best effort: the end of the connection has the same effect."""
        if not self._running:
            return
        self._running = False
        identity = self._context.config.identity
        request = UnregisterBrokerRequest(
            broker_name=identity.broker_name,
            broker_addr=self._context.address_text,
            cluster_name=identity.broker_cluster_name,
            broker_id=identity.broker_id,
        )
        for address in self.nameservers:
            self._context.duties.remove(self._duty(address))
            if address in self.registered:
                self._context.remoting.oneway(address, RequestCode.UNREGISTER_BROKER, request)
        self.registered.clear()
        self._stop_waiting(self._context.clock.mono_ms)

    def _duty(self, address: Address) -> str:
        return f"register-{address}"

    def _register(self, address: Address, now_ms: int) -> int:
        if self.is_cut_off():
            return now_ms + RETRY_MS  # heard again, it first asks whether another broker has taken its place
        if self._context.config.registration.force_register or address not in self.registered:
            self._send(address, self._body(self._topics.snapshot()), whole=True)
        else:
            self._ask_version(address)
        if self.is_seeking_master():
            self._seek_ms = min(RETRY_MS, 2 * self._seek_ms)
            return now_ms + self._seek_ms
        self._seek_ms = SEEK_MS
        period_ms = self._context.config.registration.register_name_server_period_ms
        return now_ms + min(PERIOD_MS_MAX, max(PERIOD_MS_MIN, period_ms))

    def _ask_version(self, address: Address) -> None:
        """With `forceRegister` off: send the table only if the name server's copy differs.

        Source: `BrokerOuterAPI.needRegister`. The question counts as a heartbeat there.
        """
        context = self._context
        identity = context.config.identity
        request = QueryDataVersionRequest(
            broker_name=identity.broker_name,
            broker_addr=context.address_text,
            cluster_name=identity.broker_cluster_name,
            broker_id=identity.broker_id,
        )

        round_asked = self._round

        def answered(outcome: Outcome) -> None:
            if not self._running or self._round != round_asked:
                return
            if isinstance(outcome, CallFailed) or outcome.ext.get("changed") != "false":
                self._send(address, self._body(self._topics.snapshot()), whole=True)

        timeout_ms = context.config.registration.register_broker_timeout_ms
        body = self._topics.version.encode()
        context.remoting.call(address, RequestCode.QUERY_DATA_VERSION, request, body, timeout_ms=timeout_ms, then=answered)

    def _body(self, table: TopicConfigTable) -> bytes:
        """Topics with the broker's own permission laid over them, as upstream registers them."""
        mask = self._context.config.topics.broker_permission
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
        context = self._context
        identity, acting = context.config.identity, context.config.acting
        request = RegisterBrokerRequest(
            broker_name=identity.broker_name,
            broker_addr=context.address_text,
            cluster_name=identity.broker_cluster_name,
            ha_server_addr=context.ha_address_text,
            broker_id=identity.broker_id,
            compressed=False,
            body_crc32=body_crc(body),
            enable_acting_master=acting.enable or None,
            # A stall begins up to a heartbeat after the last one: this broker notices before another may take its place.
            heartbeat_timeout_millis=acting.not_active_ms + acting.heartbeat_ms if acting.enable else None,
        )
        round_sent = self._round

        def answered(outcome: Outcome) -> None:
            if not whole:
                self._answered_one()
            if self._running and self._round == round_sent:
                self._answered(address, whole, outcome)

        timeout_ms = context.config.registration.register_broker_timeout_ms
        context.remoting.call(address, RequestCode.REGISTER_BROKER, request, body, timeout_ms=timeout_ms, then=answered)

    def _answered_one(self) -> None:
        self._unanswered -= 1
        if not self._unanswered:
            self._stop_waiting(self._context.clock.mono_ms)

    def _answered(self, address: Address, whole: bool, outcome: Outcome) -> None:
        if not isinstance(outcome, CallFailed) and outcome.is_ok:
            if self._context.config.identity.broker_role is BrokerRole.SLAVE:
                self._learn(outcome)
            if address not in self.registered and whole:
                self.registered[address] = self._context.clock.mono_ms
                self.failures.pop(address, None)
                self._context.log.info("registered", nameserver=str(address))
                self.on_registered()
            return
        text = outcome.text if isinstance(outcome, CallFailed) else f"code {outcome.code}: {outcome.remark}"
        self.registered.pop(address, None)
        if self.failures.get(address) != text:
            self.failures[address] = text
            self._context.log.warning("register-failed", nameserver=str(address), reason=text)
        self._context.duties.wake(self._duty(address), self._context.clock.mono_ms + RETRY_MS)

    def _learn(self, reply: Reply) -> None:
        """Read the master's addresses. An answer without one changes nothing: the master may be away for now."""
        try:
            found = reply.read(RegisterBrokerResponse)
            master = Address.parse(found.master_addr) if found.master_addr else None
            master_ha = Address.parse(found.ha_server_addr) if found.ha_server_addr else None
        except (RemoteProtocolError, ValueError) as error:
            self._context.log.warning("master-address-unreadable", reason=str(error))
            return
        self.on_master(master, master_ha)

    def connection_closed(self, address: Address) -> None:
        """The name server has dropped this broker with its connection: register again, it may be back already."""
        if self._running and address in self.registered:
            del self.registered[address]
            self._context.duties.wake(self._duty(address), self._context.clock.mono_ms + RETRY_MS)
