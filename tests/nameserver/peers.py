"""Brokers and administrators of the tests. They write bodies by hand, in the form of Java's."""

import json
from typing import Any
from zlib import crc32

from rmqkit.wire.codes import RequestCode
from tests.helpers.script import Client, Command
from tests.nameserver.conftest import NameServerScript

SYSTEM_TOPICS = ("TBW102", "SELF_TEST_TOPIC")


def version(counter: int = 1, state: int = 0, at_ms: int = 1_700_000_000_000) -> dict[str, int]:
    return {"counter": counter, "stateVersion": state, "timestamp": at_ms}


def topic(name: str, *, perm: int = 6, queues: int = 4, sys_flag: int = 0) -> dict[str, Any]:
    return {
        "attributes": {},
        "order": False,
        "perm": perm,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": sys_flag,
        "writeQueueNums": queues,
    }


def topic_table(topics: tuple[str | dict[str, Any], ...], data_version: dict[str, int]) -> dict[str, Any]:
    configs = [topic(each) if isinstance(each, str) else each for each in topics]
    return {
        "dataVersion": data_version,
        "mappingDataVersion": version(0),
        "topicConfigTable": {each["topicName"]: each for each in configs},
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }


def register_body(
    topics: tuple[str | dict[str, Any], ...],
    data_version: dict[str, int] | None = None,
    filter_servers: tuple[str, ...] = (),
    **table: Any,
) -> bytes:
    wrapper = topic_table(topics, data_version or version()) | table
    body = {"filterServerList": list(filter_servers), "topicConfigSerializeWrapper": wrapper}
    return json.dumps(body, separators=(",", ":")).encode()


class Broker:
    """A broker with its own connection, unless it shares `client`."""

    def __init__(
        self,
        script: NameServerScript,
        name: str = "broker-a",
        broker_id: int = 0,
        address: str = "",
        *,
        cluster: str = "DefaultCluster",
        acting: bool | None = False,
        client: Client | None = None,
        **ext: Any,
    ) -> None:
        self.client = client or script.connect()
        self.name = name
        self.broker_id = broker_id
        self.address = address or f"127.0.0.1:{10911 + 10 * broker_id}"
        self.cluster = cluster
        self.acting = acting
        self.more_ext = ext

    @property
    def identity(self) -> dict[str, str]:
        return {
            "brokerName": self.name,
            "brokerAddr": self.address,
            "clusterName": self.cluster,
            "brokerId": str(self.broker_id),
        }

    @property
    def ha_address(self) -> str:
        host, _, port = self.address.rpartition(":")
        return f"{host}:{int(port) + 1}"

    def register_ext(self, body: bytes = b"", **ext: Any) -> dict[str, Any]:
        out = self.identity | {"haServerAddr": self.ha_address, "compressed": "false"}
        if self.acting is not None:
            out["enableActingMaster"] = "true" if self.acting else "false"
        if body:
            out["bodyCrc32"] = str(crc32(body) & 0x7FFFFFFF)
        return out | self.more_ext | ext

    def register(self, *topics: str | dict[str, Any], data_version: dict[str, int] | None = None, **body: Any) -> Command:
        """Register with these topics only; without any, with the system topics."""
        return self.send_register(register_body(topics or SYSTEM_TOPICS, data_version, **body))

    def send_register(self, body: bytes, ext: dict[str, Any] | None = None, **head: Any) -> Command:
        return self.client.ask(RequestCode.REGISTER_BROKER, self.register_ext(body, **(ext or {})), body, **head)

    def unregister(self) -> Command:
        return self.client.ask(RequestCode.UNREGISTER_BROKER, self.identity)

    def heartbeat(self) -> Command:
        return self.client.ask(RequestCode.BROKER_HEARTBEAT, self.identity)

    def query_version(self, data_version: dict[str, int]) -> Command:
        return self.client.ask(RequestCode.QUERY_DATA_VERSION, self.identity, json.dumps(data_version).encode())


class Admin:
    """A client that queries and administers the name server."""

    def __init__(self, script: NameServerScript) -> None:
        self.client = script.connect()

    def ask(self, code: int, body: bytes = b"", **ext: Any) -> Command:
        return self.client.ask(code, ext, body)

    def route(self, name: str, **ext: Any) -> Any:
        """Return the route as a dict, or None if there is none."""
        answer = self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=name, **ext)
        assert answer.code in (0, 17), answer
        return answer.json if answer.code == 0 else None

    def addresses(self, name: str) -> dict[str, dict[str, str]]:
        """Return broker name -> id -> address from the route of a topic; empty if there is none."""
        route = self.route(name)
        return {} if route is None else {each["brokerName"]: each["brokerAddrs"] for each in route["brokerDatas"]}

    def perm(self, name: str, broker_name: str = "broker-a") -> int:
        queues = {each["brokerName"]: each for each in self.route(name)["queueDatas"]}
        perm: int = queues[broker_name]["perm"]
        return perm

    def topics(self) -> set[str]:
        return set(self.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).json["topicList"])

    def cluster_info(self) -> Any:
        return self.ask(RequestCode.GET_BROKER_CLUSTER_INFO).json
