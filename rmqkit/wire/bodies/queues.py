"""What stands in queues: entries of one queue (321), times of its messages for a group (303), corrected offsets (308).

Source: `remoting/.../protocol/body/{QueryConsumeQueueResponseBody,ConsumeQueueData,QueryConsumeTimeSpanBody,
QueueTimeSpan,QueryCorrectionOffsetBody}.java`.
"""

from typing import ClassVar

from msgspec import field

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.bodies.subscription import SubscriptionData
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schema import Int32, Int64


class ConsumeQueueData(Body, kw_only=True):
    """One entry of a consume queue; `eval`: the group's filter takes it; `msg` says why when it cannot be said."""

    bit_map: str | None = None
    eval: bool = False
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: Int64 = 0
    physic_size: Int32 = 0
    tags_code: Int64 = 0


class QueryConsumeQueueBody(Body, kw_only=True):
    """The answer to 321; `filter_data` is a text that describes the group's filter."""

    filter_data: str | None = None
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0
    queue_data: list[ConsumeQueueData] = field(default_factory=list)
    subscription_data: SubscriptionData | None = None


class QueueTimeSpan(Body, kw_only=True):
    """Store times of a queue's first and last message and of the last one consumed; `delay_time` in milliseconds.

    The three texts are the times in the zone of whoever wrote them; Java makes them anew when it reads.
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
    """The answer to 303 (`QueryConsumeTimeSpanBody`)."""

    HAS_QUEUES: ClassVar[bool] = True

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


class CorrectionOffsets(Body, kw_only=True):
    """The answer to 308: offsets by queue id (`QueryCorrectionOffsetBody`)."""

    correction_offsets: dict[Int32, Int64] = field(default_factory=dict)
