"""Requests that brokers send to a client, over the connections that the client opened.

    39   CHECK_TRANSACTION_STATE         the outcome of a transaction is missing: send it
    40   NOTIFY_CONSUMER_IDS_CHANGED     the members of a group changed: rebalance
    220  RESET_CONSUMER_CLIENT_OFFSET    the group's offsets were reset: continue there
    221  GET_CONSUMER_STATUS_FROM_CLIENT return the consumed offset of each queue
    307  GET_CONSUMER_RUNNING_INFO       return the state of this consumer
    309  CONSUME_MESSAGE_DIRECTLY        consume this message now, and return the outcome
    326  PUSH_REPLY_MESSAGE_TO_CLIENT    the reply to a request

Remoting answers everything else with code 3.

Source: `client/.../impl/ClientRemotingProcessor.java`.
"""

from functools import partial
from typing import TYPE_CHECKING

from rmqkit.access.rules import from_dialled
from rmqkit.client.flow import start
from rmqkit.client.message import MessageExt
from rmqkit.client.producers.transactions import TransactionQuestion
from rmqkit.errors import CorruptRecord
from rmqkit.runtime.calls import Answer, Call, Handlers, Refused, Response
from rmqkit.runtime.connection import Address
from rmqkit.wire import properties as props
from rmqkit.wire.bodies import ConsumeMessageDirectlyResult, ConsumerStatus, ResetOffsetBody
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.hosts import pack_host
from rmqkit.wire.record import Record, iter_records
from rmqkit.wire.schemas.calls import (
    CheckTransactionStateRequest,
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
    NotifyConsumerIdsChangedRequest,
    ReplyMessageRequest,
)
from rmqkit.wire.schemas.groups import GetConsumerStatusRequest
from rmqkit.wire.schemas.offsets import ResetOffsetRequest
from rmqkit.wire.schemas.send import EndTransactionRequest

if TYPE_CHECKING:
    from rmqkit.client.client import Client, ConsumerPart

PEER_CALLS = Handlers()


def _consumer(client: "Client", group: str) -> "ConsumerPart":
    consumer = client.consumers.get(group)
    if consumer is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer")
    return consumer


@PEER_CALLS.handles(RequestCode.CHECK_TRANSACTION_STATE, CheckTransactionStateRequest, access=from_dialled)
def transaction_asked(client: "Client", call: Call[CheckTransactionStateRequest]) -> Response:
    """Pass the question to the group's transaction producer. The answer is a request of its own."""
    try:
        record = next(iter_records(call.body))
    except (CorruptRecord, StopIteration):
        raise Refused(ResponseCode.SYSTEM_ERROR, "the half message cannot be decoded") from None
    message = MessageExt(record, client.routes.name_of(call.conn.peer) or "")
    group = message.properties.get(props.PROPERTY_PRODUCER_GROUP, "")
    checker = client.checkers.get(group)
    if checker is None:
        client.log.warning("transaction-check-unknown-group", group=group, broker=str(call.conn.peer))
        raise Refused(ResponseCode.SYSTEM_ERROR, f"producer group {group} has no transaction producer here")
    args = call.args
    end = EndTransactionRequest(
        topic=record.topic,
        producer_group=group,
        tran_state_table_offset=args.tran_state_table_offset,
        commit_log_offset=args.commit_log_offset,
        commit_or_rollback=0,
        from_transaction_check=True,
        msg_id=args.msg_id or message.msg_id,
        transaction_id=args.transaction_id,
    )
    checker(TransactionQuestion(message, call.conn.peer, end))
    return call.ok()


@PEER_CALLS.handles(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, NotifyConsumerIdsChangedRequest, access=from_dialled)
def members_changed(client: "Client", call: Call[NotifyConsumerIdsChangedRequest]) -> Response:
    _consumer(client, call.args.consumer_group).members_changed()
    return call.ok()


