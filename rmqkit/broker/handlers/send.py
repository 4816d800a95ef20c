"""Sends: SEND_MESSAGE in its three forms, single messages and batches.

The hot path of the product. A plain send costs a few dictionary look-ups, one pass over the properties for anything
special, and `store.append`; nothing is decoded that is not needed. The answer waits in `broker.puts` until the turn's
one write is done (`puts.py`).

What is refused, and how: a feature that is not there yet (delay level, timer, transaction) is answered with what upstream
says when that feature is off, since a message stored as a plain one would be delivered at the wrong time or for nothing.

Source: `broker/.../processor/SendMessageProcessor.java`, `AbstractSendMessageProcessor.msgCheck`,
`broker/.../util/HookUtils.java`.
"""

import re
from typing import TYPE_CHECKING

from rmqkit.broker.names import DLQ_PREFIX, RETRY_PREFIX, SEND_FORBIDDEN, dlq_topic, topic_fault
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import LATER, Call, Handlers, Refused, Response
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.batch import decode_batch
from rmqkit.wire.codes import MessageSysFlag, PermName, RequestCode, ResponseCode, Version
from rmqkit.wire.javahash import tags_code
from rmqkit.wire.schemas.send import SendMessageRequestV1, SendMessageRequestV2

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker
    from rmqkit.wire.bodies import TopicConfig

SendRequest = SendMessageRequestV1 | SendMessageRequestV2

rows = Handlers()

PROPERTIES_SIZE_MAX = 32767

#: names at which a send leaves the plain path: what we set ourselves, what we refuse, what changes the put
_SPECIAL = re.compile(
    rb"[\x02](?:DELAY|TIMER_DELAY_SEC|TIMER_DELAY_MS|TIMER_DELIVER_MS|TRAN_MSG|MSG_REGION|TRACE_ON|CLUSTER|POP_CK|WAIT"
    rb"|INNER_NUM|INNER_BASE|INNER_MULTI_DISPATCH|__CRC32#)\x01"
).search
_PLAIN_WAIT = b"\x02WAIT\x01true\x02"
_TAGS = b"\x02TAGS\x01"
_UNIQ = b"\x02UNIQ_KEY\x01"
_OWN = ("MSG_REGION", "TRACE_ON", "CLUSTER", "POP_CK", "WAIT", "__CRC32#")


@rows.handles(RequestCode.SEND_MESSAGE, SendMessageRequestV1)
@rows.handles(RequestCode.SEND_MESSAGE_V2, SendMessageRequestV2)
@rows.handles(RequestCode.SEND_BATCH_MESSAGE, SendMessageRequestV2)
def send(broker: "Broker", call: Call[SendRequest]) -> Response:
    args = call.args
    topic = args.topic
    config = broker.topics.get(topic)
    queue_id = args.queue_id
    if config is None or topic in broker.guarded_topics or broker.send_blocked:
        config = _checked_topic(broker, call)
        if topic in broker.topics.unsaved:
            return _after_save(broker, call)
    if queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{queue_id}] is illegal, {topic} has {config.write_queue_nums} write and "
            f"{config.read_queue_nums} read queues",
        )
    if queue_id < 0:
        queue_id = broker.entropy.randrange(max(1, config.write_queue_nums))
    if not config.perm & PermName.PERM_WRITE:
        raise Refused(
            ResponseCode.NO_PERMISSION, f"sending to topic[{topic}] is forbidden: its permission is {config.perm}"
        )
    body = call.body
    size_max = broker.config.send.max_message_size
    if not body or len(body) > size_max:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: a body of {len(body)} bytes, allowed are 1 to {size_max} (maxMessageSize)",
        )
    if args.batch:
        return _send_batch(broker, call, config, queue_id)
    if topic[0] == "%" and topic.startswith(RETRY_PREFIX):
        topic, queue_id = _retry_or_dlq(broker, call, queue_id)

    if broker.puts.is_full:
        raise Refused(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while")
    properties, unique, code, wait = _properties(broker, args)
    born_host, v6 = broker.hosts.of(call.conn)
    sys_flag = args.sys_flag & ~(MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6) | v6
    if config.topic_filter_type == "MULTI_TAG":
        sys_flag |= MessageSysFlag.MULTI_TAGS
    if sys_flag & MessageSysFlag.TRANSACTION_MASK:
        _refuse_transaction(broker)
    call.changed = True
    result = broker.store.append(
        Put(
            topic,
            queue_id,
            args.flag,
            sys_flag,
            args.born_timestamp,
            born_host,
            broker.hosts.store_host,
            args.reconsume_times or 0,
            0,
            body,
            properties,
            code,
        )
    )
    if result.status is not PutStatus.PUT_OK:
        return broker.puts.refusal(result.status)
    broker.puts.park(call, queue_id, unique, result, wait)
    return LATER


def _properties(broker: "Broker", args: SendRequest) -> tuple[bytes, bytes, int, bool]:
    """(properties as stored, unique key, tag code, wait for the disk). Decoded only when something is special."""
    wait = True
    # Led by a separator, so that every name stands between two marks and no longer name ends in it.
    text = b"\x02" + (args.properties or "").encode()
    if text[-1] != 2:
        text += b"\x02"
    text = text.replace(_PLAIN_WAIT, b"\x02", 1)
    if _SPECIAL(text):
        special, wait = _special(broker, args, text[1:])
        text = b"\x02" + special
    plain = text[1:]
    code = 0
    if _TAGS in text:
        tag = props.find(plain, b"TAGS")
        code = tags_code(tag.decode()) if tag else 0
    at = text.find(_UNIQ)
    if at >= 0:
        unique = text[at + len(_UNIQ) : text.find(b"\x02", at + 1)]
    else:
        unique = broker.unique_id().encode()
        plain += b"UNIQ_KEY\x01" + unique + b"\x02"
    plain += broker.own_properties
    if len(plain) > PROPERTIES_SIZE_MAX:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL, f"the properties are {len(plain)} bytes, the limit is {PROPERTIES_SIZE_MAX}"
        )
    return plain, unique, code, wait


