"""CONSUMER_SEND_MSG_BACK: a consumer could not consume a message and wants it redelivered later.

The request names the message by its log offset. A copy of it is stored for the group:

- in the group's retry topic, after a delay: the requested delay level, or 3 plus the number of
  failed deliveries so far;
- at once in the group's dead-letter topic, if the failed deliveries have reached the limit or the
  requested level is below 0.

The copy has the original topic (RETRY_TOPIC) and the original id (ORIGIN_MESSAGE_ID), keeps the
born host and born time, and counts one more failed delivery.

The request is answered when the copy is as durable as a send would be; upstream does not wait for
the disk here.

A broker that acts for its master may not write. The copy escapes to another master
(`broker/escape`), which delays it. Only one attempt is made, since the consumer waits. If it fails,
the consumer keeps the message.

A message of an inner batch cannot be sent back this way, because the broker knows only the whole
batch. Apache answers SYSTEM_ERROR too. Clients then send the message to the retry topic.

Source: `broker/.../processor/AbstractSendMessageProcessor.java` (`consumerSendMsgBack`).
"""

from functools import partial
from typing import TYPE_CHECKING

from rmqkit.access.rules import SUB, every, on_group
from rmqkit.broker.handlers.admin.table_saves import handled_when_saved
from rmqkit.broker.handlers.demands import STORED_SUB, stored_topic
from rmqkit.broker.names import dlq_topic, retry_topic, topic_fault
from rmqkit.broker.tables.topics import UNIT_SUB
from rmqkit.errors import CorruptRecord
from rmqkit.runtime.calls import Answer, Call, Handlers, Refused, Response
from rmqkit.store.contract import Put, PutResult, PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag, PermName, RequestCode, ResponseCode, Version
from rmqkit.wire.javahash import tags_code_of
from rmqkit.wire.msgid import offset_id
from rmqkit.wire.record import REDELIVERIES_MAX, Record, decode_record
from rmqkit.wire.schemas.send import ConsumerSendMsgBackRequest
from rmqkit.wire.topic_names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView
    from rmqkit.wire.bodies import SubscriptionGroupConfig, TopicConfig

rows = Handlers()

#: the level of the first redelivery when the consumer leaves the choice to the broker
FIRST_LEVEL = 3

_DELAY = props.PROPERTY_DELAY_TIME_LEVEL.encode()
_RETRY_TOPIC = props.PROPERTY_RETRY_TOPIC.encode()
_ORIGIN = props.PROPERTY_ORIGIN_MESSAGE_ID.encode()
_CRC = props.PROPERTY_CRC32.encode()
_TAGS = props.PROPERTY_TAGS.encode()


