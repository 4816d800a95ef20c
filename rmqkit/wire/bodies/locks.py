"""Queue locks for orderly consumption: 41 and 42.

The object `rmqkit` carries what lock modes send to each other and to their clients in addition to
upstream's fields. Apache's peers ignore it and never write it. Queues inside it are plain lists:
topic, broker name, queue id.
"""

from typing import Any, ClassVar

from msgspec import field

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.fastjson import MessageQueue


class LockBatchBody(Body, kw_only=True):
    """Request of 41 and 42 (`LockBatchRequestBody`, `UnlockBatchRequestBody`)."""

    HAS_QUEUES: ClassVar[bool] = True

    client_id: str = ""
    consumer_group: str = ""
    mq_set: list[MessageQueue] = field(default_factory=list)
    only_this_broker: bool = False
    rmqkit: dict[str, Any] | None = None


class LockBatchAnswer(Body, kw_only=True):
    """The response to 41: the queues that the client now holds (`LockBatchResponseBody`)."""

    HAS_QUEUES: ClassVar[bool] = True

    lock_ok_mq_set: list[MessageQueue] = field(default_factory=list, name="lockOKMQSet")
    rmqkit: dict[str, Any] | None = None
