"""Topics at a broker: 17, 21, 202, 215, 300, 343, 351."""

from rmqkit.wire.schema import Ext, Int32


class CreateTopicRequest(Ext, kw_only=True):
    """17: `attributes` has the form `+key=value,-key`."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool = False


class DeleteTopicRequest(Ext, kw_only=True):
    topic: str


class GetAllTopicConfigRequest(Ext, kw_only=True):
    """21: with all fields absent, the response has all topics.

    Otherwise it is a page that begins at `topic_seq`. `data_version` is JSON.
    """

    topic_seq: Int32 | None = None
    data_version: str | None = None
    max_topic_num: Int32 | None = None


class GetAllTopicConfigResponse(Ext, kw_only=True):
    total_topic_num: Int32 | None = None


class GetTopicConfigRequest(Ext, kw_only=True):
    """351: with `lo` (logical) true the response includes the mapping of a static topic."""

    topic: str
    lo: bool | None = None


class GetTopicStatsInfoRequest(Ext, kw_only=True):
    topic: str


class QueryTopicConsumeByWhoRequest(Ext, kw_only=True):
    topic: str


class QueryTopicsByConsumerRequest(Ext, kw_only=True):
    group: str
