"""Selects the frames of a recording to keep as golden frames.

It also has hand-written requests that no Java client sends.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

from .tape import Seen

Test = Callable[[Seen, Seen | None], bool]


class Pick(NamedTuple):
    """One exchange to keep. `answer` is the response's code, or None if there is no response."""

    name: str
    code: int
    answer: int | None = 0
    test: Test = lambda request, response: True
    note: str = ""


def _fields(seen: Seen) -> dict[str, str]:
    found: dict[str, str] = seen.header.get("extFields") or {}
    return found


def _has(**wanted: str) -> Test:
    return lambda request, response: all(_fields(request).get(key) == value for key, value in wanted.items())


def _body_has(text: bytes) -> Test:
    return lambda request, response: text in request.body


def _answer_has(text: bytes) -> Test:
    return lambda request, response: response is not None and text in response.body


def _messages(low: int, high: int) -> Test:
    return lambda request, response: response is not None and low <= _records(response.body) <= high


def _records(body: bytes) -> int:
    count, position = 0, 0
    while position + 4 <= len(body):
        position += struct.unpack_from(">i", body, position)[0]
        count += 1
    return count


def _both(*tests: Test) -> Test:
    return lambda request, response: all(test(request, response) for test in tests)


def _own_topic(request: Seen, response: Seen | None) -> bool:
    return _fields(request).get("topic", "").startswith("it_")


def _one_topic(request: Seen, response: Seen | None) -> bool:
    return request.body.count(b'"topicName"') == 1


def _suspended(request: Seen, response: Seen | None) -> bool:
    return bool(int(_fields(request).get("sysFlag", "0")) & 2)


def _small(request: Seen, response: Seen | None) -> bool:
    return len(request.raw) + (len(response.raw) if response else 0) < 6000


NAMESERVER_PICKS = [
    Pick("register_broker", 103, note="all topics of a fresh broker"),
    Pick("register_broker_one_topic", 103, test=_one_topic, note="the changed topic only"),
    Pick("unregister_broker", 104),
    Pick("route", 105, test=_own_topic),
    Pick("route_unknown", 105, 17),
    Pick("cluster_info", 106),
    Pick("kv_put", 100),
    Pick("kv_get", 101),
    Pick("kv_get_none", 101, 22),
    Pick("kv_delete", 102),
    Pick("kv_list", 219),
    Pick("topic_list", 206),
    Pick("topics_of_cluster", 224),
    Pick("wipe_write_perm", 205),
    Pick("add_write_perm", 327),
    Pick("delete_topic_in_nameserver", 216),
]

