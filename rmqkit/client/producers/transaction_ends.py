"""Ends of transactions while another broker takes over from the one that has the half message.

Apache's client sends an end once, and one-way.
"""

from rmqkit.client.client import Client
from rmqkit.client.message import SendResult
from rmqkit.client.producers.transactions import END_TIMEOUT_MS, NO_MASTER, TransactionState, try_end
from rmqkit.wire.schemas.send import EndTransactionRequest

#: pause before a further attempt
END_RETRY_MS = 300


async def deliver_end(client: Client, half: SendResult, end: EndTransactionRequest, state: TransactionState) -> str:
    """Send the outcome to the broker of the half. Return why it is not confirmed, "" if it is.

    While nobody can have taken it, it is sent again, with a new route, until `END_TIMEOUT_MS` are
    over.
    """
    deadline_ms = client.clock.mono_ms + END_TIMEOUT_MS
    why = NO_MASTER
    while state is not TransactionState.UNKNOWN:
        to = client.routes.master(half.queue.broker_name)
        left_ms = deadline_ms - client.clock.mono_ms
        if to is not None:
            why, may_be_elsewhere = await try_end(client.remoting, to, end, state, left_ms)
            if not may_be_elsewhere:
                return why
        if left_ms <= END_RETRY_MS:
            return why
        client.routes.refresh_soon(half.queue.topic)
        await client.timers.sleep(END_RETRY_MS)
    return ""
