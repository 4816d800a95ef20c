"""The sections of pop consumption, and of the assignment of queues by the broker."""

from dataclasses import dataclass
from enum import StrEnum

from rmqkit.settings.declaration import key
from rmqkit.settings.table import Type


class RequestMode(StrEnum):
    """How the members of a group get messages."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, slots=True, kw_only=True)
class PopSettings:
    """Pop consumption and revive."""

    polling_size: int = key("popPollingSize", 1024, "most pops that wait for one topic, group and queue", low=1, live=True)
    polling_size_max: int = key(
        "maxPopPollingSize", 100_000, "most pops that wait at this broker", type=Type.LONG, low=1, live=True
    )
    revive_queue_num: int = key(
        "reviveQueueNum", 8, "queues of the revive topic; pops spread their checkpoints over them", low=1, high=64
    )
    revive_interval_ms: int = key(
        "reviveInterval",
        1000,
        "ms between two polls for checkpoints that other members or the timer have written",
        type=Type.LONG,
        low=10,
        live=True,
    )
    revive_skip_if_group_absent: bool = key(
        "popReviveSkipIfGroupAbsent", True, "messages popped by a group that was deleted since are not revived", live=True
    )
    enable_retry_topic_v2: bool = key(
        "enableRetryTopicV2",
        False,
        "redelivered messages go to `%RETRY%group+topic`; off: to `%RETRY%group_topic`",
        live=True,
    )
    retrieve_from_retry_topic_v1: bool = key(
        "retrieveMessageFromPopRetryTopicV1",
        True,
        "with enableRetryTopicV2, half of the reads of the retry topic take the one with the old name",
        live=True,
    )
    from_retry_probability: int = key(
        "popFromRetryProbability",
        20,
        "percentage of pops that read the retry topic first; the others read it last",
        low=0,
        high=100,
        live=True,
    )
    init_offset_by_memory: bool = key(
        "initPopOffsetByCheckMsgInMem",
        True,
        "a new group that starts at the newest message gets all of a queue whose first message is still in memory",
        live=True,
    )
    response_return_actual_retry_topic: bool = key(
        "popResponseReturnActualRetryTopic",
        False,
        "redelivered messages are answered under the name of the retry topic, without a receipt handle",
        live=True,
    )
    enable_message_threshold: bool = key(
        "enablePopMessageThreshold", False, "popInflightMessageThreshold applies", live=True
    )
    inflight_message_threshold: int = key(
        "popInflightMessageThreshold",
        10_000,
        "popped messages of one queue and group without an ack, above which the queue gives no more",
        type=Type.LONG,
        low=0,
        live=True,
    )
    priority_order_asc: bool = key(
        "priorityOrderAsc", True, "pops visit the queues by descending id; off: by ascending id", live=True
    )
    metrics: bool = key("enablePopMetrics", True, "metrics of pop")


@dataclass(frozen=True, slots=True, kw_only=True)
class PopNoticeSettings:
    """Which messages and events end the wait of pops and notifications."""

    filter_notifications: bool = key(
        "useMessageFilterForNotification",
        True,
        "notifications (code 200054) consider only messages that match the filter of the request",
        live=True,
    )
    notification_filter_max: int = key(
        "maxMessageFilterNumForNotification",
        64,
        "waiting messages of a queue at which a notification no longer checks their tags",
        low=0,
        high=1024,
        live=True,
    )
    notify_after_order_release: bool = key(
        "enableNotifyAfterPopOrderLockRelease",
        True,
        "the end of an invisible time wakes an ordered pop that waits for its queue",
        live=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentSettings:
    """How the broker divides queues among the members of a group."""

    server_load_balancer_enable: bool = key(
        "serverLoadBalancerEnable",
        True,
        "the broker divides queues among the members that ask for an assignment; off: each gets all",
        live=True,
    )
    default_request_mode: RequestMode = key(
        "defaultMessageRequestMode", RequestMode.PULL, "mode of groups for which none was set", live=True
    )
    default_share_queue_num: int = key(
        "defaultPopShareQueueNum",
        -1,
        "members whose queues a member also pops, for groups in the default mode; 0 or less: all queues",
        live=True,
    )