@rows.handles(
    RequestCode.CONSUMER_SEND_MSG_BACK,
    ConsumerSendMsgBackRequest,
    access=every(on_group(SUB, field="group"), STORED_SUB),
)
def send_back(broker: "BrokerView", call: Call[ConsumerSendMsgBackRequest]) -> Response:
    """Store a copy of a message for redelivery or as a dead letter."""
    args = call.args
    group = broker.groups.get(args.group)
    if group is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {args.group}")
    if broker.send_blocked and not broker.escape.is_open:
        raise Refused(broker.send_blocked_code, broker.send_blocked)
    if group.retry_queue_nums <= 0:
        # A group without retry queues drops messages that it could not consume.
        return call.ok()
    fault = topic_fault(retry_topic(args.group))
    if fault:
        raise Refused(ResponseCode.INVALID_PARAMETER, fault)
    if broker.puts.own_count + broker.escape.in_flight >= broker.config.limits.waiters_max:
        raise Refused(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while")
    record = _record(broker, args.offset)
    call.demand(stored_topic(record, SUB))
    if record.sys_flag & MessageSysFlag.INNER_BATCH:
        # A copy would bring back all messages of the batch. The client then sends its message.
        raise Refused(ResponseCode.SYSTEM_ERROR, "the message is part of an inner batch: send it to the retry topic")
    is_dead = _is_dead(call, group, record)
    level = 0 if is_dead else args.delay_level or FIRST_LEVEL + record.reconsume_times
    if broker.escape.is_open:
        return _escape(broker, call, group, record, level, is_dead=is_dead)
    config = _topic(broker, call, group, is_dead=is_dead)
    if config.topic_name in broker.topics.unsaved:
        return handled_when_saved(broker, call, config.topic_name, send_back)
    queue_id = broker.entropy.randrange(1 if is_dead else group.retry_queue_nums)
    call.changing()
    put = _copy(broker, record, config.topic_name, queue_id, level)
    result: PutResult = broker.delay.append(put, level) if level > 0 else broker.store.append(put)

    def ended(answer: Answer, status: PutStatus) -> None:
        if status is PutStatus.PUT_OK:
            broker.statistics.count_send_back(_first_topic(record), args.group)
            answer(call.ok())
        elif status is PutStatus.SERVICE_NOT_AVAILABLE:
            answer(broker.puts.refusal(status))
        else:
            answer(call.error(ResponseCode.SYSTEM_ERROR, status.name))

    # Like a delayed send, the copy is counted in its own topic when it is delivered.
    counted_in = SCHEDULE_TOPIC if level > 0 else put.topic
    return call.later(lambda answer: broker.puts.await_own(counted_in, result, partial(ended, answer), copies=True))


def _escape(
    broker: "BrokerView",
    call: Call[ConsumerSendMsgBackRequest],
    group: "SubscriptionGroupConfig",
    record: Record,
    level: int,
    *,
    is_dead: bool,
) -> Response:
    """Put the copy on another master.

    Creates no topic here, since only the master of this broker group may.
    """
    name = call.args.group
    queue_id = broker.entropy.randrange(1 if is_dead else group.retry_queue_nums)
    put = _copy(broker, record, dlq_topic(name) if is_dead else retry_topic(name), queue_id, level)
    call.changing()

    def ended(answer: Answer, status: PutStatus) -> None:
        if status is PutStatus.PUT_OK:
            broker.statistics.count_send_back(_first_topic(record), name)
            answer(call.ok())
        else:
            why = broker.escape.why or status.name
            answer(call.error(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {why}"))

    origin = f"BACK:{record.phy_offset}"
    return call.later(lambda answer: broker.escape.put(put, origin, partial(ended, answer), level=level))


def _first_topic(record: Record) -> str:
    """Return the message's original topic, from its record: the request's field is not reliable."""
    topic = props.find(record.properties, _RETRY_TOPIC)
    return record.topic if topic is None else topic.decode("utf-8", "replace")


def _record(broker: "BrokerView", phy_offset: int) -> Record:
    data = broker.store.record(phy_offset) if phy_offset >= 0 else None
    try:
        record = None if data is None else decode_record(data, check_crc=True)
    except CorruptRecord:
        record = None
    if not isinstance(record, Record):
        raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {phy_offset}")
    return record


def _is_dead(call: Call[ConsumerSendMsgBackRequest], group: "SubscriptionGroupConfig", record: Record) -> bool:
    times_max = group.retry_max_times
    if call.version >= Version.V3_4_9 and call.args.max_reconsume_times is not None:
        times_max = call.args.max_reconsume_times
    return record.reconsume_times >= times_max or call.args.delay_level < 0


def _topic(
    broker: "BrokerView", call: Call[ConsumerSendMsgBackRequest], group: "SubscriptionGroupConfig", *, is_dead: bool
) -> "TopicConfig":
    """Return the topic of the copy; create it if it is missing. Raises Refused if not writable."""
    call.changing()
    perm = PermName.PERM_WRITE | PermName.PERM_READ
    if is_dead:
        return broker.topics.create_system(dlq_topic(call.args.group), 1, perm)
    name = retry_topic(call.args.group)
    sys_flag = UNIT_SUB if call.args.unit_mode else 0
    config = broker.topics.create_system(name, group.retry_queue_nums, perm, sys_flag=sys_flag)
    if not config.perm & PermName.PERM_WRITE:
        raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
    return config


def _copy(broker: "BrokerView", record: Record, topic: str, queue_id: int, level: int) -> Put:
    properties = props.remove(record.properties, _CRC)
    if props.find(properties, _RETRY_TOPIC) is None:
        properties = props.put(properties, _RETRY_TOPIC, record.topic.encode())
    if props.find(properties, _ORIGIN) is None:
        properties = props.put(properties, _ORIGIN, offset_id(record.store_host, record.phy_offset).encode())
    properties = props.put(properties, _DELAY, b"%d" % level)
    return Put(
        topic=topic,
        queue_id=queue_id,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_ms=record.born_ms,
        born_host=record.born_host,
        store_host=broker.hosts.store_host,
        reconsume_times=min(record.reconsume_times + 1, REDELIVERIES_MAX),
        prepared_offset=0,
        body=record.body,
        properties=properties,
        tags_code=tags_code_of(props.find(properties, _TAGS)),
    )
