"""Transactions of a producer: half messages, their outcome, and the broker's questions about it.

    half        a send with TRAN_MSG=true and PGROUP; no consumer sees it
    end         END_TRANSACTION (37) to the broker that has the half: commit or roll back
    question    CHECK_TRANSACTION_STATE (39): a broker has got no outcome, and asks any producer of
                the group. The answer is an end, on the connection of the question.

`transaction_ends.py` sends the ends.

Source: `client/.../DefaultMQProducerImpl.java` (`sendMessageInTransaction`, `endTransaction`,
`checkTransactionState`).
"""

from dataclasses import dataclass
from enum import StrEnum

from rmqkit.client.message import MessageExt, SendResult
from rmqkit.client.producers.outgoing_message import OutgoingMessage, check_size
from rmqkit.errors import ClientError, InvalidMessage, RemoteProtocolError
from rmqkit.runtime.connection import Address
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag, RequestCode
from rmqkit.wire.msgid import decode_offset_id
from rmqkit.wire.schemas.send import EndTransactionRequest


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
