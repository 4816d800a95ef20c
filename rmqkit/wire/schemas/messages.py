"""Find messages by key (12) or by physical offset (33); check a half message again (323)."""

import msgspec

from rmqkit.wire.schema import Ext, Int32, Int64


class QueryMessageRequest(Ext, kw_only=True):
    """12: `unique_key_query` true means that `key` is a unique id.

    Clients of 5.5 also send `index_type`: K (key), U (unique id) or T (tag).
    """

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    index_type: str | None = None
    last_key: str | None = None
    unique_key_query: bool | None = msgspec.field(default=None, name="_UNIQUE_KEY_QUERY")


class QueryMessageResponse(Ext, kw_only=True):
    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageRequest(Ext, kw_only=True):
    topic: str | None = None
    offset: Int64


class ResumeCheckHalfMessageRequest(Ext, kw_only=True):
    topic: str | None = None
    msg_id: str | None = None
