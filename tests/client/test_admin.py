"""Administration: which peers get which requests, and the texts of errors."""

import json

import pytest

from rmqkit.client.admin.groups import AdminCore
from rmqkit.client.flow import start
from rmqkit.errors import BrokerError, ClientError, InvalidMessage
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.fastjson import MessageQueue
from tests.client.group import found, offsets, record
from tests.client.peers import A_SLAVE, NS_1, NS_2, A, B, Peers, route

Q0 = MessageQueue("T", "broker-a", 0)
CLUSTER = {
    "brokerAddrTable": {
        "broker-a": {"brokerAddrs": {"0": A, "1": A_SLAVE}, "brokerName": "broker-a", "cluster": "C1"},
        "broker-b": {"brokerAddrs": {"0": B}, "brokerName": "broker-b", "cluster": "C2"},
    },
    "clusterAddrTable": {"C1": ["broker-a"], "C2": ["broker-b"]},
}


@pytest.fixture
def peers():
    peers = Peers(
        namesrv=(NS_1, NS_2), routes={"T": route(("broker-a", {0: A, 1: A_SLAVE}), ("broker-b", {0: B}), queues=1)}
    )
    # As Java's name server writes it: integer keys without quotes.
    text = json.dumps(CLUSTER, separators=(",", ":")).replace('"0":', "0:").replace('"1":', "1:")
    peers.always[RequestCode.GET_BROKER_CLUSTER_INFO] = text.encode()
    return peers


def begin(peers, make):
    box = []
    peers.do(lambda: box.append(start(make(AdminCore(peers.client)))))
    return box[0]


def run(peers, make):
    promise = begin(peers, make)
    assert promise.done, peers.waiting()
    return promise.result()


def test_brokers_are_found_by_name_id_or_address(peers):
    for text, address in (
        ("broker-a", A), ("broker-a:1", A_SLAVE), ("broker-a-1", A_SLAVE), ("broker-b-0", B), ("broker-b", B),
        ("10.9.9.9:1", "10.9.9.9:1"), ("broker-a:10911", "broker-a:10911"),
    ):  # fmt: skip
        assert str(run(peers, lambda admin, text=text: admin.broker_address(text))) == address
    with pytest.raises(ClientError, match="there are: broker-a, broker-b"):
        run(peers, lambda admin: admin.broker_address("broker-x"))
    for text in ("broker-b:1", "broker-b-1"):
        with pytest.raises(ClientError, match="id 1 is not registered; of broker-b there are: broker-b:0"):
            run(peers, lambda admin, text=text: admin.broker_address(text))


def test_a_topic_is_created_at_the_masters(peers):
    created = begin(peers, lambda admin: admin.create_topic("T", queue_nums=3, attributes={"message.type": "FIFO"}))
    for address in (A, B):
        asked = peers.take(RequestCode.UPDATE_AND_CREATE_TOPIC)
        assert asked.address == address
        assert asked.ext == {
            "topic": "T",
            "defaultTopic": "TBW102",
            "readQueueNums": "3",
            "writeQueueNums": "3",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": "+message.type=FIFO",
            "force": "false",
        }
        asked.answer()
    assert created.result() == [A, B]


def test_a_topic_is_created_in_one_cluster_or_at_one_broker(peers):
    begin(peers, lambda admin: admin.create_topic("T", cluster="C2"))
    assert peers.take(RequestCode.UPDATE_AND_CREATE_TOPIC).address == B
    begin(peers, lambda admin: admin.create_topic("T", broker="broker-a"))
    assert peers.take(RequestCode.UPDATE_AND_CREATE_TOPIC).address == A
    with pytest.raises(ClientError, match="there are: C1, C2"):
        run(peers, lambda admin: admin.create_topic("T", cluster="C9"))
    with pytest.raises(InvalidMessage):
        run(peers, lambda admin: admin.create_topic("a b"))


def test_creating_waits_until_the_name_server_shows_it(peers):
    del peers.routes["T"]
    created = begin(peers, lambda admin: admin.create_topic("T", cluster="C2"))
    peers.take(RequestCode.UPDATE_AND_CREATE_TOPIC).answer()
    peers.advance(200)
    assert not created.done
    peers.routes["T"] = route(("broker-b", {0: B}))
    peers.advance(100)
    assert created.done


