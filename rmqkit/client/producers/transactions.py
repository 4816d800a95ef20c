"""Transactions of a producer: half messages, their outcome, and the broker's questions about it.

    half        a send with TRAN_MSG=true and PGROUP; no consumer sees it
    end         END_TRANSACTION (37) to the broker that has the half: commit or roll back
    question    CHECK_TRANSACTION_STATE (39): a broker has got no outcome, and asks any producer of
                the group. The answer is an end, on the connection of the question.

Apache's client sends the end one-way. This one waits for the response, so that the program can see
a failure; the broker asks about a half whose end was lost. `transaction_ends.py` sends an end again
when another broker takes over.

Source: `client/.../DefaultMQProducerImpl.java` (`sendMessageInTransaction`, `endTransaction`,
`checkTransactionState`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from rmqkit.client.flow import Deferred
from rmqkit.client.message import MessageExt, SendResult
from rmqkit.client.producers.outgoing_message import OutgoingMessage, check_size
from rmqkit.errors import ClientError, InvalidMessage, RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.runtime.remoting import Remoting
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag, RequestCode, ResponseCode
from rmqkit.wire.msgid import decode_offset_id
from rmqkit.wire.schemas.send import EndTransactionRequest

#: how long an end waits for the broker's response
END_TIMEOUT_MS = 3000
NO_MASTER = "the broker of the half message has no master"
#: answers of a broker that has not become the master, or the acting master, yet
_NOT_HERE = (ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.SERVICE_NOT_AVAILABLE)


class TransactionState(StrEnum):
    """The outcome of a transaction, as a callback returns it.

    Attributes:
        COMMIT: Deliver the message.
        ROLLBACK: Drop the message.
        UNKNOWN: Not known yet: the broker asks the check callback later.
    """

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"


_BITS = {
    TransactionState.COMMIT: MessageSysFlag.TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: MessageSysFlag.TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: MessageSysFlag.TRANSACTION_NOT,
}


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The result of a transaction.

    Attributes:
        send: The result of the send of the half message.
        state: The outcome that was sent to the broker.
        end_error: Why the broker did not confirm the outcome; "" if it did, or if the outcome is
            UNKNOWN. The broker then asks the check callback.
    """

    send: SendResult
    state: TransactionState
    end_error: str = ""


@dataclass(frozen=True, slots=True)
class TransactionQuestion:
    """A broker's question: the half message, and the request that answers it but for the state."""

    message: MessageExt
    address: Address
    end: EndTransactionRequest


def half_of(outgoing: OutgoingMessage, group: str) -> OutgoingMessage:
    """Return a message as a half message of this producer group. Raises InvalidMessage."""
    if outgoing.code is not RequestCode.SEND_MESSAGE_V2:
        raise InvalidMessage("a reply cannot be sent in a transaction")
    if props.find(outgoing.properties.encode(), props.PROPERTY_DELAY_TIME_LEVEL.encode()) is not None:
        raise InvalidMessage("a message with a delay level cannot be sent in a transaction")
    marks = {props.PROPERTY_TRANSACTION_PREPARED: "true", props.PROPERTY_PRODUCER_GROUP: group}
    properties = outgoing.properties + props.encode(marks).decode()
    check_size(len(properties.encode()))
    return outgoing._replace(properties=properties, sys_flag=outgoing.sys_flag | MessageSysFlag.TRANSACTION_PREPARED)


def end_of(group: str, result: SendResult) -> EndTransactionRequest:
    """Return the request that ends the transaction of a half, without its outcome.

    Raises ClientError if the broker's response does not name the half.
    """
    try:
        place = decode_offset_id(result.offset_msg_id)
    except RemoteProtocolError as error:
        raise ClientError(f"the broker's response names no half message: {error}") from None
    return EndTransactionRequest(
        topic=result.queue.topic,
        producer_group=group,
        tran_state_table_offset=result.queue_offset,
        commit_log_offset=place.phy_offset,
        commit_or_rollback=0,
        msg_id=result.msg_id,
        transaction_id=result.transaction_id,
    )


async def send_end(remoting: Remoting, to: Address | None, end: EndTransactionRequest, state: TransactionState) -> str:
    """Send the outcome once, unless it is unknown. Return why it is not confirmed, "" if it is."""
    if state is TransactionState.UNKNOWN:
        return ""
    if to is None:
        return NO_MASTER
    return (await try_end(remoting, to, end, state, END_TIMEOUT_MS))[0]


async def try_end(
    remoting: Remoting, to: Address, end: EndTransactionRequest, state: TransactionState, timeout_ms: int
) -> tuple[str, bool]:
    """Send an outcome. Return why it is not confirmed, and whether another broker may be asked.

    Another one may if this one cannot have taken it: there was no connection, or it is a slave that
    does not act for its master.
    """
    end.commit_or_rollback = int(_BITS[state])
    promise: Deferred[Outcome] = Deferred()
    remoting.call(to, RequestCode.END_TRANSACTION, end, timeout_ms=timeout_ms, then=promise.resolve)
    outcome = await promise
    if isinstance(outcome, CallFailed):
        return f"{outcome.address} gave no answer: {outcome.text}", not outcome.maybe_done
    if outcome.is_ok:
        return "", False
    return f"{outcome.address} answered {outcome.code}: {outcome.remark}", outcome.code in _NOT_HERE


#: called in the node's thread with each question; must not block
OnQuestion = Callable[[TransactionQuestion], None]
