"""END_TRANSACTION (37): a producer commits or rolls back its half message. 323: check one again.

A commit appends the message to its own topic, waits as a send would, and then records the op
(`broker/special/transactions`). A message that is stored, though perhaps not yet as safe as asked,
counts as committed. A rollback only records the op. Without enough copies (`minInSyncReplicas`) a
commit is refused like a send; the half stays, and its producer is asked again.

The half is read by its log offset. It may have been put again since then; the newest copy gets the
outcome. A half that is decided already is refused: Apache commits it a second time.

Producers send 37 one-way. To one that waits for an answer, "unknown" (0) is answered with SUCCESS;
Apache gives no answer.

An acting master keeps the decision as progress of its transactions (`special/transactions`); the
message of a commit escapes. A half that has begun to escape itself is refused: the other group
asks the producer. Apache's acting master refuses every 37 with SLAVE_NOT_AVAILABLE, as any other
slave does here.

Source: `broker/.../processor/EndTransactionProcessor.java` (`rejectCommitOrRollback`,
`checkPrepareMessage`), `AdminBrokerProcessor.resumeCheckHalfMessage`.
"""

from functools import partial
from typing import TYPE_CHECKING

from rmqkit.access.rules import PUB, UPDATE, on_topic
from rmqkit.broker.handlers.demands import TRANSACTION, stored_topic
from rmqkit.broker.special.transactions import rewrite
from rmqkit.broker.special.transactions.decisions import DECISIONS_MAX
from rmqkit.broker.special.transactions.rewrite import immunity_of
from rmqkit.errors import CorruptRecord, RemoteProtocolError
from rmqkit.runtime.calls import LATER, Answer, Call, Handlers, Refused, Response
from rmqkit.store.contract import PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag, RequestCode, ResponseCode
from rmqkit.wire.msgid import decode_offset_id
from rmqkit.wire.record import Record, decode_record
from rmqkit.wire.schemas.messages import ResumeCheckHalfMessageRequest
from rmqkit.wire.schemas.send import EndTransactionRequest
from rmqkit.wire.topic_names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()

COMMIT, ROLLBACK = MessageSysFlag.TRANSACTION_COMMIT, MessageSysFlag.TRANSACTION_ROLLBACK
UNKNOWN = MessageSysFlag.TRANSACTION_NOT
#: the message is in the log
_STORED = (
    PutStatus.PUT_OK,
    PutStatus.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE,
)
_GROUP = props.PROPERTY_PRODUCER_GROUP.encode()


