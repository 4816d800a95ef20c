"""Sends (10, 310, 320, 324, 325), send-back (36), end of a transaction (37), recall (370).

`SendMessageRequestV1` (codes 10, 324) and `SendMessageRequestV2` (310, 320, 325) have the same
Python fields. Only the wire names differ: those of V2 are the letters a to n. The field `batch`,
not the code, tells whether the body is a batch.
"""

import msgspec

from rmqkit.wire.schema import Ext, Int32, Int64


class SendMessageRequestV1(Ext, kw_only=True):
    """`SendMessageRequestHeader`. With a negative `queue_id` the broker chooses the queue."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class SendMessageRequestV2(Ext, kw_only=True):
    """`SendMessageRequestHeaderV2`."""

    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c")
    default_topic_queue_nums: Int32 = msgspec.field(name="d")
    queue_id: Int32 = msgspec.field(name="e")
    sys_flag: Int32 = msgspec.field(name="f")
    born_timestamp: Int64 = msgspec.field(name="g")
    flag: Int32 = msgspec.field(name="h")
    properties: str | None = msgspec.field(default=None, name="i")
    reconsume_times: Int32 | None = msgspec.field(default=None, name="j")
    unit_mode: bool | None = msgspec.field(default=None, name="k")
    max_reconsume_times: Int32 | None = msgspec.field(default=None, name="l")
    batch: bool | None = msgspec.field(default=None, name="m")
    broker_name: str | None = msgspec.field(default=None, name="n")


class SendMessageResponse(Ext, kw_only=True):
    """`SendMessageResponseHeader`, with the two ext fields that the broker adds to it."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    msg_region: str | None = msgspec.field(default=None, name="MSG_REGION")
    trace_on: bool | None = msgspec.field(default=None, name="TRACE_ON")


class ConsumerSendMsgBackRequest(Ext, kw_only=True):
    """36: `offset` is the physical offset of the message that could not be consumed."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class EndTransactionRequest(Ext, kw_only=True):
    """37: `commit_or_rollback` is 8 (commit), 12 (roll back) or 0 (unknown)."""

    topic: str | None = None
    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None


class RecallMessageRequest(Ext, kw_only=True):
    producer_group: str | None = None
    topic: str
    recall_handle: str


class RecallMessageResponse(Ext, kw_only=True):
    msg_id: str
