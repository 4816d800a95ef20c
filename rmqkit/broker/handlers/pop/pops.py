"""POP_MESSAGE: gives messages to a client, and hides them for its invisible time.

    reading    the queues are read, and the next offsets rise
    storing    a checkpoint for each queue with messages is appended, and waits as a send does
    answered   with the messages whose checkpoints are stored; the others are popped again

A pop that finds nothing waits for an arrival until `pollTime` after its birth, less 50 ms. Then it
reads once more, and is answered with POLLING_TIMEOUT if there is still nothing. If too many pops
wait, it is answered with POLLING_FULL at once.

An ordered pop stores no checkpoint: `PopOrders` notes its messages, and it is answered at once.
An acting master stores none either, since it may not append to its log: the special duty keeps them
(`special/pop/acting_pops.py`).

Source: `broker/.../processor/PopMessageProcessor.java`.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rmqkit.broker.filters.pull_filter import PullFilter
from rmqkit.broker.handlers.demands import POP
from rmqkit.broker.handlers.pop.checks import (
    check_invisible_time,
    check_readable,
    check_serves,
    checked_filter,
    checked_topic,
)
from rmqkit.broker.handlers.pop.in_flight import client_of
from rmqkit.broker.handlers.pop.queue_reads import QueueReads, TakenMessages, redelivered
from rmqkit.broker.handlers.pop.waiters import PopWaiters
from rmqkit.broker.puts.answers import STORED
from rmqkit.broker.special.pop.counts import CHECKPOINT
from rmqkit.broker.special.pop.records import checkpoint_put
from rmqkit.runtime.calls import Answer, Call, Handlers, Refused, Response
from rmqkit.runtime.connection import Buffer
from rmqkit.store.contract import PutResult, PutStatus
from rmqkit.wire.bodies.pop import (
    MESSAGES_MAX,
    ORDER_QUEUE,
    OffsetTexts,
    PopCheckpoint,
    ReceiptHandle,
    flag_of,
    retry_topics,
)
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas.pop import NotificationRequest, PopMessageRequest, PopMessageResponse

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()

#: a pop that comes later than this after the end of its poll time is not served
LATE_MS = 500
#: a waiting pop is answered this long before the end of its poll time
EARLY_MS = 50
#: limit of the time that a pop waits, whatever the client asks for
POLL_MS_MAX = 60_000


@rows.handles(RequestCode.POP_MESSAGE, PopMessageRequest, access=POP)
def pop(broker: "BrokerView", call: Call[PopMessageRequest]) -> Response:
    """Give messages to a client, or let it wait."""
    args = call.args
    if not args.born_time:
        args.born_time = broker.clock.wall_ms
    _check(broker, args)
    wanted = checked_filter(broker, args.topic, args.exp_type, args.exp)
    call.changing()
    return call.later(partial(_attempt, broker, call, wanted))


def _check(broker: "BrokerView", args: PopMessageRequest) -> None:
    ip = broker.config.network.broker_ip1
    if broker.clock.wall_ms - args.born_time - args.poll_time > LATE_MS:
        raise Refused(ResponseCode.POLLING_TIMEOUT, f"the broker[{ip}] pop message is timeout too much")
    check_readable(broker, is_pop=True)
    check_serves(broker)
    if args.max_msg_nums > MESSAGES_MAX:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the broker[{ip}] pop message's num is greater than {MESSAGES_MAX}")
    check_invisible_time(args.invisible_time)
    checked_topic(broker, args.topic, args.queue_id, args.consumer_group)


def _attempt(
    broker: "BrokerView", call: Call[PopMessageRequest], wanted: PullFilter, answer: Answer, *, may_wait: bool = True
) -> None:
    """Read once. Answer with what was found, or wait."""
    args, pop_ms = call.args, broker.clock.wall_ms
    revive_queue = ORDER_QUEUE if args.order else broker.pop_offsets.revive_queue()
    client_id = client_of(broker, call.conn, args.consumer_group)
    reads = QueueReads(broker, args, wanted, pop_ms, client_id)
    reads.read_all()
    if reads.found and not args.order and not broker.revive.is_logging:
        _keep(broker, args, reads, pop_ms, revive_queue, client_id)
    if reads.found and (args.order or not broker.revive.is_logging):
        answer(_found(broker, args, reads.found, pop_ms, revive_queue, reads.rest))
        _wake_next(broker, args, reads.rest)
        return
    if reads.found:
        _store(broker, call, answer, reads, pop_ms, revive_queue, client_id)
        return
    code = _park(broker, call, wanted, answer) if may_wait else ResponseCode.POLLING_TIMEOUT
    if code is not ResponseCode.SUCCESS:
        head = _head(args, pop_ms, revive_queue, reads.rest, OffsetTexts())
        answer(Response(code, head, b"", "NO_MESSAGE_IN_QUEUE"))


def _store(
    broker: "BrokerView",
    call: Call[PopMessageRequest],
    answer: Answer,
    reads: QueueReads,
    pop_ms: int,
    revive_queue: int,
    client_id: str,
) -> None:
    """Store the checkpoints, then answer with the messages whose checkpoint is stored."""
    args, revive = call.args, broker.revive
    stored: dict[int, TakenMessages] = {}
    left = len(reads.found)

    def ended(number: int, result: PutResult, status: PutStatus) -> None:
        nonlocal left
        taken = reads.found[number]
        assert taken.taken is not None, "the pop is not ordered"
        revive.counts.note_put(args.consumer_group, taken.topic, CHECKPOINT, status)
        if status in STORED:
            broker.pop_offsets.stored(taken.taken)
            revive.appended(revive_queue, result.queue_offset, client_id)
            stored[number] = taken
        else:
            broker.log.warning("checkpoint-not-stored", topic=taken.topic, group=args.consumer_group, status=status.name)
            broker.pop_offsets.failed(taken.taken)
        left -= 1
        if left:
            return
        if stored:
            found = [stored[each] for each in sorted(stored)]
            answer(_found(broker, args, found, pop_ms, revive_queue, reads.rest))
            _wake_next(broker, args, reads.rest)
        else:
            remark = f"service not available now: the checkpoint is not stored ({status.name})"
            answer(call.error(ResponseCode.SERVICE_NOT_AVAILABLE, remark))

    for number, each in enumerate(reads.found):
        checkpoint = _checkpoint(broker, args, each, pop_ms)
        put = checkpoint_put(checkpoint, revive.topic, revive_queue, broker.clock.wall_ms, broker.hosts.store_host)
        result = broker.store.append(put)
        broker.puts.await_own(put.topic, result, partial(ended, number, result), copies=True)


def _keep(
    broker: "BrokerView", args: PopMessageRequest, reads: QueueReads, pop_ms: int, revive_queue: int, client_id: str
) -> None:
    """Keep the checkpoints at an acting master, which stores none."""
    for each in reads.found:
        assert each.taken is not None, "the pop is not ordered"
        checkpoint, ended = _checkpoint(broker, args, each, pop_ms), partial(broker.pop_offsets.stored, each.taken)
        broker.revive.pop_unlogged(checkpoint, revive_queue, client_id, ended)


def _wake_next(broker: "BrokerView", args: PopMessageRequest, rest: int) -> None:
    """Wake one pop that waits for the same queues, if messages are left."""
    if rest:
        broker.pop_waiters.wake(args.topic, args.consumer_group, max(args.queue_id, -1))


def _checkpoint(broker: "BrokerView", args: PopMessageRequest, taken: TakenMessages, pop_ms: int) -> PopCheckpoint:
    return PopCheckpoint(
        broker_name=broker.config.identity.broker_name,
        group=args.consumer_group,
        differences=[offset - taken.start for offset in taken.offsets],
        invisible_ms=args.invisible_time,
        count=len(taken.offsets),
        pop_ms=pop_ms,
        queue_id=taken.queue_id,
        revive_ms=pop_ms + args.invisible_time,
        start=taken.start,
        topic=taken.topic,
    )


def _found(
    broker: "BrokerView",
    args: PopMessageRequest,
    found: list[TakenMessages],
    pop_ms: int,
    revive_queue: int,
    rest: int,
) -> Response:
    texts = OffsetTexts()
    body: list[Buffer] = []
    is_raw = broker.config.pop.response_return_actual_retry_topic
    name = broker.config.identity.broker_name
    handle = ReceiptHandle(0, pop_ms, args.invisible_time, revive_queue, "0", name, 0, -1)
    for taken in found:
        texts.add(taken.topic, taken.queue_id, taken.start, taken.offsets)
        if args.order:
            texts.add_counts(taken.topic, taken.queue_id, taken.offsets, taken.counts)
        if is_raw or flag_of(taken.topic) == "0":
            body.extend(taken.read.buffers)
        else:
            body.extend(redelivered(taken, args.topic, handle))
        broker.statistics.got(
            taken.topic, args.consumer_group, taken.queue_id, taken.start, len(taken.offsets), taken.read.size
        )
    return Response(ResponseCode.SUCCESS, _head(args, pop_ms, revive_queue, rest, texts), body, "FOUND")


def _head(args: PopMessageRequest, pop_ms: int, revive_queue: int, rest: int, texts: OffsetTexts) -> PopMessageResponse:
    return PopMessageResponse(
        pop_time=pop_ms,
        invisible_time=args.invisible_time,
        revive_qid=revive_queue,
        rest_num=rest,
        start_offset_info=texts.starts,
        msg_offset_info=texts.messages,
        order_count_info=texts.counts if args.order else None,
    )


def _park(broker: "BrokerView", call: Call[PopMessageRequest], wanted: PullFilter, answer: Answer) -> ResponseCode:
    """Let a pop wait. Return SUCCESS if it waits, else the code of the answer."""
    args = call.args
    deadline_ms = wait_until(broker, args.born_time, args.poll_time)
    if deadline_ms is None:
        return ResponseCode.POLLING_TIMEOUT

    def wake(arrived: bool) -> None:
        if not call.is_alive:
            return
        try:
            # The topic may be deleted meanwhile, this broker be no master any more, or a right be
            # withdrawn.
            call.check_again()
            check_serves(broker)
            checked_topic(broker, args.topic, args.queue_id, args.consumer_group)
        except Refused as refused:
            answer(call.error(refused.code, str(refused)))
        else:
            _attempt(broker, call, wanted, answer, may_wait=arrived)

    is_parked = park_call(broker.pop_waiters, broker, call, wanted, deadline_ms, wake)
    return ResponseCode.SUCCESS if is_parked else ResponseCode.POLLING_FULL


def park_call(
    waiters: PopWaiters,
    broker: "BrokerView",
    call: Call[PopMessageRequest] | Call[NotificationRequest],
    wanted: PullFilter,
    deadline_ms: int,
    wake: Callable[[bool], None],
) -> bool:
    """Let a pop or a notification wait. Return False if too many wait."""
    args, queue_id = call.args, max(call.args.queue_id, -1)
    if waiters.number(args.topic, args.consumer_group, queue_id) >= broker.config.pop.polling_size:
        return False
    return waiters.park(
        args.topic,
        args.consumer_group,
        queue_id,
        retry_topics=retry_topics(args.topic, args.consumer_group),
        deadline_ms=deadline_ms,
        conn=call.conn,
        match=wanted.tags,
        wake=wake,
    )


def wait_until(broker: "BrokerView", born_ms: int, poll_ms: int) -> int | None:
    """Return the monotonic time until which a call may wait; None if it may not wait."""
    left_ms = min(born_ms + poll_ms - EARLY_MS - broker.clock.wall_ms, POLL_MS_MAX)
    return None if poll_ms <= 0 or left_ms <= 0 else broker.clock.mono_ms + left_ms