def _send_batch(broker: "Broker", call: Call[SendRequest], config: "TopicConfig", queue_id: int) -> Response:
    """One record per message, consecutive queue offsets, all or nothing."""
    args = call.args
    if args.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "batch request does not support retry group")
    if args.sys_flag & MessageSysFlag.TRANSACTION_MASK:
        _refuse_transaction(broker)
    try:
        entries = decode_batch(call.body)
    except RemoteProtocolError as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be read: {error}") from None
    messages: list[tuple[int, bytes, bytes, int]] = []
    for entry in entries:
        text = (b"\x02" + entry.properties).replace(_PLAIN_WAIT, b"\x02", 1)
        properties = text[1:]
        if _SPECIAL(text):
            properties, _ = _special(broker, args, properties)
        tag = props.find(properties, b"TAGS")
        messages.append((entry.flag, entry.body, properties, tags_code(tag.decode()) if tag else 0))
    born_host, v6 = broker.hosts.of(call.conn)
    sys_flag = args.sys_flag & ~(MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6) | v6
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
    shared = (args.properties or "").encode()
    unique = props.find(shared, b"UNIQ_KEY") or b""
    broker.puts.park(call, queue_id, unique, result, props.find(shared, b"WAIT") != b"false")
    return LATER


def _checked_topic(broker: "Broker", call: Call[SendRequest]) -> "TopicConfig":
    """The slow way to a topic's configuration: everything that can forbid a send, then auto-creation."""
    args = call.args
    topic = args.topic
    if broker.send_blocked:
        raise Refused(broker.send_blocked_code, broker.send_blocked)
    fault = topic_fault(topic)
    if fault:
        raise Refused(ResponseCode.INVALID_PARAMETER, fault)
    if topic in SEND_FORBIDDEN:
        raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
    config = broker.topics.get(topic)
    if config is None:
        call.changing()
        config = broker.topics.create_by_send(topic, args.default_topic, args.default_topic_queue_nums)
    if config is None:
        raise Refused(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[{topic}] not exist, apply first please! (rmqkit topic create {topic})",
        )
    return config


def _after_save(broker: "Broker", call: Call[SendRequest]) -> Response:
    """The topic is not in its file yet: a message acknowledged now could not be reached after a kill. The send is handled
    from the start when it is."""

    def saved() -> None:
        if not call.is_alive and not call.oneway:
            call.finished = True
        elif call.args.topic in broker.topics.unsaved:
            why = f"topic {call.args.topic} could not be saved: {broker.topics.save_error}"
            call.finish(call.error(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {why}"))
        else:
            broker.remoting.handle(call, send)

    broker.topics.when_saved(saved)
    return LATER


def _special(broker: "Broker", args: SendRequest, properties: bytes) -> tuple[bytes, bool]:
    """Properties that hold more than a plain message's: refuse what is not there yet, drop what we write ourselves."""
    mapping = props.decode(properties)
    level = mapping.get("DELAY", "0")
    if level.lstrip("+").isdigit() and int(level) > 0:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL, "delayed messages (property DELAY) are not supported by this broker yet"
        )
    if any(name in mapping for name in ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")):
        raise Refused(ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false")
    if mapping.get("TRAN_MSG", "").lower() == "true":
        _refuse_transaction(broker)
    if any(name in mapping for name in ("INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH")):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "inner batches and multi-dispatch are not supported by this broker yet")
    wait = mapping.get("WAIT", "true").lower() != "false"
    for name in _OWN:
        mapping.pop(name, None)
    return props.encode(mapping), wait


def _refuse_transaction(broker: "Broker") -> None:
    """`rejectTransactionMessage` makes this the operator's wish; without it the feature is just not there yet."""
    address = broker.config.network.broker_ip1
    why = "" if broker.config.send.reject_transaction_message else " (transactions are not supported yet)"
    raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{address}] sending transaction message is forbidden{why}")


def _retry_or_dlq(broker: "Broker", call: Call[SendRequest], queue_id: int) -> tuple[str, int]:
    """A consumer puts a failed message back by itself. Past the group's limit it goes to the group's dead-letter topic.

    Source: `SendMessageProcessor.handleRetryAndDLQ`; the limit here is a strict `>`.
    """
    args = call.args
    group = args.topic[len(RETRY_PREFIX) :]
    config = broker.groups.get(group)
    if config is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}")
    times_max = config.retry_max_times
    if call.version >= Version.V3_4_9 and args.max_reconsume_times is not None:
        times_max = args.max_reconsume_times
    if (args.reconsume_times or 0) <= times_max:
        return args.topic, queue_id
    topic = dlq_topic(group)
    call.changing()
    broker.topics.create_system(topic, 1, PermName.PERM_WRITE | PermName.PERM_READ)
    return topic, 0
