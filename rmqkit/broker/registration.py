"""Registration with the name servers: all topics at the start and every 30 s, changes at once.

Each name server gets its own requests, so one that is down or slow delays no other. A name server
refuses the first registration of a broker id if it carries exactly one topic, so the whole table
always goes first. (If a name server does not accept a changed topic, it gets the topic with the
next whole registration.) With `enableSingleTopicRegister` a changed topic is not sent as a
registration with that topic only, but by the request for one topic.

The creator of a topic gets its answer when the name servers know the topic (`when_known`), as
upstream does. Clients ask for the route next, and ask again only after 30 s.

The connection stays open: if it closes, the name server assumes that the broker is dead.

`node.py` connects the callbacks to parts that are built later.

Source: `broker/.../out/BrokerOuterAPI.registerBrokerAll`,
`broker/.../BrokerController.registerBrokerAll`.
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
from rmqkit.wire.bodies import (
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingTable,
    TopicConfigTable,
    TopicRoute,
)
from rmqkit.wire.codes import PermName, RequestCode
from rmqkit.wire.record import body_crc
from rmqkit.wire.schemas.nameserver import (
    QueryDataVersionRequest,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    RegisterTopicRequest,
    UnregisterBrokerRequest,
)

PERIOD_MS_MIN = 10_000
PERIOD_MS_MAX = 60_000
#: pause after a registration that failed
RETRY_MS = 1000
#: longest time that the creator of a topic waits for the name servers
KNOWN_MS_MAX = 2000
#: a slave that seeks its master registers again after twice this time, then doubles it up to
#: `RETRY_MS`: the answer names the master
SEEK_MS = 25
DUTY = "registration-told"


class Registration:
    """Keeps this broker registered at each name server, between `start` and `leave`."""

    def __init__(self, context: BrokerContext, topics: TopicTable) -> None:
        self._context = context
        self._topics = topics
        self.nameservers = [Address.parse(text) for text in context.config.network.namesrv_addrs]
        #: name servers that have accepted the whole table, and since when (monotonic ms)
        self.registered: dict[Address, int] = {}
        #: text of the last failure, by name server
        self.failures: dict[Address, str] = {}
        #: whether no name server has answered for so long that another broker may have replaced
        #: this one
        self.is_cut_off: Callable[[], bool] = lambda: False
        #: whether this slave seeks its master, and name servers may know one
        self.is_seeking_master: Callable[[], bool] = lambda: False
        #: called when a name server that is not in `registered` has accepted the whole table
        self.on_registered: Callable[[], None] = lambda: None
        #: called when a name server has answered a slave, with the addresses of the master and of
        #: its HA listener; None for an address that the name server does not know
        self.on_master: Callable[[Address | None, Address | None], None] = lambda master, master_ha: None
        self._running = False
        #: number of `start` calls; answers to requests from before the last one are ignored
        self._round = 0
        #: pending requests about changed topics
        self._unanswered = 0
        self._seek_ms = SEEK_MS
        self._waiting: list[Callable[[], None]] = []
        context.duties.add(DUTY, self._stop_waiting, None)

    def start(self) -> None:
        """Register from now on. Does nothing if it was started already."""
        if self._running:
            return
        self._running = True
        self._round += 1
        for address in self.nameservers:
            run = partial(self._register, address)
            self._context.duties.add(self._duty(address), run, self._context.clock.mono_ms)

    def hurry(self) -> None:
        """Register now instead of at the end of the period."""
        for address in self.nameservers:
            self._context.duties.wake(self._duty(address), self._context.clock.mono_ms)

    def topics_changed(self, names: list[str]) -> None:
        """Register these topics now at the name servers that have accepted the whole table."""
        if not self._running:
            return
        if self._context.config.registration.enable_single_topic_register:
            for config in self._masked(self._topics.snapshot(names)).topic_config_table.values():
                self._send_topic(config)
            return
        body = self._body(self._topics.snapshot(names))
        for address in self.registered:
            self._unanswered += 1
            self._send(address, body)

    def when_known(self, then: Callable[[], None]) -> None:
        """Call `then` when all changes sent up to now are answered, or after `KNOWN_MS_MAX`."""
        if not self._unanswered:
            then()
            return
        self._waiting.append(then)
        self._context.duties.wake(DUTY, self._context.clock.mono_ms + KNOWN_MS_MAX)

    def _stop_waiting(self, now_ms: int) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def hold(self) -> None:
        """Send nothing until the next `start`, and stay registered as the broker was last.

        A broker that changes its role does so: its next registration replaces this one. Apache's
        name server queues an unregistration and handles a registration at once, so one that is sent
        right behind an unregistration would be lost until the next period.
        """
        if self._running:
            self._running = False
            for address in self.nameservers:
                self._context.duties.remove(self._duty(address))
            self._stop_waiting(self._context.clock.mono_ms)

    def leave(self) -> None:
        """Unregister until the next `start`.

        Best effort: closing the connection has the same effect.
        """
        self.hold()
        identity = self._context.config.identity
        request = UnregisterBrokerRequest(
            broker_name=identity.broker_name,
            broker_addr=self._context.address_text,
            cluster_name=identity.broker_cluster_name,
            broker_id=identity.broker_id,
        )
        for address in self.nameservers:
            if address in self.registered:
                self._context.remoting.oneway(address, RequestCode.UNREGISTER_BROKER, request)
        self.registered.clear()

    def _duty(self, address: Address) -> str:
        return f"register-{address}"

    def _register(self, address: Address, now_ms: int) -> int:
        if self.is_cut_off():
            return now_ms + RETRY_MS  # first `roles` has to find out whether another broker has replaced this one
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

        The name server counts the query as a heartbeat. Source: `BrokerOuterAPI.needRegister`.
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

    def _masked(self, table: TopicConfigTable) -> TopicConfigTable:
        """Return the table with each permission masked by that of the broker, as upstream does."""
        mask = self._context.config.topics.broker_permission
        both = PermName.PERM_READ | PermName.PERM_WRITE
        if mask & both != both:
            topics = {
                name: replace(config, perm=config.perm & mask | config.perm & ~both)
                for name, config in table.topic_config_table.items()
            }
            table = TopicConfigTable(data_version=table.data_version, topic_config_table=topics)
        return table

    def _body(self, table: TopicConfigTable) -> bytes:
        """Return the body of a registration with these topics."""
        table = self._masked(table)
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
            # A stall may begin up to one heartbeat interval after the last heartbeat. With this
            # addition the broker notices its stall before another broker may replace it.
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

    def _send_topic(self, config: TopicConfig) -> None:
        """Register one topic alone. Source: `BrokerOuterAPI.registerSingleTopicAll`."""
        context, round_sent = self._context, self._round
        queues = QueueData(
            broker_name=context.config.identity.broker_name,
            perm=config.perm,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            topic_sys_flag=config.topic_sys_flag,
        )
        request, body = RegisterTopicRequest(topic=config.topic_name), TopicRoute(queue_datas=[queues]).encode()

        def answered(address: Address, outcome: Outcome) -> None:
            self._answered_one()
            if self._running and self._round == round_sent and (isinstance(outcome, CallFailed) or not outcome.is_ok):
                self._answered(address, False, outcome)

        timeout_ms = context.config.registration.register_broker_timeout_ms
        for address in self.registered:
            self._unanswered += 1
            then = partial(answered, address)
            code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
            context.remoting.call(address, code, request, body, timeout_ms=timeout_ms, then=then)

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
        """Read the master's addresses from an answer.

        An answer without addresses changes nothing: the master may be away for now.
        """
        try:
            found = reply.read(RegisterBrokerResponse)
            master = Address.parse(found.master_addr) if found.master_addr else None
            master_ha = Address.parse(found.ha_server_addr) if found.ha_server_addr else None
        except (RemoteProtocolError, ValueError) as error:
            self._context.log.warning("master-address-unreadable", reason=str(error))
            return
        self.on_master(master, master_ha)

    def connection_closed(self, address: Address) -> None:
        """Register again after `RETRY_MS`: a closed connection ends the registration.

        The name server may be back by then.
        """
        if self.registered.pop(address, None) is not None and self._running:
            self._context.duties.wake(self._duty(address), self._context.clock.mono_ms + RETRY_MS)
