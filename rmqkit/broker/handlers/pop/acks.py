"""ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME: what becomes of popped messages.

An ack is a record in the revive queue of its checkpoint. The request is answered when the record is
as durable as a send. The single acks of a turn share one record for each checkpoint (`turn_acks`).

A handle is looked up among the pending checkpoints. If it is unknown, it was never given, has
expired, or is acked: the answer is SUCCESS as upstream, but nothing is written. So repeated and
forged acks cost no disk, and a change of an expired handle gives the message to nobody twice. While
the pending checkpoints are still being read after a start, a handle is believed.

A change writes a checkpoint of one message that starts now, and the ack of the old one, in the same
turn: a crash leaves both or neither. The answer holds what the client needs for the new handle.

An acting master stores nothing in its log: the special duty keeps the acks and changes
(`special/pop/acting_pops.py`).

Deviation: an ack that cannot be stored is answered with an error. Upstream logs it and answers
SUCCESS.

Source: `broker/.../processor/{AckMessageProcessor,ChangeInvisibleTimeProcessor}.java`.
"""

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rmqkit.broker.handlers.demands import BATCH_ACKS, POP
from rmqkit.broker.handlers.pop.checks import (
    check_invisible_time,
    check_queue,
    check_serves,
    checked_handle,
)
from rmqkit.broker.handlers.pop.in_flight import client_of
from rmqkit.broker.handlers.pop.order_acks import ack_in_order, change_in_order
from rmqkit.broker.handlers.pop.turn_acks import ack_of
from rmqkit.broker.puts.answers import STORED
from rmqkit.broker.special.pop.counts import ACK, CHECKPOINT
from rmqkit.broker.special.pop.pending import Key, Pending, PopQueue
from rmqkit.broker.special.pop.records import ack_put, checkpoint_put
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import LATER, Answer, Call, Handlers, Refused, Response
from rmqkit.store.contract import Put, PutResult, PutStatus
from rmqkit.wire.bodies.pop import ORDER_QUEUE, BatchAck, PopCheckpoint, ReceiptHandle, decode_batch_ack, real_topic
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.pop import AckMessageRequest, ChangeInvisibleTimeRequest, ChangeInvisibleTimeResponse

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()


#: limit of the acks in one batch; a Java client sends one for each queue that it popped
BATCH_MAX = 10_000
#: limit of the bits of one ack, in bytes; a bit is an offset after the start of the pop
BITS_SIZE_MAX = 1_048_576


class AckTarget(NamedTuple):
    """One delivery that is to be acked: its key, revive queue and due time."""

    key: Key
    revive_queue: int
    due_ms: int
    #: None if its checkpoint may be unread
    pending: Pending | None


class RevivePut(NamedTuple):
    """A record for the revive topic, with what its counter needs."""

    put: Put
    group: str
    topic: str
    #: `counts.CHECKPOINT` or `counts.ACK`
    kind: str


@rows.handles(RequestCode.ACK_MESSAGE, AckMessageRequest, access=POP)
def ack(broker: "BrokerView", call: Call[AckMessageRequest]) -> Response:
    """Ack one message."""
    args = call.args
    check_serves(broker)
    check_queue(broker, args.topic, args.queue_id)
    known = broker.store.queue_range(args.topic, args.queue_id)
    if not known.offset_min <= args.offset <= known.offset_max:
        place = f"{args.topic}@{args.queue_id}"
        remark = f"offset is illegal, key:{place}, commit:{args.offset}, store:{known.offset_min}~{known.offset_max}"
        raise Refused(ResponseCode.NO_MESSAGE, remark)
    handle = checked_handle(args.extra_info)
    if handle.revive_queue_id == ORDER_QUEUE:
        call.changing()
        ack_in_order(broker, (args.topic, args.consumer_group, args.queue_id), args.offset, handle.pop_ms)
        return call.ok()
    delivery = _delivery(broker, args, handle)
    if delivery is None:
        return call.ok()
    if not broker.revive.is_logging:
        call.changing()
        broker.revive.ack_unlogged(delivery.key, [args.offset])
        return call.ok()
    if delivery.pending is None:  # the ack waits for its checkpoint in the revive topic
        return _store(broker, call, [_ack_of(broker, delivery, [args.offset])], call.ok())
    call.changing()
    broker.turn_acks.add(delivery.pending, args.offset, call)
    return LATER


