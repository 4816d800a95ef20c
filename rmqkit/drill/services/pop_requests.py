"""Requests of the members that pop, and what the answers say. Real and simulated members send them.

A pop takes messages of all queues of the topic and of the group's retry topic, and does not wait
for an arrival.
"""

from rmqkit.client.message import MessageExt
from rmqkit.drill.services.scripts import PopOrder
from rmqkit.errors import CorruptRecord, RemoteProtocolError
from rmqkit.wire import properties as props
from rmqkit.wire.bodies.pop import ReceiptHandle, decode_handle, real_topic
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.record import iter_records
from rmqkit.wire.schemas.pop import AckMessageRequest, PopMessageRequest, PopMessageResponse

#: response codes of a pop that was served; the last two have no messages
SERVED = frozenset({ResponseCode.SUCCESS, ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT})
#: read the queue from its first message on, if the group is new
FROM_FIRST = 0


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
        init_mode=FROM_FIRST,
        exp_type="TAG",
        exp="*",
    )


def popped_messages(head: PopMessageResponse, body: bytes, broker: str) -> list[tuple[MessageExt, ReceiptHandle]]:
    """Return the messages of an answer with their handles. Raises RemoteProtocolError.

    A redelivered message has its handle as property POP_CK. For the others, the answer names the
    offset from which each queue was read.
    """
    starts: dict[int, int] = {}
    for text in filter(None, (head.start_offset_info or "").split(";")):
        flag, queue, start = text.split(" ")
        if flag == "0":
            starts[int(queue)] = int(start)
    found = []
    try:
        for record in iter_records(body):
            message = MessageExt(record, broker)
            text = message.properties.get(props.PROPERTY_POP_CK, "")
            if text:
                handle = decode_handle(text)
            else:
                queue_id, offset = record.queue_id, record.queue_offset
                first = starts.get(queue_id, offset)
                handle = ReceiptHandle(
                    first, head.pop_time, head.invisible_time, head.revive_qid, "0", broker, queue_id, offset
                )
            found.append((message, handle))
    except CorruptRecord as error:
        raise RemoteProtocolError(f"popped messages cannot be decoded: {error}") from None
    return found


def ack_request(topic: str, group: str, handle: ReceiptHandle) -> AckMessageRequest:
    """Return the ack of one popped message of this topic."""
    return AckMessageRequest(
        consumer_group=group,
        topic=real_topic(topic, group, handle.flag),
        queue_id=handle.queue_id,
        extra_info=handle.encode(),
        offset=handle.offset,
    )
