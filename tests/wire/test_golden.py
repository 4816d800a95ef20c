"""Every golden frame through the codec: whole, byte by byte, header and body to values and back.

The frames were written by client, broker and name server of Apache RocketMQ 5.5.0
(`golden/index.toml`, recorded by `tests/interop/record.py`). Where Java's own decoder printed its
result, that is the expectation.
"""

import json
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rmqkit.client.message import MessageExt
from rmqkit.wire import bodies, fastjson
from rmqkit.wire.batch import decode_batch, encode_batch
from rmqkit.wire.codes import MessageSysFlag, RequestCode
from rmqkit.wire.hosts import unpack_host
from rmqkit.wire.inflate import inflate_body
from rmqkit.wire.properties import decode as decode_properties
from rmqkit.wire.record import Blank, Record, decode_record, encode_copy, iter_records
from rmqkit.wire.remoting.frames import CODEC_JSON, CODEC_ROCKETMQ, Frame, FrameBuffer, frame
from rmqkit.wire.remoting.headers import RequestDecoder, decode_head, encode_request, encode_response
from rmqkit.wire.schema import Ext, from_ext, to_ext
from tests.wire.all_schemas import schemas

FOLDER = Path(__file__).parent / "golden"
STORE = Path(__file__).parent.parent / "store" / "golden"
INDEX: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "index.toml").read_text())
JSON_REQUESTS = [name for name, row in INDEX.items() if name.endswith(".request") and row["header"] == "JSON"]


class Golden(NamedTuple):
    raw: bytes
    frame: Frame
    row: dict[str, Any]

    @property
    def ext(self) -> dict[str, Any]:
        return decode_head(self.frame).ext_fields or {}


def golden(name: str) -> Golden:
    raw = (FOLDER / f"{name}.bin").read_bytes()
    (found,) = FrameBuffer().feed(raw)
    return Golden(raw, found, INDEX[name])


def test_every_file_is_in_the_index_with_its_size() -> None:
    on_disk = {path.stem: path.stat().st_size for path in FOLDER.glob("*.bin")}
    assert on_disk == {name: row["size"] for name, row in INDEX.items()}


@pytest.mark.parametrize("name", INDEX)
def test_frame_is_the_same_whole_and_byte_by_byte(name: str) -> None:
    whole = golden(name)
    assert len(whole.frame.body) == whole.row["body_size"]
    buffer = FrameBuffer()
    assert [buffer.feed(whole.raw[i : i + 1]) for i in range(len(whole.raw) - 1)] == [[]] * (len(whole.raw) - 1)
    assert buffer.feed(whole.raw[-1:]) == [whole.frame]
    assert buffer.pending == 0
    assert frame(whole.frame.header, whole.frame.body, whole.frame.codec) == whole.raw


@pytest.mark.parametrize("name", INDEX)
def test_header_reads_as_recorded_and_is_written_as_java_writes_it(name: str) -> None:
    one = golden(name)
    head = decode_head(one.frame)
    assert (head.code, head.opaque, head.flag) == (one.row["code"], one.row["opaque"], one.row["flag"])
    assert one.frame.codec == (CODEC_JSON if one.row["header"] == "JSON" else CODEC_ROCKETMQ)
    ext = head.ext_fields or {}
    if "response_to" in one.row:
        ours = encode_response(head.code, head.opaque, ext, head.remark, one.frame.codec)
    else:
        ours = encode_request(head.code, head.opaque, ext, oneway=bool(head.flag & 2), codec=one.frame.codec)
    again = decode_head(Frame(one.frame.codec, ours, b""))
    # Java sometimes writes an empty remark; we leave it out.
    assert (again.code, again.opaque, again.flag, again.remark) == (head.code, head.opaque, head.flag, head.remark or None)
    assert (again.ext_fields or {}) == ext
    if one.frame.codec == CODEC_ROCKETMQ:
        # Language (1 byte) and version (2 bytes) follow the code; all other bytes are the same.
        assert ours[:2] + ours[5:] == one.frame.header[:2] + one.frame.header[5:]
    # Hand-written headers have keys in any order; Java sorts them, as we do.
    if one.frame.codec == CODEC_JSON and not name.startswith("by_hand"):
        java, written = json.loads(one.frame.header), json.loads(ours)
        if java.get("remark") == "":
            del java["remark"]
        assert [key for key in java if key != "extFields"] == [key for key in written if key != "extFields"]
        assert {**java, "language": 0, "version": 0, "extFields": ext} == {
            **written,
            "language": 0,
            "version": 0,
            "extFields": ext,
        }


