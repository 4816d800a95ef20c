"""Rewrites a transactional message from one of its forms into the next.

    half         in the half topic, queue 0. REAL_TOPIC and REAL_QID have its own topic and queue.
                 Its transaction bits are cleared, so that it gets an entry in the half queue.
    again        a copy of a half, put at the end of the half queue before a check
    given up     in the topic of halves that nobody decided
    committed    in its own topic, with the commit bits and the log offset of its half
    prepared     for a broker of another group, which makes it a half of its own

A copy keeps flag and reconsume count; Apache's loses them (`renewHalfMessageInner`).

Source: `broker/.../transaction/queue/TransactionalMessageBridge.java` (`parseHalfMessageInner`,
`renewHalfMessageInner`), `TransactionalMessageUtil.java`,
`broker/.../processor/EndTransactionProcessor.java` (`endMessageTransaction`).
"""

from collections.abc import Sequence
from functools import lru_cache

from rmqkit.store.contract import Put
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.javahash import tags_code, tags_code_of
from rmqkit.wire.record import Record, encode_copy
from rmqkit.wire.topic_names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_TOPIC

_REAL_TOPIC = props.PROPERTY_REAL_TOPIC.encode()
_REAL_QUEUE_ID = props.PROPERTY_REAL_QUEUE_ID.encode()
_UNIQ = props.PROPERTY_UNIQ_KEY.encode()
_ID = props.PROPERTY_TRANSACTION_ID.encode()
_TAGS = props.PROPERTY_TAGS.encode()
_CHECKS = props.PROPERTY_TRANSACTION_CHECK_TIMES.encode()
_FIRST = props.PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET.encode()
_IMMUNITY = props.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS.encode()
_CRC = props.PROPERTY_CRC32.encode()
#: what a half gains last
_TARGET = b"%b\x01%%b\x02%b\x01%%d\x02" % (_REAL_TOPIC, _REAL_QUEUE_ID)
_TARGET_MARK = b"\x02%b\x01" % _REAL_TOPIC
#: remembered targets, and bytes of properties that are remembered
CACHED_MAX, CACHED_SIZE_MAX = 1_024, 512
_BITS = MessageSysFlag.TRANSACTION_MASK
#: bytes that a half keeps free in its properties for the marks of its copies
MARKS_SIZE_MAX = 256
#: tag and properties of an op
OP_TAG = "d"
_OP_PROPERTIES = props.encode({"TAGS": OP_TAG, "WAIT": "true"})


def half(put: Put) -> Put:
    """Return the half form of a message that was sent."""
    topic, queue_id, flag, sys_flag, *between, properties, code = put
    unique = props.find(properties, _UNIQ)
    if unique is not None:
        properties = props.put(properties, _ID, unique)
    if b"REAL_" in properties or properties[-1:] != b"\x02":
        properties = props.put(properties, _REAL_TOPIC, topic.encode())
        properties = props.put(properties, _REAL_QUEUE_ID, b"%d" % queue_id)
    else:
        properties += _gained(topic, queue_id)  # the same in one step
    # Costs a third of `_replace`.
    return tuple.__new__(Put, (HALF_TOPIC, 0, flag, sys_flag & ~_BITS, *between, properties, code))


@lru_cache(maxsize=CACHED_MAX)
def _gained(topic: str, queue_id: int) -> bytes:
    return _TARGET % (topic.encode(), queue_id)


def target(properties: bytes) -> tuple[str, int] | None:
    """Return topic and queue of a half's message; None if they are missing or invalid."""
    at = properties.rfind(_TARGET_MARK)
    # Nearly always both come last, as `half` writes them, and many halves have the same.
    return _target(properties[at:] if at >= 0 and len(properties) - at <= CACHED_SIZE_MAX else properties)


@lru_cache(maxsize=CACHED_MAX)
def _target(properties: bytes) -> tuple[str, int] | None:
    topic, queue_id = props.find(properties, _REAL_TOPIC), props.find(properties, _REAL_QUEUE_ID)
    if topic is None or queue_id is None or not queue_id.isdigit() or int(queue_id) > 0x7FFFFFFF:
        return None
    name = topic.decode("utf-8", "replace")
    return None if name in (HALF_TOPIC, OP_TOPIC) else (name, int(queue_id))


