"""Requests about consume queues and files: list entries of a queue, and remove expired files.

A request that removes files only starts the removal. Files are removed one by one, some time apart,
as at the hour of `deleteWhen`. Cleaning queues keeps their offsets, so that no group loses its
position (upstream restarts an expired queue at offset 0).

Source: `broker/.../processor/AdminBrokerProcessor.{queryConsumeQueue,cleanExpiredConsumeQueue,
deleteExpiredCommitLog,cleanUnusedTopic}`,
`store/.../DefaultMessageStore.{cleanUnusedTopic,executeDeleteFilesManually}`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, UPDATE, named, on_cluster, on_group, on_topic
from rmqkit.broker.names import is_system_topic
from rmqkit.runtime.calls import Call, Handlers, Refused, Response
from rmqkit.wire import fastjson
from rmqkit.wire.bodies import ConsumeQueueData, QueryConsumeQueueBody, SubscriptionData
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.offsets import QueryConsumeQueueRequest

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView
    from rmqkit.store.contract import Entry

rows = Handlers()

#: limit of entries in one answer
ENTRIES_MAX = 10_000
#: topics that one warning names
NAMED_MAX = 10


@rows.handles(
    RequestCode.QUERY_CONSUME_QUEUE,
    QueryConsumeQueueRequest,
    access=named(("topic", on_topic(GET)), ("consumer_group", on_group(GET))),
)
def query_queue(broker: "BrokerView", call: Call[QueryConsumeQueueRequest]) -> Response:
    """Return queue entries from `index` on.

    With a group, also return its subscription and whether its tags match each entry.
    """
    args = call.args
    topic, queue_id = args.topic or "", args.queue_id
    known = broker.store.queue_range(topic, queue_id)
    config = broker.topics.get(topic)
    queue_count = 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)
    if not known.offset_max and not 0 <= queue_id < queue_count:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
    body = QueryConsumeQueueBody(max_queue_index=known.offset_max, min_queue_index=known.offset_min)
    subscription = None
    if args.consumer_group is not None:
        group = broker.clients.consumers.get(args.consumer_group)
        subscription = None if group is None else group.subscriptions.get(topic)
        body.subscription_data = subscription
        body.filter_data = (
            f"{args.consumer_group}@{topic} is not online!"
            if subscription is None
            else _filter_text(args.consumer_group, subscription)
        )
    if not known.offset_min <= args.index <= known.offset_max:
        remark = f"Index {args.index} of {queue_id}@{topic} is not exist!"
        return Response(ResponseCode.SUCCESS, None, body.encode(), remark)
    end = min(known.offset_max, args.index + max(0, min(args.count, ENTRIES_MAX)))
    position = args.index
    while position < end and (entries := broker.store.entries(topic, queue_id, position, end - position)):
        body.queue_data += [_queue_data(entry, subscription) for entry in entries if entry.queue_offset < end]
        position = entries[-1].queue_offset + entries[-1].message_count
    return call.ok(body=body.encode())


def _queue_data(entry: "Entry", subscription: SubscriptionData | None) -> ConsumeQueueData:
    shown = ConsumeQueueData(physic_offset=entry.phy_offset, physic_size=entry.size, tags_code=entry.tags_code)
    if not entry.size:
        shown.msg = "no message at this offset"
    elif subscription is not None:
        shown.eval = not subscription.code_set or entry.tags_code in subscription.code_set
        if not subscription.is_tag_type:
            shown.msg = f"whether {subscription.expression_type} matches depends on the message, not on this entry"
            shown.eval = False
    return shown


def _filter_text(group: str, subscription: SubscriptionData) -> str:
    return fastjson.pretty(
        {
            "consumerGroup": group,
            "topic": subscription.topic,
            "expressionType": subscription.expression_type or "TAG",
            "expression": subscription.sub_string,
            "clientVersion": subscription.sub_version,
        }
    )


@rows.handles(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, NoFields, access=on_cluster(UPDATE))
def clean_queues(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """Start to remove queue files whose records have all left the log."""
    call.changing()
    broker.store.clean_queues()
    return call.ok()


@rows.handles(RequestCode.DELETE_EXPIRED_COMMITLOG, NoFields, access=on_cluster(UPDATE))
def clean_log(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """Start to remove log files that are older than `fileReservedTime`."""
    call.changing()
    broker.store.clean_log()
    return call.ok()


@rows.handles(RequestCode.CLEAN_UNUSED_TOPIC, NoFields, access=on_cluster(UPDATE))
def clean_topics(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """Remove the queues of topics that the broker no longer knows, except system topics."""
    unused = unknown_topics(broker)
    call.changing()
    broker.store.delete_topics(unused)
    broker.log.info("unused-topics-deleted", count=len(unused))
    return call.ok()


def unknown_topics(broker: "BrokerView") -> list[str]:
    """Return the topics that have queues here although the table of topics lacks them."""
    topics = {each.topic: None for each in broker.store.queues()}
    return [topic for topic in topics if broker.topics.get(topic) is None and not is_system_topic(topic)]


def warn_of_unknown_topics(broker: "BrokerView") -> None:
    """Log the topics with messages that nobody can read, as after the loss of `topics.json`."""
    if unknown := unknown_topics(broker):
        note = "the table of topics lacks them; `rmqkit topic create` makes their messages readable again"
        broker.log.warning("topics-unknown", count=len(unknown), topics=unknown[:NAMED_MAX], note=note)