SCHEMAS: dict[int, type[Ext]] = {
    10: schemas.SendMessageRequestV1,
    11: schemas.PullMessageRequest,
    12: schemas.QueryMessageRequest,
    14: schemas.QueryConsumerOffsetRequest,
    15: schemas.UpdateConsumerOffsetRequest,
    17: schemas.CreateTopicRequest,
    21: schemas.GetAllTopicConfigRequest,
    29: schemas.SearchOffsetRequest,
    30: schemas.GetMaxOffsetRequest,
    31: schemas.GetMinOffsetRequest,
    32: schemas.GetEarliestMsgStoretimeRequest,
    33: schemas.ViewMessageRequest,
    35: schemas.UnregisterClientRequest,
    36: schemas.ConsumerSendMsgBackRequest,
    37: schemas.EndTransactionRequest,
    38: schemas.GetConsumerListByGroupRequest,
    39: schemas.CheckTransactionStateRequest,
    40: schemas.NotifyConsumerIdsChangedRequest,
    100: schemas.PutKVConfigRequest,
    101: schemas.GetKVConfigRequest,
    102: schemas.DeleteKVConfigRequest,
    103: schemas.RegisterBrokerRequest,
    104: schemas.UnregisterBrokerRequest,
    105: schemas.GetRouteInfoRequest,
    201: schemas.GetAllSubscriptionGroupRequest,
    202: schemas.GetTopicStatsInfoRequest,
    203: schemas.GetConsumerConnectionListRequest,
    204: schemas.GetProducerConnectionListRequest,
    205: schemas.WipeWritePermOfBrokerRequest,
    207: schemas.DeleteSubscriptionGroupRequest,
    208: schemas.GetConsumeStatsRequest,
    215: schemas.DeleteTopicRequest,
    216: schemas.DeleteTopicFromNamesrvRequest,
    219: schemas.GetKVListByNamespaceRequest,
    224: schemas.GetTopicsByClusterRequest,
    300: schemas.QueryTopicConsumeByWhoRequest,
    307: schemas.GetConsumerRunningInfoRequest,
    310: schemas.SendMessageRequestV2,
    320: schemas.SendMessageRequestV2,
    322: schemas.QueryDataVersionRequest,
    327: schemas.AddWritePermOfBrokerRequest,
    351: schemas.GetTopicConfigRequest,
    352: schemas.GetSubscriptionGroupConfigRequest,
    361: schemas.PullMessageRequest,
    901: schemas.GetBrokerMemberGroupRequest,
    904: schemas.BrokerHeartbeatRequest,
}
WITHOUT_FIELDS = {25, 26, 28, 34, 41, 42, 43, 45, 106, 200, 206, 319, 907, 9999}
# Fields that Java sends in addition to its header classes, and that we ignore.
UNREAD = {"ReqT", "bname", "indexType"}


def test_every_recorded_request_code_has_a_schema_or_no_fields() -> None:
    assert {row["code"] for name, row in INDEX.items() if name.endswith(".request")} == {*SCHEMAS, *WITHOUT_FIELDS}


