"""Wire names, types and mandatory fields of every schema, compared with Java's header classes."""

import msgspec
import pytest

from rmqkit.wire.schema import from_ext, to_ext
from rmqkit.wire.schemas.send import SendMessageRequestV1, SendMessageRequestV2, SendMessageResponse
from tests.wire.all_schemas import SCHEMAS
from tests.wire.apache_facts import HEADERS

# Ext fields that Java sets or reads outside its header class, and ours that it ignores (906, 904).
BESIDE = {
    "BrokerHeartbeatRequest": {"leaseMills"},
    "ExchangeHAInfoRequest": {
        *("brokerName", "brokerId", "brokerAddress", "haLocalAddress", "logEnd"),
        *("tailOffset", "tailSize", "tailCrc", "fromStart", "fileSize", "masterStartId"),
    },
    "ExchangeHAInfoResponse": {
        *("masterLogBegin", "masterLogEnd", "masterStartId", "tailMatches"),
        *("logEnd", "tailOffset", "tailSize", "tailCrc", "masterGivenUp"),
    },
    "CheckTransactionStateRequest": {"bname"},
    "ConsumerSendMsgBackRequest": {"bname"},
    "GetMetaDataResponse": {"problem", "term"},
    "GetRouteInfoRequest": {"__ZONE_MODE", "__ZONE_NAME"},
    "RegisterBrokerRequest": {"__ZONE_NAME"},
    "GetTopicConfigRequest": {"lo"},
    "QueryMessageRequest": {"_UNIQUE_KEY_QUERY"},
    "SendMessageRequestV1": {"bname"},
    "SendMessageResponse": {"MSG_REGION", "TRACE_ON"},
}
# Java fields of features that we do not have.
LEFT_OUT = {
    "PullMessageRequest": {"liteTopic"},
    "SearchOffsetRequest": {"liteTopic"},
}
#: ours, and those that several Java classes with the same fields share
NO_JAVA_CLASS = {
    "AclRequest",
    "BrokerHeartbeatResponse",
    "ControllerPeerRequest",
    "GetAccessTableRequest",
    "GetAccessTableResponse",
    "PutAccessTableRequest",
    "UserRequest",
    "GetPopInFlightRequest",
    "GetAllConsumerOffsetRequest",
    "GetAllConsumerOffsetResponse",
}
BOUNDS = {"i": 2**31 - 1, "l": 2**63 - 1}

JAVA = {
    name.strip(): dict(word.split(":") for word in fields.split())
    for name, _, fields in (line.partition("|") for line in HEADERS.replace("\n  ", " ").splitlines() if line)
}


def test_every_schema_with_a_java_class_is_in_the_table() -> None:
    assert set(JAVA) == set(SCHEMAS) - NO_JAVA_CLASS


@pytest.mark.parametrize("name", sorted(JAVA))
def test_fields_are_those_of_the_java_class(name: str) -> None:
    schema = SCHEMAS[name]
    java = {field.lstrip("!"): kind for field, kind in JAVA[name].items()}
    mandatory = {field[1:] for field in JAVA[name] if field.startswith("!")}
    ours = {field.encode_name: field for field in msgspec.structs.fields(schema)}
    assert set(ours) == set(java) - LEFT_OUT.get(name, set()) | BESIDE.get(name, set())
    assert {wire_name for wire_name, field in ours.items() if field.required} <= mandatory
    largest = {n: "x" if kind == "s" else "true" if kind == "b" else str(BOUNDS[kind]) for n, kind in java.items()}
    read = from_ext(schema, largest)
    assert to_ext(read) == {n: value for n, value in largest.items() if n in ours} | {
        n: value for n, value in to_ext(read).items() if n in BESIDE.get(name, set())
    }
    for wire_name, kind in java.items():
        if kind in BOUNDS and wire_name in ours:
            with pytest.raises(Exception, match=wire_name):
                from_ext(schema, largest | {wire_name: str(BOUNDS[kind] + 1)})


def test_send_v1_and_v2_have_the_same_python_fields_in_order_of_the_letters() -> None:
    v1, v2 = (msgspec.structs.fields(schema) for schema in (SendMessageRequestV1, SendMessageRequestV2))
    letters = {field.name: field.encode_name for field in v2}
    assert {field.name for field in v1} == set(letters)
    assert letters == {
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "broker_name": "n",
    }


def test_send_answer_has_region_and_trace_beside_the_header() -> None:
    answer = SendMessageResponse(msg_id="ID", queue_id=1, queue_offset=2, msg_region="DefaultRegion", trace_on=True)
    assert to_ext(answer) == {
        "msgId": "ID",
        "queueId": "1",
        "queueOffset": "2",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
