"""Offsets: of queues (29-32), of consumer groups (14, 15, 43, 222, 303, 308, 314), entries of a queue (321)."""

from rmqkit.wire.schema import Ext, Int32, Int64


class GetAllConsumerOffsetRequest(Ext, kw_only=True):
    """43. Java sends no fields. Those of rmqkit's slaves: how far they know the changes ("" nothing yet), and whether the
    answer may wait for more of them; the body has offsets that the slave has and its master may lack. A master of ours
    that comes back asks for the whole table with the times of `resets`.
    """

    known_changes: str | None = None
    wait: bool = False
    broker_id: Int64 | None = None
    resets: bool = False


class GetAllConsumerOffsetResponse(Ext, kw_only=True):
    """To rmqkit's slaves alone: the body has changes, up to `changes`; `more` are to come at once. Versions are JSON.

    `log_end` is where the log ended when `delay_offsets` (a DelayOffsetTable) was true; `log_of` the start of the master
    whose log it is, "" where that is not known. `special_progress` is JSON: snapshots of other special duties by name.
    """

    changes: str
    more: bool
    topics_version: str
    groups_version: str
    delay_offsets: str = ""
    special_progress: str | None = None
    log_end: Int64
    log_of: str | None = None


class QueryConsumerOffsetRequest(Ext, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class QueryConsumerOffsetResponse(Ext, kw_only=True):
    offset: Int64


class UpdateConsumerOffsetRequest(Ext, kw_only=True):
    """The two fields that Java answers with INVALID_PARAMETER when absent are therefore optional here."""

    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None


class SearchOffsetRequest(Ext, kw_only=True):
    """29: `boundary_type` is `lower` or `upper` in any case; absent means lower."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class SearchOffsetResponse(Ext, kw_only=True):
    offset: Int64


class GetMaxOffsetRequest(Ext, kw_only=True):
    topic: str
    queue_id: Int32
    committed: bool = True


class GetMaxOffsetResponse(Ext, kw_only=True):
    offset: Int64


class GetMinOffsetRequest(Ext, kw_only=True):
    topic: str
    queue_id: Int32


class GetMinOffsetResponse(Ext, kw_only=True):
    offset: Int64


class GetEarliestMsgStoretimeRequest(Ext, kw_only=True):
    topic: str
    queue_id: Int32


class GetEarliestMsgStoretimeResponse(Ext, kw_only=True):
    timestamp: Int64


class ResetOffsetRequest(Ext, kw_only=True):
    """222 (admin to broker) and 220 (broker to client). `queue_id` -1 means all queues, `offset` absent or -1 by time."""

    topic: str
    group: str
    queue_id: Int32 = -1
    offset: Int64 | None = None
    timestamp: Int64
    is_force: bool = False


class QueryConsumeTimeSpanRequest(Ext, kw_only=True):
    topic: str
    group: str


class QueryCorrectionOffsetRequest(Ext, kw_only=True):
    """308: `filter_groups` is groups joined by `,`."""

    filter_groups: str | None = None
    compare_group: str
    topic: str


class CloneGroupOffsetRequest(Ext, kw_only=True):
    """314: without a topic, all topics of the source group."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryConsumeQueueRequest(Ext, kw_only=True):
    """321: `count` entries from `index` on."""

    topic: str | None = None
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None
