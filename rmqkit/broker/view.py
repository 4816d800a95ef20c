"""BrokerView: what handlers, lock modes, escape strategies and plug-ins see of a broker.

`node.py` creates the view first and puts the parts into it as they are built. So a part that gets
the view in its constructor must read the other parts when it uses them, not earlier. The methods
are operations on several parts. Plug-ins rely on the names that `docs/plugins.md` lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rmqkit.broker.locks.contract import lock_mode_of
from rmqkit.broker.locks.lock_table import LockTable
from rmqkit.wire.codes import VERSION, ResponseCode, Version

if TYPE_CHECKING:
    from rmqkit.broker.access.broker_access import BrokerAccess
    from rmqkit.broker.client_calls import ClientCalls
    from rmqkit.broker.election.election import Election
    from rmqkit.broker.escape.bridge import Escape
    from rmqkit.broker.filters.pull_filter import ArrivedProperties
    from rmqkit.broker.filters.table import FilterTable
    from rmqkit.broker.handlers.pop.offsets import PopOffsets
    from rmqkit.broker.handlers.pop.orders import PopOrders
    from rmqkit.broker.handlers.pop.turn_acks import TurnAcks
    from rmqkit.broker.handlers.pop.waiters import PopWaiters
    from rmqkit.broker.hosts import Hosts
    from rmqkit.broker.live_settings import LiveSettings
    from rmqkit.broker.locks.contract import CommitGuard, LockMode
    from rmqkit.broker.puts.puts import Puts
    from rmqkit.broker.registration import Registration
    from rmqkit.broker.replication.replication import Replication
    from rmqkit.broker.roles import Roles
    from rmqkit.broker.roles.role import RoleState
    from rmqkit.broker.special.delay.delivery import DelayDelivery
    from rmqkit.broker.special.duties import SpecialDuties
    from rmqkit.broker.special.pop.revive import PopRevive
    from rmqkit.broker.special.timer.duty import TimerDuty
    from rmqkit.broker.special.transactions.checks import TransactionChecks
    from rmqkit.broker.statistics import Statistics
    from rmqkit.broker.tables.clients import Clients
    from rmqkit.broker.tables.groups import GroupTable
    from rmqkit.broker.tables.offsets import OffsetTable
    from rmqkit.broker.tables.topics import TopicTable
    from rmqkit.config import NodeConfig
    from rmqkit.runtime.connection import Address
    from rmqkit.runtime.duties import Duties
    from rmqkit.runtime.ports import Clock, Entropy, Log, Ports
    from rmqkit.runtime.remoting import Remoting
    from rmqkit.runtime.waiters import ArrivalWaiters
    from rmqkit.store.contract import StorageEngine


class BrokerView:
    """The parts of one broker, by name."""

    # what every node has
    name: str
    ports: Ports
    clock: Clock
    duties: Duties
    entropy: Entropy
    log: Log
    remoting: Remoting

    # settings and addresses
    #: current settings. A live change replaces the object, so read it at the moment of use
    config: NodeConfig
    live_settings: LiveSettings
    address: Address
    address_text: str
    hosts: Hosts

    # tables and the store
    access: BrokerAccess
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    filters: FilterTable
    clients: Clients
    store: StorageEngine
    statistics: Statistics

    # calls that wait
    arrivals: ArrivalWaiters
    arrived: ArrivedProperties
    client_calls: ClientCalls
    puts: Puts

    # pop consumption
    pop_offsets: PopOffsets
    pop_orders: PopOrders
    pop_waiters: PopWaiters
    notification_waiters: PopWaiters
    turn_acks: TurnAcks
    revive: PopRevive

    # the group
    registration: Registration
    replication: Replication
    role: RoleState
    roles: Roles
    special: SpecialDuties
    delay: DelayDelivery
    timers: TimerDuty
    transactions: TransactionChecks
    escape: Escape
    locks: LockMode
    #: the leases of lock mode `loose`; None in other modes
    leases: LockTable | None

    #: this broker's side of controller mode; None without it
    election: Election | None

    # plug-ins
    #: asked before a consumer's offset is committed; set by a lock mode that knows queue owners
    commit_guard: CommitGuard | None
    #: the other brokers of this process, if it is a container, which keeps the list up to date
    neighbours: list[BrokerView]
    #: state of plug-ins for this broker, by plug-in name, shared by a plug-in's handlers and duty
    plugins: dict[str, Any]

    # precomputed for the send path
    #: topics to which a send needs more checks
    guarded_topics: Mapping[str, None]
    #: why sends are refused ("" while they are accepted), and the code of the refusal
    send_blocked: str
    send_blocked_code: ResponseCode
    #: encoded properties that the broker adds to each message
    own_properties: bytes

    # life
    serving: bool
    stopping: bool

    #: replaces the settings by changed ones
    apply_config: Callable[[NodeConfig], None]
    #: creates a unique id for a message that came without one
    unique_id: Callable[[], str]

    def __init__(self, name: str) -> None:
        self.name = name
        self.commit_guard = None
        self.election = None
        self.neighbours = []
        self.plugins = {}
        self.send_blocked = ""
        self.send_blocked_code = ResponseCode.NO_PERMISSION
        self.own_properties = b""
        self.serving = False
        self.stopping = False

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, its queues and its groups' offsets; answer the pulls parked on it."""
        self.topics.delete(topic)
        self.store.delete_topics([topic])
        self.offsets.remove_topic(topic)
        self.statistics.forget_topic(topic)
        for key in [key for key in self.arrivals.by_key if key[0] == topic]:
            self.arrivals.wake_all(key)
        for waiters in (self.pop_waiters, self.notification_waiters):
            waiters.wake_topic(topic)

    def release_pulls(self) -> None:
        """Answer every parked pull, since what a client gets from this broker may have changed.

        Parked pops are tried again; a broker that serves none any more refuses them.
        """
        for key in list(self.arrivals.by_key):
            self.arrivals.wake_all(key)
        for waiters in (self.pop_waiters, self.notification_waiters):
            waiters.wake_all()

    def facts(self) -> dict[str, str]:
        """Return what GET_BROKER_RUNTIME_INFO (28) shows, under upstream's names, as text."""
        return {
            **self.store.facts(),
            **self.statistics.facts(),
            "brokerVersionDesc": Version(VERSION).name,
            "brokerVersion": str(VERSION),
            "brokerActive": "true" if self.serving and not self.store.failed else "false",
            "putMessageFailedTimes": str(self.puts.failed_count),
            "sendThreadPoolQueueSize": str(len(self.puts)),
            "sendThreadPoolQueueCapacity": str(self.config.limits.waiters_max),
            "pullThreadPoolQueueSize": str(self.arrivals.count),
            "pullThreadPoolQueueCapacity": str(self.arrivals.waiters_max),
            "producerConnections": str(sum(map(len, self.clients.producers.values()))),
            "consumerConnections": str(sum(len(group.members) for group in self.clients.consumers.values())),
            **self.special.facts(),
            **self.escape.facts(),
            **self.replication.facts(),
            **self.roles.facts(),
            **({} if self.election is None else self.election.facts()),
            "lockMode": lock_mode_of(self.config),
            **self.locks.facts(self.clock.mono_ms),
        }
