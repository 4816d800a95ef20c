"""Sends: SEND_MESSAGE in its three forms, single messages and batches.

This is the hot path of the product. A plain send costs a few dictionary look-ups, one pass over the
properties to find special ones, and `store.append`. Nothing is decoded without need. The answer
waits in `broker.puts` until the turn's write is done (`puts.py`). A message with a delay level is
appended by `broker/special/delay` instead, one with a due time by `broker/special/timer`
(`timer_sends.py`), a half message by `broker/special/transactions`.

What is refused:

- Half messages with a delay or a due time: the mark of the delay would overwrite the topic of the
  half. Upstream's clients remove or refuse it. Transaction bits without the property TRAN_MSG:
  upstream stores such a message and never delivers it.
- Batches with a delay level or a due time, of either kind of topic. If single messages have one,
  upstream delivers these at once; if the whole batch has one, it never delivers it. Upstream's
  clients refuse delay levels.

Source: `broker/.../processor/SendMessageProcessor.java`, `AbstractSendMessageProcessor.msgCheck`,
`broker/.../util/HookUtils.java`.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rmqkit.access.rules import PUB, on_topic
from rmqkit.broker.handlers.admin.table_saves import handled_when_saved
from rmqkit.broker.handlers.messages import batch_shape, inner_batch, timer_sends
from rmqkit.broker.handlers.messages.batch_shape import Sent
from rmqkit.broker.handlers.messages.sent_properties import (
    BEHIND_SIZE_MAX,
    PLAIN_WAIT,
    SPECIAL,
    TAGS,
    UNIQ,
    UNIQ_PAIR,
    UNIQ_SIZE,
    behind_unique,
)
from rmqkit.broker.names import dlq_topic, topic_fault
from rmqkit.broker.tables.attributes import BATCH_QUEUE, QUEUE_TYPE
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import LATER, Call, Handlers, Refused, Response
from rmqkit.store.contract import Put, PutStatus
from rmqkit.store.log.uniform_batch import UniformBatch
from rmqkit.wire import properties as props
from rmqkit.wire.batch import decode_batch, equal_sizes
from rmqkit.wire.codes import MessageSysFlag, PermName, RequestCode, ResponseCode, Version
from rmqkit.wire.javahash import tags_code_of
from rmqkit.wire.schemas.send import SendMessageRequestV1, SendMessageRequestV2
from rmqkit.wire.topic_names import HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, SEND_FORBIDDEN

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView
    from rmqkit.wire.bodies import TopicConfig

SendRequest = SendMessageRequestV1 | SendMessageRequestV2

rows = Handlers()

PROPERTIES_SIZE_MAX = 32767

#: special properties that Java's hash map returns before the unique id
_LEADING = (b"TIMER_DELIVER_MS\x01", b"TRAN_MSG\x01true\x02")
_new = tuple.__new__
_BATCH_DELAYED = "a batch cannot be delayed (properties DELAY, TIMER_*): send delayed messages one by one"
_BATCH_HALF = "a batch cannot be a transaction (property TRAN_MSG): send half messages one by one"
_HALF_DELAYED = "a half message cannot be delayed (properties DELAY, TIMER_*)"
_INNER_ALONE = "the bit INNER_BATCH of sysFlag is set by the broker, for batches to topics with queue.type=BatchCQ"
_BITS_ALONE = "the transaction bits of sysFlag need the property TRAN_MSG=true"
#: a batch without these texts has no message that is delayed or half
_DELAYED = (b"DELAY\x01", b"TIMER_", b"TRAN_MSG\x01")
#: stands for a half message in place of a delay; a due time is far below it
HALF = -1
#: bits of sysFlag that no single message may have
_CHECKED_BITS = MessageSysFlag.TRANSACTION_MASK | MessageSysFlag.INNER_BATCH
_OWN = ("MSG_REGION", "TRACE_ON", "CLUSTER", "POP_CK", "WAIT", "__CRC32#")


@rows.handles(RequestCode.SEND_MESSAGE, SendMessageRequestV1, access=on_topic(PUB))
@rows.handles(RequestCode.SEND_MESSAGE_V2, SendMessageRequestV2, access=on_topic(PUB))
@rows.handles(RequestCode.SEND_BATCH_MESSAGE, SendMessageRequestV2, access=on_topic(PUB))
def send(broker: "BrokerView", call: Call[SendRequest]) -> Response:
    """Append a message or a batch, and park the call until its record is durable enough."""
    args = call.args
    topic = args.topic
    config = broker.topics.get(topic)
    queue_id = args.queue_id
    if config is None or topic in broker.guarded_topics or broker.send_blocked:
        config = _checked_topic(broker, call)
        if topic in broker.topics.unsaved:
            return handled_when_saved(broker, call, topic, send)
    if queue_id < 0 and config.write_queue_nums > 0:
        queue_id = broker.entropy.randrange(config.write_queue_nums)
    elif queue_id < 0 or (queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums):
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{queue_id}] is illegal, {topic} has {config.write_queue_nums} write and "
            f"{config.read_queue_nums} read queues",
        )
    body = call.body
    size_max = broker.config.send.max_message_size
    if not body or len(body) > size_max:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: a body of {len(body)} bytes, allowed are 1 to {size_max} (maxMessageSize)",
        )
    if broker.puts.is_full:
        raise Refused(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while")
    if args.batch:
        return _send_batch(broker, call, config, queue_id)
    properties, unique, code, wait, level = _properties(broker, args)
    if topic[0] == "%" and topic.startswith(RETRY_PREFIX) and _is_dead(broker, call):
        topic, queue_id, level = dlq_topic(topic[len(RETRY_PREFIX) :]), 0, 0
        properties = props.put(properties, b"DELAY", b"-1")
        call.changing()
        broker.topics.create_system(topic, 1, PermName.PERM_WRITE | PermName.PERM_READ)
        if topic in broker.topics.unsaved:
            return handled_when_saved(broker, call, topic, send)
        args.topic = topic  # the statistics count by it
    born_host, v6 = broker.hosts.of(call.conn)
    sys_flag = args.sys_flag & ~(MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6) | v6
    if config.topic_filter_type == "MULTI_TAG":
        sys_flag |= MessageSysFlag.MULTI_TAGS
    if sys_flag & _CHECKED_BITS:
        _check_bits(sys_flag, level)
    call.changed = True
    store_host, reconsume_times = broker.hosts.store_host, args.reconsume_times or 0
    # Costs half as much as calling the class.
    put = _new(
        Put,
        (
            topic, queue_id, args.flag, sys_flag, args.born_timestamp, born_host, store_host, reconsume_times, 0, body,
            properties, code,
        ),
    )  # fmt: skip
    if level:
        if level < HALF:
            return timer_sends.store(broker, call, put, -level, unique, wait)
        # Counted there now, and in its own topic on delivery.
        args.topic = HALF_TOPIC if level == HALF else SCHEDULE_TOPIC
        result = broker.transactions.append(put) if level == HALF else broker.delay.append(put, level)
    else:
        result = broker.store.append(put)
    if result.status is not PutStatus.PUT_OK:
        return broker.puts.refusal(result.status)
    broker.puts.park(call, queue_id, unique, result, wait)
    return LATER


def _properties(broker: "BrokerView", args: SendRequest) -> tuple[bytes, bytes, int, bool, int]:
    """Return (properties as stored, unique key, tag code, wait for the disk, delay).

    The delay is 0, a level, `HALF`, or for a due time the negative slot in ms
    (`timer_sends.due_slot`).
    Properties are decoded only if one of them is special. Raises Refused.
    """
    sent = (args.properties or "").encode()
    head, _, behind = sent.partition(b"\x02")
    known = behind_unique(behind) if head[:UNIQ_SIZE] == UNIQ_PAIR and len(behind) <= BEHIND_SIZE_MAX else None
    if known is not None and len(head) > UNIQ_SIZE:
        return head + known[0] + broker.own_properties, head[UNIQ_SIZE:], known[1], True, 0
    if sent.startswith(_LEADING) and (led := _led(broker, head, behind)) is not None:
        return led
    wait, level = True, 0
    # With a separator in front, every name stands between two marks. So the search does not match
    # the end of a longer name.
    text = b"\x02" + sent
    if text[-1] != 2:
        text += b"\x02"
    text = text.replace(PLAIN_WAIT, b"\x02", 1)
    if SPECIAL(text):
        special, wait, level = _special(broker, args, text[1:])
        text = b"\x02" + special
    plain = text[1:]
    code = 0
    if TAGS in text:
        code = tags_code_of(props.find(plain, b"TAGS"))
    at = text.find(UNIQ)
    if at >= 0:
        unique = text[at + len(UNIQ) : text.find(b"\x02", at + 1)]
    else:
        unique = broker.unique_id().encode()
        plain += b"UNIQ_KEY\x01" + unique + b"\x02"
    plain += broker.own_properties
    if len(plain) > PROPERTIES_SIZE_MAX:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL, f"the properties are {len(plain)} bytes, the limit is {PROPERTIES_SIZE_MAX}"
        )
    return plain, unique, code, wait, level


def _led(broker: "BrokerView", leading: bytes, rest: bytes) -> tuple[bytes, bytes, int, bool, int] | None:
    """Return what `_properties` does if only the pair before the unique id is special, else None.

    Raises Refused.
    """
    unique, _, behind = rest.partition(b"\x02")
    if unique[:UNIQ_SIZE] != UNIQ_PAIR or len(unique) == UNIQ_SIZE or len(behind) > BEHIND_SIZE_MAX:
        return None
    known = behind_unique(behind)
    if known is None or b"\x02TIMER_" in known[0]:
        return None
    if leading[:5] == b"TIMER":
        deliver_ms = leading[len(_LEADING[0]) :]
        if not deliver_ms.isdigit() or len(deliver_ms) > 18:
            return None
        level = -timer_sends.slot_at(broker, int(deliver_ms), is_marker=False)
    else:
        _check_transactions(broker)
        level = HALF
    properties = leading + b"\x02" + unique + known[0] + broker.own_properties
    return properties, unique[UNIQ_SIZE:], known[1], True, level


def _send_batch(broker: "BrokerView", call: Call[SendRequest], config: "TopicConfig", queue_id: int) -> Response:
    """Append a batch: one record per message, consecutive queue offsets, all or nothing."""
    args = call.args
    if args.topic.startswith(RETRY_PREFIX):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "batch request does not support retry group")
    if args.sys_flag & MessageSysFlag.TRANSACTION_MASK:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, _BATCH_HALF)
    unique, wait = _shared_properties(args.properties or "")
    is_inner = bool(unique) and config.attributes.get(QUEUE_TYPE) == BATCH_QUEUE
    entries = _decoded(call.body, is_inner)
    born_host, v6 = broker.hosts.of(call.conn)
    sys_flag = args.sys_flag & ~(MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6) | v6
    if config.topic_filter_type == "MULTI_TAG":
        sys_flag |= MessageSysFlag.MULTI_TAGS
    if is_inner:
        _check_inner(broker, args, call.body, entries)
        return inner_batch.store(broker, call, queue_id, sys_flag=sys_flag, born_host=born_host, count=len(entries))
    if sys_flag & MessageSysFlag.INNER_BATCH:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, _INNER_ALONE)
    messages = entries if isinstance(entries, UniformBatch) else _batch_messages(broker, args, entries)
    call.changed = True
    put = Put(
        args.topic,
        queue_id,
        args.flag,
        sys_flag,
        args.born_timestamp,
        born_host,
        broker.hosts.store_host,
        args.reconsume_times or 0,
        0,
        b"",
        b"",
        0,
    )
    result = broker.store.append_batch(put, messages)
    if result.status is not PutStatus.PUT_OK:
        return broker.puts.refusal(result.status)
    broker.puts.park(call, queue_id, unique, result, wait)
    return LATER


def _shared_properties(sent: str) -> tuple[bytes, bool]:
    """Return the unique id of a whole batch, and whether it waits for the disk. Raises Refused."""
    shared = sent.encode()
    head, _, behind = shared.partition(b"\x02")
    if head.startswith(UNIQ_PAIR) and len(behind) <= BEHIND_SIZE_MAX and behind_unique(behind) and UNIQ not in shared:
        return head[UNIQ_SIZE:], True
    if _is_half(sent):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, _BATCH_HALF)
    if _level(props.find(shared, b"DELAY") or b"") or any(props.find(shared, name.encode()) for name in timer_sends.TIMERS):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, _BATCH_DELAYED)
    return props.find(shared, b"UNIQ_KEY") or b"", props.waits_for_store(shared)


def _decoded(body: bytes, is_inner: bool) -> UniformBatch | Sequence[Sent]:
    """Return a batch as a uniform one, or as its messages. An inner batch is always the latter.

    Raises Refused.
    """
    sizes = None if is_inner else equal_sizes(body)
    if sizes is not None and sizes.message_count >= batch_shape.COUNT_MIN:
        found = batch_shape.of_equal_sizes(body, sizes)
        if found is not None:
            return found
    try:
        entries = decode_batch(body)
    except RemoteProtocolError as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be read: {error}") from None
    if is_inner or len(entries) < batch_shape.COUNT_MIN:
        return entries
    return batch_shape.of_messages(entries) or entries


def _batch_messages(
    broker: "BrokerView", args: SendRequest, entries: Sequence[Sent]
) -> list[tuple[int, bytes, bytes, int]]:
    """Return (flag, body, properties as stored, tags code) of each message. Raises Refused."""
    messages: list[tuple[int, bytes, bytes, int]] = []
    last: bytes | None = None
    known: tuple[bytes, int] | None = None
    for flag, body, sent in entries:
        head, _, behind = sent.partition(b"\x02")
        if behind != last:
            last = behind
            known = behind_unique(behind) if len(behind) <= BEHIND_SIZE_MAX else None
        if known is not None and head.startswith(UNIQ_PAIR):
            messages.append((flag, body, head + known[0], known[1]))
            continue
        text = (b"\x02" + sent).replace(PLAIN_WAIT, b"\x02", 1)
        properties = text[1:]
        if SPECIAL(text):
            properties, wait, level = _special(broker, args, properties)
            _check_undelayed(level)
            if not wait:
                # Readers of a batched message see WAIT=false, as from Apache's broker.
                properties += b"WAIT\x01false\x02"
        messages.append((flag, body, properties, tags_code_of(props.find(properties, b"TAGS"))))
    return messages


def _check_inner(broker: "BrokerView", args: SendRequest, body: bytes, entries: Iterable[tuple[Any, ...]]) -> None:
    """Raise Refused if a message of an inner batch is one that no batch may have.

    The search costs less than a look at the properties of each message.
    """
    if any(text in body for text in _DELAYED):
        for entry in entries:
            if SPECIAL(b"\x02" + entry[2]):
                _check_undelayed(_special(broker, args, entry[2])[2])


def _check_undelayed(level: int) -> None:
    if level:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, _BATCH_HALF if level == HALF else _BATCH_DELAYED)


def _check_bits(sys_flag: int, level: int) -> None:
    """Raise Refused for bits of sysFlag that do not fit a single message.

    Source: `broker/.../util/HookUtils.checkInnerBatch`.
    """
    if sys_flag & MessageSysFlag.INNER_BATCH:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, _INNER_ALONE)
    if level != HALF:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, _BITS_ALONE)


def _is_half(properties: str) -> bool:
    return "TRAN_MSG" in properties and props.decode(properties.encode()).get("TRAN_MSG", "").lower() == "true"


def check_blocked(broker: "BrokerView", args: SendRequest) -> None:
    """Raise Refused while the broker takes no messages.

    Without write permission of the broker (`brokerPermission`), only order topics are refused: the
    name servers tell producers within 30 s, and what they send until then is stored
    (`AbstractSendMessageProcessor.msgCheck`). If only the quorum is missing, just the messages that
    wait for copies are refused: upstream counts replicas for no others (`CommitLog.needHandleHA`).
    """
    blocked = broker.send_blocked
    if not blocked:
        return
    if broker.send_blocked_code is ResponseCode.NO_PERMISSION:
        topic = broker.topics.get(args.topic)
        if topic is None or not topic.order:
            return
    is_quorum_missing = blocked == broker.replication.acks.too_few
    if not is_quorum_missing or props.waits_for_store((args.properties or "").encode()):
        raise Refused(broker.send_blocked_code, blocked)


def _checked_topic(broker: "BrokerView", call: Call[SendRequest]) -> "TopicConfig":
    """Return a topic's configuration after all checks, and create the topic if that is allowed.

    This is the slow path. Raises Refused.
    """
    args = call.args
    topic = args.topic
    check_blocked(broker, args)
    fault = topic_fault(topic)
    if fault:
        raise Refused(ResponseCode.INVALID_PARAMETER, fault)
    if topic in SEND_FORBIDDEN:
        raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
    config = broker.topics.get(topic)
    if config is None:
        call.changing()
        count, unit_mode = args.default_topic_queue_nums, bool(args.unit_mode)
        config = broker.topics.create_by_send(topic, args.default_topic, count, unit_mode=unit_mode)
    if config is None:
        raise Refused(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[{topic}] not exist, apply first please! (rmqkit topic create {topic})",
        )
    return config


def _special(broker: "BrokerView", args: SendRequest, properties: bytes) -> tuple[bytes, bool, int]:
    """Handle special properties: refuse unsupported ones, drop those that the broker sets itself.

    Return the other properties, whether the put waits for the disk, and the delay (`_properties`).
    """
    mapping = props.decode(properties)
    level = _level(mapping.get("DELAY", "").encode())
    # Messages that clients before 4.6.1 send back keep the property of the half message.
    is_redelivery = level and (args.reconsume_times or 0) > 0
    if mapping.get("TRAN_MSG", "").lower() == "true" and not is_redelivery:
        _check_transactions(broker)
        if level or any(name in mapping for name in timer_sends.TIMERS):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, _HALF_DELAYED)
        level = HALF
    elif level:
        # A delay level takes precedence over timers (`HookUtils.checkIfTimerMessage`).
        for name in timer_sends.TIMERS:
            mapping.pop(name, None)
    elif any(name in mapping for name in timer_sends.TIMERS):
        level = -timer_sends.due_slot(broker, mapping)
    if "INNER_NUM" in mapping:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the property INNER_NUM is set by the broker, in inner batches only")
    if "INNER_MULTI_DISPATCH" in mapping:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "multi-dispatch is not supported by this broker yet")
    wait = props.waits_for_store(properties)
    for name in _OWN:
        mapping.pop(name, None)
    return props.encode(mapping), wait, level


def _check_transactions(broker: "BrokerView") -> None:
    """Raise Refused if the broker takes no half messages (`rejectTransactionMessage`)."""
    if broker.config.send.reject_transaction_message:
        address = broker.config.network.broker_ip1
        raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{address}] sending transaction message is forbidden")


def _level(text: bytes) -> int:
    """Return a delay level as `Message.getDelayTimeLevel` reads it; 0 for none or a negative one.

    Raises Refused if it is not a number.
    """
    if not text:
        return 0
    digits = text[1:] if text[:1] in b"+-" else text
    if not digits.isdigit() or len(digits) > 10:
        shown = text[:40].decode("utf-8", "replace")
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the delay level (property DELAY) is {shown!r}, not a number")
    return max(0, int(text))


def _is_dead(broker: "BrokerView", call: Call[SendRequest]) -> bool:
    """Return whether a message sent to a retry topic belongs in the group's dead-letter topic.

    Consumers send messages that failed to the retry topic themselves. A message is dead if it
    failed more often than the limit, or if the group holds queue locks (consumes in order).

    Source: `SendMessageProcessor.handleRetryAndDLQ`; unlike for CONSUMER_SEND_MSG_BACK, the limit
    is a strict `>`.
    """
    args = call.args
    group = args.topic[len(RETRY_PREFIX) :]
    config = broker.groups.get(group)
    if config is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}")
    times_max = config.retry_max_times
    if call.version >= Version.V3_4_9 and args.max_reconsume_times is not None:
        times_max = args.max_reconsume_times
    return (args.reconsume_times or 0) > times_max or broker.locks.holds_any(group, broker.clock.mono_ms)
