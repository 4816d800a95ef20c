"""Whole clusters in the simulator: name servers, brokers and clients, each on its own machine.

    cluster = SimCluster(World(seed=7), groups=2, replicas=2)
    cluster.ready()
    producer = cluster.producer("p", "orders", every_ms=100)
    consumer = cluster.consumer("c", "orders", "billing")
    cluster.world.run_for(60_000)
    cluster.check(producer, consumer)

The nodes are the same objects that real processes run, on the simulator's network and disks. The
two workloads record what `check` needs: each acknowledgement with its queue offset, each unknown
outcome, and each delivery.

Brokers are named as in a real cluster: `broker-a-0` is the master of its group, `broker-a-1` its
first slave. A group with more than one broker gets the settings that `cluster up` uses
(`GROUP_DEFAULTS`). `settings` override them at every broker, except that `brokerRole` only applies
to masters. With `acting`, slaves act for a failed master, and name servers publish this and notify
the brokers. A slave takes over after 10 s without heartbeats from the master; with `fast` as well,
after 2 s.

With `controllers`, that many of our controllers elect the master of each group, and every broker is
in controller mode. `masters` and `slaves_of` then name the brokers with these roles now.

`containers` lists brokers that share a process. As with the real driver, they know each other as
neighbours, and each turn of one settles all of them. Inject a fault into all of them:
`together(name)` returns their names.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rmqkit.broker.election.election import MASTER, Election
from rmqkit.broker.escape import ESCAPE_STRATEGIES, chosen
from rmqkit.broker.filters.built_in import FILTERS
from rmqkit.broker.locks import LOCK_MODES
from rmqkit.broker.locks.contract import LockMode, lock_mode_of
from rmqkit.broker.node import Broker, BrokerParts
from rmqkit.broker.view import BrokerView
from rmqkit.client.client import Client, ClientSettings
from rmqkit.client.consumers.offset_store import RemoteOffsets
from rmqkit.client.consumers.pull_consumer import PullConsumerCore, PullConsumerSettings
from rmqkit.client.consumers.subscriptions import ConsumeFrom
from rmqkit.client.flow import start
from rmqkit.client.message import Message, SendResult
from rmqkit.client.producers.outgoing_message import Prepare
from rmqkit.client.producers.producer import ProducerCore, ProducerSettings, SendOutcome
from rmqkit.config import from_values
from rmqkit.controller.group import log_type_of
from rmqkit.controller.node import Controller
from rmqkit.controller.plugin import rmqkit_controller_logs
from rmqkit.errors import RmqkitError
from rmqkit.nameserver.node import NameServer
from rmqkit.runtime.connection import Address
from rmqkit.runtime.ports import Ports
from rmqkit.sim import users
from rmqkit.sim.process import NodeMaker
from rmqkit.sim.world import World
from rmqkit.store import ENGINES
from rmqkit.wire.uniqueids import UniqueIds

if TYPE_CHECKING:
    from rmqkit.tls.node_tls import NodeTls

NAMESERVER_PORT = 9876
CONTROLLER_PORT = 19876
BROKER_PORT = 10911
VIP_PORT = BROKER_PORT - 2
HA_PORT = BROKER_PORT + 1
LOG_PIECE = 1024 * 1024
#: File sizes so small that a simulated hour fills several files. Slots of the index: two blocks
#: instead of 1,221, which each start after a crash builds again.
SMALL_FILES = {"mappedFileSizeCommitLog": 1024 * 1024, "mappedFileSizeConsumeQueue": 20 * 500, "maxHashSlotNum": 5000}

#: settings of a group with more than one broker; `totalReplicas` and `inSyncReplicas` are added
GROUP_DEFAULTS = {
    "brokerRole": "SYNC_MASTER",
    "enableAutoInSyncReplicas": True,
    "slaveReadEnable": True,
    "haAcceptAnonymous": False,
    "slaveTimeout": 2000,
    "syncFlushTimeout": 2500,
}

#: settings for acting masters, of brokers and of name servers; then the timers of
#: `--preset fast-failover`
ACTING = {"enableSlaveActingMaster": True, "escapeStrategy": "auto"}
ACTING_NAMESERVER = {"supportActingMaster": True, "notifyMinBrokerIdChanged": True}
FAST = {"brokerHeartbeatInterval": 300, "brokerNotActiveTimeoutMillis": 2000, "syncBrokerMemberGroupPeriod": 300}
FAST_NAMESERVER = {"scanNotActiveBrokerInterval": 500}

#: broker name, queue id, queue offset
Place = tuple[str, int, int]


class SimParts:
    """`BrokerParts` without plug-ins, with the given engine.

    `lock_mode` overrides the lock mode of the settings.
    """

    def __init__(self, engine: str, lock_mode: Callable[[BrokerView], LockMode] | None = None) -> None:
        self.engine = ENGINES[engine]
        self.lock_mode = lock_mode or (lambda broker: LOCK_MODES[lock_mode_of(broker.config)](broker))
        self.escape_strategy = lambda broker: ESCAPE_STRATEGIES[chosen(broker.config.acting)](broker)
        self.filters = FILTERS
        self.handlers = ()
        self.duties = ()


class SimCluster:
    """A cluster in a world.

    `nameserver_settings` are properties of the name servers, `client_settings` are fields of
    `ClientSettings`. `prepared` is called with each broker object, at every start, before it
    starts: for planting a defect. `lock_mode` overrides the lock mode of the settings, for testing
    one. With `secure`, access control is on; `ready` waits for the users of `users.py`. With `tls`,
    every connection uses TLS; it returns the TLS of a node with the given address, and is called
    once for each machine.
    """

    def __init__(
        self,
        world: World,
        *,
        nameservers: int = 1,
        controllers: int = 0,
        groups: int = 1,
        replicas: int = 1,
        acting: bool = False,
        fast: bool = False,
        containers: Sequence[Sequence[str]] = (),
        settings: Mapping[str, Any] | None = None,
        nameserver_settings: Mapping[str, Any] | None = None,
        controller_settings: Mapping[str, Any] | None = None,
        client_settings: Mapping[str, Any] | None = None,
        prepared: Callable[[Broker], None] | None = None,
        lock_mode: Callable[[BrokerView], LockMode] | None = None,
        secure: bool = False,
        tls: "Callable[[str], NodeTls] | None" = None,
    ) -> None:
        self.world = world
        self._lock_mode = lock_mode
        self._secure = secure
        self._tls = tls
        self.nameserver_settings = {
            **(users.SETTINGS if secure else {}),
            **(ACTING_NAMESERVER if acting else {}),
            **(FAST_NAMESERVER if fast else {}),
            **(nameserver_settings or {}),
        }
        self.client_settings = dict(client_settings or {})
        self.nameservers = [Address(f"10.0.0.{number + 1}", NAMESERVER_PORT) for number in range(nameservers)]
        self.replicas = replicas
        self.settings = {
            "storageEngine": "mapped",
            **SMALL_FILES,
            **self._of_group(acting, fast),
            **(users.SETTINGS if secure else {}),
            **(settings or {}),
        }
        self._name_controllers(controllers, controller_settings or {})
        self._containers = [tuple(each) for each in containers]
        self._prepared = prepared
        self._machines = 0
        for number, address in enumerate(self.nameservers):
            self.add_node(f"ns-{number}", self._nameserver(number), address.host)
            world.listen(f"ns-{number}", "remoting", address)
        for name, address in zip(self.controllers, self._controller_addresses, strict=True):
            self.add_node(name, self._controller(name), address.host)
            world.listen(name, "remoting", address)
        self.brokers: list[str] = []
        for number in range(groups * replicas):
            group, broker_id = divmod(number, replicas)
            name, host = f"broker-{chr(ord('a') + group)}-{broker_id}", f"10.0.1.{number + 1}"
            self.brokers.append(name)
            self.add_node(name, self._broker(name, broker_id, host), host)
            for tag, port in (("remoting", BROKER_PORT), ("vip", VIP_PORT), ("ha", HA_PORT)):
                world.listen(name, tag, Address(host, port))
        for container in self._containers:
            world.share_turns(container)
        if secure:
            names = [name.rpartition("-")[0] for name in self.brokers[::replicas]]
            again = not self.nameserver_settings.get("supportActingMaster")
            self.client("operator", lambda client: users.keep_app(client, names, again=again), is_operator=True)

    def _name_controllers(self, count: int, settings: Mapping[str, Any]) -> None:
        """Choose names and addresses of the controllers, and tell the brokers' settings."""
        self.controllers = [f"ctl-{number}" for number in range(count)]
        self._controller_addresses = [Address(f"10.0.3.{number + 1}", CONTROLLER_PORT) for number in range(count)]
        self.controller_settings = dict(settings)
        if count:
            addresses = ";".join(map(str, self._controller_addresses))
            self.settings |= {"enableControllerMode": True, "controllerAddr": addresses}

    def add_node(self, name: str, make: NodeMaker, host: str) -> None:
        """Add a machine with a node to the world, with the TLS of this cluster."""
        self.world.add_node(name, make, host, tls=self._tls(host) if self._tls else None)

    def _of_group(self, acting: bool, fast: bool) -> dict[str, Any]:
        if self.replicas == 1:
            return {}
        of_acting = {**(ACTING if acting else {}), **(FAST if fast else {})}
        return {**GROUP_DEFAULTS, **of_acting, "totalReplicas": self.replicas, "inSyncReplicas": min(2, self.replicas)}

    # --- brokers ----------------------------------------------------------------------------------

    @property
    def masters(self) -> list[str]:
        """Return the master of each group; in controller mode the one elected last.

        A group without a live master has the first of its brokers in its place.
        """
        first = self.brokers[:: self.replicas]
        return [self._elected(name) for name in first] if self.controllers else first

    def slaves_of(self, master: str) -> list[str]:
        return [name for name in self._group_of(master) if name != master]

    def _group_of(self, name: str) -> list[str]:
        begin = self.brokers.index(name) // self.replicas * self.replicas
        return self.brokers[begin : begin + self.replicas]

    def election(self, name: str) -> Election:
        """Return a broker's side of controller mode."""
        election = self.broker(name).view.election
        assert election is not None
        return election

    def _elected(self, name: str) -> str:
        found = [name for name in self._group_of(name) if self.world.is_alive(name) and self.election(name).state is MASTER]
        return max(found, key=lambda each: self.election(each).epoch, default=name)

    @property
    def leader(self) -> str:
        """The controller that leads, the first one if none does."""
        nodes = [name for name in self.controllers if self.world.is_alive(name)]
        leading = [name for name in nodes if self.world.node(name).log.leadership.is_self]
        return max(leading, key=lambda name: self.world.node(name).log.leadership.term, default=self.controllers[0])

    @property
    def named_master(self) -> str:
        """The broker that the controllers name master of the first group; "" for none."""
        leader, group = self.leader, self.brokers[0].rpartition("-")[0]
        brokers = self.world.node(leader).sets.get(group) if self.world.is_alive(leader) else None
        address = None if brokers is None else brokers.master_address
        return next((name for name in self.brokers if self.broker(name).context.address_text == address), "")

    def broker(self, name: str) -> Broker:
        """Return the broker object created at the last start."""
        found: Broker = self.world.node(name)
        return found

    def together(self, name: str) -> tuple[str, ...]:
        """Return the brokers that share a process with this one, itself included."""
        return next((container for container in self._containers if name in container), (name,))

    def _meet(self, name: str, broker: Broker) -> None:
        """Make a new broker and the live brokers of its container neighbours."""
        there = set(self.world.names) - {name}
        mates = [self.broker(mate) for mate in self.together(name) if mate in there and self.world.is_alive(mate)]
        broker.view.neighbours = [mate.view for mate in mates]
        for mate in mates:
            others = (each for each in mate.view.neighbours if each.name != name)
            mate.view.neighbours = [*others, broker.view]

    def ready(self, limit_ms: int = 30_000) -> None:
        """Run until every broker is registered with all name servers and replication is in sync.

        With access control, also until every node knows the user of clients.
        """
        wanted = len(self.nameservers)

        def registered() -> bool:
            return all(len(self.broker(name).registration.registered) == wanted for name in self.brokers)

        assert self.world.run_until(registered, limit_ms), "a broker did not register"
        self.in_sync(limit_ms)
        assert self.world.run_until(self.has_users, limit_ms), "a node does not know the user of clients"

    def has_users(self) -> bool:
        """Return whether every live node knows the user of clients; True without access control."""
        if not self._secure:
            return True
        alive = self.world.is_alive
        tables = [self.broker(name).view.access.table for name in self.brokers if alive(name)]
        for number in range(len(self.nameservers)):
            if alive(f"ns-{number}"):
                told = self.world.node(f"ns-{number}").access.tables
                groups = {name.rpartition("-")[0] for name in self.masters}
                if groups - {name for _, name in told}:
                    return False
                tables += [table for (_, name), table in told.items() if name]
        return all(table is not None and users.knows_app(table.accounts) for table in tables)

    def in_sync(self, limit_ms: int = 30_000) -> None:
        """Run until every live master counts all of its live slaves as in sync."""
        assert self.world.run_until(self.is_in_sync, limit_ms), self.replication()

    def is_in_sync(self) -> bool:
        alive = self.world.is_alive
        return all(
            self.broker(master).serving and self.in_sync_count(master) == 1 + sum(map(alive, self.slaves_of(master)))
            for master in self.masters
            if alive(master)
        )

    def in_sync_count(self, name: str) -> int:
        """Return how many copies of a master's log are in sync, its own included."""
        replication = self.broker(name).replication
        return replication.in_sync_count() if replication.sync_states is None else len(replication.sync_states.ids)

    def replication(self) -> dict[str, str]:
        """Return the replication state and its reason, as each live broker reports them."""
        seen = {name: self.broker(name).replication for name in self.brokers if self.world.is_alive(name)}
        return {name: f"{each.state} {each.why}".strip() for name, each in seen.items()}

    def cut_off_slaves(self, master: str) -> None:
        """Partition a master from its slaves until `world.net.heal()`.

        Clients and name servers still reach all of them.
        """
        self.world.net.partition([master], self.slaves_of(master))

    def log_of(self, name: str) -> bytes:
        """Return the whole commit log of a serving broker."""
        store = self.broker(name).store
        position, pieces = store.offset_min, []
        while data := bytes(store.read_log(position, LOG_PIECE)):
            pieces.append(data)
            position += len(data)
        return b"".join(pieces)

    def check_logs(self) -> None:
        """Assert that the logs of masters and slaves are identical. Nothing may be in flight."""
        for master in self.masters:
            log = self.log_of(master)
            for slave in self.slaves_of(master):
                other = self.log_of(slave)
                if other != log:
                    same = next((at for at, pair in enumerate(zip(log, other, strict=False)) if pair[0] != pair[1]), None)
                    raise AssertionError(
                        f"{slave} has {len(other)} bytes, {master} {len(log)}; first difference at: {same}"
                    )

    # --- clients ----------------------------------------------------------------------------------

    def client(self, name: str, make: Callable[[Client], Any], *, is_operator: bool = False) -> str:
        """Add a machine with a client node. `make(client)` adds its producers and consumers.

        With access control its requests are signed by the user of clients, or by the operator.
        """
        self._machines += 1
        host = f"10.0.2.{self._machines}"
        as_user = users.sign_as_operator if is_operator else users.sign_as_app
        sign = as_user if self._secure else None

        def node(ports: Ports) -> Client:
            settings = ClientSettings(
                client_id=f"{host}@{name}", namesrv=tuple(self.nameservers), sign=sign, **self.client_settings
            )
            client = Client(name, ports, settings)
            make(client)
            return client

        self.add_node(name, node, host)
        return name

    def producer(self, name: str, topic: str, *, every_ms: int, size: int = 100) -> "SimProducer":
        return SimProducer(self, name, topic, every_ms, size)

    def consumer(self, name: str, topic: str, group: str) -> "SimConsumer":
        return SimConsumer(self, name, topic, group)

    def check(self, producer: "SimProducer", consumer: "SimConsumer") -> None:
        """Assert that every acknowledged message was delivered, and nothing that was never sent.

        A message must be delivered from the queue offset that its acknowledgement named.
        """
        assert not consumer.changed, f"redelivered with another body at {consumer.changed[:3]}"
        missing = [place for place in producer.acknowledged if place not in consumer.delivered]
        assert not missing, f"{len(missing)} of {len(producer.acknowledged)} acknowledged messages missing: {missing[:3]}"
        for place, body in producer.acknowledged.items():
            assert consumer.delivered[place] == body, f"{place} holds another body"
        for body in consumer.delivered.values():
            assert body in producer.bodies, "a body was delivered that was never sent"

    def _nameserver(self, number: int) -> Callable[[Ports], NameServer]:
        files = {"kvConfigPath": "kvConfig.json", "configStorePath": "namesrv.properties"}
        config = from_values("nameserver", {**files, **self.nameserver_settings})
        return lambda ports: NameServer(f"ns-{number}", ports, config)

    def _controller(self, name: str) -> Callable[[Ports], Controller]:
        addresses = self._controller_addresses
        peers = (f"n{number}-{address.host}:{address.port}" for number, address in enumerate(addresses))
        values = {
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": ";".join(peers),
            "controllerDLegerSelfId": f"n{self.controllers.index(name)}",
            "controllerStorePath": "/controller",
            "configStorePath": "/controller/controller.properties",
            **self.controller_settings,
        }
        config = from_values("controller", values)
        make_log = rmqkit_controller_logs()[log_type_of(config.controller)]
        return lambda ports: Controller(name, ports, config, make_log, CONTROLLER_PORT)

    def _broker(self, name: str, broker_id: int, host: str) -> Callable[[Ports], Broker]:
        values = {
            "brokerName": name.rpartition("-")[0],
            "brokerId": broker_id,
            "brokerIP1": host,
            "brokerIP2": host,
            "listenPort": BROKER_PORT,
            "namesrvAddr": ";".join(map(str, self.nameservers)),
            "storePathRootDir": "/",
            "storePathCommitLog": "commitlog",
            **self.settings,
            **({"brokerRole": "SLAVE"} if broker_id else {}),
        }
        config = from_values("broker", values)
        parts: BrokerParts = SimParts(str(self.settings["storageEngine"]), self._lock_mode)

        def make(ports: Ports) -> Broker:
            broker = Broker(name, ports, config, parts)
            if self._prepared is not None:
                self._prepared(broker)
            self._meet(name, broker)
            return broker

        return make


