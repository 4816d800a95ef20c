"""Offsets of groups against one another: copied to another group, compared with those of all others.

Source: `broker/.../processor/AdminBrokerProcessor.{cloneGroupOffset,queryCorrectionOffset}`,
`broker/.../offset/ConsumerOffsetManager.{cloneOffset,queryMinOffsetInAllGroup}`.
"""

from typing import TYPE_CHECKING

from rmqkit.broker.handlers.admin.stats import consumes
from rmqkit.broker.names import group_fault
from rmqkit.runtime.calls import Call, Handlers, Refused, Response
from rmqkit.wire.bodies import CorrectionOffsets
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas.offsets import CloneGroupOffsetRequest, QueryCorrectionOffsetRequest

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()

#: what upstream says of a queue that the compared group has left behind: nothing there is still to be consumed
NOTHING_MORE = 2**63 - 1


@rows.handles(RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffsetRequest)
def clone(broker: "BrokerView", call: Call[CloneGroupOffsetRequest]) -> Response:
    """The destination gets what the source has, for one topic or, without one, for all of the source's topics.

    (Upstream means all as well, but looks for a topic without a name.) Unless `offline`, topics that the source is online
    for and does not subscribe to are left out.
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


@rows.handles(RequestCode.QUERY_CORRECTION_OFFSET, QueryCorrectionOffsetRequest)
def correction(broker: "BrokerView", call: Call[QueryCorrectionOffsetRequest]) -> Response:
    """By queue the least offset of all groups; of a queue where the compared group is behind it, the greatest number.

    Offsets below what the queue still has do not count. `filter_groups` are passed over (upstream deletes their offsets).
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
