"""The properties of a message: their codec, and the names that RocketMQ reserves.

On the wire and in a record the properties are one text: `name \\x01 value \\x02`, repeated. The
reader tolerates a missing last separator and drops a pair with an empty name or value. If a name
occurs twice, the last value wins, as in Java's map.

The broker mostly needs one or two properties of a message. `find`, `put` and `remove` work on the
bytes, without decoding the rest.

Source: `common/.../message/MessageDecoder.java` (`messageProperties2String`,
`string2messageProperties`), `common/.../message/MessageConst.java`.
"""

from collections.abc import Mapping

PROPERTY_SEPARATOR = "\x02"
PROPERTIES_SIZE_MAX = 32767

PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_WAIT_STORE_MSG_OK = "WAIT"
PROPERTY_DELAY_TIME_LEVEL = "DELAY"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_TRANSACTION_PREPARED = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_MIN_OFFSET = "MIN_OFFSET"
PROPERTY_MAX_OFFSET = "MAX_OFFSET"
PROPERTY_BUYER_ID = "BUYER_ID"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_TRANSFER_FLAG = "TRANSFER_FLAG"
PROPERTY_CORRECTION_FLAG = "CORRECTION_FLAG"
PROPERTY_MQ2_FLAG = "MQ2_FLAG"
PROPERTY_RECONSUME_TIME = "RECONSUME_TIME"
PROPERTY_MSG_REGION = "MSG_REGION"
PROPERTY_TRACE_SWITCH = "TRACE_ON"
PROPERTY_UNIQ_KEY = "UNIQ_KEY"
PROPERTY_EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
PROPERTY_MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
PROPERTY_CONSUME_START_TIMESTAMP = "CONSUME_START_TIME"
PROPERTY_INNER_NUM = "INNER_NUM"
PROPERTY_INNER_BASE = "INNER_BASE"
PROPERTY_DUP_INFO = "DUP_INFO"
PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_TRANSACTION_ID = "__transactionId__"
PROPERTY_TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_INSTANCE_ID = "INSTANCE_ID"
PROPERTY_CORRELATION_ID = "CORRELATION_ID"
PROPERTY_MESSAGE_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_MESSAGE_TTL = "TTL"
PROPERTY_REPLY_MESSAGE_ARRIVE_TIME = "ARRIVE_TIME"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_MESSAGE_TYPE = "MSG_TYPE"
PROPERTY_POP_CK = "POP_CK"
PROPERTY_POP_CK_OFFSET = "POP_CK_OFFSET"
PROPERTY_FIRST_POP_TIME = "1ST_POP_TIME"
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
PROPERTY_FORWARD_QUEUE_ID = "PROPERTY_FORWARD_QUEUE_ID"
PROPERTY_REDIRECT = "REDIRECT"
PROPERTY_INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
PROPERTY_INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
PROPERTY_TRACE_CONTEXT = "TRACE_CONTEXT"
PROPERTY_TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
PROPERTY_TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
PROPERTY_TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
PROPERTY_TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
PROPERTY_TIMER_OUT_MS = "TIMER_OUT_MS"
PROPERTY_TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
PROPERTY_TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
PROPERTY_BORN_HOST = "__BORNHOST"
PROPERTY_BORN_TIMESTAMP = "BORN_TIMESTAMP"
PROPERTY_DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
PROPERTY_DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
PROPERTY_CRC32 = "__CRC32#"

KEY_SEPARATOR = " "
"""Separates the keys in the value of PROPERTY_KEYS."""

_USERS_OWN = {
    PROPERTY_INNER_NUM,
    PROPERTY_INNER_BASE,
    PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_SHARDING_KEY,
    PROPERTY_FORWARD_QUEUE_ID,
    PROPERTY_REDIRECT,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_TRACE_CONTEXT,
}
RESERVED_NAMES = frozenset(
    value
    for name, value in list(globals().items())
    if name.startswith("PROPERTY_") and name != "PROPERTY_SEPARATOR" and value not in _USERS_OWN
)
"""Names a user may not set on a message (`MessageConst.STRING_HASH_SET`)."""


def encode(properties: Mapping[str, str]) -> bytes:
    """Return the properties text as bytes.

    Raises ValueError if a name or value contains a separator and would not decode to itself.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    if text.count("\x02") != len(properties) or "\x01" in "".join(properties):
        raise ValueError("a property's name must not hold \\x01 or \\x02, its value not \\x02")
    return text.encode()


def decode(properties: bytes) -> dict[str, str]:
    """Return all pairs that have a name and a value.

    Bytes that are not UTF-8 become U+FFFD, as in Java.
    """
    read: dict[str, str] = {}
    for pair in properties.decode("utf-8", "replace").split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            read[name] = value
    return read


def find(properties: bytes, name: bytes) -> bytes | None:
    """Return the value of one property without decoding the rest; None if it is absent or empty."""
    start = properties.rfind(b"\x02%b\x01" % name)
    if start >= 0:
        # Nearly always the answer: the last pair of that name, if it has a value.
        start += len(name) + 2
        end = properties.find(b"\x02", start)
        if end > start:
            return properties[start:end]
    elif not properties.startswith(name):
        return None
    found = _span(properties, name)
    return None if found is None else properties[found[1] : found[2]]


def waits_for_store(properties: bytes) -> bool:
    """Return whether the sender waits for disk and replicas (`Message.isWaitStoreMsgOK`)."""
    value = find(properties, b"WAIT")
    return value is None or value.lower() == b"true"


def remove(properties: bytes, name: bytes) -> bytes:
    """Return the properties without any pair of that name."""
    while (found := _span(properties, name, empty_too=True)) is not None:
        properties = properties[: found[0]] + properties[found[2] + 1 :]
    return properties


def put(properties: bytes, name: bytes, value: bytes) -> bytes:
    """Return the properties with this pair at the end, replacing earlier pairs of that name."""
    if name in properties:
        properties = remove(properties, name)
    if properties and properties[-1] != 2:
        properties += b"\x02"
    return properties + name + b"\x01" + value + b"\x02"


def _span(properties: bytes, name: bytes, *, empty_too: bool = False) -> tuple[int, int, int] | None:
    """Return the start of the last matching pair, and the start and end of its value.

    Returns None if no pair matches.
    """
    sought = name + b"\x01"
    before = len(properties)
    while True:
        start = properties.rfind(b"\x02" + sought, 0, before) + 1
        if start == 0 and not properties[:before].startswith(sought):
            return None
        value_start = start + len(sought)
        end = properties.find(b"\x02", value_start)
        if end < 0:
            end = len(properties)
        if end > value_start or empty_too:
            return start, value_start, end
        if start == 0:
            return None
        before = start
