"""Offsets of queues and of consumer groups, and entries of a queue.

Queues: 29-32. Groups: 14, 15, 43, 222, 303, 308, 314. Entries of a queue: 321.
"""

from rmqkit.wire.schema import Ext, Int32, Int64


class GetAllConsumerOffsetRequest(Ext, kw_only=True):
    """43: Java sends no fields; these are rmqkit's.

    A slave sends `known_changes`, the position in the master's changes up to which it is current
    ("" if it has none). With `wait` the master may hold the response until there are more changes.
    The body has offsets that the slave has and its master may lack. A returning master sends
    `resets`, which asks for the whole table including `reset_table`. A slave with lock mode `loose`
    sends `known_leases`, the `leases_version` of the leases that it has.
    """

    known_changes: str | None = None
    wait: bool = False
    broker_id: Int64 | None = None
    resets: bool = False
    known_leases: Int64 | None = None


class GetAllConsumerOffsetResponse(Ext, kw_only=True):
    """43, only to rmqkit's slaves: the body has the changes up to the position `changes`.

    - `more`: the slave should ask for further changes at once.
    - `topics_version`, `groups_version`: DataVersions as JSON.
    - `delay_offsets`: a DelayOffsetTable as JSON. `log_end` is the end of the log when it was read.
    - `log_of`: the start id of the master that wrote the sender's log, "" if unknown.
    - `leases_version`: set if the body has the leases of lock mode `loose`.
    - `access_version`: a DataVersion as JSON, set with access control.
    - `special_progress`: JSON, progress of the other special duties by name.
    """

    changes: str
    more: bool
    topics_version: str
    groups_version: str
    delay_offsets: str = ""
    special_progress: str | None = None
    log_end: Int64
    log_of: str | None = None
    leases_version: Int64 | None = None
    access_version: str | None = None


class QueryConsumerOffsetRequest(Ext, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class QueryConsumerOffsetResponse(Ext, kw_only=True):
    offset: Int64


class UpdateConsumerOffsetRequest(Ext, kw_only=True):
    """15: `queue_id` and `commit_offset` are optional here, unlike in Java's header.

    Java answers INVALID_PARAMETER if they are absent, so the handler has to see such a request.
    """

    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None


class SearchOffsetRequest(Ext, kw_only=True):
    """29: `boundary_type` is `lower` or `upper`, case-insensitive; absent means lower."""

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
    """222 (admin to broker) and 220 (broker to client).

    `queue_id` -1 means all queues. With `offset` absent or -1, the offset is found by `timestamp`.
    """

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
    """308: `filter_groups` is a list of groups separated by `,`."""

    filter_groups: str | None = None
    compare_group: str
    topic: str


class CloneGroupOffsetRequest(Ext, kw_only=True):
    """314: without a topic, clones all topics of the source group."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryConsumeQueueRequest(Ext, kw_only=True):
    """321: returns `count` entries from `index` on."""

    topic: str | None = None
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None
