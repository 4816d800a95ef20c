"""Queues: entries of one (321), message times for a group (303), corrected offsets (308).

Source: `remoting/.../protocol/body/{QueryConsumeQueueResponseBody,ConsumeQueueData}.java`,
`remoting/.../protocol/body/{QueryConsumeTimeSpanBody,QueueTimeSpan}.java`,
`remoting/.../protocol/body/QueryCorrectionOffsetBody.java`.
"""

from typing import ClassVar

from msgspec import field

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.bodies.subscription import SubscriptionData
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schema import Int32, Int64


class ConsumeQueueData(Body, kw_only=True):
    """One entry of a consume queue.

    `eval` tells whether the group's filter accepts the message. If that cannot be determined, `msg`
    has the reason.
    """

    bit_map: str | None = None
    eval: bool = False
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: Int64 = 0
    physic_size: Int32 = 0
    tags_code: Int64 = 0


class QueryConsumeQueueBody(Body, kw_only=True):
    """The response to 321; `filter_data` describes the group's filter as text."""

    filter_data: str | None = None
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0
    queue_data: list[ConsumeQueueData] = field(default_factory=list)
    subscription_data: SubscriptionData | None = None


class QueueTimeSpan(Body, kw_only=True):
    """Store times of a queue's first, last and last consumed message; `delay_time` is in ms.

    The three `_str` fields are the same times as text, in the time zone of the sender. Java
    recomputes them when it decodes.
    """

    HAS_QUEUES: ClassVar[bool] = True

    consume_time_stamp: Int64 = 0
    consume_time_stamp_str: str | None = None
    delay_time: Int64 = 0
    max_time_stamp: Int64 = 0
    max_time_stamp_str: str | None = None
    message_queue: MessageQueue | None = None
    min_time_stamp: Int64 = 0
    min_time_stamp_str: str | None = None


class ConsumeTimeSpans(Body, kw_only=True):
    """The response to 303 (`QueryConsumeTimeSpanBody`)."""

    HAS_QUEUES: ClassVar[bool] = True

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


class CorrectionOffsets(Body, kw_only=True):
    """The response to 308: offsets by queue id (`QueryCorrectionOffsetBody`)."""

    correction_offsets: dict[Int32, Int64] = field(default_factory=dict)
