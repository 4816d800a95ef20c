"""Topic administration: create, change, delete, list, read back.

Source: `broker/.../processor/AdminBrokerProcessor.{updateAndCreateTopic,deleteTopic,getAllTopicConfig,getTopicConfig,
getTopicStatsInfo,queryTopicConsumeByWho,queryTopicsByConsumer}`.
"""

from typing import TYPE_CHECKING, Any

from rmqkit.broker.names import is_system_topic, topic_fault
from rmqkit.broker.topics import QUEUE_COUNT_MAX, TOPICS_MAX
from rmqkit.runtime.calls import LATER, Call, Handlers, Refused, Response
from rmqkit.wire.bodies import GroupList, MessageQueue, TopicConfig, TopicList, TopicOffset, TopicStatsTable
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas.topics import (
    CreateTopicRequest,
    DeleteTopicRequest,
    GetAllTopicConfigRequest,
    GetAllTopicConfigResponse,
    GetTopicConfigRequest,
    GetTopicStatsInfoRequest,
    QueryTopicConsumeByWhoRequest,
    QueryTopicsByConsumerRequest,
)

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker

rows = Handlers()

PERM_MAX = 15
PAGE_MAX = 2000


@rows.handles(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicRequest)
def create(broker: "Broker", call: Call[CreateTopicRequest]) -> Response:
    args = call.args
    fault = topic_fault(args.topic)
    if fault is None and broker.config.topics.validate_system_topic_when_update_topic and is_system_topic(args.topic):
        fault = f"The topic[{args.topic}] is conflict with system topic."
    if fault is None:
        fault = _fault(args)
    if fault:
        raise Refused(ResponseCode.INVALID_PARAMETER, fault)
    known = broker.topics.get(args.topic)
    if known is None and len(broker.topics.by_name) >= TOPICS_MAX:
        raise Refused(ResponseCode.SYSTEM_BUSY, f"this broker holds {TOPICS_MAX} topics already")
    config = TopicConfig(
        topic_name=args.topic,
        read_queue_nums=args.read_queue_nums,
        write_queue_nums=args.write_queue_nums,
        perm=args.perm,
        topic_filter_type=args.topic_filter_type,
        topic_sys_flag=args.topic_sys_flag or 0,
        order=args.order,
        attributes=_attributes(known.attributes if known else {}, args.attributes),
    )
    if config != known:
        call.changing()
        broker.topics.put(config)
    return _answer_when_kept(broker, call)


def _answer_when_kept(broker: "Broker", call: Call[Any]) -> Response:
    """Success when the file has it and the name servers know it; an error when the file could not be written."""

    def told() -> None:
        error = broker.topics.save_error
        if error is None:
            call.finish(call.ok())
        else:
            call.finish(call.error(ResponseCode.SYSTEM_ERROR, f"done, but topics.json could not be written: {error}"))

    broker.topics.when_saved(lambda: broker.registration.when_told(told))
    return LATER


def _fault(args: CreateTopicRequest) -> str | None:
    for name, count in (("readQueueNums", args.read_queue_nums), ("writeQueueNums", args.write_queue_nums)):
        if not 0 <= count <= QUEUE_COUNT_MAX:
            return f"{name} {count} is not within 0 and {QUEUE_COUNT_MAX}"
    if not 0 <= args.perm <= PERM_MAX:
        return f"perm {args.perm} is not a sum of 1 (inherit), 2 (write), 4 (read) and 8 (priority)"
    if args.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
        return f"topicFilterType {args.topic_filter_type!r} is neither SINGLE_TAG nor MULTI_TAG"
    kind = _attributes({}, args.attributes)
    if kind.get("message.type", "NORMAL") == "MIXED":
        return "MIXED message type is not supported."
    if kind.get("queue.type", "SimpleCQ") != "SimpleCQ":
        return f"queue.type {kind['queue.type']} is not supported by this broker yet"
    return None