@rows.handles(RequestCode.BATCH_ACK_MESSAGE, NoFields, access=BATCH_ACKS)
def batch_ack(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """Ack messages of several checkpoints; those that cannot be acked are skipped."""
    check_serves(broker)
    request = decode_batch_ack(call.body) if call.body else None
    if request is None or not request.acks:
        raise Refused(ResponseCode.NO_MESSAGE, "the request has no acks")
    if len(request.acks) > BATCH_MAX:
        remark = f"the request has {len(request.acks)} acks, more than {BATCH_MAX}: send them in several requests"
        raise Refused(ResponseCode.INVALID_PARAMETER, remark)
    puts: list[RevivePut] = []
    seen: dict[Key, None] = {}
    for each in request.acks:
        try:
            topic, bits = real_topic(each.topic, each.group, each.flag), each.bit_set()
        except RemoteProtocolError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if len(bits) > BITS_SIZE_MAX:
            remark = f"the bits of an ack have {len(bits)} bytes, more than {BITS_SIZE_MAX}"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        if each.revive_queue_id == ORDER_QUEUE:
            _batch_in_order(broker, call, (topic, each.group, each.queue_id), each, bits)
            continue
        name = request.broker_name or broker.config.identity.broker_name
        key = topic, each.group, each.queue_id, each.start, each.pop_ms, name
        offsets = _marked(broker, key, each, bits)
        if key in seen or not offsets:
            continue
        if broker.revive.is_logging:
            seen[key] = None
            pending = broker.revive.pending.by_key[key]
            puts.append(_ack_of(broker, AckTarget(key, pending.revive_queue, pending.due_ms, pending), offsets))
        else:
            call.changing()
            broker.revive.ack_unlogged(key, offsets)
    return _store(broker, call, puts, call.ok()) if puts else call.ok()


@rows.handles(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ChangeInvisibleTimeRequest, access=POP)
def change_invisible_time(broker: "BrokerView", call: Call[ChangeInvisibleTimeRequest]) -> Response:
    """Hide one message for another time from now on; its old handle becomes invalid."""
    args = call.args
    check_serves(broker)
    check_queue(broker, args.topic, args.queue_id)
    known = broker.store.queue_range(args.topic, args.queue_id)
    if not known.offset_min <= args.offset < known.offset_max:
        raise Refused(ResponseCode.NO_MESSAGE, "")
    check_invisible_time(args.invisible_time)
    handle = checked_handle(args.extra_info)
    if handle.revive_queue_id == ORDER_QUEUE:
        call.changing()
        queue = args.topic, args.consumer_group, args.queue_id
        return call.ok(change_in_order(broker, queue, args.offset, handle, args.invisible_time))
    # A new key even if both happen in one millisecond.
    pop_ms = max(broker.clock.wall_ms, handle.pop_ms + 1)
    answer = ChangeInvisibleTimeResponse(
        pop_time=pop_ms, invisible_time=args.invisible_time, revive_qid=handle.revive_queue_id
    )
    delivery = _delivery(broker, args, handle)
    if delivery is None:
        return call.ok(answer)
    if not broker.revive.has_room:
        raise Refused(ResponseCode.SYSTEM_BUSY, "too many popped messages wait for their acks")
    answer.revive_qid = delivery.revive_queue
    checkpoint = PopCheckpoint(
        broker_name=handle.broker_name,
        group=args.consumer_group,
        differences=[0],
        invisible_ms=args.invisible_time,
        count=1,
        pop_ms=pop_ms,
        queue_id=args.queue_id,
        revive_ms=pop_ms + args.invisible_time,
        start=args.offset,
        is_suspended=args.suspend,
        topic=args.topic,
    )
    if not broker.revive.is_logging:
        call.changing()
        _change_unlogged(broker, call, delivery, checkpoint)
        return call.ok(answer)
    wall_ms, host = broker.clock.wall_ms, broker.hosts.store_host
    put = checkpoint_put(checkpoint, broker.revive.topic, delivery.revive_queue, wall_ms, host)
    first = RevivePut(put, args.consumer_group, args.topic, CHECKPOINT)
    return _store(broker, call, [first, _ack_of(broker, delivery, [args.offset])], call.ok(answer))


def _change_unlogged(
    broker: "BrokerView", call: Call[ChangeInvisibleTimeRequest], delivery: AckTarget, checkpoint: PopCheckpoint
) -> None:
    """Keep the new checkpoint at an acting master, then ack the old one."""
    offset, queue = call.args.offset, (checkpoint.topic, checkpoint.group, checkpoint.queue_id)
    ended = partial(broker.pop_offsets.stored, broker.pop_offsets.hold(queue, offset))
    client_id = client_of(broker, call.conn, checkpoint.group)
    broker.revive.pop_unlogged(checkpoint, delivery.revive_queue, client_id, ended)
    broker.revive.ack_unlogged(delivery.key, [offset])


# --- deliveries


def _delivery(
    broker: "BrokerView", args: AckMessageRequest | ChangeInvisibleTimeRequest, handle: ReceiptHandle
) -> AckTarget | None:
    """Return the delivery that a handle names; None if its message cannot be acked any more."""
    name = handle.broker_name or broker.config.identity.broker_name
    key = args.topic, args.consumer_group, args.queue_id, handle.start_offset, handle.pop_ms, name
    pending = broker.revive.pending.by_key.get(key)
    if pending is not None:
        is_open = pending.index(args.offset) >= 0
        return AckTarget(key, pending.revive_queue, pending.due_ms, pending) if is_open else None
    if not broker.revive.is_reading or handle.revive_queue_id >= broker.revive.queue_count:
        return None
    return AckTarget(key, handle.revive_queue_id, handle.pop_ms + handle.invisible_ms, None)


def _marked(broker: "BrokerView", key: Key, ack: BatchAck, bits: bytes) -> list[int]:
    """Return the offsets that a batch ack marks and that may still be acked."""
    pending = broker.revive.pending.by_key.get(key)
    if pending is None:
        return []
    found = []
    for offset in pending.offsets:
        bit = offset - ack.start
        is_marked = 0 <= bit < 8 * len(bits) and bits[bit // 8] >> bit % 8 & 1
        if is_marked and pending.index(offset) >= 0:
            found.append(offset)
    return found


def _batch_in_order(broker: "BrokerView", call: Call[NoFields], queue: PopQueue, ack: BatchAck, bits: bytes) -> None:
    """Ack the marked messages of an ordered batch; those outside the batch are skipped."""
    info = broker.pop_orders.find(queue)
    call.changing()
    for offset in info.offsets if info is not None else ():
        bit = offset - ack.start
        if 0 <= bit < 8 * len(bits) and bits[bit // 8] >> bit % 8 & 1:
            ack_in_order(broker, queue, offset, ack.pop_ms)


def _ack_of(broker: "BrokerView", target: AckTarget, offsets: list[int]) -> RevivePut:
    """Return the record of an ack."""
    wall_ms, host = broker.clock.wall_ms, broker.hosts.store_host
    put = ack_put(ack_of(target.key, offsets), target.due_ms, broker.revive.topic, target.revive_queue, wall_ms, host)
    return RevivePut(put, target.key[1], target.key[0], ACK)


def _store(
    broker: "BrokerView",
    call: Call[AckMessageRequest] | Call[ChangeInvisibleTimeRequest] | Call[NoFields],
    puts: list[RevivePut],
    success: Response,
) -> Response:
    """Append records, in order; answer with `success` once all are stored."""
    call.changing()
    left = len(puts)
    worst = PutStatus.PUT_OK

    def ended(answer: Answer, each: RevivePut, result: PutResult, status: PutStatus) -> None:
        nonlocal left, worst
        broker.revive.counts.note_put(each.group, each.topic, each.kind, status)
        if status in STORED:
            # The caller holds the message of a new checkpoint.
            client_id = client_of(broker, call.conn, each.group) if each.kind == CHECKPOINT else ""
            broker.revive.appended(each.put.queue_id, result.queue_offset, client_id)
        else:
            worst = status
        left -= 1
        if not left:
            is_stored = worst is PutStatus.PUT_OK
            answer(success if is_stored else call.error(ResponseCode.SYSTEM_ERROR, f"not stored: {worst.name}"))

    def begin(answer: Answer) -> None:
        for each in puts:
            result = broker.store.append(each.put)
            broker.puts.await_own(each.put.topic, result, partial(ended, answer, each, result), copies=True)

    return call.later(begin)