@PEER_CALLS.handles(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ResetOffsetRequest, access=from_dialled)
def reset_offsets(client: "Client", call: Call[ResetOffsetRequest]) -> Response:
    consumer = _consumer(client, call.args.group)
    table = ResetOffsetBody.decode_any(call.body).offset_table
    start(consumer.reset_offsets({queue: offset for queue, offset in table.items() if queue.topic == call.args.topic}))
    return call.ok()


@PEER_CALLS.handles(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, GetConsumerStatusRequest, access=from_dialled)
def consumer_status(client: "Client", call: Call[GetConsumerStatusRequest]) -> Response:
    offsets = _consumer(client, call.args.group).consumed_offsets()
    table = {queue: offset for queue, offset in offsets.items() if call.args.topic in ("", queue.topic)}
    return call.ok(body=ConsumerStatus(message_queue_table=table).encode())


@PEER_CALLS.handles(RequestCode.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfoRequest, access=from_dialled)
def running_info(client: "Client", call: Call[GetConsumerRunningInfoRequest]) -> Response:
    info = _consumer(client, call.args.consumer_group).running_info()
    if call.args.jstack_enable and client.stacks is not None:
        info.jstack = client.stacks()
    return call.ok(body=info.encode())


@PEER_CALLS.handles(RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeMessageDirectlyRequest, access=from_dialled)
def consume_directly(client: "Client", call: Call[ConsumeMessageDirectlyRequest]) -> Response:
    consumer = _consumer(client, call.args.consumer_group)
    deliver = getattr(consumer, "deliver_directly", None)
    if deliver is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"group {call.args.consumer_group} has no listener here")
    try:
        record = next(iter_records(call.body))
    except (CorruptRecord, StopIteration):
        raise Refused(ResponseCode.SYSTEM_ERROR, "the message cannot be read") from None
    began_ms = client.clock.mono_ms

    def ended(answer: Answer, ok: bool, error: str) -> None:
        result = ConsumeMessageDirectlyResult(
            consume_result="CR_SUCCESS" if ok else "CR_THROW_EXCEPTION" if error else "CR_LATER",
            order=bool(getattr(getattr(consumer, "settings", None), "orderly", False)),
            remark=error or None,
            spent_time_mills=client.clock.mono_ms - began_ms,
        )
        answer(call.ok(body=result.encode()))

    message = MessageExt(record, call.args.broker_name or "")
    return call.later(lambda answer: deliver(message, partial(ended, answer)))


@PEER_CALLS.handles(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ReplyMessageRequest, access=from_dialled)
def reply_came(client: "Client", call: Call[ReplyMessageRequest]) -> Response:
    """Pass a reply on to its request.

    The response is always OK: the caller of the request may have given up in the meantime.
    """
    args = call.args
    properties = props.decode((args.properties or "").encode())
    arrived = {props.PROPERTY_REPLY_MESSAGE_ARRIVE_TIME: str(client.clock.wall_ms)}
    record = Record(
        size=0,
        magic=0,
        body_crc=0,
        queue_id=args.queue_id,
        flag=args.flag,
        queue_offset=0,
        phy_offset=0,
        sys_flag=args.sys_flag,
        born_ms=args.born_timestamp,
        born_host=_host(args.born_host),
        store_ms=args.store_timestamp,
        store_host=_host(args.store_host),
        reconsume_times=args.reconsume_times or 0,
        prepared_offset=0,
        body=call.body,
        topic=args.topic,
        properties=props.encode({**properties, **arrived}),
    )
    broker_name = client.routes.name_of(call.conn.peer) or ""
    correlation_id = properties.get(props.PROPERTY_CORRELATION_ID, "")
    if not client.requests.replied(correlation_id, MessageExt(record, broker_name)):
        client.log.warning("reply-to-nobody", correlation_id=correlation_id, born_host=args.born_host)
    return call.ok()


def _host(text: str) -> bytes:
    """Return the address packed as in a record, or eight zero bytes if it is invalid."""
    try:
        address = Address.parse(text.lstrip("/"))
        return pack_host(address.host, address.port)
    except ValueError:
        return bytes(8)
