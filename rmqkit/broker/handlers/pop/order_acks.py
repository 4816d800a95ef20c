"""Acks and changes of the invisible time for messages of ordered pops (revive queue 999).

They write no record. An ack moves the committed offset of the group to the first message without an
ack. It is ignored if the message is before that offset already, or if its handle is not of the
queue's last batch. A change moves only the time until which the message blocks its queue; the
handle stays valid.

Deviation: if the broker does not know the batch, an ack counts only if it is the next one in order.
Upstream commits any offset then, which skips messages before it that nobody acked.

Source: `broker/.../processor/AckMessageProcessor.java` (`ackOrderly`),
`ChangeInvisibleTimeProcessor.java` (`processChangeInvisibleTimeForOrder`).
"""

from typing import TYPE_CHECKING

from rmqkit.broker.special.pop.pending import PopQueue
from rmqkit.runtime.calls import Refused
from rmqkit.wire.bodies.pop import ORDER_QUEUE, ReceiptHandle
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.schemas.pop import ChangeInvisibleTimeResponse

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView


def ack_in_order(broker: "BrokerView", queue: PopQueue, offset: int, pop_ms: int) -> None:
    """Ack one message of the last batch of a queue.

    Raises Refused if the message is not in the batch.
    """
    topic, group, queue_id = queue
    committed = broker.offsets.query(group, topic, queue_id)
    if offset < committed:
        return
    try:
        next_offset = broker.pop_orders.ack(queue, offset, pop_ms, committed)
    except ValueError:
        place = f"{topic}@{group}@{queue_id}"
        remark = f"offset is illegal, key:{place}, old:{committed}, commit:{offset}: it is not in the last batch"
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark) from None
    if next_offset is not None:
        broker.offsets.commit(group, topic, queue_id, next_offset)


def change_in_order(
    broker: "BrokerView", queue: PopQueue, offset: int, handle: ReceiptHandle, invisible_ms: int
) -> ChangeInvisibleTimeResponse:
    """Let one message block its queue for `invisible_ms` from now on.

    The answer is all zeros if the message was acked before.
    """
    topic, group, queue_id = queue
    if offset < broker.offsets.query(group, topic, queue_id):
        return ChangeInvisibleTimeResponse(pop_time=0, invisible_time=0, revive_qid=0)
    until_ms = broker.clock.wall_ms + invisible_ms
    broker.pop_orders.hide(queue, offset, handle.pop_ms, until_ms)
    # The client adds the invisible time to the pop time, so it gets the time from the pop on.
    return ChangeInvisibleTimeResponse(
        pop_time=handle.pop_ms, invisible_time=until_ms - handle.pop_ms, revive_qid=ORDER_QUEUE
    )
