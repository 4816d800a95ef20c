"""`Group`: a master, its slaves, a name server and a client in virtual time, driven by hand."""

from typing import Any

from rmqkit.broker.node import Broker
from rmqkit.config import from_values
from rmqkit.nameserver.node import NameServer
from rmqkit.runtime.calls import CallFailed, Reply
from rmqkit.runtime.connection import Address
from rmqkit.sim.cluster import SMALL_FILES, SimParts
from rmqkit.sim.world import World
from rmqkit.testing.brokers import _Client
from rmqkit.wire.bodies import KVTable
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.send import SendMessageRequestV2

PORT = 10911
NS = Address("10.0.0.1", 9876)


class Group:
    """One broker group with a name server and a client, driven by hand."""

    def __init__(self, *, slaves: int = 1, seed: int = 1, nameservers: list[dict] | None = None, **settings) -> None:
        """Build the group; `nameservers` has the settings of each name server.

        They are called `ns`, `ns-1`, `ns-2` …
        """
        self.world = World(seed)
        self.nameservers: list[Address] = []
        for values in nameservers or [{}]:
            self._add_nameserver({"kvConfigPath": "kv.json", "configStorePath": "ns.properties", **values})
        self.hosts = {}
        self._values: dict = {}
        self._configs: dict = {}
        self.settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "haAcceptAnonymous": False, **settings}
        self.add(0)
        for broker_id in range(1, slaves + 1):
            self.add(broker_id)
        self.world.add_node("client", lambda ports: _Client("client", ports), "10.0.2.1")

    def _add_nameserver(self, values: dict) -> None:
        number = len(self.nameservers)
        name = f"ns-{number}" if number else "ns"
        address = NS._replace(host=f"10.0.0.{number + 1}")
        config = from_values("nameserver", values)
        self.world.add_node(name, lambda ports: NameServer(name, ports, config), address.host)
        self.world.listen(name, "remoting", address)
        self.nameservers.append(address)

    def add(self, broker_id: int, *, name: str = "", host: str = "", **own) -> str:
        node = name or f"broker-{broker_id}"
        host = host or f"10.0.1.{len(self.hosts) + 1}"
        role = {"brokerRole": "SLAVE"} if broker_id else {}
        values = {
            "brokerName": "broker-a",
            "brokerId": broker_id,
            "brokerIP1": host,
            "brokerIP2": host,
            "listenPort": PORT,
            "namesrvAddr": ";".join(map(str, self.nameservers)),
            "storePathRootDir": "/",
            "storePathCommitLog": "commitlog",
            "storageEngine": "mapped",
            **SMALL_FILES,
            **self.settings,
            **role,
            **own,
        }
        self.hosts[node] = host
        self._values[node] = values
        self.change(node)
        self.world.add_node(node, lambda ports: Broker(node, ports, self._configs[node], SimParts("mapped")), host)
        for tag, port in (("remoting", PORT), ("vip", PORT - 2), ("ha", PORT + 1)):
            self.world.listen(node, tag, Address(host, port))
        return node

    def change(self, node: str, **settings) -> None:
        """Change a broker's settings; they apply from its next start."""
        self._values[node].update(settings)
        self._configs[node] = from_values("broker", self._values[node])

    def node(self, name: str) -> Broker:
        return self.world.node(name)

    @property
    def master(self) -> Broker:
        return self.node("broker-0")

    @property
    def slave(self) -> Broker:
        return self.node("broker-1")

    def until(self, condition, limit_ms: int = 60_000) -> None:
        assert self.world.run_until(condition, limit_ms), [
            (name, self.node(name).replication.facts()) for name in self.hosts if self.world.is_alive(name)
        ]

    def in_sync(self, count: int = 2) -> "Group":
        self.until(lambda: self.master.serving and self.master.replication.in_sync_count() == count)
        return self

    def ask(self, node: str, code: int, ext: Any = None, body: bytes = b"", limit_ms: int = 20_000) -> Reply:
        found: list = []
        address = Address(self.hosts[node], PORT)
        self.world.call(
            "client",
            lambda client: client.remoting.call(address, int(code), ext, body, timeout_ms=limit_ms, then=found.append),
        )
        assert self.world.run_until(lambda: found, limit_ms + 1000)
        assert not isinstance(found[0], CallFailed), found[0]
        return found[0]

    def send(
        self,
        body: bytes = b"x",
        *,
        topic: str = "T",
        node: str = "broker-0",
        properties: str = "",
        is_batch: bool = False,
    ) -> Reply:
        request = SendMessageRequestV2(
            producer_group="p", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
            sys_flag=0, born_timestamp=1, flag=0, properties=properties, batch=is_batch,
        )  # fmt: skip
        return self.ask(node, RequestCode.SEND_MESSAGE_V2, request, body)

    def facts(self, node: str) -> dict:
        return KVTable.decode(self.ask(node, RequestCode.GET_BROKER_RUNTIME_INFO).body).table

    def log(self, name: str) -> bytes:
        store = self.node(name).store
        position, found = store.offset_min, b""
        while data := bytes(store.read_log(position, 1 << 20)):
            found += data
            position += len(data)
        return found

    def same_logs(self, *names: str) -> bool:
        logs = [self.log(name) for name in names or ("broker-0", "broker-1")]
        return bool(logs[0]) and all(log == logs[0] for log in logs)
