"""Trace data: what clients write about their own messages to the trace topic.

The form is the one that Java's tools read. The body of a trace message is a sequence of records.
Each record ends with \\x02; its fields are separated by \\x01 and have a fixed order for each type:

    Pub             type time region group topic msgId tags keys storeHost length cost msgType
                    offsetMsgId success
    SubBefore       type time region group requestId msgId retryTimes keys
    SubAfter        type requestId msgId cost success keys code time group
    EndTransaction  type time region group topic msgId tags keys storeHost msgType transactionId
                    state fromCheck
    Recall          type time region group topic msgId success

A SubBefore and its SubAfter share one request id. An absent value is written as the word `null`, as
Java does: Java's reader fails on an empty last field. The KEYS property of a trace message lists
the ids and keys of all messages in it, so that the trace can be found by them.

`decode` skips malformed records, and reads the shorter records of older clients.

Source: `client/.../trace/TraceDataEncoder.java`, `TraceConstants.java`, `TraceBean.java`.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"

_FIELD = "\x01"
_RECORD = "\x02"
_NULL = "null"


class TraceType(StrEnum):
    PUB = "Pub"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"
    RECALL = "Recall"


class TraceMessageType(IntEnum):
    """`common/.../message/MessageType.java`; the wire carries the ordinal."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumeCode(IntEnum):
    """`client/.../consumer/listener/ConsumeReturnType.java`; the wire carries the ordinal."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class TraceRecord(NamedTuple):
    """One trace record. Each type uses only the fields in its row of the module's table.

    An absent text is "".
    """

    type: TraceType
    msg_id: str
    time_ms: int = 0
    region_id: str = ""
    group: str = ""
    topic: str = ""
    request_id: str = ""
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    body_length: int = 0
    cost_ms: int = 0
    message_type: int = TraceMessageType.NORMAL
    offset_msg_id: str = ""
    success: bool = True
    retry_times: int = 0
    code: int = ConsumeCode.SUCCESS
    transaction_id: str = ""
    transaction_state: str = ""
    from_check: bool = False


#: the fields that Pub and EndTransaction records begin with
_OF_SEND = ("time_ms", "region_id", "group", "topic", "msg_id", "tags", "keys", "store_host")
#: type → names of the fields that follow the type, in wire order
_FIELDS: dict[TraceType, tuple[str, ...]] = {
    TraceType.PUB: (*_OF_SEND, "body_length", "cost_ms", "message_type", "offset_msg_id", "success"),
    TraceType.SUB_BEFORE: ("time_ms", "region_id", "group", "request_id", "msg_id", "retry_times", "keys"),
    TraceType.SUB_AFTER: ("request_id", "msg_id", "cost_ms", "success", "keys", "code", "time_ms", "group"),
    TraceType.END_TRANSACTION: (*_OF_SEND, "message_type", "transaction_id", "transaction_state", "from_check"),
    TraceType.RECALL: ("time_ms", "region_id", "group", "topic", "msg_id", "success"),
}
#: number of fields in the oldest form that is still read
_FIELDS_MIN = {TraceType.PUB: 12, TraceType.SUB_AFTER: 5}
_INTS = frozenset(("time_ms", "body_length", "cost_ms", "message_type", "retry_times", "code"))
_BOOLS = frozenset(("success", "from_check"))


def encode(record: TraceRecord) -> str:
    """Return a record as text, including its end mark."""
    texts = [record.type.value]
    for name in _FIELDS[record.type]:
        value = getattr(record, name)
        if name in _BOOLS:
            texts.append("true" if value else "false")
        elif name in _INTS:
            texts.append(str(int(value)))
        else:
            texts.append(value.replace(_FIELD, " ").replace(_RECORD, " ") or _NULL)
    return _FIELD.join(texts) + _RECORD


def decode(data: bytes) -> list[TraceRecord]:
    """Return the well-formed records in the body of a trace message."""
    found = (_read(each.split(_FIELD)) for each in data.decode("utf-8", "replace").split(_RECORD))
    return [record for record in found if record is not None]


def _read(texts: Sequence[str]) -> TraceRecord | None:
    if texts[0] not in _TYPES:
        return None
    kind = TraceType(texts[0])
    names = list(_FIELDS[kind])
    given = texts[1:]
    if len(given) < _FIELDS_MIN.get(kind, len(names)):
        return None
    if kind is TraceType.PUB and len(given) == 12:
        names.remove("offset_msg_id")
    values: dict[str, Any] = {}
    # Newer clients append fields at the end; ignore them.
    for name, text in zip(names, given, strict=False):
        try:
            values[name] = _reader(name)(text)
        except ValueError:
            return None
    return TraceRecord(kind, **values)


_TYPES = frozenset(each.value for each in TraceType)


def _reader(name: str) -> Callable[[str], object]:
    if name in _INTS:
        return int
    if name in _BOOLS:
        return _bool
    return _text


def _bool(text: str) -> bool:
    return text == "true"


def _text(text: str) -> str:
    return "" if text == _NULL else text