def test_a_topic_is_deleted_at_every_broker_and_every_name_server(peers):
    deleted = begin(peers, lambda admin: admin.delete_topic("T"))
    for address in (A, A_SLAVE, B):
        asked = peers.take(RequestCode.DELETE_TOPIC_IN_BROKER)
        assert asked.address == address
        asked.answer()
    for address in (NS_1, NS_2):
        asked = peers.take(RequestCode.DELETE_TOPIC_IN_NAMESRV)
        assert asked.address == address
        asked.answer()
    assert deleted.done


def test_an_error_answer_is_an_exception_with_code_and_remark(peers):
    asked = begin(peers, lambda admin: admin.broker_config("broker-a"))
    peers.take(RequestCode.GET_BROKER_CONFIG).answer(16, remark="not for you")
    with pytest.raises(BrokerError, match="16 NO_PERMISSION: not for you") as caught:
        asked.result()
    assert (caught.value.code, caught.value.remark, caught.value.address, caught.value.retriable) == (
        16,
        "not for you",
        A,
        True,
    )


def test_a_broker_s_settings_are_properties_text(peers):
    asked = begin(peers, lambda admin: admin.broker_config("broker-a"))
    peers.take(RequestCode.GET_BROKER_CONFIG).answer(0, {"version": "{}"}, b"a=1\nb=x=y\n")
    assert asked.result() == {"a": "1", "b": "x=y"}
    begin(peers, lambda admin: admin.update_broker_config("broker-a", {"a": "2"}))
    assert peers.take(RequestCode.UPDATE_BROKER_CONFIG).command.body == b"a=2\n"


@pytest.mark.parametrize(
    ("make", "code", "answer"),
    [
        (lambda admin: admin.offset_min(Q0), RequestCode.GET_MIN_OFFSET, 5),
        (lambda admin: admin.offset_max(Q0), RequestCode.GET_MAX_OFFSET, 9),
        (lambda admin: admin.offset_for_time(Q0, 123), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, 7),
        (lambda admin: admin.group_offset("G", Q0), RequestCode.QUERY_CONSUMER_OFFSET, 3),
    ],
)
def test_offsets(peers, make, code, answer):
    asked = begin(peers, make)
    peers.take(code, A).answer(0, {"offset": str(answer)})
    assert asked.result() == answer


def test_an_answer_without_its_fields_is_an_error(peers):
    asked = begin(peers, lambda admin: admin.offset_max(Q0))
    peers.take(RequestCode.GET_MAX_OFFSET).answer(0, {})
    with pytest.raises(BrokerError, match="cannot be decoded"):
        asked.result()


def test_a_group_that_never_consumed_has_no_offset(peers):
    asked = begin(peers, lambda admin: admin.group_offset("G", Q0))
    ask = peers.take(RequestCode.QUERY_CONSUMER_OFFSET)
    assert ask.ext["setZeroIfNotFound"] == "false"
    ask.answer(22)
    assert asked.result() is None


def test_a_reset_is_asked_of_the_broker(peers):
    done = begin(peers, lambda admin: admin.reset_group_offset("G", Q0, 5))
    asked = peers.take(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, A)
    assert asked.ext == {
        "topic": "T",
        "group": "G",
        "queueId": "0",
        "offset": "5",
        "timestamp": "-1",
        "isForce": "true",
    }
    asked.answer()
    assert done.done


