"""Garbage for every code: the name server returns an error or closes the connection, and its
tables stay unchanged."""

import json
import random
import zlib
from typing import Any

import msgspec
import pytest

from rmqkit.nameserver.handlers import HANDLERS
from rmqkit.nameserver.names import TableLimits
from rmqkit.wire.codes import RequestCode
from tests.helpers.script import raw_frame
from tests.nameserver.conftest import Make, NameServerScript
from tests.nameserver.peers import Admin, Broker, register_body, topic

CODES = sorted(HANDLERS.rows)
ODD_BODIES = [
    b"\x00\xff\xfe",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"7",
    b"[[[]]]",
    b"x\x9c\x00\x00",
    b'{"topicConfigSerializeWrapper":7,"filterServerList":8,"queueDatas":9,"counter":"x"}',
    b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":[]}},"queueDatas":[1],"counter":{}}',
    b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":99999999999}}},"queueDatas":[{}],"counter":1e99}',
    b'{"a":' * 5000,
]
#: codes without a body, or whose body is ignored
BODILESS = set(CODES) - {
    RequestCode.REGISTER_BROKER,
    RequestCode.QUERY_DATA_VERSION,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV,
    RequestCode.UPDATE_NAMESRV_CONFIG,
}
FIELDS = {
    "namespace": "n",
    "key": "k",
    "value": "v",
    "topic": "T1",
    "cluster": "DefaultCluster",
    "clusterName": "DefaultCluster",
    "brokerName": "stranger",
    "brokerAddr": "10.9.9.9:10911",
    "haServerAddr": "10.9.9.9:10912",
    "brokerId": "0",
}


def state(ns: NameServerScript) -> Any:
    """Return everything that a client can see of the tables."""
    admin = Admin(ns)
    topics = sorted(admin.topics())
    seen = (topics, [admin.route(each) for each in topics], admin.cluster_info(), dict(ns.node.kv.tables))
    admin.client.close()
    return seen


@pytest.fixture
def filled(ns: NameServerScript) -> NameServerScript:
    Broker(ns).register("T1", "T2")
    Broker(ns, broker_id=1).register("T1", "T2")
    Admin(ns).ask(RequestCode.PUT_KV_CONFIG, namespace="n", key="k", value="v")
    return ns


def test_every_code_of_the_fact_sheet_is_handled():
    expected = {
        100,
        101,
        102,
        103,
        104,
        105,
        106,
        205,
        206,
        216,
        217,
        219,
        224,
        304,
        311,
        312,
        313,
        318,
        319,
        322,
        327,
        901,
        904,
        60005,  # rmqkit's own: users and rules of a broker group
    }
    assert set(CODES) == expected


@pytest.mark.parametrize("code", CODES)
def test_missing_fields(filled: NameServerScript, code: int):
    """A missing mandatory field gets an error that names it; the connection stays open."""
    before = state(filled)
    client = filled.connect()
    answer = client.ask(code, {})
    mandatory = any(field.required for field in msgspec.structs.fields(HANDLERS.rows[code].decoder.schema))
    assert (answer.code != 0) == mandatory, answer
    if mandatory:
        assert HANDLERS.rows[code].name in str(answer.remark)
    assert state(filled) == before
    assert client.ask(RequestCode.GET_BROKER_CLUSTER_INFO).code == 0


@pytest.mark.parametrize("code", sorted(set(CODES) - BODILESS))
@pytest.mark.parametrize("body", ODD_BODIES, ids=lambda body: body[:30])
def test_malformed_bodies(filled: NameServerScript, code: int, body: bytes):
    before = state(filled)
    client = filled.connect()
    answer = client.ask(code, FIELDS, body)
    assert answer.code != 0
    assert answer.remark
    assert state(filled) == before
    assert filled.log.events("error") == []
    assert client.ask(RequestCode.GET_BROKER_CLUSTER_INFO).code == 0


