"""Topic administration: create, change, delete, list, read back.

Of several topics in one request (18), all are created or none: each is checked before the first is
changed.

Source: `broker/.../processor/AdminBrokerProcessor.{updateAndCreateTopic,updateAndCreateTopicList,
deleteTopic,getAllTopicConfig,getTopicConfig,getTopicStatsInfo,queryTopicConsumeByWho,
queryTopicsByConsumer,getSystemTopicListFromBroker}`.
"""

from typing import TYPE_CHECKING, Any

from rmqkit.access.rules import CREATE, DELETE, GET, TOPIC, all_listed, either, inner, lists, on_group, on_topic
from rmqkit.broker.handlers.admin.table_saves import answer_when_kept, check_may_change, page_of
from rmqkit.broker.handlers.demands import TOPICS_CREATED
from rmqkit.broker.names import is_system_topic, topic_fault
from rmqkit.broker.tables.attributes import TOPIC_ATTRIBUTES, Changes, altered, parse
from rmqkit.broker.tables.topics import QUEUE_COUNT_MAX, TOPICS_MAX
from rmqkit.runtime.calls import Call, Handlers, Refused, Response
from rmqkit.wire.bodies import (
    GroupList,
    MessageQueue,
    TopicConfig,
    TopicConfigAndMappingTable,
    TopicConfigList,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
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
from rmqkit.wire.topic_names import RETRY_PREFIX, SYSTEM_TOPICS

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()

PERM_MAX = 15


@rows.handles(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicRequest, access=on_topic(CREATE))
def create(broker: "BrokerView", call: Call[CreateTopicRequest]) -> Response:
    args = call.args
    config = TopicConfig(
        topic_name=args.topic,
        read_queue_nums=args.read_queue_nums,
        write_queue_nums=args.write_queue_nums,
        perm=args.perm,
        topic_filter_type=args.topic_filter_type,
        topic_sys_flag=args.topic_sys_flag or 0,
        order=args.order,
    )
    try:
        changes = parse(args.attributes)
    except ValueError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None
    _put(broker, call, [(config, changes)])
    return _answer_when_kept(broker, call)


@rows.handles(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, NoFields, access=TOPICS_CREATED)
def create_list(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """Create or change several topics: all of them or none."""
    configs = TopicConfigList.decode(call.body).topic_config_list
    _put(broker, call, [(config, list(config.attributes.items())) for config in configs])
    return _answer_when_kept(broker, call)


def _put(broker: "BrokerView", call: Call[Any], wanted: list[tuple[TopicConfig, Changes]]) -> None:
    """Create or change topics, after all were checked. Attributes are changes to existing ones."""
    check_may_change(broker)
    changed = {}
    for config, changes in wanted:
        name = config.topic_name
        fault = _fault(broker, config)
        if fault:
            raise Refused(ResponseCode.INVALID_PARAMETER, fault)
        known = broker.topics.get(name)
        try:
            config.attributes = altered(None if known is None else known.attributes, changes, TOPIC_ATTRIBUTES)
        except ValueError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        is_mixed = config.attributes.get("message.type") == "MIXED"
        if is_mixed and not broker.config.topics.enable_mixed_message_type:
            raise Refused(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        if config != known:
            changed[name] = config
    new_count = sum(broker.topics.get(name) is None for name in changed)
    if new_count and len(broker.topics.by_name) + new_count > TOPICS_MAX:
        raise Refused(ResponseCode.SYSTEM_BUSY, f"this broker would hold more than {TOPICS_MAX} topics")
    if changed:
        call.changing()
        broker.topics.put_all(list(changed.values()))


def _answer_when_kept(broker: "BrokerView", call: Call[Any]) -> Response:
    """Answer once the file has the change and the name servers know it.

    Tools ask for the route next.
    """
    topics, registration = broker.topics, broker.registration
    return answer_when_kept(
        call, topics, lambda then: topics.when_saved(lambda: registration.when_known(then)), "topics.json"
    )


def _is_own(broker: "BrokerView", topic: str) -> bool:
    """Return whether it is a system topic of every broker or of this one, such as its cluster's."""
    return topic in broker.topics.system or is_system_topic(topic)


def _fault(broker: "BrokerView", config: TopicConfig) -> str | None:
    name = config.topic_name
    fault = topic_fault(name)
    if fault is not None:
        return fault
    if broker.config.topics.validate_system_topic_when_update_topic and _is_own(broker, name):
        return f"The topic[{name}] is conflict with system topic."
    for field, count in (("readQueueNums", config.read_queue_nums), ("writeQueueNums", config.write_queue_nums)):
        if not 0 <= count <= QUEUE_COUNT_MAX:
            return f"{field} {count} is not between 0 and {QUEUE_COUNT_MAX}"
    if not 0 <= config.perm <= PERM_MAX:
        return f"perm {config.perm} is not a sum of 1 (inherit), 2 (write), 4 (read) and 8 (priority)"
    if config.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
        return f"topicFilterType {config.topic_filter_type!r} is neither SINGLE_TAG nor MULTI_TAG"
    return None


@rows.handles(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest, access=on_topic(DELETE))
def delete(broker: "BrokerView", call: Call[DeleteTopicRequest]) -> Response:
    """Delete a topic and, if `clearRetryTopicWhenDeleteTopic` is set, its pop retry topics."""
    if broker.replication.is_slave:
        # Tools ask all brokers of a cluster, in any order. A slave drops the topic when it next
        # copies its master's table.
        return call.ok()
    topic = call.args.topic
    if not topic.strip():
        raise Refused(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    if _is_own(broker, topic):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")
    names = [topic]
    if broker.config.topics.clear_retry_topic_when_delete_topic:
        # Pop consumption has a retry topic per topic and group. The group's %RETRY% topic stays: it
        # serves all topics of the group.
        for group in broker.offsets.groups_of(topic):
            for name in (f"{RETRY_PREFIX}{group}+{topic}", f"{RETRY_PREFIX}{group}_{topic}"):
                if broker.topics.get(name) is not None:
                    names.append(name)
    call.changing()
    for name in names:
        broker.delete_topic(name)
    return _answer_when_kept(broker, call)


@rows.handles(RequestCode.GET_ALL_TOPIC_CONFIG, GetAllTopicConfigRequest, access=either(inner, lists(TOPIC)))
def all_topics(broker: "BrokerView", call: Call[GetAllTopicConfigRequest]) -> Response:
    """Return all topics, or one page of them by name if the peer asks for pages. None is static."""
    topics, args = broker.topics, call.args
    visible = call.visible(TOPIC, topics.by_name)
    page = page_of(
        broker.config,
        visible,
        topics.version,
        first=args.topic_seq,
        asked_version=args.data_version,
        count=args.max_topic_num,
    )
    table = topics.snapshot(visible if page is None else page)
    body = TopicConfigAndMappingTable(data_version=table.data_version, topic_config_table=table.topic_config_table)
    return call.ok(GetAllTopicConfigResponse(total_topic_num=len(visible)), body.encode())


@rows.handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, NoFields, access=all_listed(TOPIC))
def system_topics(broker: "BrokerView", call: Call[NoFields]) -> Response:
    return call.ok(body=TopicList(topic_list=sorted({*SYSTEM_TOPICS, *broker.topics.system})).encode())


@rows.handles(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequest, access=on_topic(GET))
def topic_config(broker: "BrokerView", call: Call[GetTopicConfigRequest]) -> Response:
    """Return a topic's configuration.

    For a missing topic the code must be TOPIC_NOT_EXIST, the only one that admin tools ignore.
    """
    config = broker.topics.get(call.args.topic)
    if config is None:
        return call.error(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {call.args.topic}")
    return call.ok(body=config.encode())


@rows.handles(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequest, access=on_topic(GET))
def stats(broker: "BrokerView", call: Call[GetTopicStatsInfoRequest]) -> Response:
    """Return the offsets of each queue of a topic.

    Empty queues have a row too: after creating a topic, tools wait for a non-empty table.
    """
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
    rate = broker.statistics.put_rate(topic)
    return call.ok(body=TopicStatsTable(offset_table=table, topic_put_tps=rate).encode())


@rows.handles(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, QueryTopicConsumeByWhoRequest, access=on_topic(GET))
def consumed_by(broker: "BrokerView", call: Call[QueryTopicConsumeByWhoRequest]) -> Response:
    """Return the groups that subscribe to a topic now, or have offsets for it."""
    topic = call.args.topic
    online = [group.name for group in broker.clients.consumers.values() if topic in group.subscriptions]
    groups = list(dict.fromkeys([*online, *broker.offsets.groups_of(topic)]))
    return call.ok(body=GroupList(group_list=groups).encode())


@rows.handles(RequestCode.QUERY_TOPICS_BY_CONSUMER, QueryTopicsByConsumerRequest, access=on_group(GET, field="group"))
def topics_of(broker: "BrokerView", call: Call[QueryTopicsByConsumerRequest]) -> Response:
    """Return the topics for which a group has offsets."""
    topics = broker.offsets.topics_of(call.args.group)
    return call.ok(body=TopicList(broker_addr=broker.address_text, topic_list=topics).encode())
