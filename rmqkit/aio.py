"""The public names as coroutines, for asyncio programs; see `rmqkit.api.aio`."""

from rmqkit.api.aio import Admin, Producer, PullConsumer, PushConsumer, TransactionProducer
from rmqkit.client.message import Message, MessageExt, SendResult, SendStatus
from rmqkit.client.producers.transactions import TransactionResult, TransactionState
from rmqkit.wire.fastjson import MessageQueue

__all__ = [
    "Admin",
    "Message",
    "MessageExt",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SendResult",
    "SendStatus",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
]
