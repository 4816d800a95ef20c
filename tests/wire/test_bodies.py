"""Bodies compared with those of Apache 5.5.0 (`apache_json.txt`), and the forms of other peers."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire import bodies, fastjson
from rmqkit.wire.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumerOffsetTable,
    ConsumerRunningInfo,
    ConsumeStats,
    DataVersion,
    DelayOffsetTable,
    KVTable,
    LockBatchBody,
    MemberGroup,
    MemberGroupBody,
    MessageQueue,
    QueueData,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigAndMappingTable,
    TopicConfigTable,
    TopicOffset,
    TopicRoute,
    TopicStatsTable,
)
from rmqkit.wire.bodies.base import Body

QUEUE = MessageQueue("T", "b", 1)
NOVEMBER_2023 = DataVersion(counter=5, timestamp=1700000000000)


def goldens() -> dict[str, tuple[str, str]]:
    text = (Path(__file__).parent / "apache_json.txt").read_text(encoding="utf-8")
    read = {}
    for section in text.split("\n== ")[1:]:
        name, compact, pretty = section.rstrip("\n").split("\n", 2)
        read[name] = (compact, pretty)
    return read


JAVA = goldens()
TYPES: dict[str, type[Body]] = {
    "route": TopicRoute,
    "cluster": ClusterInfo,
    "member": MemberGroupBody,
    "reset": ResetOffsetBody,
    "topics": TopicConfigAndMappingTable,
    "topics0": TopicConfigTable,
    "offsets": ConsumerOffsetTable,
    "groups": SubscriptionGroupTable,
    "heartbeat": bodies.HeartbeatData,
    "stats": TopicStatsTable,
    "cstats": ConsumeStats,
    "cstatus": bodies.ConsumerStatus,
    "running": ConsumerRunningInfo,
    "cconn": bodies.ConsumerConnection,
    "pconn": bodies.ProducerConnection,
    "kv": KVTable,
    "tl": bodies.TopicList,
    "gl": bodies.GroupList,
    "lock": LockBatchBody,
    "unlock": LockBatchBody,
    "lockr": bodies.LockBatchAnswer,
    "ha": bodies.HARuntimeInfo,
    "cmd": bodies.ConsumeMessageDirectlyResult,
    "check": bodies.CheckClientBody,
    "mode": bodies.MessageRequestModeTable,
    "reg": bodies.RegisterBrokerBody,
    "statsdata": bodies.BrokerStatsData,
    "cslist": bodies.ConsumeStatsList,
    "cq": bodies.QueryConsumeQueueBody,
    "timespan": bodies.ConsumeTimeSpans,
    "correction": bodies.CorrectionOffsets,
    "subscription": bodies.SubscriptionOfGroup,
    "topiclist": bodies.TopicConfigList,
    "grouplist": bodies.SubscriptionGroupList,
    "syncset": bodies.SyncStateSet,
    "elected": bodies.ElectMasterBody,
    "replicas": bodies.BrokerReplicasInfo,
    "nomaster": bodies.BrokerReplicasInfo,
    "epochs": bodies.EpochEntryCache,
}


def all_bodies(base: type[Body] = Body) -> list[type[Body]]:
    return [found for body in base.__subclasses__() for found in (body, *all_bodies(body))]


def test_every_golden_is_tested() -> None:
    assert set(JAVA) == set(TYPES)


@pytest.mark.parametrize("name", sorted(TYPES))
def test_body_reads_and_writes_as_remoting_serializable(name: str) -> None:
    compact, pretty = JAVA[name]
    body = TYPES[name].decode(compact)
    assert fastjson.dumps(body, unquoted_int_keys=True).decode() == compact
    # In an empty list of a bean fastjson 2 breaks the line, fastjson 1 does not. No config file
    # contains such a list.
    assert body.pretty() == re.sub(r"\[\s+\]", "[]", pretty)
    assert TYPES[name].decode(body.encode()) == TYPES[name].decode(pretty) == body
    strict = compact if TYPES[name].HAS_QUEUES else fastjson.to_strict(compact.encode()).decode()
    assert body.encode().decode() == strict


@pytest.mark.parametrize("body", all_bodies(), ids=lambda body: body.__name__)
def test_fields_are_in_the_order_in_which_java_writes_them(body: type[Body]) -> None:
    names = [field.encode_name for field in msgspec.structs.fields(body)]
    assert names == sorted(names)


def _least(kind: Any) -> Any:
    """Return a value for a required field: a name, a number, or a body."""
    if isinstance(kind, type) and issubclass(kind, Body):
        return {field.encode_name: _least(field.type) for field in msgspec.structs.fields(kind) if field.required}
    return "x" if kind is str else 0


@pytest.mark.parametrize("body", all_bodies(), ids=lambda body: body.__name__)
def test_mutable_defaults_are_not_shared(body: type[Body]) -> None:
    fields = msgspec.structs.fields(body)
    required = {field.encode_name: _least(field.type) for field in fields if field.required}
    first, second = (msgspec.convert(required, body) for _ in range(2))
    for field in fields:
        value = getattr(first, field.name)
        if isinstance(value, dict | list | Body):
            assert value is not getattr(second, field.name)


def test_names_of_broker_sets_are_a_bare_list() -> None:
    assert bodies.encode_names(["broker-a", "broker-b"]) == b'["broker-a","broker-b"]'
    assert bodies.decode_names(b'["broker-a", "broker-b"]') == ["broker-a", "broker-b"]
    assert bodies.decode_names(b"") == []
    with pytest.raises(RemoteProtocolError):
        bodies.decode_names(b'{"a":1}')


def test_route_for_clients_has_quoted_ids_and_no_whitespace() -> None:
    """Go cuts brokerAddrs out by hand: white space after `,` or `:` turns id 1 into 0."""
    route = TopicRoute(
        broker_datas=[
            BrokerData(
                broker_name="broker-a", cluster="DefaultCluster", broker_addrs={1: "127.0.0.1:10921", 0: "127.0.0.1:10911"}
            )
        ],
        queue_datas=[QueueData(broker_name="broker-a", perm=6, read_queue_nums=4, write_queue_nums=4)],
    )
    assert route.encode() == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911","1":"127.0.0.1:10921"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":'
        b'"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    route.order_topic_conf = "broker-a:4"
    assert b'"orderTopicConf":"broker-a:4","queueDatas"' in route.encode()
    assert TopicRoute.decode(route.encode()) == route


def test_values_read_from_java() -> None:
    route = TopicRoute.decode(JAVA["route"][0])
    assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}
    assert ResetOffsetBody.decode(JAVA["reset"][0]).offset_table == {QUEUE: 6}
    assert TopicStatsTable.decode(JAVA["stats"][0]).offset_table == {QUEUE: TopicOffset(max_offset=5)}
    assert LockBatchBody.decode(JAVA["lock"][0]).mq_set == [QUEUE]
    assert list(ConsumerRunningInfo.decode(JAVA["running"][0]).mq_table) == [QUEUE]
    assert ConsumerOffsetTable.decode(JAVA["offsets"][0]).offset_table == {"T@G": {0: 12, 1: 7}}
    member = MemberGroupBody.decode(JAVA["member"][0]).broker_member_group
    assert member == MemberGroup(broker_addrs={0: "x:1"}, broker_name="b", cluster="c")
    topics = TopicConfigTable.decode(JAVA["topics0"][0])
    assert topics == TopicConfigTable(data_version=NOVEMBER_2023, topic_config_table={"T": TopicConfig(topic_name="T")})
    groups = SubscriptionGroupTable.decode(JAVA["groups"][0])
    assert groups.subscription_group_table == {"G": SubscriptionGroupConfig(group_name="G")}


def test_consumer_offset_file_of_fastjson_1_reads_too() -> None:
    """1.2.83 writes a map with integer keys on one line, and a table that no reader needs."""
    text = '{\n\t"groupTopicMap":{"G":["T"]},\n\t"offsetTable":{"T@G":{0:12,1:7\n\t\t}\n\t}\n}'
    assert ConsumerOffsetTable.decode(text) == ConsumerOffsetTable(offset_table={"T@G": {0: 12, 1: 7}})
    assert DelayOffsetTable.decode('{"offsetTable":{1:5,2:0}}').offset_table == {1: 5, 2: 0}
    assert DelayOffsetTable(offset_table={2: 0, 1: 5}).pretty().endswith('\n\t"offsetTable":{\n\t\t1:5,\n\t\t2:0\n\t}\n}')


@pytest.mark.parametrize(
    "text",
    [
        b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:6}}',
        b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,\\"topic\\":\\"T\\"}":6}}',
        b'{"offsetTable":[{"brokerName":"b","offset":6,"queueId":1,"topic":"T"}]}',
        b'{"offsetTable":[[{"brokerName":"b","queueId":1,"topic":"T"},6]]}',
    ],
)
def test_reset_offset_reads_every_form_that_is_sent(text: bytes) -> None:
    assert ResetOffsetBody.decode_any(text) == ResetOffsetBody(offset_table={QUEUE: 6})


def test_reset_offset_for_cpp_is_a_list_of_objects() -> None:
    body = ResetOffsetBody(offset_table={MessageQueue("T", "b", 0): 5})
    assert body.encode_for_cpp() == b'{"offsetTable":[{"brokerName":"b","offset":5,"queueId":0,"topic":"T"}]}'
    assert body.encode() == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}'


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b'{"offsetTable":[1]}', b'{"offsetTable":{"x":1}}', b'{"offsetTable":{{"a":1}:1}}', b'{"offsetTable":1}'],
)
def test_reset_offset_of_another_shape_is_the_remote_error(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        ResetOffsetBody.decode_any(text)


@pytest.mark.parametrize("name", sorted(TYPES))
@pytest.mark.parametrize("text", [b"", b"[]", b'"x"', b"{", b"\xff", b"null", b'{"a":{"b":}}'])
def test_bodies_that_are_no_object_give_the_remote_error(name: str, text: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=TYPES[name].__name__):
        TYPES[name].decode(text)


class TestDataVersion:
    def test_order_is_state_version_then_counter_then_time(self) -> None:
        """DataVersion.compare"""
        in_order = [
            DataVersion(state_version=0, counter=1, timestamp=9),
            DataVersion(state_version=0, counter=2, timestamp=1),
            DataVersion(state_version=0, counter=2, timestamp=2),
            DataVersion(state_version=1, counter=0, timestamp=0),
        ]
        for index, version in enumerate(in_order):
            for other_index, other in enumerate(in_order):
                assert version.newer_than(other) == (index > other_index)

    def test_next_version_counts_and_takes_time_and_state(self) -> None:
        """DataVersion.nextVersion"""
        assert NOVEMBER_2023.next_version(1800000000000, 3) == DataVersion(
            counter=6, state_version=3, timestamp=1800000000000
        )
        assert NOVEMBER_2023.next_version(7).state_version == 0

    def test_equality_needs_all_three(self) -> None:
        versions: list[Any] = [
            DataVersion(),
            DataVersion(counter=1),
            DataVersion(state_version=1),
            DataVersion(timestamp=1),
        ]
        assert len(set(versions)) == 4
        assert DataVersion.decode(NOVEMBER_2023.encode()) == NOVEMBER_2023
        assert NOVEMBER_2023.encode() == b'{"counter":5,"stateVersion":0,"timestamp":1700000000000}'


def test_offsets_beyond_64_bits_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="ConsumerOffsetTable"):
        ConsumerOffsetTable.decode('{"offsetTable":{"T@G":{"0":9223372036854775808}}}')


def test_what_is_null_counts_as_absent() -> None:
    assert KVTable.decode('{"table":null}') == KVTable()
    assert TopicConfigTable.decode('{"topicConfigTable":{"T":{"topicName":"T","attributes":null}}}').topic_config_table == {
        "T": TopicConfig(topic_name="T")
    }
