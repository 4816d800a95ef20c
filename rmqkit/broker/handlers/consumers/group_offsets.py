"""Requests on the offsets of several groups: copy them to another group, or compare them.

Source: `broker/.../processor/AdminBrokerProcessor.{cloneGroupOffset,queryCorrectionOffset}`,
`broker/.../offset/ConsumerOffsetManager.{cloneOffset,queryMinOffsetInAllGroup}`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, UPDATE, every, on_group, on_topic
from rmqkit.broker.handlers.admin.stats import consumes
from rmqkit.broker.handlers.demands import GROUPS_FILTERED
from rmqkit.broker.names import group_fault
from rmqkit.runtime.calls import Call, Handlers, Refused, Response
from rmqkit.wire.bodies import CorrectionOffsets
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas.offsets import CloneGroupOffsetRequest, QueryCorrectionOffsetRequest

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()

#: upstream's value for a queue in which the compared group is behind the least offset
NOTHING_MORE = 2**63 - 1


@rows.handles(
    RequestCode.CLONE_GROUP_OFFSET,
    CloneGroupOffsetRequest,
    access=every(on_group(GET, field="src_group"), on_group(UPDATE, field="dest_group"), on_topic(UPDATE)),
)
def clone(broker: "BrokerView", call: Call[CloneGroupOffsetRequest]) -> Response:
    """Copy the source group's offsets to the destination group.

    Without a topic, the offsets of all topics of the source are copied. (Upstream means to do the
    same, but looks up a topic without a name.) If the source is online, topics that it does not
    subscribe to are left out, unless `offline` is set.
    """
    args = call.args
    fault = group_fault(args.dest_group)
    if fault:
        raise Refused(ResponseCode.INVALID_PARAMETER, fault)
    one = args.topic and args.topic.strip()
    topics = [one] if one else broker.offsets.topics_of(args.src_group)
    wanted = [
        topic
        for topic in topics
        if broker.topics.get(topic) is not None and (args.offline or consumes(broker, args.src_group, topic))
    ]
    call.changing()
    for topic in wanted:
        if not broker.offsets.clone(args.src_group, args.dest_group, topic):
            return call.error(ResponseCode.SYSTEM_BUSY, "too many (topic, group) pairs have offsets on this broker")
    return call.ok()


@rows.handles(
    RequestCode.QUERY_CORRECTION_OFFSET,
    QueryCorrectionOffsetRequest,
    access=every(on_topic(GET), on_group(GET, field="compare_group"), GROUPS_FILTERED),
)
def correction(broker: "BrokerView", call: Call[QueryCorrectionOffsetRequest]) -> Response:
    """Return for each queue the least offset of all groups.

    Where the compared group is behind it, return `NOTHING_MORE` instead. Offsets below the queue's
    smallest offset do not count. `filter_groups` are skipped (upstream deletes their offsets).
    """
    args = call.args
    passed_over = set((args.filter_groups or "").split(","))
    least: dict[int, int] = {}
    for topic, group in broker.offsets.pairs():
        if topic != args.topic or group in passed_over:
            continue
        for queue_id, offset in broker.offsets.of(group, topic).items():
            if offset >= broker.store.queue_range(topic, queue_id).offset_min:
                least[queue_id] = min(offset, least.get(queue_id, offset))
    for queue_id, offset in broker.offsets.of(args.compare_group, args.topic).items():
        if queue_id in least and least[queue_id] > offset:
            least[queue_id] = NOTHING_MORE
    return call.ok(body=CorrectionOffsets(correction_offsets=least).encode())