def test_a_broker_that_knows_no_reset_gets_a_commit(peers):
    done = begin(peers, lambda admin: admin.reset_group_offset("G", Q0, 5))
    peers.take(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET).answer(3)
    asked = peers.take(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert asked.ext["commitOffset"] == "5"
    asked.answer()
    assert done.done


def test_all_queues_of_a_topic_are_reset(peers):
    done = begin(peers, lambda admin: admin.reset_group_offsets("G", "T", to="last"))
    for end in (11, 12):
        peers.take(RequestCode.GET_MAX_OFFSET).answer(0, {"offset": str(end)})
        peers.take(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET).answer()
    assert list(done.result().values()) == [11, 12]
    for wrong in ({}, {"to": "middle"}, {"to": "first", "timestamp_ms": 1}):
        with pytest.raises(ClientError, match="say where to"):
            run(peers, lambda admin, wrong=wrong: admin.reset_group_offsets("G", "T", **wrong))


def test_members_of_a_group_are_those_of_all_brokers(peers):
    asked = begin(peers, lambda admin: admin.consumer_connections("G"))
    member = b'{"clientAddr":"x:1","clientId":"c1","language":"JAVA","version":479}'
    body = b'{"connectionSet":[' + member + b'],"consumeType":"CONSUME_PASSIVELY"}'
    peers.take(RequestCode.GET_CONSUMER_CONNECTION_LIST, A).answer(0, body=body)
    more = body.replace(b'"c1"', b'"c2"')
    peers.take(RequestCode.GET_CONSUMER_CONNECTION_LIST, B).answer(0, body=more)
    assert [each.client_id for each in asked.result().connection_set] == ["c1", "c2"]
    nobody = begin(peers, lambda admin: admin.consumer_connections("G"))
    for _ in range(2):
        peers.take(RequestCode.GET_CONSUMER_CONNECTION_LIST).answer(206, remark="not online")
    assert nobody.result() is None


def test_messages_are_found_by_key_and_looked_at_again(peers):
    asked = begin(peers, lambda admin: admin.query_messages("T", "k1"))
    hit = record(0, b"hit", properties=b"KEYS\x01k0 k1\x02")
    stranger = record(1, b"same hash", properties=b"KEYS\x01other\x02")
    peers.take(RequestCode.QUERY_MESSAGE, A).answer(
        0, {"indexLastUpdateTimestamp": "1", "indexLastUpdatePhyoffset": "1"}, hit + stranger
    )
    peers.take(RequestCode.QUERY_MESSAGE, B).answer(22, remark="none")
    assert [message.body for message in asked.result()] == [b"hit"]


def test_a_message_is_viewed_at_the_address_in_its_id(peers):
    asked = begin(peers, lambda admin: admin.view_message("0A00020100002A9F0000000000001000"))
    ask = peers.take(RequestCode.VIEW_MESSAGE_BY_ID)
    assert (ask.address, ask.ext["offset"]) == (A, "4096")
    ask.answer(0, body=record(3, b"there"))
    assert (asked.result().body, asked.result().broker_name) == (b"there", "broker-a")
    with pytest.raises(ClientError, match="not a message id"):
        run(peers, lambda admin: admin.view_message("nonsense"))


def test_the_message_at_a_place(peers):
    asked = begin(peers, lambda admin: admin.message_at(Q0, 5))
    ask = peers.take(RequestCode.PULL_MESSAGE, A)
    assert (ask.ext["maxMsgNums"], ask.ext["suspendTimeoutMillis"], ask.ext["sysFlag"]) == ("1", "0", "4")
    found(ask, record(5, b"five"), next_offset=6)
    assert asked.result().body == b"five"
    gone = begin(peers, lambda admin: admin.message_at(Q0, 5))
    peers.take(RequestCode.PULL_MESSAGE).answer(21, offsets(100))
    assert gone.result() is None


def test_write_permission_is_wiped_at_every_name_server(peers):
    wiped = begin(peers, lambda admin: admin.wipe_write_perm("broker-a"))
    for address, count in ((NS_1, "3"), (NS_2, "4")):
        peers.take(RequestCode.WIPE_WRITE_PERM_OF_BROKER, address).answer(0, {"wipeTopicCount": count})
    assert wiped.result() == 4


def test_key_values(peers):
    begin(peers, lambda admin: admin.put_kv("ns", "k", "v"))
    peers.take(RequestCode.PUT_KV_CONFIG, NS_1).answer()
    peers.take(RequestCode.PUT_KV_CONFIG, NS_2).answer()
    asked = begin(peers, lambda admin: admin.get_kv("ns", "k"))
    peers.take(RequestCode.GET_KV_CONFIG).answer(0, {"value": "v"})
    assert asked.result() == "v"
    none = begin(peers, lambda admin: admin.get_kv("ns", "x"))
    peers.take(RequestCode.GET_KV_CONFIG).answer(22)
    assert none.result() is None


def test_progress_of_a_group_without_consume_stats(peers):
    """If a broker does not know 208, the offsets are queried one by one."""
    asked = begin(peers, lambda admin: admin.consume_stats("G", "T"))
    peers.take(RequestCode.GET_CONSUME_STATS).answer(3)
    for offset in ("3", None):
        answer = (0, {"offset": offset}) if offset else (22, {})
        peers.take(RequestCode.QUERY_CONSUMER_OFFSET).answer(*answer)
    for end in ("10", "4"):
        peers.take(RequestCode.GET_MAX_OFFSET).answer(0, {"offset": end})
    progress = asked.result()
    assert [(each.consumer_offset, each.broker_offset) for each in progress.values()] == [(3, 10), (-1, 4)]
