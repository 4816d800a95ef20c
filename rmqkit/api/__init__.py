"""What programs import; `rmqkit` re-exports it."""

from rmqkit.api.producer import Producer
from rmqkit.client.message import Message, MessageExt, SendResult, SendStatus
from rmqkit.wire.fastjson import MessageQueue

__all__ = ["Message", "MessageExt", "MessageQueue", "Producer", "SendResult", "SendStatus"]
