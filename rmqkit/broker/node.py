"""The broker node: composes tables, store, handlers and registration, and runs them in turns.

Life:

- `start` loads the tables and starts the engine, whose recovery runs as duties. Until the engine is
  ready, requests are answered with SERVICE_NOT_AVAILABLE.
- When the engine is ready, the broker serves, and registers as its role allows (`roles`).
- `stop` unregisters, refuses new requests, lets the engine flush and close, saves the tables, and
  then sets `stopped`.

Start of a turn: each entry point first checks whether the last heartbeat is too long ago. If so, it
calls `roles.stalled`, so that a broker that stalled serves no request that arrived meanwhile.

End of a turn (`settle`): the engine writes all appended records, puts are answered, and records
that became readable wake the pulls that wait for them.

Connections, by tag:

- `remoting`: the broker's port P.
- `vip`: port P - 2, the same requests without pulls, as Apache's.
- `ha`: port P + 1, where slaves connect. `ha-master` is a slave's own connection to its master.
- `metrics`: HTTP for Prometheus, if `metricsExporterType` enables it.

Only this module knows all parts. A part gets the parts that it uses; handlers, lock modes, escape
strategies and plug-ins get a `BrokerView`.

Source: `broker/.../BrokerController.java`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rmqkit.broker.access.access_sender import AccessSender
from rmqkit.broker.access.broker_access import BrokerAccess
from rmqkit.broker.client_calls import ClientCalls
from rmqkit.broker.context import BrokerContext
from rmqkit.broker.election.controllers import Controllers
from rmqkit.broker.election.election import Election
from rmqkit.broker.election.role_switch import RoleSwitch
from rmqkit.broker.election.sync_states import SyncStates
from rmqkit.broker.election.takeover import Takeover
from rmqkit.broker.escape import Escape, EscapeStrategy, Inbox
from rmqkit.broker.filters.filter_cache import Filters
from rmqkit.broker.filters.pull_filter import ArrivedProperties
from rmqkit.broker.filters.table import SAVE_MS as FILTERS_SAVE_MS
from rmqkit.broker.filters.table import FilterTable
from rmqkit.broker.handlers.admin import access, broker, groups, queues, topics
from rmqkit.broker.handlers.consumers import clients, locks, offsets, relays
from rmqkit.broker.handlers.members import elections, metadata, replicas, roles, special_progress
from rmqkit.broker.handlers.messages import pull, recall, reply, send, send_back, transactions
from rmqkit.broker.handlers.messages.plain_sends import PlainSends
from rmqkit.broker.handlers.pop import acks, assignment, in_flight, lookups, pops
from rmqkit.broker.handlers.pop.offsets import PopOffsets
from rmqkit.broker.handlers.pop.orders import PopOrders
from rmqkit.broker.handlers.pop.turn_acks import TurnAcks
from rmqkit.broker.handlers.pop.waiters import ANY_QUEUE, PopWaiters
from rmqkit.broker.hosts import Hosts
from rmqkit.broker.live_settings import LiveSettings
from rmqkit.broker.locks.contract import LockMode, lock_mode_of
from rmqkit.broker.locks.lock_table import LockTable
from rmqkit.broker.metadata.copied_tables import CopiedTables
from rmqkit.broker.puts.puts import Puts
from rmqkit.broker.registration import Registration
from rmqkit.broker.replication.epoch_client import EpochClient
from rmqkit.broker.replication.epochs import Epochs
from rmqkit.broker.replication.ha_client import TAG as HA_MASTER
from rmqkit.broker.replication.replication import ElectedLog, Replication
from rmqkit.broker.roles import CLIENT_CODES, HANDOVER_CODES, Roles
from rmqkit.broker.roles.role import Role, RoleState
from rmqkit.broker.special import table
from rmqkit.broker.special.contract import Destination, SpecialParts
from rmqkit.broker.special.delay.delivery import DelayDelivery
from rmqkit.broker.special.destinations import EscapeBridge, GuardedStore, OwnStore
from rmqkit.broker.special.duties import SpecialDuties
from rmqkit.broker.special.pop.pending import PopQueue
from rmqkit.broker.special.pop.revive import PopRevive
from rmqkit.broker.special.timer.duty import TimerDuty
from rmqkit.broker.special.transactions.checks import TransactionChecks
from rmqkit.broker.statistics import Statistics
from rmqkit.broker.tables.clients import Clients
from rmqkit.broker.tables.groups import GroupTable
from rmqkit.broker.tables.offsets import DUTY as OFFSETS_DUTY
from rmqkit.broker.tables.offsets import OffsetTable
from rmqkit.broker.tables.topics import TopicTable
from rmqkit.broker.view import BrokerView
from rmqkit.config import NodeConfig
from rmqkit.runtime.calls import Handlers
from rmqkit.runtime.connection import Connection
from rmqkit.runtime.duties import Run
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Completion, Ports
from rmqkit.runtime.remoting import Remoting
from rmqkit.runtime.waiters import ArrivalWaiters
from rmqkit.store.contract import EngineFactory, EngineParts, StorageEngine, StoreWriteError
from rmqkit.wire import properties as props
from rmqkit.wire.codes import PermName, RequestCode, ResponseCode
from rmqkit.wire.uniqueids import UniqueIds

if TYPE_CHECKING:
    from rmqkit.broker.replication.ha_client import HaClient
    from rmqkit.broker.replication.ha_server import HaServer
    from rmqkit.metrics.endpoint import MetricsEndpoint

AREAS = Handlers(
    send.rows,
    send_back.rows,
    recall.rows,
    transactions.rows,
    metadata.rows,
    pull.rows,
    offsets.rows,
    clients.rows,
    locks.rows,
    relays.rows,
    replicas.rows,
    reply.rows,
    roles.rows,
    elections.rows,
    topics.rows,
    groups.rows,
    broker.rows,
    access.rows,
    pops.rows,
    acks.rows,
    lookups.rows,
    in_flight.rows,
    assignment.rows,
)
#: the request codes of a broker without plug-ins
HANDLERS = Handlers(AREAS, special_progress.handlers_of(table.SPECIAL_DUTIES))
#: tags of connections that carry remoting frames; connections that this node opens have the first
FRAMED = ("remoting", "vip")
NOT_ON_VIP = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE)
CONFIG_FOLDER = "config"
CLIENT_SCAN_MS = 10_000
LOCK_SWEEP_MS = 30_000


class BrokerParts(Protocol):
    """Factories that the configuration selects for this broker (`rmqkit.plugins.BrokerParts`)."""

    @property
    def engine(self) -> EngineFactory: ...
    @property
    def lock_mode(self) -> Callable[..., LockMode]:
        """Factory that takes the view."""

    @property
    def escape_strategy(self) -> Callable[..., EscapeStrategy]:
        """Factory that takes the view."""

    @property
    def filters(self) -> Mapping[str, Callable[..., Any]]: ...
    @property
    def handlers(self) -> Sequence[Handlers]: ...
    @property
    def duties(self) -> Sequence[tuple[str, Callable[..., Run], Mapping[str, str]]]:
        """Name, factory that takes (view, settings), and settings of each plug-in's duty."""


