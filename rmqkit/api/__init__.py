"""The classes and functions that programs import. `rmqkit` re-exports them."""

from rmqkit.api.admin import Admin
from rmqkit.api.producer import Producer
from rmqkit.api.pull_consumer import LitePullConsumer, PullConsumer
from rmqkit.api.push_consumer import PushConsumer
from rmqkit.client.consumers.subscriptions import sql
from rmqkit.client.message import Message, MessageExt, SendResult, SendStatus
from rmqkit.wire.fastjson import MessageQueue

__all__ = [
    "Admin",
    "LitePullConsumer",
    "Message",
    "MessageExt",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SendResult",
    "SendStatus",
    "sql",
]