@rows.handles(RequestCode.END_TRANSACTION, EndTransactionRequest, access=TRANSACTION)
def end_transaction(broker: "BrokerView", call: Call[EndTransactionRequest]) -> Response:
    """Commit a half message, or roll it back."""
    args = call.args
    if not broker.role.is_master and not broker.role.is_acting:
        raise Refused(ResponseCode.SLAVE_NOT_AVAILABLE, "the broker is a slave: only a master ends transactions")
    if args.commit_or_rollback not in (UNKNOWN, COMMIT, ROLLBACK):
        raise Refused(ResponseCode.SYSTEM_ERROR, f"commitOrRollback is {args.commit_or_rollback}, not 0, 8 or 12")
    if args.commit_or_rollback == UNKNOWN:
        return call.ok()
    record = _half(broker, args)
    call.demand(stored_topic(record, PUB))
    if not broker.transactions.is_on:
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now: the broker does not serve yet")
    half = broker.transactions.undecided(record)
    if half is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed: its outcome is known already")
    if broker.role.is_acting:
        return _end_while_acting(broker, call, half)
    offset = half.queue_offset
    if args.commit_or_rollback == ROLLBACK:
        call.changing()
        broker.transactions.decide(half, is_commit=False)
        return call.ok()
    put = rewrite.committed(half, broker.hosts.store_host)
    if put is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed: it does not name its topic")
    if broker.replication.acks.too_few:
        raise Refused(ResponseCode.SYSTEM_ERROR, broker.replication.acks.too_few)
    if broker.puts.is_full:
        raise Refused(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while")
    call.changing()
    broker.transactions.begin_commit(offset)
    result = broker.store.append(put)

    if result.status is not PutStatus.PUT_OK:
        broker.transactions.failed_commit(offset)
        return broker.puts.refusal(result.status)
    broker.puts.await_own(put.topic, result, partial(_committed, broker, call, half), copies=True)
    return LATER


def _committed(broker: "BrokerView", call: Call[EndTransactionRequest], half: Record, status: PutStatus) -> None:
    """Record the outcome of a commit, and answer."""
    if status in _STORED:
        broker.transactions.decide(half, is_commit=True)
        call.finish(call.ok())
    else:
        broker.transactions.failed_commit(half.queue_offset)
        call.finish(broker.puts.refusal(status))


def _end_while_acting(broker: "BrokerView", call: Call[EndTransactionRequest], half: Record) -> Response:
    """Keep the decision about this half; answer once it is on disk."""
    transactions, is_commit = broker.transactions, call.args.commit_or_rollback == COMMIT
    if transactions.is_full:
        raise Refused(
            ResponseCode.SYSTEM_BUSY, f"{DECISIONS_MAX} outcomes wait for the master: the half will be checked again"
        )
    call.changing()
    return call.later(lambda answer: transactions.keep_decision(half, is_commit=is_commit, then=lambda: answer(call.ok())))


def _half(broker: "BrokerView", args: EndTransactionRequest) -> Record:
    """Return the half that the request names, after upstream's checks in upstream's order."""
    record = broker.transactions.recent.take(args.commit_log_offset) or _record(broker, args.commit_log_offset)
    if record is None or record.topic != HALF_TOPIC:
        raise Refused(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
    if not args.from_transaction_check:
        timeout_ms = broker.config.transactions.timeout_ms
        immunity_ms = immunity_of(record.properties, timeout_ms)
        if immunity_ms is not None and broker.clock.wall_ms - record.born_ms > max(immunity_ms, timeout_ms):
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                "the half message is older than CHECK_IMMUNITY_TIME_IN_SECONDS: only the answer to a check ends it",
            )
    if (props.find(record.properties, _GROUP) or b"").decode("utf-8", "replace") != args.producer_group:
        raise Refused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if record.queue_offset != args.tran_state_table_offset:
        raise Refused(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    if record.phy_offset != args.commit_log_offset:
        raise Refused(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
    return record


def _record(broker: "BrokerView", phy_offset: int) -> Record | None:
    data = broker.store.record(phy_offset) if phy_offset >= 0 else None
    try:
        record = None if data is None else decode_record(data, check_crc=True)
    except CorruptRecord:
        return None
    return record if isinstance(record, Record) else None


@rows.handles(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessageRequest, access=on_topic(UPDATE))
def resume_check(broker: "BrokerView", call: Call[ResumeCheckHalfMessageRequest]) -> Response:
    """Put a half that was given up into the half topic again, as one that was never checked."""
    if not broker.role.is_master:
        raise Refused(ResponseCode.SLAVE_NOT_AVAILABLE, "the broker is a slave: only a master checks half messages")
    try:
        offset = decode_offset_id(call.args.msg_id or "").phy_offset
    except RemoteProtocolError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None
    record = _record(broker, offset)
    if record is None or record.topic not in (HALF_TOPIC, CHECK_MAX_TIME_TOPIC):
        raise Refused(
            ResponseCode.SYSTEM_ERROR, f"Find prepared transaction message failed: {call.args.msg_id} is no half message"
        )
    if rewrite.target(record.properties) is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed: it does not name its topic")
    call.changing()
    result = broker.store.append(rewrite.again(record, broker.hosts.store_host, checks=0))

    def ended(answer: Answer, status: PutStatus) -> None:
        answer(call.ok() if status in _STORED else broker.puts.refusal(status))

    return call.later(lambda answer: broker.puts.await_own(HALF_TOPIC, result, partial(ended, answer)))