BROKER_PICKS = [
    Pick("send_v2", 310, test=_small),
    Pick("send_v2_properties", 310, test=_body_has(b"body"), note="flag, keys, tag, user properties, buyer id"),
    Pick("send_v2_unicode", 310, test=_body_has("世界".encode())),
    Pick("send_v2_compressed", 310, test=_both(_has(f="769"), _small), note="zlib body, 1 MiB before"),
    Pick("send_v2_oneway", 310, None, test=_small),
    Pick("send_v2_unknown_topic", 310, test=_body_has(b"first"), note="auto-created through TBW102"),
    Pick("send_v2_delay", 310, test=_body_has(b"later")),
    Pick("send_v2_half", 310, test=_body_has(b"yes"), note="a transaction's half message"),
    Pick("send_batch", 320),
    Pick("end_transaction", 37, None),
    Pick("pull_found_one", 11, 0, test=_messages(1, 1)),
    Pick("pull_found_many", 11, 0, test=_both(_messages(3, 12), _small)),
    Pick("pull_found_batch", 11, 0, test=_both(_messages(5, 5), _answer_has(b"TagB"))),
    Pick(
        "pull_found_compressed",
        11,
        0,
        test=_both(_answer_has(b"\x00\x00\x03\x01"), lambda q, s: len(s.raw) < 9000 if s else False),
    ),
    Pick("pull_not_found", 11, 19),
    Pick("pull_retry_immediately", 11, 20),
    Pick("pull_offset_moved", 11, 21),
    Pick("pull_long_polling", 11, 0, test=_suspended, note="may wait at the broker until a message comes"),
    Pick("lite_pull", 361),
    Pick("query_consumer_offset", 14),
    Pick("query_consumer_offset_none", 14, 22),
    Pick("update_consumer_offset", 15, None),
    Pick("update_consumer_offset_sync", 15, 0),
    Pick("max_offset", 30),
    Pick("min_offset", 31),
    Pick("search_offset", 29),
    Pick("earliest_store_time", 32),
    Pick("view_message", 33),
    Pick("query_message", 12),
    Pick("query_message_none", 12, 22),
    Pick("heartbeat_producer", 34, test=_body_has(b'"consumerDataSet":[],"')),
    Pick("heartbeat_consumer", 34, test=_body_has(b"CONSUME_PASSIVELY")),
    Pick("heartbeat_tags", 34, test=_body_has(b"TagA || TagC")),
    Pick("heartbeat_broadcast", 34, test=_body_has(b"BROADCASTING")),
    Pick("heartbeat_pull", 34, test=_body_has(b"CONSUME_ACTIVELY")),
    Pick("unregister_client", 35),
    Pick("consumer_list", 38),
    Pick("consumer_ids_changed", 40, None, note="the broker tells the client"),
    Pick("check_transaction_state", 39, None, note="the broker asks the client"),
    Pick("send_back", 36),
    Pick("lock_queues", 41),
    Pick("unlock_queues", 42),
    Pick("create_topic", 17),
    Pick("delete_topic_in_broker", 215),
    Pick("topic_config", 351),
    Pick("create_subscription_group", 200),
    Pick("all_subscription_groups", 201),
    Pick("delete_subscription_group", 207),
    Pick("topic_stats", 202),
    Pick("consumer_connections", 203),
    Pick("producer_connections", 204),
    Pick("consume_stats", 208),
    Pick("groups_of_topic", 300),
    Pick("update_broker_config", 25),
    Pick("broker_config", 26),
    Pick("broker_runtime", 28),
    Pick("consumer_running_info", 307),
]

# The same exchanges with the binary header, which both servers use here too.
BINARY_PICKS = [
    Pick("binary_route", 105, test=_own_topic),
    Pick("binary_route_unknown", 105, 17),
    Pick("binary_register_broker", 103, test=_small),
    Pick("binary_cluster_info", 106),
    Pick("binary_send_v2", 310, test=_small),
    Pick("binary_send_v2_properties", 310, test=_body_has(b"body")),
    Pick("binary_send_batch", 320),
    Pick("binary_pull_found", 11, 0, test=_both(_messages(2, 12), _small)),
    Pick("binary_pull_not_found", 11, 19),
    Pick("binary_query_consumer_offset", 14),
    Pick("binary_update_consumer_offset", 15, None),
    Pick("binary_heartbeat", 34),
    Pick("binary_max_offset", 30),
    Pick("binary_consumer_list", 38),
]

ACTING_PICKS = [
    Pick("query_data_version", 322),
    Pick("query_data_version_oneway", 322, None, note="the heartbeat of acting-master mode, each second"),
    Pick(
        "route_of_members",
        105,
        test=_has(topic="rmq_sys_SYNC_BROKER_MEMBER_broker-a"),
        note="a broker asks who is in its group",
    ),
]

ACTING_NEW_PICKS = [
    Pick("broker_member_group", 901, note="asked instead when compatibleWithOldNameSrv is false"),
]

COMPRESSED_PICKS = [
    Pick("register_broker_compressed", 103, 1, note="refused by the name server"),
]


class Asked(NamedTuple):
    """A hand-written request that no Java client sends by itself. The answer is Apache's."""

    name: str
    link: str
    code: int
    fields: dict[str, str]
    body: bytes = b""
    version: int = 513


_SEND_V1 = {
    "producerGroup": "by-hand",
    "topic": "it_by_hand",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "0",
    "properties": "UNIQ_KEY\x017F00000100010000000000000000000A\x02",
    "reconsumeTimes": "0",
    "unitMode": "false",
    "maxReconsumeTimes": "0",
    "batch": "false",
}
_PULL = {
    "consumerGroup": "by-hand",
    "topic": "it_by_hand",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
    "expressionType": "TAG",
}
_NO_TOPIC = {"topic": "it_nowhere", "queueId": "0"}