def committed(record: Record, store_host: bytes) -> Put | None:
    """Return the message of a half as consumers get it; None if its topic is unknown."""
    where = target(record.properties)
    if where is None:
        return None
    properties = record.properties
    at = properties.find(b"REAL_")
    if properties[at:] == _gained(*where):
        properties = properties[:at]  # as `half` has written them
    else:
        properties = props.remove(props.remove(properties, _REAL_TOPIC), _REAL_QUEUE_ID)
    sys_flag = record.sys_flag & ~_BITS | MessageSysFlag.TRANSACTION_COMMIT
    return _put(record, store_host, *where, sys_flag, record.phy_offset, properties)


def again(record: Record, store_host: bytes, *, checks: int, is_immune: bool = False) -> Put:
    """Return the copy of a half for the end of its queue, checked `checks` times.

    A half that is immune keeps the number of checks; its copy names the first half.
    """
    properties = record.properties
    properties = props.put(properties, _CHECKS, b"%d" % checks) if checks else props.remove(properties, _CHECKS)
    if is_immune and props.find(properties, _FIRST) is None:
        properties = props.put(properties, _FIRST, b"%d" % record.queue_offset)
    return _put(record, store_host, HALF_TOPIC, 0, record.sys_flag & ~_BITS, 0, properties)


def given_up(record: Record, store_host: bytes) -> Put:
    """Return the form in which a half is kept that nobody decided."""
    return _put(record, store_host, CHECK_MAX_TIME_TOPIC, 0, record.sys_flag & ~_BITS, 0, record.properties)


def prepared(put: Put) -> Put | None:
    """Return a half as a message that another broker makes its own half.

    None if the half has no topic.
    """
    where = target(put.properties)
    if where is None:
        return None
    properties = put.properties
    for name in (_REAL_QUEUE_ID, _FIRST):
        properties = props.remove(properties, name)
    properties = props.put(properties, props.PROPERTY_TRANSACTION_PREPARED.encode(), b"true")
    sys_flag = put.sys_flag & ~_BITS | MessageSysFlag.TRANSACTION_PREPARED
    return put._replace(topic=where[0], queue_id=where[1], sys_flag=sys_flag, properties=properties)


def op(offsets: Sequence[int], host: bytes, wall_ms: int) -> Put:
    """Return the op that names these decided halves. Its body is `12,13,`."""
    body = "".join(f"{offset}," for offset in offsets).encode()
    code = tags_code(OP_TAG)
    return Put(OP_TOPIC, 0, 0, 0, wall_ms, host, host, 0, 0, body, _OP_PROPERTIES, code)


def op_offsets(body: bytes) -> list[int]:
    """Return the half offsets that an op names; words that are no numbers are left out."""
    return [int(word) for word in body.split(b",") if word.isdigit() and len(word) <= 19]


def question(record: Record, place: tuple[int, int]) -> bytes:
    """Return the body of a check: the half as a record of its own topic and queue.

    `place` is the queue offset and the log offset of the copy that the answer has to name.
    """
    topic, queue_id = target(record.properties) or (record.topic, record.queue_id)
    return encode_copy(
        record,
        topic=topic,
        queue_id=queue_id,
        queue_offset=place[0],
        phy_offset=place[1],
        prepared_offset=0,
        properties=props.remove(record.properties, _CRC),
    )


def checks_of(properties: bytes) -> int:
    """Return how often a half was checked."""
    text = props.find(properties, _CHECKS) or b""
    return int(text) if text.isdigit() and len(text) <= 9 else 0


def immunity_of(properties: bytes, timeout_ms: int) -> int | None:
    """Return the half's own time without checks in ms; None if it sets none.

    What is no number counts as `transactionTimeOut` (`getImmunityTime`).
    """
    text = props.find(properties, _IMMUNITY)
    if text is None:
        return None
    digits = text[1:] if text[:1] == b"-" else text
    return int(text) * 1000 if digits.isdigit() and len(digits) <= 10 else timeout_ms


def _put(
    record: Record,
    store_host: bytes,
    topic: str,
    queue_id: int,
    sys_flag: int,
    prepared_offset: int,
    properties: bytes,
) -> Put:
    if _CRC in properties:
        properties = props.remove(properties, _CRC)
    code = tags_code_of(props.find(properties, _TAGS)) if _TAGS in properties else 0
    # Costs a third of calling the class, and of the names of the record's fields.
    _, _, _, _, flag, _, _, _, born_ms, born_host, _, _, reconsume_times, _, body, _, _ = record
    return tuple.__new__(
        Put,
        (
            topic, queue_id, flag, sys_flag, born_ms, born_host, store_host, reconsume_times, prepared_offset, body,
            properties, code,
        ),
    )  # fmt: skip
