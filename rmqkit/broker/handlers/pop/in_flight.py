"""GET_POP_IN_FLIGHT (60001, a request of rmqkit's own): what a group popped and did not ack.

The answer lists the messages that are invisible now, the oldest pop first, with the time at which
each is handed out again and the client that popped it. The list is limited to `ROWS_MAX`; `total`
counts all. Upstream has no such request: there, what is in flight can only be counted.

`rmqkit group pop` sends it to each broker of a cluster.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, named, on_group, on_topic
from rmqkit.broker.handlers.pop.order_info import OrderInfo
from rmqkit.broker.special.pop.pending import Pending, PopQueue
from rmqkit.errors import CorruptRecord
from rmqkit.runtime.calls import Call, Handlers, Refused, Response
from rmqkit.runtime.connection import Connection
from rmqkit.wire.bodies.pop import PopInFlight, PopInFlightMessage, retry_topics
from rmqkit.wire.codes import OwnRequestCode, ResponseCode
from rmqkit.wire.record import Record, decode_record
from rmqkit.wire.schemas.pop import GetPopInFlightRequest
from rmqkit.wire.topic_names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()

#: limit of the messages in one answer
ROWS_MAX = 1_000


def client_of(broker: "BrokerView", conn: Connection, group: str) -> str:
    """Return the client id of a group's member, or its address if it sends no heartbeats."""
    known = broker.clients.consumers.get(group)
    member = known.members.get(conn.id) if known is not None else None
    return str(conn.peer) if member is None else member.client_id


@rows.handles(
    OwnRequestCode.GET_POP_IN_FLIGHT,
    GetPopInFlightRequest,
    access=named(("consumer_group", on_group(GET)), ("topic", on_topic(GET))),
)
def pop_in_flight(broker: "BrokerView", call: Call[GetPopInFlightRequest]) -> Response:
    """Return what a group popped and did not ack, and until when it is invisible."""
    args = call.args
    if not broker.revive.is_on:
        remark = "this broker does not serve pops: ask the master of its group"
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
    group = args.consumer_group
    topics = (args.topic, *retry_topics(args.topic, group)) if args.topic else ()

    def is_wanted(queue: PopQueue) -> bool:
        return queue[1] == group and (not topics or queue[0] in topics)

    answer = PopInFlight()
    answer.total = sum(count for queue, count in broker.revive.pending.in_flight.items() if is_wanted(queue))
    for pending in broker.revive.pending if answer.total else ():
        if is_wanted(pending.queue):
            answer.messages.extend(_rows_of(broker, pending, ROWS_MAX - len(answer.messages)))
            if len(answer.messages) >= ROWS_MAX:
                break
    for queue, info in broker.pop_orders:
        if is_wanted(queue):
            found = _ordered_rows(broker, queue, info)
            answer.total += len(found)
            answer.messages.extend(found[: max(0, ROWS_MAX - len(answer.messages))])
    return call.ok(body=answer.encode())


def _ordered_rows(broker: "BrokerView", queue: PopQueue, info: OrderInfo) -> list[PopInFlightMessage]:
    """Return the messages of an ordered batch that are invisible."""
    return [
        PopInFlightMessage(
            client_id=broker.pop_orders.client_of(queue),
            count=1 + (info.counts or {}).get(offset, 0),
            invisible_until=info.visible_ms(offset, 0),
            offset=offset,
            pop_time=info.pop_ms,
            queue_id=queue[2],
            topic=queue[0],
        )
        for index, offset in enumerate(info.offsets)
        if not info.acked >> index & 1 and info.visible_ms(offset, 0) > broker.clock.wall_ms
    ]


def _rows_of(broker: "BrokerView", pending: Pending, count: int) -> Iterator[PopInFlightMessage]:
    """Yield the open messages of one checkpoint, at most `count`."""
    topic, _, queue_id = pending.queue
    for index, offset in enumerate(pending.offsets):
        if pending.bits >> index & 1:
            continue
        if count <= 0:
            return
        count -= 1
        yield PopInFlightMessage(
            client_id=pending.client_id,
            count=_deliveries(broker, topic, queue_id, offset),
            invisible_until=pending.due_ms,
            offset=offset,
            pop_time=pending.checkpoint.pop_ms,
            queue_id=queue_id,
            topic=topic,
        )


def _deliveries(broker: "BrokerView", topic: str, queue_id: int, offset: int) -> int:
    """Return how often a message was delivered; its record in a retry topic has the count."""
    if not topic.startswith(RETRY_PREFIX):
        return 1
    entries = broker.store.entries(topic, queue_id, offset, 1)
    if not entries or not entries[0].size:
        return 1
    try:
        data = broker.store.read_log(entries[0].phy_offset, entries[0].size)
        record = decode_record(data, check_crc=False, read_body=False)
    except CorruptRecord:
        return 1
    return record.reconsume_times + 1 if isinstance(record, Record) else 1