# The order matters: the first send creates the topic.
BY_HAND = [
    Asked("by_hand_send_v1", "broker", 10, _SEND_V1, b"sent with the long names"),
    Asked("by_hand_send_bad_queue", "broker", 10, {**_SEND_V1, "queueId": "99"}, b"x"),
    Asked("by_hand_send_unknown_topic", "broker", 10, {**_SEND_V1, "topic": "it_no", "defaultTopic": "nothing"}, b"x"),
    Asked("by_hand_send_bad_topic", "broker", 10, {**_SEND_V1, "topic": "../etc"}, b"x"),
    Asked("by_hand_send_long_topic", "broker", 10, {**_SEND_V1, "topic": "x" * 128}, b"x"),
    Asked("by_hand_send_system_topic", "broker", 10, {**_SEND_V1, "topic": "SCHEDULE_TOPIC_XXXX"}, b"x"),
    Asked("by_hand_send_retry_no_group", "broker", 10, {**_SEND_V1, "topic": "%RETRY%nobody"}, b"x"),
    Asked("by_hand_send_long_properties", "broker", 10, {**_SEND_V1, "properties": "k\x01" + "v" * 32768 + "\x02"}, b"x"),
    Asked("by_hand_send_without_fields", "broker", 10, {"topic": "it_by_hand"}, b"x"),
    Asked("by_hand_pull_found", "broker", 11, _PULL),
    Asked("by_hand_pull_unknown_topic", "broker", 11, {**_PULL, "topic": "it_nowhere"}),
    Asked("by_hand_pull_bad_queue", "broker", 11, {**_PULL, "queueId": "99"}),
    Asked("by_hand_pull_no_subscription", "broker", 11, {**_PULL, "sysFlag": "0"}),
    Asked("by_hand_max_offset_unknown_topic", "broker", 30, _NO_TOPIC),
    Asked("by_hand_min_offset_unknown_topic", "broker", 31, _NO_TOPIC),
    Asked("by_hand_search_offset_unknown_topic", "broker", 29, {**_NO_TOPIC, "timestamp": "1"}),
    Asked("by_hand_view_message_beyond", "broker", 33, {"topic": "it_by_hand", "offset": "999999999"}),
    Asked("by_hand_consumer_list_none", "broker", 38, {"consumerGroup": "nobody"}),
    Asked("by_hand_consumer_connections_none", "broker", 203, {"consumerGroup": "nobody"}),
    Asked("by_hand_producer_connections_none", "broker", 204, {"producerGroup": "nobody"}),
    Asked("by_hand_topic_config_none", "broker", 351, {"topic": "it_nowhere"}),
    Asked("by_hand_topic_stats_none", "broker", 202, {"topic": "it_nowhere"}),
    Asked("by_hand_group_config", "broker", 352, {"group": "TOOLS_CONSUMER"}),
    Asked("by_hand_group_config_none", "broker", 352, {"group": "nobody"}),
    Asked(
        "by_hand_create_system_topic",
        "broker",
        17,
        {
            "topic": "TBW102",
            "defaultTopic": "TBW102",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        },
    ),
    Asked("by_hand_delete_system_topic", "broker", 215, {"topic": "TBW102"}),
    Asked("by_hand_update_config_forbidden", "broker", 25, {}, b"brokerConfigPath=x\n"),
    Asked("by_hand_all_topics", "broker", 21, {}),
    Asked("by_hand_all_offsets", "broker", 43, {}),
    Asked("by_hand_all_delay_offsets", "broker", 45, {}),
    Asked("by_hand_ha_status", "broker", 907, {}),
    Asked("by_hand_unknown_code", "broker", 9999, {}),
    Asked("by_hand_ns_unknown_code", "nameserver", 9999, {}),
    Asked("by_hand_route_legacy", "nameserver", 105, {"topic": "TBW102"}, b"", 317),
    Asked("by_hand_route_standard", "nameserver", 105, {"topic": "TBW102", "acceptStandardJsonOnly": "true"}, b"", 317),
    Asked("by_hand_route_cluster_name", "nameserver", 105, {"topic": "DefaultCluster"}),
    Asked("by_hand_member_group", "nameserver", 901, {"clusterName": "DefaultCluster", "brokerName": "broker-a"}),
    Asked(
        "by_hand_broker_heartbeat",
        "nameserver",
        904,
        {
            "clusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerAddr": "127.0.0.1:1",
            "brokerId": "0",
            "heartbeatTimeoutMills": "10000",
        },
    ),
    Asked("by_hand_namesrv_config", "nameserver", 319, {}),
]
