"""Requests for the progress of consumer groups, and for the broker's counters.

A group's topics are those it has offsets for; while it is online, only those it subscribes to now.
A missing topic is left out of a group's progress without an error, since tools ask every broker of
a cluster.

Source: `broker/.../processor/AdminBrokerProcessor.{getConsumeStats,queryConsumeTimeSpan,
ViewBrokerStatsData,fetchAllConsumeStatsInBroker}`,
`ConsumeStats.{computeTotalDiff,computeInflightTotalDiff}`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, named, on_cluster, on_group, on_topic
from rmqkit.broker.handlers.demands import TOPICS_LISTED
from rmqkit.runtime.calls import Call, Handlers, Refused, Response
from rmqkit.wire.bodies import (
    ConsumeProgress,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    MessageQueue,
    QueueTimeSpan,
)
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas.admin import GetConsumeStatsInBrokerRequest, ViewBrokerStatsDataRequest
from rmqkit.wire.schemas.groups import GetConsumeStatsRequest
from rmqkit.wire.schemas.offsets import QueryConsumeTimeSpanRequest

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()


@rows.handles(
    RequestCode.GET_CONSUME_STATS,
    GetConsumeStatsRequest,
    access=named(("consumer_group", on_group(GET)), ("topic", on_topic(GET)), ("topic_list", TOPICS_LISTED)),
)
def consume_stats(broker: "BrokerView", call: Call[GetConsumeStatsRequest]) -> Response:
    """Return a group's progress in each queue.

    `topic_list` is used as given. `topic`, or else all of the group's topics, are limited to topics
    that the group may consume (see `consumes`).
    """
    args = call.args
    group = args.consumer_group
    named = [topic for topic in (args.topic_list or "").split(";") if topic.strip()]
    if named:
        topics = list(dict.fromkeys(named))
    else:
        known = [args.topic] if args.topic and args.topic.strip() else broker.offsets.topics_of(group)
        topics = [topic for topic in known if consumes(broker, group, topic)]
    stats = ConsumeStats()
    for topic in topics:
        config = broker.topics.get(topic)
        if config is not None:
            _add_topic(broker, stats, group, topic, config.read_queue_nums)
    return call.ok(body=stats.encode())


def consumes(broker: "BrokerView", group: str, topic: str) -> bool:
    """Return whether a group may consume a topic: it is offline, or subscribes to the topic."""
    online = broker.clients.consumers.get(group)
    return online is None or not online.subscriptions or topic in online.subscriptions


def _add_topic(broker: "BrokerView", stats: ConsumeStats, group: str, topic: str, queue_count: int) -> None:
    name = broker.config.identity.broker_name
    for queue_id in range(queue_count):
        queue = MessageQueue(topic=topic, broker_name=name, queue_id=queue_id)
        stats.offset_table[queue] = _progress(broker, group, topic, queue_id)
    stats.consume_tps += broker.statistics.get_rate(topic, group)


def _progress(broker: "BrokerView", group: str, topic: str, queue_id: int) -> ConsumeProgress:
    consumed = max(0, broker.offsets.query(group, topic, queue_id))
    consumed_ms = broker.store.store_time(topic, queue_id, consumed - 1) if consumed else 0
    return ConsumeProgress(
        broker_offset=max(0, broker.store.queue_range(topic, queue_id).offset_max),
        consumer_offset=consumed,
        pull_offset=max(consumed, broker.statistics.pulled(topic, group, queue_id)),
        last_timestamp=max(0, consumed_ms),
    )


@rows.handles(RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerRequest, access=on_cluster(GET))
def all_consume_stats(broker: "BrokerView", call: Call[GetConsumeStatsInBrokerRequest]) -> Response:
    """Return the progress of all groups, one entry per topic; an empty list without offsets."""
    topics_of: dict[str, list[str]] = {}
    for topic, group in broker.offsets.pairs():
        topics_of.setdefault(group, []).append(topic)
    answer = ConsumeStatsList(broker_addr=broker.address_text)
    for group in sorted(broker.groups.by_name):
        found = []
        for topic in sorted(topics_of.get(group, ())):
            config = broker.topics.get(topic)
            if config is None or (call.args.is_order and not config.order) or not consumes(broker, group, topic):
                continue
            stats = ConsumeStats()
            _add_topic(broker, stats, group, topic, config.write_queue_nums)
            found.append(stats)
            for each in stats.offset_table.values():
                answer.total_diff += each.broker_offset - each.consumer_offset
                answer.total_inflight_diff += each.pull_offset - each.consumer_offset
        answer.consume_stats_list.append({group: found})
    return call.ok(body=answer.encode())


@rows.handles(
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    QueryConsumeTimeSpanRequest,
    access=named(("topic", on_topic(GET)), ("group", on_group(GET, field="group"))),
)
def time_spans(broker: "BrokerView", call: Call[QueryConsumeTimeSpanRequest]) -> Response:
    """Return for each queue the store times of the first, last and last consumed message.

    The delay is the age of the next message to consume. For a group that has consumed nothing it is
    the age of the first message (upstream returns the time since 1970).
    """
    topic, group = call.args.topic, call.args.group
    config = broker.topics.get(topic)
    if config is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
    store, name = broker.store, broker.config.identity.broker_name
    spans = []
    for queue_id in range(config.write_queue_nums):
        known = store.queue_range(topic, queue_id)
        first_ms = store.store_time(topic, queue_id, known.offset_min)
        consumed = broker.offsets.query(group, topic, queue_id)
        delay_ms = 0
        if consumed < known.offset_max:
            next_ms = store.store_time(topic, queue_id, max(consumed, known.offset_min))
            delay_ms = max(0, broker.clock.wall_ms - next_ms) if next_ms >= 0 else 0
        spans.append(
            QueueTimeSpan(
                message_queue=MessageQueue(topic=topic, broker_name=name, queue_id=queue_id),
                min_time_stamp=first_ms,
                max_time_stamp=store.store_time(topic, queue_id, known.offset_max - 1),
                consume_time_stamp=store.store_time(topic, queue_id, consumed - 1) if consumed > 0 else first_ms,
                delay_time=delay_ms,
            )
        )
    return call.ok(body=ConsumeTimeSpans(consume_time_span_set=spans).encode())


@rows.handles(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStatsDataRequest, access=on_cluster(GET))
def counter(broker: "BrokerView", call: Call[ViewBrokerStatsDataRequest]) -> Response:
    """Return a counter. One that has counted nothing is an error, which tools take for zero."""
    name, key = call.args.stats_name, call.args.stats_key
    data = broker.statistics.named(name, key)
    if data is None:
        return call.error(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
    return call.ok(body=data.encode())
