"""Requests of the members that pop, and what the answers say. Real and simulated members send them.

A pop takes messages of all queues of the topic and of the group's retry topic, and does not wait
for an arrival.
"""

from rmqkit.client.consumers.pop.request import INIT_MIN, with_handles
from rmqkit.client.message import MessageExt
from rmqkit.drill.services.scripts import PopOrder
from rmqkit.errors import CorruptRecord, RemoteProtocolError
from rmqkit.wire.bodies.pop import ReceiptHandle, real_topic
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.schemas.pop import AckMessageRequest, PopMessageRequest, PopMessageResponse

#: response codes of a pop that was served; the last two have no messages
SERVED = frozenset({ResponseCode.SUCCESS, ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT})


def pop_request(topic: str, group: str, order: PopOrder, wall_ms: int) -> PopMessageRequest:
    """Return a pop of this topic. `wall_ms` is the client's wall time."""
    return PopMessageRequest(
        consumer_group=group,
        topic=topic,
        queue_id=-1,
        max_msg_nums=order.batch,
        invisible_time=order.invisible_ms,
        poll_time=0,
        born_time=wall_ms,
        init_mode=INIT_MIN,
        exp_type="TAG",
        exp="*",
    )


def popped_messages(head: PopMessageResponse, body: bytes, broker: str) -> list[tuple[MessageExt, ReceiptHandle]]:
    """Return the messages of an answer with their handles. Raises RemoteProtocolError."""
    try:
        return [(MessageExt(record, broker), handle) for record, handle, _ in with_handles(body, head, broker)]
    except (CorruptRecord, ValueError) as error:
        raise RemoteProtocolError(f"popped messages cannot be decoded: {error}") from None


def ack_request(topic: str, group: str, handle: ReceiptHandle) -> AckMessageRequest:
    """Return the ack of one popped message of this topic."""
    return AckMessageRequest(
        consumer_group=group,
        topic=real_topic(topic, group, handle.flag),
        queue_id=handle.queue_id,
        extra_info=handle.encode(),
        offset=handle.offset,
    )