class SimProducer:
    """Sends a message every `every_ms` until `stop`.

    `statuses` counts the send statuses of acknowledged messages ("SEND_OK", ...). `unknown` holds
    the errors of sends whose outcome is unknown.
    """

    def __init__(self, cluster: SimCluster, name: str, topic: str, every_ms: int, size: int) -> None:
        self.topic = topic
        self.acknowledged: dict[Place, bytes] = {}
        self.statuses: Counter[str] = Counter()
        self.unknown: list[RmqkitError] = []
        self.bodies: dict[bytes, int] = {}
        self.stopped = False
        self._every_ms = every_ms
        self._size = size
        cluster.client(name, self._begin)

    def stop(self) -> None:
        self.stopped = True

    def _begin(self, client: Client) -> None:
        self._client = client
        self._core = ProducerCore(client, ProducerSettings(group="sim"))
        ids = UniqueIds(bytes(4), pid=1, salt=client.ports.entropy.getrandbits(31))
        self._prepare = Prepare(ids)
        client.timers.after(1000, self._send)

    def _send(self) -> None:
        if self.stopped:
            return
        number = len(self.bodies)
        body = (b"%010d:" % number).ljust(self._size, b".")
        self.bodies[body] = number

        def ended(outcome: SendOutcome | None) -> None:
            if isinstance(outcome, SendResult):
                place = (outcome.queue.broker_name, outcome.queue.queue_id, outcome.queue_offset)
                self.statuses[outcome.status.name] += 1
                assert self.acknowledged.setdefault(place, body) == body, f"{place} was acknowledged twice"
            elif outcome is not None:
                self.unknown.append(outcome)

        self._core.send(
            self._prepare.message(Message(self.topic, body), self._client.clock.wall_ms), ended, timeout_ms=3000
        )
        self._client.timers.after(self._every_ms, self._send)


