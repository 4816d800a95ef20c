"""Requests on offsets of consumer groups (query, commit, reset) and of queues (min, max, by time).

A group that never consumed a queue gets QUERY_NOT_FOUND, as with any other code Java's consumer
never starts that queue. But if message 0 still exists and is in memory, the answer is offset 0, so
that a new group on a new topic misses nothing.

Source: `broker/.../processor/ConsumerManageProcessor.java`,
`AdminBrokerProcessor.{getMaxOffset,getMinOffset,searchOffsetByTimestamp,getEarliestMsgStoretime}`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, SUB, UPDATE, every, on_group, on_topic
from rmqkit.broker.handlers.consumers.relays import reset_by_clients
from rmqkit.runtime.calls import LATER, Call, Handlers, Refused, Response
from rmqkit.wire.bodies import MessageQueue, ResetOffsetBody
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas.offsets import (
    GetEarliestMsgStoretimeRequest,
    GetEarliestMsgStoretimeResponse,
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
    ResetOffsetRequest,
    SearchOffsetRequest,
    SearchOffsetResponse,
    UpdateConsumerOffsetRequest,
)

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()


@rows.handles(
    RequestCode.QUERY_CONSUMER_OFFSET,
    QueryConsumerOffsetRequest,
    access=every(on_topic(SUB, GET), on_group(SUB, GET)),
)
def query(broker: "BrokerView", call: Call[QueryConsumerOffsetRequest]) -> Response:
    """Return a group's offset in a queue.

    A master that has just started first waits for the offsets that its slaves know
    (`broker/metadata/metadata_server.py`).
    """

    def answer() -> None:
        if not call.is_alive:
            return
        refusal = broker.role.refusal
        if refusal:  # the broker stalled meanwhile
            call.finish(call.error(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {refusal}"))
        else:
            call.finish(_offset(broker, call))

    return LATER if broker.replication.metadata_server.has_to_wait(answer) else _offset(broker, call)


def _offset(broker: "BrokerView", call: Call[QueryConsumerOffsetRequest]) -> Response:
    args = call.args
    offset = broker.offsets.query(args.consumer_group, args.topic, args.queue_id)
    if offset >= 0:
        return call.ok(QueryConsumerOffsetResponse(offset=offset))
    known = broker.store.queue_range(args.topic, args.queue_id)
    # For an empty queue upstream answers QUERY_NOT_FOUND. Its clients then ask for the end, so that
    # the group skips a message stored in between. From offset 0 the group gets it.
    is_at_hand = known.offset_max <= 0 or broker.store.queue_is_in_memory(args.topic, args.queue_id, 0)
    if args.set_zero_if_not_found is not False and known.offset_min <= 0 and is_at_hand:
        return call.ok(QueryConsumerOffsetResponse(offset=0))
    return call.error(ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")


@rows.handles(
    RequestCode.UPDATE_CONSUMER_OFFSET,
    UpdateConsumerOffsetRequest,
    access=every(on_topic(SUB, UPDATE), on_group(SUB, UPDATE)),
)
def update(broker: "BrokerView", call: Call[UpdateConsumerOffsetRequest]) -> Response:
    """Commit an offset. It creates no group: heartbeats and pulls do that before the first commit.

    Source: `ConsumerManageProcessor.updateConsumerOffset` (since 5.3.0).
    """
    args = call.args
    if not broker.groups.knows(args.consumer_group):
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {args.consumer_group} not exist!")
    if broker.topics.get(args.topic) is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {args.topic} not exist!")
    if args.queue_id is None:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"QueueId is null, topic is {args.topic}")
    if args.commit_offset is None:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"Offset is null, topic is {args.topic}")
    if broker.commit_guard is not None:
        refusal = broker.commit_guard(args.consumer_group, args.topic, args.queue_id, call.conn)
        if refusal:
            raise Refused(ResponseCode.NO_PERMISSION, refusal)
    if not broker.offsets.commit(args.consumer_group, args.topic, args.queue_id, args.commit_offset):
        raise Refused(ResponseCode.SYSTEM_BUSY, "too many (topic, group) pairs have offsets on this broker")
    return call.ok()


@rows.handles(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequest, access=on_topic(SUB, GET))
def max_offset(broker: "BrokerView", call: Call[GetMaxOffsetRequest]) -> Response:
    known = broker.store.queue_range(call.args.topic, call.args.queue_id)
    return call.ok(GetMaxOffsetResponse(offset=known.offset_max))


@rows.handles(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequest, access=on_topic(SUB, GET))
def min_offset(broker: "BrokerView", call: Call[GetMinOffsetRequest]) -> Response:
    """Return the first offset of a queue. Like Apache's, it is -1 for an empty BatchCQ queue."""
    topic, queue_id = call.args.topic, call.args.queue_id
    known = broker.store.queue_range(topic, queue_id)
    if not known.offset_max and broker.topics.has_batch_queues(topic):
        return call.ok(GetMinOffsetResponse(offset=-1))
    return call.ok(GetMinOffsetResponse(offset=known.offset_min))


