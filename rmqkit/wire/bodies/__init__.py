"""JSON bodies, by area. Each has `encode() -> bytes`, `decode(data)` and `pretty()`; see `base.Body`."""

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.bodies.clients import (
    CheckClientBody,
    Connection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    SubscriptionOfGroup,
)
from rmqkit.wire.bodies.groups import GroupForbidden, SubscriptionGroupConfig, SubscriptionGroupList, SubscriptionGroupTable
from rmqkit.wire.bodies.ha import HARuntimeInfo
from rmqkit.wire.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    decode_heartbeat,
)
from rmqkit.wire.bodies.lists import ConsumerListByGroup, GroupList, KVTable, MessageRequestModeTable, TopicList
from rmqkit.wire.bodies.locks import LockBatchAnswer, LockBatchBody
from rmqkit.wire.bodies.offsets import (
    ConsumeProgress,
    ConsumerOffsetTable,
    ConsumerStatus,
    ConsumeStats,
    DelayOffsetTable,
    ResetOffsetBody,
    TopicOffset,
    TopicStatsTable,
)
from rmqkit.wire.bodies.queues import (
    ConsumeQueueData,
    ConsumeTimeSpans,
    CorrectionOffsets,
    QueryConsumeQueueBody,
    QueueTimeSpan,
)
from rmqkit.wire.bodies.register import RegisterBrokerBody
from rmqkit.wire.bodies.route import BrokerData, ClusterInfo, MemberGroup, MemberGroupBody, QueueData, TopicRoute
from rmqkit.wire.bodies.running import ConsumeMessageDirectlyResult, ConsumerRunningInfo, ProcessQueueInfo
from rmqkit.wire.bodies.statistics import BrokerStatsData, BrokerStatsItem, ConsumeStatsList
from rmqkit.wire.bodies.subscription import EXPRESSION_SQL92, EXPRESSION_TAG, SUB_ALL, SubscriptionData, parse_subscription
from rmqkit.wire.bodies.topics import TopicConfig, TopicConfigAndMappingTable, TopicConfigList, TopicConfigTable
from rmqkit.wire.bodies.versions import DataVersion
from rmqkit.wire.fastjson import MessageQueue

__all__ = [
    "EXPRESSION_SQL92",
    "EXPRESSION_TAG",
    "SUB_ALL",
    "Body",
    "BrokerData",
    "BrokerStatsData",
    "BrokerStatsItem",
    "CheckClientBody",
    "ClusterInfo",
    "Connection",
    "ConsumeMessageDirectlyResult",
    "ConsumeProgress",
    "ConsumeQueueData",
    "ConsumeStats",
    "ConsumeStatsList",
    "ConsumeTimeSpans",
    "ConsumerConnection",
    "ConsumerData",
    "ConsumerListByGroup",
    "ConsumerOffsetTable",
    "ConsumerRunningInfo",
    "ConsumerStatus",
    "CorrectionOffsets",
    "DataVersion",
    "DelayOffsetTable",
    "GroupForbidden",
    "GroupList",
    "HARuntimeInfo",
    "HeartbeatData",
    "KVTable",
    "LockBatchAnswer",
    "LockBatchBody",
    "MemberGroup",
    "MemberGroupBody",
    "MessageQueue",
    "MessageRequestModeTable",
    "ProcessQueueInfo",
    "ProducerConnection",
    "ProducerData",
    "ProducerInfo",
    "ProducerTable",
    "QueryConsumeQueueBody",
    "QueueData",
    "QueueTimeSpan",
    "RegisterBrokerBody",
    "ResetOffsetBody",
    "SubscriptionData",
    "SubscriptionGroupConfig",
    "SubscriptionGroupList",
    "SubscriptionGroupTable",
    "SubscriptionOfGroup",
    "TopicConfig",
    "TopicConfigAndMappingTable",
    "TopicConfigList",
    "TopicConfigTable",
    "TopicList",
    "TopicOffset",
    "TopicRoute",
    "TopicStatsTable",
    "decode_heartbeat",
    "parse_subscription",
]