@pytest.mark.parametrize(
    "name",
    [n for n, row in INDEX.items() if n.endswith(".request") and row["code"] in SCHEMAS and "without_fields" not in n],
)
def test_request_fields_read_by_their_schema_lose_nothing(name: str) -> None:
    one = golden(name)
    read = RequestDecoder(SCHEMAS[one.row["code"]]).decode(one.frame)
    assert (read.code, read.opaque, read.flag) == (one.row["code"], one.row["opaque"], one.row["flag"])
    known = {key: value for key, value in to_ext(read.ext).items() if key in one.ext}
    left = {key: value for key, value in one.ext.items() if known.get(key) != value}
    assert set(left) <= UNREAD, left


ANSWERS: dict[int, type[Ext]] = {
    10: schemas.SendMessageResponse,
    11: schemas.PullMessageResponse,
    12: schemas.QueryMessageResponse,
    14: schemas.QueryConsumerOffsetResponse,
    26: schemas.GetBrokerConfigResponse,
    29: schemas.SearchOffsetResponse,
    30: schemas.GetMaxOffsetResponse,
    31: schemas.GetMinOffsetResponse,
    32: schemas.GetEarliestMsgStoretimeResponse,
    101: schemas.GetKVConfigResponse,
    103: schemas.RegisterBrokerResponse,
    205: schemas.WipeWritePermOfBrokerResponse,
    310: schemas.SendMessageResponse,
    320: schemas.SendMessageResponse,
    322: schemas.QueryDataVersionResponse,
    327: schemas.AddWritePermOfBrokerResponse,
    361: schemas.PullMessageResponse,
}
PULL_CODES = {0, 19, 20, 21}


@pytest.mark.parametrize(
    "name",
    [
        n
        for n, row in INDEX.items()
        if row.get("response_to") in ANSWERS
        and (row["code"] == 0 or (row["response_to"] == 11 and row["code"] in PULL_CODES))
    ],
)
def test_response_fields_read_by_their_schema_lose_nothing(name: str) -> None:
    one = golden(name)
    read = from_ext(ANSWERS[one.row["response_to"]], one.ext)
    assert to_ext(read) == one.ext


BODIES: dict[str, Any] = {
    "register_broker.request": bodies.RegisterBrokerBody,
    "register_broker_one_topic.request": bodies.RegisterBrokerBody,
    "binary_register_broker.request": bodies.RegisterBrokerBody,
    "route.response": bodies.TopicRoute,
    "by_hand_route_legacy.response": bodies.TopicRoute,
    "by_hand_route_standard.response": bodies.TopicRoute,
    "by_hand_route_cluster_name.response": bodies.TopicRoute,
    "route_of_members.response": bodies.TopicRoute,
    "binary_route.response": bodies.TopicRoute,
    "cluster_info.response": bodies.ClusterInfo,
    "binary_cluster_info.response": bodies.ClusterInfo,
    "broker_member_group.response": bodies.MemberGroupBody,
    "kv_list.response": bodies.KVTable,
    "broker_runtime.response": bodies.KVTable,
    "topic_list.response": bodies.TopicList,
    "topics_of_cluster.response": bodies.TopicList,
    "heartbeat_producer.request": bodies.HeartbeatData,
    "heartbeat_consumer.request": bodies.HeartbeatData,
    "heartbeat_tags.request": bodies.HeartbeatData,
    "heartbeat_broadcast.request": bodies.HeartbeatData,
    "heartbeat_pull.request": bodies.HeartbeatData,
    "binary_heartbeat.request": bodies.HeartbeatData,
    "consumer_list.response": bodies.ConsumerListByGroup,
    "lock_queues.request": bodies.LockBatchBody,
    "lock_queues.response": bodies.LockBatchAnswer,
    "unlock_queues.request": bodies.LockBatchBody,
    "create_subscription_group.request": bodies.SubscriptionGroupConfig,
    "by_hand_group_config.response": bodies.SubscriptionGroupConfig,
    "all_subscription_groups.response": bodies.SubscriptionGroupTable,
    "topic_config.response": bodies.TopicConfig,
    "by_hand_all_topics.response": bodies.TopicConfigAndMappingTable,
    "by_hand_all_offsets.response": bodies.ConsumerOffsetTable,
    "by_hand_all_delay_offsets.response": bodies.DelayOffsetTable,
    "topic_stats.response": bodies.TopicStatsTable,
    "consume_stats.response": bodies.ConsumeStats,
    "consumer_connections.response": bodies.ConsumerConnection,
    "producer_connections.response": bodies.ProducerConnection,
    "groups_of_topic.response": bodies.GroupList,
    "consumer_running_info.response": bodies.ConsumerRunningInfo,
    "by_hand_ha_status.response": bodies.HARuntimeInfo,
    "query_data_version.request": bodies.DataVersion,
    "query_data_version.response": bodies.DataVersion,
}
# Keys of Java's bodies that we do not write; Java can read bodies without them.
LEFT_OUT = {"by_hand_all_offsets.response": {"groupTopicMap", "pullOffsetTable"}}