class SimConsumer:
    """Subscribes in a group and polls forever. Records each delivery by its place.

    `changed` lists the places that were redelivered with another body. This is only legitimate
    after a power loss: a message that was consumed before it was synced can be lost, and another
    message then gets its offset.
    """

    def __init__(self, cluster: SimCluster, name: str, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        self.delivered: dict[Place, bytes] = {}
        self.repeated = 0
        self.changed: list[Place] = []
        cluster.client(name, self._begin)

    def _begin(self, client: Client) -> None:
        settings = PullConsumerSettings(group=self.group, consume_from=ConsumeFrom.FIRST)
        core = PullConsumerCore(client, settings, RemoteOffsets(client, self.group))

        async def consume() -> None:
            while True:
                try:
                    await core.subscribe(self.topic, "*", "TAG")
                    break
                except RmqkitError:
                    await client.timers.sleep(1000)
            while not client.stopping:
                for message in await core.poll(timeout_ms=5000):
                    place = (message.broker_name, message.queue_id, message.queue_offset)
                    known = self.delivered.get(place)
                    self.repeated += known is not None
                    if known is not None and known != message.body:
                        self.changed.append(place)
                    self.delivered[place] = message.body

        client.timers.after(500, lambda: _begin_flow(consume))


def _begin_flow(flow: Callable[[], Any]) -> None:
    start(flow())
