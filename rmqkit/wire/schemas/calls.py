"""Requests from a broker to a client, on the client's own connection: 39, 40, 307, 309, 326.

An administrator sends 307 and 309 to the broker, which forwards them with the same fields. 220 and
221 use `ResetOffsetRequest` and `GetConsumerStatusRequest`.
"""

from rmqkit.wire.schema import Ext, Int32, Int64


class CheckTransactionStateRequest(Ext, kw_only=True):
    """39, one way; the body is the half message as a record."""

    topic: str | None = None
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None


class NotifyConsumerIdsChangedRequest(Ext, kw_only=True):
    consumer_group: str


class GetConsumerRunningInfoRequest(Ext, kw_only=True):
    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyRequest(Ext, kw_only=True):
    """309: `msg_id` is an offset id. The forwarded request has the record as its body."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class ReplyMessageRequest(Ext, kw_only=True):
    """326: the header of the reply message, and where and when the message was stored."""

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
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: Int64