@pytest.mark.parametrize("code", CODES)
def test_fields_of_the_wrong_type(filled: NameServerScript, code: int):
    """Numbers, bools, nulls and nested values instead of texts: there is a response, and the
    tables stay consistent."""
    for odd in (7, True, None, [1], {"a": 1}, "x" * 100_000, "\x00", "-1", "99999999999999999999"):
        client = filled.connect()
        header = {"code": code, "extFields": dict.fromkeys(FIELDS, odd), "flag": 0, "opaque": 5, "version": 479}
        client.send(raw_frame(json.dumps(header).encode()))
        assert client.closed or client.answer_to(5) is not None
        filled.node.routes.validate()
    assert Admin(filled).addresses("T1") == {"broker-a": {"0": "127.0.0.1:10911", "1": "127.0.0.1:10921"}}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"code":"x"}',
        b'{"code":105,"extFields":[]}',
        b"\xff" * 20,
        b'{"code":105,"opaque":1e30}',
    ],
)
def test_headers_that_are_none_close_only_their_connection(filled: NameServerScript, header: bytes):
    before = state(filled)
    other, client = filled.connect(), filled.connect()
    client.send(raw_frame(header))
    assert client.closed or client.take()
    assert other.ask(RequestCode.GET_BROKER_CLUSTER_INFO).code == 0
    assert state(filled) == before


def test_random_bytes(filled: NameServerScript):
    before = state(filled)
    entropy = random.Random(7)
    for _ in range(300):
        client = filled.connect()
        client.send(entropy.randbytes(entropy.randrange(1, 200)))
        if not client.closed:
            client.close()
    assert state(filled) == before


def test_mutated_registrations(filled: NameServerScript):
    """A valid registration with random bytes changed: the invariants hold, whatever the result."""
    entropy = random.Random(11)
    good = register_body(("T1", "T2", "T3"), filter_servers=("10.0.0.9:1",))
    for turn in range(300):
        body = bytearray(good)
        for _ in range(entropy.randrange(1, 6)):
            body[entropy.randrange(len(body))] = entropy.randrange(256)
        broker = Broker(filled, "broker-x", address="10.0.0.8:10911")
        assert broker.send_register(bytes(body), {"bodyCrc32": "0"}).code in (0, 1), turn
        filled.node.routes.validate()
        broker.client.close()
    assert "handler-failed" not in filled.log.events("error")


@pytest.mark.parametrize(
    "wrong",
    [
        {"brokerName": ""},
        {"brokerName": "x" * 256},
        {"brokerName": "a\nb"},
        {"clusterName": " "},
        {"clusterName": "a\x00"},
        {"brokerAddr": ""},
        {"brokerAddr": "nohost"},
        {"brokerAddr": "10.0.0.1:0"},
        {"brokerAddr": "10.0.0.1:70000"},
        {"brokerAddr": "a b:1"},
        {"brokerAddr": ":10911"},
        {"brokerAddr": "x" * 300 + ":1"},
        {"haServerAddr": "x" * 300},
        {"brokerId": "-1"},
        {"__ZONE_NAME": "x" * 300},
        {"heartbeatTimeoutMillis": "x"},
    ],
    ids=str,
)
def test_absurd_brokers_are_refused(filled: NameServerScript, wrong: dict[str, str]):
    before = state(filled)
    answer = Broker(filled, "broker-x", address="10.0.0.8:10911").send_register(register_body(("T1", "T2")), wrong)
    assert answer.code == 1
    assert answer.remark
    assert state(filled) == before


@pytest.mark.parametrize("address", ["10.0.0.1:10911", "broker.example:10911", "[::1]:10911", "[fe80::1%eth0]:10911"])
def test_usual_addresses_are_taken(ns: NameServerScript, address: str):
    broker = Broker(ns)
    broker.address = address
    answer = broker.send_register(register_body(("T1", "T2")), {"haServerAddr": ""})
    assert answer.code == 0
    assert Admin(ns).addresses("T1") == {"broker-a": {"0": address}}


