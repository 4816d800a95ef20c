"""A producer process that the drill kills between its half messages and their ends.

    python -m rmqkit.drill.real.services.killed_producer '{"namesrv": ..., "group": ..., ...}'

The argument has the fields of `ProducerTask`. Each line on standard input is a half to send, as
`HalfOrder`; the answer is a line on standard output, as `HalfAnswer`. The process never ends a
transaction, and does not know the outcome of any. It is a member of its producer group, so brokers
may ask it; it answers UNKNOWN. The drill kills it with SIGKILL (`producer_process.py`). If the
drill itself ends, standard input ends, and the process exits.
"""

import logging
import sys

import msgspec

from rmqkit.api import TransactionProducer, TransactionState
from rmqkit.client.message import Message, MessageExt
from rmqkit.errors import ClientError, RmqkitError
from rmqkit.wire.fastjson import MessageQueue


class ProducerTask(msgspec.Struct, kw_only=True):
    """What the process needs to know at its start. `broker` is the group that gets the halves."""

    namesrv: str
    group: str
    instance_name: str
    topic: str
    broker: str
    timeout_ms: int


class HalfOrder(msgspec.Struct, kw_only=True):
    """One half message to send."""

    key: str
    body: bytes
    queue: int


class HalfAnswer(msgspec.Struct, kw_only=True):
    """The end of the send of one half.

    `error` is "" if the broker answered. `status` is the word of its answer, for instance SEND_OK.
    """

    key: str
    status: str = ""
    msg_id: str = ""
    transaction_id: str = ""
    error: str = ""
    maybe_stored: bool = False


def main() -> int:
    """Send the halves that standard input orders, until it ends."""
    logging.getLogger("rmqkit").addHandler(logging.NullHandler())
    task = msgspec.json.decode(sys.argv[1], type=ProducerTask)
    with TransactionProducer(
        task.group,
        check=_unknown,
        topics=(task.topic,),
        namesrv=task.namesrv,
        instance_name=task.instance_name,
        send_msg_timeout_ms=task.timeout_ms,
    ) as producer:
        for line in sys.stdin.buffer:
            answer = _send(producer, task, msgspec.json.decode(line, type=HalfOrder))
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()
    return 0


def _unknown(message: MessageExt) -> TransactionState:
    return TransactionState.UNKNOWN


def _send(producer: TransactionProducer, task: ProducerTask, order: HalfOrder) -> HalfAnswer:
    queue = MessageQueue(task.topic, task.broker, order.queue)
    try:
        result = producer.send_half(Message(task.topic, order.body, keys=order.key), queue).result()
    except ClientError as error:
        return HalfAnswer(key=order.key, error=str(error), maybe_stored=error.maybe_stored)
    except RmqkitError as error:
        return HalfAnswer(key=order.key, error=str(error), maybe_stored=True)
    return HalfAnswer(
        key=order.key,
        status=str(result.status),
        msg_id=result.msg_id,
        transaction_id=result.transaction_id or "",
    )


if __name__ == "__main__":
    sys.exit(main())
