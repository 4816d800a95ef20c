"""Pop consumption: 200050 to 200055 and 200151, and 60001 of rmqkit's own."""

from rmqkit.wire.schema import Ext, Int32, Int64


class PopMessageRequest(Ext, kw_only=True):
    """A negative `queue_id` means all queues. `init_mode`: 0 the oldest message, 1 the newest."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64 = 0
    born_time: Int64 = 0
    init_mode: Int32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopMessageResponse(Ext, kw_only=True):
    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequest(Ext, kw_only=True):
    """`topic` is the topic of the queue: for a redelivered message its retry topic."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    lite_topic: str | None = None


class ChangeInvisibleTimeRequest(Ext, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    lite_topic: str | None = None
    suspend: bool = False


class ChangeInvisibleTimeResponse(Ext, kw_only=True):
    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class NotificationRequest(Ext, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64 = 0
    born_time: Int64 = 0
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponse(Ext, kw_only=True):
    has_msg: bool
    polling_full: bool = False


class PollingInfoRequest(Ext, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponse(Ext, kw_only=True):
    polling_num: Int32


class PeekMessageRequest(Ext, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class GetPopInFlightRequest(Ext, kw_only=True):
    """Without a topic, all topics of the group; a topic includes its retry topics."""

    consumer_group: str
    topic: str | None = None