@rows.handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetRequest, access=on_topic(SUB, GET))
def search(broker: "BrokerView", call: Call[SearchOffsetRequest]) -> Response:
    """Return the first offset stored at or after a time; with boundary UPPER the last up to it."""
    args = call.args
    upper = (args.boundary_type or "").lower() == "upper"
    offset = broker.store.offset_by_time(args.topic, args.queue_id, args.timestamp, upper=upper)
    return call.ok(SearchOffsetResponse(offset=offset))


@rows.handles(RequestCode.GET_EARLIEST_MSG_STORETIME, GetEarliestMsgStoretimeRequest, access=on_topic(SUB, GET))
def earliest(broker: "BrokerView", call: Call[GetEarliestMsgStoretimeRequest]) -> Response:
    """Return the store time (wall ms) of a queue's first message."""
    args = call.args
    known = broker.store.queue_range(args.topic, args.queue_id)
    timestamp = broker.store.store_time(args.topic, args.queue_id, known.offset_min)
    return call.ok(GetEarliestMsgStoretimeResponse(timestamp=timestamp))


@rows.handles(
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    ResetOffsetRequest,
    access=every(on_topic(UPDATE), on_group(UPDATE, field="group")),
)
def reset(broker: "BrokerView", call: Call[ResetOffsetRequest]) -> Response:
    """Reset a group's offsets in one or all queues of a topic.

    The broker does it itself, without online members (`useServerSideResetOffset`, the default of
    5.x), or sends the offsets to the members.

    Source: `AdminBrokerProcessor.resetOffsetInner`.
    """
    args = call.args
    if broker.replication.is_slave:
        raise Refused(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
    topic = broker.topics.get(args.topic)
    if topic is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {args.topic} does not exist")
    if not broker.groups.knows(args.group):
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {args.group} does not exist")
    queue_ids = range(topic.write_queue_nums) if args.queue_id < 0 else [args.queue_id]
    table: dict[int, int] = {}
    for queue_id in queue_ids:
        known = broker.store.queue_range(args.topic, queue_id)
        if args.offset is not None and args.offset >= 0:
            if args.queue_id < 0 or not known.offset_min <= args.offset <= known.offset_max:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {args.offset} not in consume queue range [{known.offset_min}-{known.offset_max}]",
                )
            table[queue_id] = args.offset
        elif args.timestamp < 0:
            table[queue_id] = known.offset_max
        else:
            table[queue_id] = broker.store.offset_by_time(args.topic, queue_id, args.timestamp)
    if not broker.config.offsets.use_server_side_reset_offset:
        offsets_sent = reset_by_clients(broker, call, _by_queue(broker, call, table))
        return call.ok(body=ResetOffsetBody(offset_table=offsets_sent).encode())
    call.changing()
    for queue_id, offset in table.items():
        broker.offsets.reset(args.group, args.topic, queue_id, offset)
        broker.arrivals.wake_all((args.topic, queue_id))
    return call.ok(body=ResetOffsetBody(offset_table=_by_queue(broker, call, table)).encode())


def _by_queue(broker: "BrokerView", call: Call[ResetOffsetRequest], table: dict[int, int]) -> dict[MessageQueue, int]:
    name = broker.config.identity.broker_name
    return {
        MessageQueue(topic=call.args.topic, broker_name=name, queue_id=queue_id): offset
        for queue_id, offset in table.items()
    }
