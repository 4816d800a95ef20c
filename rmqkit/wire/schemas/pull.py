"""Pull requests: codes 11 (PULL_MESSAGE) and 361 (LITE_PULL_MESSAGE)."""

from rmqkit.wire.schema import Ext, Int32, Int64


class PullMessageRequest(Ext, kw_only=True):
    """`PullMessageRequestHeader`; the bits of `sys_flag` are in `codes.PullSysFlag`."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64 = 0
    suspend_timeout_millis: Int64 = 0
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_froward_client_id: str | None = None  # upstream's spelling, on the wire too


class PullMessageResponse(Ext, kw_only=True):
    """Required in responses with the codes 0, 19, 20 and 21.

    Java's client unboxes the first four fields without a null check.
    """

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None