def test_absurd_topics_are_left_out_alone(ns: NameServerScript):
    """One invalid topic must not make a broker unreachable for its other topics."""
    odd = ("x" * 256, "a\nb", " ", topic("minus", queues=-1), topic("perm", perm=-1))
    answer = Broker(ns).register("T1", *odd, "T2")
    assert answer.code == 0
    assert str(answer.remark).startswith("5 topics left out: ")
    assert Admin(ns).topics() == {"T1", "T2"}
    assert "topics-left-out" in ns.log.events("warning")


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x1b[0m"])
@pytest.mark.parametrize("code", [RequestCode.DELETE_TOPIC_IN_NAMESRV, RequestCode.REGISTER_TOPIC_IN_NAMESRV])
def test_absurd_topic_names_of_administrators_are_refused(filled: NameServerScript, code: int, name: str):
    answer = Admin(filled).ask(code, topic=name)
    assert answer.code == 1
    assert "\x1b" not in str(answer.remark)


def test_no_route_for_an_endless_name_is_a_short_answer(ns: NameServerScript):
    answer = Admin(ns).ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="x" * 1_000_000)
    assert answer.code == 17
    assert len(str(answer.remark)) < 1000


def test_mappings_of_static_topics_are_checked(ns: NameServerScript):
    for mapping in ([], 7, {}, {"bname": 7}, {"bname": ""}):
        body = register_body(("T1", "T2"), topicQueueMappingInfoMap={"T1": mapping})
        assert Broker(ns).send_register(body).code == 1
    assert Admin(ns).topics() == set()


def test_a_small_frame_cannot_inflate_without_end(ns: NameServerScript):
    body = zlib.compress(bytes(100 * 1024 * 1024), 9)
    answer = Broker(ns).send_register(body, {"compressed": "true"})
    assert answer.code == 1
    assert "inflates to more than" in str(answer.remark)


# --- limits


def test_full_table_of_topics(make_ns: Make):
    """New topics are left out, known topics can still be changed."""
    ns = make_ns(limits=TableLimits(topics_max=3))
    broker = Broker(ns)
    answer = broker.register("T1", "T2", "T3", "T4", "T5")
    assert (answer.code, str(answer.remark)[:19]) == (0, "2 topics left out: ")
    assert Admin(ns).topics() == {"T1", "T2", "T3"}
    other = Broker(ns, "broker-b", address="127.0.0.1:20911")
    assert other.register(topic("T1", queues=9), "T2").remark is None
    assert len(Admin(ns).addresses("T1")) == 2
    body = json.dumps({"queueDatas": [{"brokerName": "broker-a"}]}).encode()
    assert Admin(ns).ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, body, topic="New").code == 1


def test_full_table_of_queues(make_ns: Make):
    ns = make_ns(limits=TableLimits(topic_queues_max=3))
    Broker(ns).register("T1", "T2")
    answer = Broker(ns, "broker-b", address="127.0.0.1:20911").register("T1", "T2")
    assert str(answer.remark).startswith("1 topics left out")


def test_full_table_of_brokers(make_ns: Make):
    ns = make_ns(limits=TableLimits(brokers_max=2))
    first = Broker(ns)
    first.register()
    Broker(ns, broker_id=1).register()
    answer = Broker(ns, broker_id=2).register()
    assert (answer.code, answer.remark) == (1, "this name server knows 2 brokers and takes no more")
    assert first.register().code == 0
    first.unregister()
    assert Broker(ns, broker_id=2).register().code == 0


def test_full_group(make_ns: Make):
    ns = make_ns(limits=TableLimits(group_members_max=1))
    Broker(ns).register()
    assert Broker(ns, broker_id=1).register().code == 1
    changed = Broker(ns, broker_id=3, address="127.0.0.1:10911")
    assert changed.register().code == 0


def test_too_many_filter_servers(make_ns: Make):
    ns = make_ns(limits=TableLimits(filter_servers_max=1))
    assert Broker(ns).register("T1", "T2", filter_servers=("10.0.0.9:1", "10.0.0.9:2")).code == 1
    assert Broker(ns).register("T1", "T2", filter_servers=("no address",)).code == 1