@pytest.mark.parametrize("name", BODIES)
def test_json_body_read_and_written_again_says_the_same(name: str) -> None:
    one = golden(name)
    written = BODIES[name].decode(one.frame.body).encode()
    java = fastjson.loads(one.frame.body)
    for key in LEFT_OUT.get(name, ()):
        java.pop(key)
    assert _sorted(fastjson.loads(written)) == _sorted(java)


def _sorted(value: Any) -> Any:
    """Sort lists, as Java writes sets as lists in any order."""
    if isinstance(value, dict):
        return {str(key): _sorted(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((_sorted(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True, default=str))
    return value


def test_compressed_registration_is_read_though_it_says_it_is_not_compressed() -> None:
    """`BrokerOuterAPI.registerBrokerAll` of 5.5.0 with compressedRegister=true leaves the header's
    `compressed` false."""
    one = golden("register_broker_compressed.request")
    ext = from_ext(schemas.RegisterBrokerRequest, one.ext)
    assert ext.compressed is False
    body = bodies.RegisterBrokerBody.decode_either(
        one.frame.body, compressed=bool(ext.compressed), broker_version=decode_head(one.frame).version
    )
    topics = body.topic_config_serialize_wrapper.topic_config_table
    assert topics["TBW102"].write_queue_nums == 8
    assert topics["SELF_TEST_TOPIC"].perm == 6


WITH_MESSAGES = {
    "pull_found_one.response": 1,
    "pull_found_many.response": None,
    "pull_found_batch.response": 5,
    "pull_found_compressed.response": None,
    "lite_pull.response": None,
    "by_hand_pull_found.response": 1,
    "binary_pull_found.response": None,
    "query_message.response": 9,
    "view_message.response": 1,
    "check_transaction_state.request": 1,
}


@pytest.mark.parametrize("name", WITH_MESSAGES)
def test_records_of_an_answer_are_read_and_written_byte_for_byte(name: str) -> None:
    body = golden(name).frame.body
    records = list(iter_records(body, check_crc=True))
    assert len(records) == (WITH_MESSAGES[name] or len(records)) > 0
    assert b"".join(map(encode_copy, records)) == body
    assert {len(MessageExt(record, "broker-a").msg_id) for record in records} == {32}


def test_pulled_messages_are_what_was_sent() -> None:
    batch = _messages("pull_found_batch.response")
    assert [(m.body, m.tags, m.keys, m.properties["n"]) for m in batch] == [
        (f"b{i}".encode(), "TagB", f"key{i}", str(i)) for i in range(5)
    ]
    assert 1 << 20 in [len(m.body) for m in _messages("pull_found_compressed.response")]


def _messages(name: str) -> list[MessageExt]:
    return [MessageExt(record, "broker-a") for record in iter_records(golden(name).frame.body, check_crc=True)]


@pytest.mark.parametrize("name", ["send_batch.request", "binary_send_batch.request"])
def test_batch_body_is_read_and_written_byte_for_byte(name: str) -> None:
    one = golden(name)
    messages = decode_batch(one.frame.body)
    assert [message.body for message in messages] == [f"b{i}".encode() for i in range(5)]
    assert decode_properties(messages[3].properties)["KEYS"] == "key3"
    assert encode_batch(messages) == one.frame.body
    assert one.ext["m"] == "true"


def test_compressed_send_is_inflated() -> None:
    one = golden("send_v2_compressed.request")
    sys_flag = int(one.ext["f"])
    assert sys_flag & MessageSysFlag.COMPRESSED
    assert inflate_body(one.frame.body, sys_flag) == b"0123456789abcdef" * (1 << 16)


@pytest.mark.parametrize("name", ["send_v2_unicode.request", "binary_send_v2_properties.request"])
def test_properties_survive(name: str) -> None:
    one = golden(name)
    properties = decode_properties(one.ext["i"].encode())
    if name == "send_v2_unicode.request":
        assert properties["TAGS"] == "标签"
        assert properties["名前"] == one.frame.body.decode()
    else:
        assert (properties["KEYS"], properties["color"], len(properties["long"])) == ("one two", "red", 4000)


def test_heartbeat_of_two_tags_has_the_codes_of_its_tags() -> None:
    beat = bodies.decode_heartbeat(golden("heartbeat_tags.request").frame.body)
    (consumer,) = [c for c in beat.consumer_data_set if any("TagC" in s.tags_set for s in c.subscription_data_set)]
    (subscription,) = [s for s in consumer.subscription_data_set if s.tags_set]
    assert set(subscription.tags_set) == {"TagA", "TagC"}
    assert set(subscription.code_set) == {2598919, 2598921}
    assert subscription.sub_string == "TagA || TagC"


@pytest.mark.parametrize("store", ["clean", "killed"])
def test_commit_log_records_are_what_apache_decodes(store: str) -> None:
    """Compare with the output of `MessageDecoder.decode`.

    The log has records V1 and V2, IPv6, zlib, and the blank end of a file.
    """
    expected = [json.loads(line) for line in (STORE / f"{store}.messages.jsonl").read_text().splitlines()]
    seen = [row for path in sorted((STORE / store / "commitlog").iterdir()) for row in _walk(path)]
    assert len(seen) == len(expected) > 15
    for ours, java in zip(seen, expected, strict=True):
        assert ours == {key: java[key] for key in ours}


def _walk(path: Path) -> list[dict[str, Any]]:
    data, base, position = path.read_bytes(), int(path.name), 0
    rows: list[dict[str, Any]] = []
    while int.from_bytes(data[position : position + 4], "big"):
        record = decode_record(data, position, check_crc=True)
        if isinstance(record, Blank):
            rows.append({"offset": base + position, "size": record.size})
            break
        assert record is not None
        assert record.phy_offset == base + position
        assert encode_copy(record) == data[position : position + record.size]
        rows.append(_row(record))
        position += record.size
    return rows


def _row(record: Record) -> dict[str, Any]:
    body = record.body
    if record.sys_flag & MessageSysFlag.COMPRESSED:
        body = inflate_body(body, record.sys_flag)
    return {
        "offset": record.phy_offset,
        "size": record.size,
        "magic": record.magic,
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "body_crc": record.body_crc,
        "body_size_stored": len(record.body),
        "body_size": len(body),
        "body": body.decode()[:60],
        "born_ms": record.born_ms,
        "born_host": _java_host(record.born_host),
        "store_ms": record.store_ms,
        "store_host": _java_host(record.store_host),
        "reconsume_times": record.reconsume_times,
        "prepared_offset": record.prepared_offset,
        "properties": decode_properties(record.properties),
    }


def _java_host(packed: bytes) -> str:
    host, port = unpack_host(packed)
    return f"/[0:0:0:0:0:0:0:1]:{port}" if host == "::1" else f"/{host}:{port}"


def test_every_recorded_code_is_named() -> None:
    codes = {row["code"] for name, row in INDEX.items() if name.endswith(".request")} - {9999}
    assert codes <= {int(code) for code in RequestCode}
