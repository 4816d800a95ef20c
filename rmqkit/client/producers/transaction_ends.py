"""Ends of transactions: sends the outcome of a half message to the broker that has it (37).

Apache's client sends the end one-way. This one waits for the response, so that the program can see
a failure, and tries again for a moment if another broker takes over. A broker asks about a half
whose end was lost.

Source: `client/.../DefaultMQProducerImpl.java` (`endTransaction`).
"""

from rmqkit.client.client import Client
from rmqkit.client.flow import Deferred
from rmqkit.client.message import SendResult
from rmqkit.client.producers.transactions import TransactionQuestion, TransactionState
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.runtime.remoting import Remoting
from rmqkit.wire.codes import MessageSysFlag, RequestCode, ResponseCode
from rmqkit.wire.schemas.send import EndTransactionRequest

#: how long an end waits for the broker's response, further attempts included
END_TIMEOUT_MS = 3000
#: pause before a further attempt
END_RETRY_MS = 300
#: answers of a broker that has not become the master, or the acting master, yet
_TRIED_AGAIN = (ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.SERVICE_NOT_AVAILABLE)
_BITS = {
    TransactionState.COMMIT: MessageSysFlag.TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: MessageSysFlag.TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: MessageSysFlag.TRANSACTION_NOT,
}


async def send_end(client: Client, half: SendResult, end: EndTransactionRequest, state: TransactionState) -> str:
    """Send the outcome to the broker of the half. Return why it is not confirmed, "" if it is.

    While nobody may have taken it (no connection, or a slave that does not act for its master yet),
    it is sent again, with a new route, until `END_TIMEOUT_MS` are over.
    """
    deadline_ms = client.clock.mono_ms + END_TIMEOUT_MS
    why = "the broker of the half message has no master"
    while state is not TransactionState.UNKNOWN:
        to = client.routes.master(half.queue.broker_name)
        left_ms = deadline_ms - client.clock.mono_ms
        if to is not None:
            why, is_done = await _send_end(client.remoting, to, end, state, left_ms)
            if is_done:
                return why
        if left_ms <= END_RETRY_MS:
            return why
        client.routes.refresh_soon(half.queue.topic)
        await client.timers.sleep(END_RETRY_MS)
    return ""


async def answer_question(client: Client, question: TransactionQuestion, state: TransactionState) -> str:
    """Send the outcome that a broker has asked for, unless it is unknown.

    Return why it is not confirmed, "" if it is.
    """
    if state is TransactionState.UNKNOWN:
        return ""
    why, _ = await _send_end(client.remoting, question.address, question.end, state, END_TIMEOUT_MS)
    return why


async def _send_end(
    remoting: Remoting, to: Address, end: EndTransactionRequest, state: TransactionState, timeout_ms: int
) -> tuple[str, bool]:
    """Send the outcome. Return why it is not confirmed, and whether another attempt is useless."""
    end.commit_or_rollback = int(_BITS[state])
    promise: Deferred[Outcome] = Deferred()
    remoting.call(to, RequestCode.END_TRANSACTION, end, timeout_ms=timeout_ms, then=promise.resolve)
    outcome = await promise
    if isinstance(outcome, CallFailed):
        return f"{outcome.address} gave no answer: {outcome.text}", outcome.maybe_done
    if outcome.is_ok:
        return "", True
    return f"{outcome.address} answered {outcome.code}: {outcome.remark}", outcome.code not in _TRIED_AGAIN
