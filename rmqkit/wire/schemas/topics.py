"""Topics at a broker: 17, 21, 202, 215, 300, 343, 351."""

from rmqkit.wire.schema import Ext, Int32


class CreateTopicRequest(Ext, kw_only=True):
    """17: `attributes` is text of the form `+key=value,-key`."""

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
    """21: all fields absent asks for everything; else pages from `topic_seq` on, `data_version` as JSON."""

    topic_seq: Int32 | None = None
    data_version: str | None = None
    max_topic_num: Int32 | None = None


class GetAllTopicConfigResponse(Ext, kw_only=True):
    total_topic_num: Int32 | None = None


class GetTopicConfigRequest(Ext, kw_only=True):
    """351: `lo` (logical) true asks for the static topic's mapping too."""

    topic: str
    lo: bool | None = None


class GetTopicStatsInfoRequest(Ext, kw_only=True):
    topic: str


class QueryTopicConsumeByWhoRequest(Ext, kw_only=True):
    topic: str


class QueryTopicsByConsumerRequest(Ext, kw_only=True):
    group: str