def _attributes(known: dict[str, str], changes: str | None) -> dict[str, str]:
    """Attribute changes as mqadmin writes them, `+key=value,-key2`, laid over what is there."""
    merged = dict(known)
    for change in (changes or "").split(","):
        sign, text = change[:1], change[1:]
        key, equals, value = text.partition("=")
        if sign == "+" and key and equals:
            merged[key] = value
        elif sign == "-" and key:
            merged.pop(key, None)
        elif change.strip():
            raise Refused(ResponseCode.INVALID_PARAMETER, f"attribute change {change!r} is neither +key=value nor -key")
    return merged


@rows.handles(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest)
def delete(broker: "Broker", call: Call[DeleteTopicRequest]) -> Response:
    topic = call.args.topic
    if not topic.strip():
        raise Refused(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    if topic in broker.topics.system or is_system_topic(topic):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")
    call.changing()
    broker.delete_topic(topic)
    return _answer_when_kept(broker, call)


@rows.handles(RequestCode.GET_ALL_TOPIC_CONFIG, GetAllTopicConfigRequest)
def all_topics(broker: "Broker", call: Call[GetAllTopicConfigRequest]) -> Response:
    """Everything, or a page of it by name when the peer asks for pages."""
    table = broker.topics.snapshot()
    total = len(table.topic_config_table)
    if call.args.topic_seq is not None:
        first = max(0, call.args.topic_seq)
        count = min(PAGE_MAX, call.args.max_topic_num or PAGE_MAX)
        names = sorted(table.topic_config_table)[first : first + count]
        table = broker.topics.snapshot(names)
    return call.ok(GetAllTopicConfigResponse(total_topic_num=total), table.encode())


@rows.handles(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequest)
def topic_config(broker: "Broker", call: Call[GetTopicConfigRequest]) -> Response:
    """Absent is exactly TOPIC_NOT_EXIST: admin tools swallow that code and no other."""
    config = broker.topics.get(call.args.topic)
    if config is None:
        return call.error(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {call.args.topic}")
    return call.ok(body=config.encode())


@rows.handles(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequest)
def stats(broker: "Broker", call: Call[GetTopicStatsInfoRequest]) -> Response:
    """Every queue has a row, empty ones too: after creating a topic, tools wait for a non-empty table."""
    topic = call.args.topic
    config = broker.topics.get(topic)
    if config is None:
        return call.error(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
    name = broker.config.identity.broker_name
    table = {}
    for queue_id in range(max(config.write_queue_nums, config.read_queue_nums)):
        known = broker.store.queue_range(topic, queue_id)
        updated_ms = 0
        if known.offset_max > 0:
            updated_ms = max(0, broker.store.store_time(topic, queue_id, known.offset_max - 1))
        queue = MessageQueue(topic=topic, broker_name=name, queue_id=queue_id)
        table[queue] = TopicOffset(
            min_offset=max(0, known.offset_min), max_offset=max(0, known.offset_max), last_update_timestamp=updated_ms
        )
    return call.ok(body=TopicStatsTable(offset_table=table).encode())


@rows.handles(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, QueryTopicConsumeByWhoRequest)
def consumed_by(broker: "Broker", call: Call[QueryTopicConsumeByWhoRequest]) -> Response:
    topic = call.args.topic
    online = [group.name for group in broker.clients.consumers.values() if topic in group.subscriptions]
    groups = list(dict.fromkeys([*online, *broker.offsets.groups_of(topic)]))
    return call.ok(body=GroupList(group_list=groups).encode())


@rows.handles(RequestCode.QUERY_TOPICS_BY_CONSUMER, QueryTopicsByConsumerRequest)
def topics_of(broker: "Broker", call: Call[QueryTopicsByConsumerRequest]) -> Response:
    return call.ok(body=TopicList(topic_list=broker.offsets.topics_of(call.args.group)).encode())
