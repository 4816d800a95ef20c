"""Recorded requests of Apache's broker, client and tools, with the answers of Apache's name server.

Each request is fed byte for byte as recorded; the answer must be the same. Java writes integer keys
without quotes. Ours are quoted, which every client can read. So bodies are compared as values,
unless the bytes must be equal.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from rmqkit.wire.fastjson import to_strict
from rmqkit.wire.remoting.frames import FrameBuffer
from rmqkit.wire.remoting.headers import decode_head
from tests.helpers.script import Client, Command
from tests.nameserver.conftest import NameServerScript
from tests.nameserver.peers import Admin, Broker, register_body, topic

GOLDEN = Path(__file__).parent.parent / "wire" / "golden"


class Exchange:
    """A recorded request and its response."""

    def __init__(self, name: str) -> None:
        self.raw = (GOLDEN / f"{name}.request.bin").read_bytes()
        (request,) = FrameBuffer().feed(self.raw)
        self.request = decode_head(request)
        self.ext: dict[str, str] = self.request.ext_fields or {}
        self.request_body = request.body
        (response,) = FrameBuffer().feed((GOLDEN / f"{name}.response.bin").read_bytes())
        self.response = decode_head(response)
        self.codec = response.codec
        self.response_body = response.body

    @property
    def response_json(self) -> Any:
        return json.loads(to_strict(self.response_body))

    @property
    def topics(self) -> dict[str, Any]:
        """Return the topics of a registration, by name."""
        table: dict[str, Any] = json.loads(self.request_body)["topicConfigSerializeWrapper"]["topicConfigTable"]
        return table

    def play(self, client: Client) -> Command:
        client.send(self.raw)
        answer = client.answer_to(self.request.opaque)
        assert answer is not None
        return answer


def same_head(answer: Command, exchange: Exchange) -> None:
    assert answer.code == exchange.response.code
    assert answer.codec == exchange.codec
    assert answer.ext == (exchange.response.ext_fields or {})
    assert answer.remark == exchange.response.remark


def register_at(ns: NameServerScript, address: str, *topics: dict[str, Any]) -> Broker:
    """Register a broker as it was when the hand-written requests were recorded."""
    broker = Broker(ns, address=address)
    assert broker.send_register(register_body((*topics, "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"))).code == 0
    return broker


def address_in(exchange: Exchange) -> str:
    """Return the address of the only broker in the recorded route."""
    address: str = exchange.response_json["brokerDatas"][0]["brokerAddrs"]["0"]
    return address


class TestOneBroker:
    """A broker registers, adds a topic, is queried, and unregisters."""

    @pytest.fixture
    def broker(self, ns: NameServerScript) -> Client:
        client = ns.connect()
        for name in ("register_broker", "register_broker_one_topic"):
            exchange = Exchange(name)
            same_head(exchange.play(client), exchange)
        return client

    @pytest.fixture
    def registered(self) -> set[str]:
        return set(Exchange("register_broker").topics) | set(Exchange("register_broker_one_topic").topics)

    def test_topics(self, ns: NameServerScript, broker: Client, registered: set[str]):
        assert Admin(ns).topics() == registered
        assert {"DefaultCluster", "broker-a", "TBW102"} < registered

    def test_route(self, broker: Client):
        exchange = Exchange("route")
        answer = exchange.play(broker)
        same_head(answer, exchange)
        assert answer.body == exchange.response_body

    def test_no_route(self, broker: Client):
        exchange = Exchange("route_unknown")
        same_head(exchange.play(broker), exchange)

    def test_cluster_info(self, broker: Client):
        exchange = Exchange("cluster_info")
        answer = exchange.play(broker)
        same_head(answer, exchange)
        assert answer.body == to_strict(exchange.response_body)

    def test_lists(self, broker: Client, registered: set[str]):
        for name in ("topic_list", "topics_of_cluster"):
            exchange = Exchange(name)
            answer = exchange.play(broker)
            same_head(answer, exchange)
            assert set(answer.json["topicList"]) == registered <= set(exchange.response_json["topicList"])

    @pytest.mark.parametrize(("name", "perm"), [("wipe_write_perm", 4), ("add_write_perm", 6)])
    def test_permissions(self, ns: NameServerScript, broker: Client, registered: set[str], name: str, perm: int):
        exchange = Exchange(name)
        answer = exchange.play(broker)
        assert answer.code == 0
        assert answer.ext == dict.fromkeys(exchange.response.ext_fields or {}, str(len(registered)))
        assert Admin(ns).perm("SELF_TEST_TOPIC") == perm

    def test_unregister(self, ns: NameServerScript, broker: Client):
        exchange = Exchange("unregister_broker")
        same_head(exchange.play(broker), exchange)
        assert Admin(ns).topics() == set()

    def test_delete_topic(self, broker: Client):
        exchange = Exchange("delete_topic_in_nameserver")
        same_head(exchange.play(broker), exchange)


def test_kv(ns: NameServerScript):
    client = ns.connect()
    for name in ("kv_put", "kv_get", "kv_list", "kv_delete", "kv_get_none"):
        exchange = Exchange(name)
        answer = exchange.play(client)
        same_head(answer, exchange)
        assert answer.body == exchange.response_body


def test_binary_headers(ns: NameServerScript):
    """Requests with ROCKETMQ headers get such responses, like Apache's if it is configured so."""
    broker = ns.connect()
    registered = Exchange("binary_register_broker")
    same_head(registered.play(broker), registered)
    same_head(Exchange("binary_route_unknown").play(broker), Exchange("binary_route_unknown"))
    info = Exchange("binary_cluster_info").play(broker)
    assert info.body == to_strict(Exchange("binary_cluster_info").response_body)
    route = Exchange("binary_route")
    config = topic(route.ext["topic"])
    address = registered.ext["brokerAddr"]
    Broker(ns, address=address, client=broker).register(config, data_version={"counter": 9})
    assert route.play(broker).body == route.response_body