class Broker(BaseNode):
    """One broker. Builds and connects the parts, and runs them in turns."""

    def __init__(self, name: str, ports: Ports, config: NodeConfig, parts: BrokerParts) -> None:
        super().__init__(name, ports)
        #: given to handlers, lock modes, escape strategies and plug-ins
        self.view = view = BrokerView(name)
        view.live_settings = LiveSettings(ports.disk, ports.clock, CONFIG_FOLDER)
        config = view.config = view.live_settings.load(config, ports.log)
        self.remoting = self._remoting(
            config, Handlers(AREAS, special_progress.handlers_of(table.SPECIAL_DUTIES), *parts.handlers)
        )
        self.remoting.unavailable = "the broker is starting"
        context = self.context = BrokerContext(ports, self.duties, self.outbox, config, self.remoting)
        disk, clock = ports.disk, ports.clock
        self._hosts = Hosts(context.address)
        self._access = view.access = BrokerAccess(ports, config, self.remoting, CONFIG_FOLDER)
        self.topics = TopicTable(disk, clock, config, CONFIG_FOLDER)
        self.groups = GroupTable(disk, clock, config, CONFIG_FOLDER)
        step = config.offsets.consumer_offset_update_version_step
        self.offsets = OffsetTable(disk, clock, CONFIG_FOLDER, step)
        self.filters = FilterTable(disk, clock, CONFIG_FOLDER, Filters(parts.filters), config.filters)
        self.clients = Clients()
        self._client_calls = ClientCalls(context, self.clients)
        self._arrivals = ArrivalWaiters(config.limits.waiters_max)
        #: pops and notifications that wait
        self._pops = [
            PopWaiters(self.duties, clock, name, config.pop.polling_size_max)
            for name in ("pop-waiters", "notification-waiters")
        ]
        self._pop_orders = PopOrders(context, self.topics, self.groups, CONFIG_FOLDER, self._order_freed)
        self.registration = Registration(context, self.topics)
        #: role and online state; only `roles` changes it
        self.role = RoleState(config, clock.wall_ms, has_nameservers=bool(self.registration.nameservers))
        self.statistics = Statistics(clock)
        batches = self.topics.has_batch_queues
        engine_parts = EngineParts(ports, self.duties, config, ports.memory_size, self._bit_map, batches)
        self.store: StorageEngine = parts.engine(engine_parts)
        special_parts = SpecialParts(
            context, self.store, CONFIG_FOLDER, self.topics, self.groups, self.offsets, self.clients, self._client_calls
        )
        self.special = SpecialDuties(table.SPECIAL_DUTIES, special_parts)
        view.leases = LockTable() if lock_mode_of(config) == "loose" else None
        users = self._access.table
        tables = CopiedTables(self.topics, self.groups, self.offsets, self.special, view.leases, users)
        elected = self._elected_log() if config.election.enable else None
        self.replication = Replication(
            context, self.store, self.role, self.registration, tables, CONFIG_FOLDER, lambda: self.roles, elected
        )
        self.puts = Puts(context, self.store, self._hosts, self.statistics, self.replication.acks)
        self._fill(view)
        self.escape = view.escape = Escape(
            context, self.role, self.special.due_count, Inbox(view), parts.escape_strategy(view)
        )
        #: where special duties put due messages, by role
        destinations: dict[Role, Destination] = {
            Role.MASTER: OwnStore(self.puts),
            Role.ACTING: EscapeBridge(self.escape),
        }
        self.roles = view.roles = Roles(
            context, self.role, self.registration, self.store, self.replication, tables, destinations, CONFIG_FOLDER
        )
        if self.role.is_enabled:
            destinations[Role.MASTER] = GuardedStore(self.puts, self.roles.contact)
        self._liveness = self.roles.liveness
        self._wire()
        #: this broker's side of controller mode; None without it (`view.election`)
        self._election = view.election = None if elected is None else self._make_election(elected, tables)
        self.metrics = self._metrics_endpoint()
        self.locks = view.locks = parts.lock_mode(view)
        self._plugin_parts = parts.duties
        self._plugin_duties: dict[str, Run] = {}

    def _elected_log(self) -> ElectedLog:
        context = self.context
        self._controllers = Controllers(context)
        states = SyncStates(context, self.store, self._controllers)
        return ElectedLog(Epochs(context.disk, context.config.election.epoch_path), states)

    def _make_election(self, log: ElectedLog, tables: CopiedTables) -> Election:
        """Build this broker's side of controller mode, and connect it."""
        context, replication, roles = self.context, self.replication, self.roles
        assert isinstance(replication.follow, EpochClient)
        switch = RoleSwitch(
            context, self.store, tables, replication, replication.follow, roles, self.registration, self.apply_config
        )
        takeover = Takeover(context, self.store, log.epochs, replication.calls, switch)
        states, controllers = log.sync_states, self._controllers
        election = Election(context, self.store, log.epochs, controllers, states, takeover, switch)
        replication.answers.is_elected = election.is_master
        roles.on_lease_end = election.lease_ended
        roles.is_lease_over = lambda: election.is_lease_over
        election.on_refusal = roles.lease_changed
        return election

    def _metrics_endpoint(self) -> "MetricsEndpoint | None":
        if self.config.metrics.exporter_type != "PROM":
            return None
        # Imported only if enabled: its libraries cost start-up time and memory.
        from rmqkit.broker import metrics

        endpoint = metrics.endpoint(self.view, self.outbox)
        endpoint.admission = self._access.metrics.fault
        return endpoint

    def _wire(self) -> None:
        """Connect parts with parts that are built after them."""
        if self._access.table is not None:
            AccessSender(self.context, self.registration, self._access.table)
        self.replication.accept.admission = self._access.replica_fault
        self.replication.metadata.on_topic_gone = self.view.delete_topic
        self.replication.metadata.on_group_gone = self.statistics.forget_group
        self.replication.acks.on_blocked = self.derive_blocked
        if not self.role.is_elected:
            self.replication.answers.on_return.append(self.roles.handover.begin)
        self.roles.on_refusal, self.roles.on_served = self.derive_blocked, self.view.release_pulls
        self.registration.is_cut_off = lambda: self.roles.is_cut_off
        self.registration.on_registered = self.roles.hint
        if not self.role.is_elected:
            self.registration.is_seeking_master = lambda: self.replication.is_seeking and not self.roles.is_masterless
            self.registration.on_master = self.replication.follow.learned

    def _fill(self, view: BrokerView) -> None:
        """Put the parts into the view. Escape, roles and lock mode follow: they need the view."""
        context, ports = self.context, self.ports
        view.ports, view.clock, view.duties, view.remoting = ports, ports.clock, self.duties, self.remoting
        view.entropy, view.log = ports.entropy, ports.log
        view.address, view.address_text, view.hosts = context.address, context.address_text, self._hosts
        view.topics, view.groups, view.offsets, view.filters = self.topics, self.groups, self.offsets, self.filters
        view.clients, view.client_calls, view.arrivals = self.clients, self._client_calls, self._arrivals
        view.registration, view.role, view.statistics = self.registration, self.role, self.statistics
        view.store, view.replication, view.puts = self.store, self.replication, self.puts
        view.special, view.delay = self.special, self.special.find(DelayDelivery)
        view.timers = self.special.find(TimerDuty)
        view.transactions = self.special.find(TransactionChecks)
        view.revive = revive = self.special.find(PopRevive)
        view.pop_waiters, view.notification_waiters = self._pops
        view.pop_orders = self._pop_orders
        view.pop_offsets = PopOffsets(
            context, self.store, self.offsets, self.topics, self.groups, revive.reader.taken, self._pop_orders.clear
        )
        view.turn_acks = TurnAcks(context, self.store, self.puts, self._hosts, revive)
        revive.on_replaced = view.pop_offsets.forget_all
        view.arrived = ArrivedProperties(self.store)
        view.guarded_topics = self.topics.guarded
        unique_ids = UniqueIds(self._hosts.store_host[:-4], pid=0, salt=ports.entropy.getrandbits(31))
        view.unique_id = lambda: unique_ids.next(ports.clock.wall_ms)
        view.apply_config = self.apply_config
        self.remoting.express = PlainSends(view, self.remoting)

    @property
    def config(self) -> NodeConfig:
        """The current settings."""
        return self.context.config

    @property
    def serving(self) -> bool:
        return self.view.serving

    @property
    def stopping(self) -> bool:
        return self.view.stopping

    def _remoting(self, config: NodeConfig, table: Handlers) -> Remoting:
        self._served_isolated = frozenset(table.rows) - CLIENT_CODES
        self._served_handover = frozenset(table.rows) - HANDOVER_CODES
        return Remoting(
            self.view,
            outbox=self.outbox,
            clock=self.clock,
            duties=self.duties,
            log=self.ports.log,
            tables={"remoting": table, "vip": table.without(NOT_ON_VIP)},
            limits=config.limits,
            on_closed=self._connection_closed,
        )

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the tables and start the engine.

        Raises RmqkitError if the store is locked or damaged, or a saved table cannot be read.
        """
        for note in self.config.notes:
            self.ports.log.warning("setting", note=note)
        self.store.start()
        self.topics.load()
        self.groups.load()
        self._access.load()
        self.offsets.load()
        for file in (self.topics.file, self.groups.file, self.offsets.file):
            if file.damage:
                self.ports.log.warning("older-table-read", reason=f"{file.damage}; its .bak lacks the last changes")
        self.filters.load()
        self._pop_orders.load()
        self.special.load(is_copy=self.replication.is_slave)
        self.replication.load()
        if self._election is not None:
            self._election.load()
        self.topics.on_change = self.registration.topics_changed
        for name, factory, settings in self._plugin_parts:
            self._plugin_duties[f"plugin-{name}"] = factory(self.view, settings)
        self._derive()
        self.ports.log.info("starting", address=self.context.address_text, store=self.config.paths.store_path_root_dir)

    def _serve(self) -> None:
        self.view.serving = True
        now_ms = self.clock.mono_ms
        self.duties.add(OFFSETS_DUTY, self._save_offsets, now_ms + self.config.offsets.flush_consumer_offset_interval_ms)
        self.duties.add("save-filters", self._save_filters, now_ms + FILTERS_SAVE_MS)
        self.duties.add("client-scan", self._scan_clients, now_ms + CLIENT_SCAN_MS)
        self.duties.add("pull-deadlines", self._arrivals.expire, None)
        for waiters in self._pops:
            self.duties.add(waiters.name, waiters.run, None)
        self.duties.add("pull-hold-scan", lambda now: pull.hold_scan(self.view, now), None)
        self.duties.add("lock-sweep", self._sweep_locks, now_ms + LOCK_SWEEP_MS)
        self.duties.add("statistics", self.statistics.sample, now_ms)
        if self._access.acl_files is not None:
            self.duties.add("acl-files", self._access.acl_files.poll, now_ms)
        for name, run in self._plugin_duties.items():
            self.duties.add(name, run, now_ms)
        self.replication.start()
        self.locks.start()
        self.roles.start()
        if self._election is not None:
            self._election.start()
        self.ports.log.info("serving", address=self.context.address_text, log_end=self.store.offset_max)
        queues.warn_of_unknown_topics(self.view)

    def stop(self) -> None:
        if self.stopping:
            return
        self.view.stopping = True
        self.remoting.unavailable, self.remoting.served = "the broker is stopping", frozenset()
        if self.serving:
            if self._election is not None:
                self._election.stop()
            self.roles.stop()
            self.registration.leave()
            self.special.stop()
            self.escape.stop()
            self.replication.stop()
        self.ports.log.info("stopping")
        self.store.stop(self._store_stopped)

    def _store_stopped(self) -> None:
        self.puts.fail_all()
        self.replication.acks.fail_all()
        waiting: list[Callable[[Callable[[], None]], None]] = [
            self.topics.save,
            self.groups.save,
            self._access.save,
            self.offsets.save,
            self.filters.save,
            self._pop_orders.save,
            self.special.save,
        ]
        if self.serving:
            waiting.append(self.locks.stop)

        def saved() -> None:
            if waiting:
                waiting.pop(0)(saved)
            else:
                self.ports.log.info("stopped", log_end=self.store.offset_max)
                self.stopped = True

        saved()

    # --- turns ------------------------------------------------------------------------------------

    def opened(self, conn: Connection) -> None:
        if self.clock.mono_ms >= self._liveness.stalled_at_ms:
            self.roles.stalled()
        self._protocol(conn).opened(conn)

    def received(self, conn: Connection, data: bytes) -> None:
        if self.clock.mono_ms >= self._liveness.stalled_at_ms:
            self.roles.stalled()
        if conn.tag in FRAMED:
            self.remoting.received(conn, data)
        else:
            self._protocol(conn).received(conn, data)

    def closed(self, conn: Connection, reason: str) -> None:
        if self.clock.mono_ms >= self._liveness.stalled_at_ms:
            self.roles.stalled()
        self._protocol(conn).closed(conn, reason)

    def done(self, completion: Completion, error: OSError | None) -> None:
        if self.clock.mono_ms >= self._liveness.stalled_at_ms:
            self.roles.stalled()
        completion(error)

    def run_due(self) -> None:
        if self.clock.mono_ms >= self._liveness.stalled_at_ms:
            self.roles.stalled()
        self.duties.run_due(self.clock.mono_ms)

    def _protocol(self, conn: Connection) -> "Remoting | MetricsEndpoint | HaServer | HaClient":
        """Return the protocol of a connection, by its tag."""
        if conn.tag == "ha":
            return self.replication.accept
        if conn.tag == HA_MASTER:
            return self.replication.follow
        return self.metrics if conn.tag == "metrics" and self.metrics is not None else self.remoting

    def _connection_closed(self, conn: Connection) -> None:
        if conn.dialled:
            self.registration.connection_closed(conn.peer)
            if self._election is not None:
                self._election.connection_closed(conn.peer)
            return
        self._hosts.forget(conn)
        for calls in (self._arrivals, *(waiters.calls for waiters in self._pops)):
            calls.drop(conn)
        self.clients.connection_closed(conn)
        self._client_calls.notify_groups()

    def settle(self) -> None:
        if not self.view.serving:
            if self.store.ready and not self.stopping:
                self._serve()
            return
        try:
            arrivals = self.store.settle()
        except StoreWriteError as error:
            if not self.puts.failing:
                self.ports.log.error("write-failed", error=str(error))
            self.puts.write_failed(error)
            self.view.transactions.recent.clear()
            self.replication.follow.write_failed(error)
            return
        self.replication.settle()
        self.puts.settle()
        if not arrivals:
            return
        for waiters in self._pops:
            if waiters.count:
                for topic, queue_id, _, tags_code, count in arrivals:
                    waiters.arrived(topic, queue_id, tags_code, count)
        if self._arrivals.count:
            waiting = self._arrivals.by_key
            for topic, queue_id, queue_offset, tags_code, count in arrivals:
                if (topic, queue_id) in waiting:
                    self._arrivals.arrived((topic, queue_id), queue_offset, tags_code, count)

    # --- what handlers use ------------------------------------------------------------------------

    def _bit_map(self, topic: str, properties: bytes) -> bytes:
        """Return a message's filter bits for the extension of its queue; empty if switched off."""
        wanted = self.config.filters.enable_calc_filter_bit_map
        return self.filters.bit_map(topic, properties) if wanted else b""

    def apply_config(self, config: NodeConfig) -> None:
        """Apply settings that were changed live."""
        permission_before = self.config.topics.broker_permission
        self.context.config = self.view.config = config
        self.store.configure(config)
        self.topics.configure(config)
        self.groups.configure(config)
        self.offsets.configure(config.offsets.consumer_offset_update_version_step)
        self.replication.acks.configure()
        self._derive()
        if permission_before != config.topics.broker_permission:
            self.registration.topics_changed(list(self.topics.by_name))

    def _derive(self) -> None:
        """Precompute the values that the hot path reads."""
        identity = self.config.identity
        self.view.own_properties = props.encode(
            {
                "MSG_REGION": identity.region_id,
                "TRACE_ON": "true" if identity.trace_on else "false",
                "CLUSTER": identity.broker_cluster_name,
            }
        )
        self.puts.configure()
        self.derive_blocked()

    def derive_blocked(self) -> None:
        """Recompute whether, why and with which code sends are refused.

        While the broker is not online, all requests of clients are refused.
        """
        view, refusal = self.view, self.role.refusal
        if self.serving and not self.stopping:
            handover = self.role.handover
            self.remoting.unavailable = refusal or handover
            self.remoting.served = self._served_isolated if refusal else self._served_handover if handover else frozenset()
        ip = self.config.network.broker_ip1
        too_few = self.replication.acks.too_few
        view.send_blocked, view.send_blocked_code = "", ResponseCode.NO_PERMISSION
        if self.replication.is_slave:
            view.send_blocked = f"the broker[{ip}] is a slave and takes no messages: send them to its master"
            view.send_blocked_code = ResponseCode.SERVICE_NOT_AVAILABLE
        elif refusal:
            # Also refuses earlier sends that wait until their topic is saved.
            view.send_blocked, view.send_blocked_code = refusal, ResponseCode.SERVICE_NOT_AVAILABLE
        elif self._election is not None and self._election.refusal:
            view.send_blocked = self._election.refusal
            view.send_blocked_code = ResponseCode.SERVICE_NOT_AVAILABLE
        elif too_few:
            view.send_blocked, view.send_blocked_code = too_few, ResponseCode.SYSTEM_ERROR
        elif not self.config.topics.broker_permission & PermName.PERM_WRITE:
            # Blocks order topics and messages that come back only (`send.check_blocked`).
            view.send_blocked = f"the broker[{ip}] sending message is forbidden (brokerPermission)"

    def _order_freed(self, queue: PopQueue) -> None:
        """Wake who waits for a queue that an ordered pop may read again."""
        topic, group, queue_id = queue
        for waiters in self._pops:
            waiters.wake(topic, group, ANY_QUEUE, queue_id)

    # --- duties -----------------------------------------------------------------------------------

    def _save_offsets(self, now_ms: int) -> int:
        self.offsets.save()
        return now_ms + self.config.offsets.flush_consumer_offset_interval_ms

    def _save_filters(self, now_ms: int) -> int:
        self.filters.sweep(self.clients.consumers.keys(), self.config.filters.filter_data_clean_time_span_ms)
        self.filters.save()
        return now_ms + FILTERS_SAVE_MS

    def _sweep_locks(self, now_ms: int) -> int:
        self.locks.sweep(now_ms)
        return now_ms + LOCK_SWEEP_MS

    def _scan_clients(self, now_ms: int) -> int:
        """Close connections without a recent heartbeat, which ends their clients' membership.

        A client that is alive reconnects by itself.
        """
        for conn in self.clients.silent(now_ms - self.config.registration.channel_expired_timeout_ms):
            self.outbox.close(conn, "no heartbeat")
        return now_ms + CLIENT_SCAN_MS