def test_deflated_registration_of_a_5_x_broker(ns: NameServerScript):
    """Sent with `compressed` false: Apache's own name server cannot read it; ours checks the
    bytes."""
    exchange = Exchange("register_broker_compressed")
    assert exchange.ext["compressed"] == "false"
    assert exchange.play(ns.connect()).code == 0
    assert exchange.response.code == 1
    assert Admin(ns).topics() == set(Exchange("register_broker").topics)
    assert Admin(ns).addresses("TBW102") == {"broker-a": {"0": exchange.ext["brokerAddr"]}}


@pytest.mark.parametrize("name", ["by_hand_route_legacy", "by_hand_route_standard"])
def test_routes_by_hand(ns: NameServerScript, name: str):
    exchange = Exchange(name)
    register_at(ns, address_in(exchange), topic("TBW102", perm=7, queues=8))
    answer = exchange.play(ns.connect())
    same_head(answer, exchange)
    assert answer.body == to_strict(exchange.response_body)


def test_route_of_the_cluster_name(ns: NameServerScript):
    exchange = Exchange("by_hand_route_cluster_name")
    register_at(ns, address_in(exchange), topic("DefaultCluster", perm=7, queues=16))
    assert exchange.play(ns.connect()).body == exchange.response_body


def test_route_of_the_member_topic(ns: NameServerScript):
    """Brokers read this route as a member list (compatibleWithOldNameSrv)."""
    exchange = Exchange("route_of_members")
    broker = Broker(ns, address=address_in(exchange), acting=True)
    broker.register(topic("rmq_sys_SYNC_BROKER_MEMBER_broker-a", perm=1, queues=1), "SELF_TEST_TOPIC")
    assert exchange.play(ns.connect()).body == exchange.response_body


@pytest.mark.parametrize("name", ["broker_member_group", "by_hand_member_group"])
def test_member_group(ns: NameServerScript, name: str):
    """Apache's response has a meaningless remark; ours has none."""
    exchange = Exchange(name)
    register_at(ns, exchange.response_json["brokerMemberGroup"]["brokerAddrs"]["0"])
    answer = exchange.play(ns.connect())
    assert answer.code == exchange.response.code == 0
    assert answer.body == to_strict(exchange.response_body)


def test_query_data_version(ns: NameServerScript):
    exchange = Exchange("query_data_version")
    broker = Broker(ns, address=exchange.ext["brokerAddr"])
    broker.register(data_version=json.loads(exchange.request_body))
    answer = exchange.play(broker.client)
    same_head(answer, exchange)
    assert answer.body == exchange.response_body


@pytest.mark.parametrize("name", ["by_hand_ns_unknown_code", "by_hand_broker_heartbeat"])
def test_heads_by_hand(ns: NameServerScript, name: str):
    exchange = Exchange(name)
    same_head(exchange.play(ns.connect()), exchange)


def test_config(ns: NameServerScript):
    """We show every key that Apache's name server shows, with the same default unless it depends
    on the machine."""
    exchange = Exchange("by_hand_namesrv_config")
    answer = exchange.play(ns.connect())
    same_head(answer, exchange)
    ours = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    theirs = dict(line.split("=", 1) for line in exchange.response_body.decode().splitlines())
    own = {"bindAddress", "configStorePath", "kvConfigPath", "listenPort", "rocketmqHome"}
    assert {key: ours.get(key) for key in theirs if key not in own} == {
        key: value for key, value in theirs.items() if key not in own
    }
    assert own <= ours.keys()
