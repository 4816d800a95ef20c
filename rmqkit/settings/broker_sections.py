"""Sections of a broker: identity, network, topics, sending, pulling, registration,
offsets, delays.
"""

from dataclasses import dataclass
from enum import StrEnum

from rmqkit.settings.declaration import key, within
from rmqkit.settings.table import Type, Value

_ADDRESSES = r"(?:(?:\[[0-9a-fA-F:.]+\]|[^\s:;\[\]]+):[0-9]{1,5}(?:;|$))*"
_NAME = r"[^\x00-\x20\x7f]{1,255}"
_NAME_WORDS = "1 to 255 characters without spaces"
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class BrokerRole(StrEnum):
    """How a broker takes part in replication; the values are Apache's enum names (`BrokerRole`)."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


def addresses(value: Value) -> tuple[str, ...]:
    return tuple(part for part in str(value).split(";") if part)


def delays_ms(value: Value) -> tuple[int, ...]:
    """Return the delay levels "1s 5s 1m" in ms.

    Source: `ScheduleMessageService.parseDelayLevel`.
    """
    return tuple(int(each[:-1]) * _UNITS_MS[each[-1]] for each in str(value).split(" "))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """The identity of a broker.

    `broker_id` is 0 for every master, whatever was configured, and above 0 for a slave.
    """

    broker_name: str = key(
        "brokerName",
        "${host.name}",
        "name of the broker group; the machine's name by default",
        unset="DEFAULT_BROKER",
        pattern=_NAME,
        allowed=_NAME_WORDS,
    )
    broker_cluster_name: str = key(
        "brokerClusterName",
        "DefaultCluster",
        "name of the cluster; also the name of a topic when clusterTopicEnable is on",
        pattern=_NAME,
        allowed=_NAME_WORDS,
    )
    broker_id: int = key(
        "brokerId",
        0,
        "id in the group: 0 is the master (whatever is configured), slaves are above 0",
        type=Type.LONG,
        low=-1,
    )
    broker_role: BrokerRole = key(
        "brokerRole",
        BrokerRole.ASYNC_MASTER,
        "SYNC_MASTER waits for inSyncReplicas copies, its own included; a SLAVE copies the master of its brokerName",
    )
    region_id: str = key("regionId", "DefaultRegion", "value of the property MSG_REGION of stored messages")
    trace_on: bool = key("traceOn", True, "value of the property TRACE_ON of stored messages", live=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNetwork:
    """Where a broker listens, and which addresses it announces.

    `vip_listen_port` is two below `listen_port`, or 0 if that is 0 or too small. `ha_listen_port`
    is `listen_port` + 1 unless set. Without `namesrv_addrs` the broker registers nowhere.
    """

    bind_address: str = key("bindAddress", "0.0.0.0", "address to listen on", pattern=r"\S+", allowed="an address")
    listen_port: int = key(
        "listenPort",
        10_911,
        "main port; the port two below serves everything except pull and pop; 0 lets the system choose",
        low=0,
        high=65_535,
    )
    vip_listen_port: int = 10909
    ha_listen_port: int = key(
        "haListenPort", 0, "port for replication; listenPort + 1 if not above 0", unset=10_912, low=-1, high=65_535
    )
    broker_ip1: str = key(
        "brokerIP1",
        "${host.address}",
        "address that clients connect to",
        unset="127.0.0.1",
        pattern=_NAME,
        allowed="an address",
    )
    broker_ip2: str = key(
        "brokerIP2",
        "${host.address}",
        "address that slaves connect to",
        unset="127.0.0.1",
        pattern=_NAME,
        allowed="an address",
    )
    namesrv_addrs: tuple[str, ...] = key(
        "namesrvAddr",
        "${env.NAMESRV_ADDR}",
        "name servers, `host:port;host:port`; the variable NAMESRV_ADDR by default",
        convert=addresses,
        unset=(),
        pattern=_ADDRESSES,
        allowed="host:port;host:port",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """How topics and groups are created, and what they permit."""

    broker_permission: int = key(
        "brokerPermission", 6, "permission of the whole broker: 4 read, 2 write, 6 both", low=0, high=7, live=True
    )
    default_topic_queue_nums: int = key(
        "defaultTopicQueueNums",
        8,
        "queues of TBW102, and the most queues of a topic that a send creates",
        low=1,
        high=65_535,
        live=True,
    )
    auto_create_topic_enable: bool = key("autoCreateTopicEnable", True, "a send to a new topic creates it", live=True)
    auto_create_subscription_group: bool = key(
        "autoCreateSubscriptionGroup", True, "a new consumer group is created when its first member connects", live=True
    )
    cluster_topic_enable: bool = key("clusterTopicEnable", True, "clients may send to the topic named after the cluster")
    broker_topic_enable: bool = key("brokerTopicEnable", True, "clients may send to the topic named after the broker")
    trace_topic_enable: bool = key("traceTopicEnable", False, "the topic for message traces exists from the start")
    msg_trace_topic_name: str = key(
        "msgTraceTopicName",
        "RMQ_SYS_TRACE_TOPIC",
        "name of the topic for message traces",
        pattern=r"[%|a-zA-Z0-9_-]{1,127}",
        allowed="a topic name: up to 127 of a-z A-Z 0-9 _ - % |",
    )
    validate_system_topic_when_update_topic: bool = key(
        "validateSystemTopicWhenUpdateTopic", True, "admin requests cannot create or change system topics", live=True
    )
    enable_mixed_message_type: bool = key(
        "enableMixedMessageType", False, "topics may have the attribute message.type MIXED", live=True
    )
    clear_retry_topic_when_delete_topic: bool = key(
        "clearRetryTopicWhenDeleteTopic",
        True,
        "deleting a topic also deletes the retry topics that pop consumption created for it",
        live=True,
    )
    enable_split_metadata: bool = key(
        "enableSplitMetadata",
        True,
        "a peer that asks for pages gets the tables of topics and groups in pages",
        live=True,
    )
    split_metadata_size: int = key("splitMetadataSize", 2000, "most topics or groups of a page", low=1, live=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLimits:
    """What the broker accepts."""

    max_message_size: int = key("maxMessageSize", 4_194_304, "largest body, in bytes", low=1, high=1_073_741_824, live=True)
    auto_message_version_on_topic_len: bool = key(
        "autoMessageVersionOnTopicLen",
        True,
        "messages of topics longer than 127 bytes are stored as version 2 records; off: refused",
    )
    reject_transaction_message: bool = key(
        "rejectTransactionMessage", False, "half messages are refused with NO_PERMISSION", live=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """What one pull may return, and how a pull without messages waits.

    The fields `*_in_disk` limit an answer whose first record is further behind the end of the log
    than `access_message_in_memory_max_ratio` percent of the machine's memory. The fields
    `*_in_memory` limit every other answer.
    """

    long_polling_enable: bool = key(
        "longPollingEnable", True, "a pull without messages waits as long as its client requests", live=True
    )
    short_polling_time_ms: int = key(
        "shortPollingTimeMills",
        1000,
        "ms that a pull without messages waits if longPollingEnable is off",
        type=Type.LONG,
        low=0,
        live=True,
    )
    max_transfer_bytes_on_message_in_memory: int = key(
        "maxTransferBytesOnMessageInMemory", 262_144, "most bytes in one answer", low=1, live=True
    )
    max_transfer_count_on_message_in_memory: int = key(
        "maxTransferCountOnMessageInMemory", 32, "most messages in one answer", low=1, live=True
    )
    max_transfer_bytes_on_message_in_disk: int = key(
        "maxTransferBytesOnMessageInDisk",
        65_536,
        "most bytes in one answer, for messages far behind the end of the log",
        low=1,
        live=True,
    )
    max_transfer_count_on_message_in_disk: int = key(
        "maxTransferCountOnMessageInDisk",
        8,
        "most messages in one answer, for messages far behind the end of the log",
        low=1,
        live=True,
    )
    access_message_in_memory_max_ratio: int = key(
        "accessMessageInMemoryMaxRatio",
        40,
        "percent of the machine's memory that counts as near the end of the log",
        low=1,
        high=100,
        live=True,
    )
    max_filter_message_size: int = key(
        "maxFilterMessageSize",
        16_000,
        "20 times the number of queue entries that a pull with a filter may check",
        low=20,
        live=True,
    )
    default_query_max_num: int = key(
        "defaultQueryMaxNum", 32, "most messages in the answer to a query by unique key", low=1, live=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSettings:
    """Filters by properties of messages, and bit maps of the filters that match each message."""

    enable_property_filter: bool = key(
        "enablePropertyFilter",
        False,
        "consumers may subscribe by SQL92 and by other expressions over properties",
        live=True,
    )
    enable_calc_filter_bit_map: bool = key(
        "enableCalcFilterBitMap",
        False,
        "with enableConsumeQueueExt: filters are evaluated when a message is stored, so SQL92 pulls read only matches",
        live=True,
    )
    filter_support_retry: bool = key(
        "filterSupportRetry",
        False,
        "expressions on a retry topic are evaluated with the subscription to the message's original topic",
        live=True,
    )
    expect_consumer_num_use_filter: int = key(
        "expectConsumerNumUseFilter", 32, "groups with filters for which a topic's bit maps have room", low=1, high=10_000
    )
    max_error_rate_of_bloom_filter: int = key(
        "maxErrorRateOfBloomFilter",
        20,
        "percent of records that a bit map may match wrongly, so that they are read although no filter matches",
        low=1,
        high=99,
    )
    filter_data_clean_time_span_ms: int = key(
        "filterDataCleanTimeSpan",
        86_400_000,
        "ms for which the filter of a group without members is kept",
        type=Type.LONG,
        low=0,
        live=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationSettings:
    """How a broker registers with its name servers, and when it removes silent clients."""

    register_broker_timeout_ms: int = key(
        "registerBrokerTimeoutMills", 24_000, "ms that a name server may take to answer a registration", low=1, live=True
    )
    register_name_server_period_ms: int = key(
        "registerNameServerPeriod",
        30_000,
        "ms between two registrations; clamped to 10,000 to 60,000",
        convert=within(10_000, 60_000),
        live=True,
    )
    force_register: bool = key(
        "forceRegister",
        True,
        "the broker registers every period even without changes; off: it asks the name server first",
        live=True,
    )
    enable_single_topic_register: bool = key(
        "enableSingleTopicRegister",
        False,
        "a changed topic is sent to the name servers alone (request code 217) instead of as a registration of the broker",
        live=True,
    )
    channel_expired_timeout_ms: int = key(
        "channelExpiredTimeout",
        120_000,
        "ms without a heartbeat after which a client is removed",
        type=Type.LONG,
        low=1000,
        area="Clients and consumer offsets",
        live=True,
    )
    notify_consumer_ids_changed_enable: bool = key(
        "notifyConsumerIdsChangedEnable",
        True,
        "members of a group are notified when the group changes",
        area="Clients and consumer offsets",
        live=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSettings:
    """Consumer offsets."""

    flush_consumer_offset_interval_ms: int = key(
        "flushConsumerOffsetInterval", 5000, "ms between two writes of the consumer offsets", low=100, live=True
    )
    use_server_side_reset_offset: bool = key(
        "useServerSideResetOffset", True, "the broker resets a group's offsets itself, without its consumers", live=True
    )
    consumer_offset_update_version_step: int = key(
        "consumerOffsetUpdateVersionStep",
        500,
        "commits after which the data version of the offsets increases",
        type=Type.LONG,
        low=1,
        live=True,
    )


#: Apache's default `messageDelayLevel`
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@dataclass(frozen=True, slots=True, kw_only=True)
class DelaySettings:
    """Delay levels. The first of `levels_ms` is level 1."""

    levels_ms: tuple[int, ...] = key(
        "messageDelayLevel",
        DEFAULT_DELAY_LEVELS,
        "delay of each level, from level 1; waiting messages keep their delivery time",
        convert=delays_ms,
        pattern=r"[0-9]{1,9}[smhd]( [0-9]{1,9}[smhd]){0,255}",
        allowed="1 to 256 times separated by one space, each a number and s, m, h or d",
    )
    flush_delay_offset_interval_ms: int = key(
        "flushDelayOffsetInterval", 10_000, "ms between two writes of delayOffset.json", type=Type.LONG, low=1, live=True
    )
    pending_max: int = key(
        "scheduleAsyncDeliverMaxPendingLimit",
        2000,
        "most deliveries of one delay level that wait for the disk",
        low=1,
        live=True,
    )
    delay_offset_update_version_step: int = key(
        "delayOffsetUpdateVersionStep",
        200,
        "deliveries after which the data version of delayOffset.json increases",
        type=Type.LONG,
        low=1,
        live=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerSettings:
    """Timer messages: an arbitrary due time, and their recall."""

    wheel_enable: bool = key("timerWheelEnable", True, "messages with an arbitrary due time are accepted and delivered")
    precision_ms: int = key(
        "timerPrecisionMs",
        1000,
        "due times are multiples of this, in ms; the files keep it",
        low=10,
        high=60_000,
    )
    roll_window_slots: int = key(
        "timerRollWindowSlot",
        172_800,
        "a timer that waits longer than this many units of timerPrecisionMs is stored again on its way, so that the log "
        "need not keep it; at most 3/4 of fileReservedTime counts",
    )
    max_delay_sec: int = key(
        "timerMaxDelaySec", 259_200, "a message that is due later than this, in seconds, is refused", low=1, live=True
    )
    congest_num_each_slot: int = key(
        "timerCongestNumEachSlot",
        2_147_483_647,
        "timers per unit of timerPrecisionMs; more are refused",
        low=1,
        live=True,
    )
    flush_interval_ms: int = key(
        "timerFlushIntervalMs", 1000, "ms between two writes of the timers' progress", low=1, live=True
    )
    stop_enqueue: bool = key("timerStopEnqueue", False, "new timers are stored, but wait until it is off", live=True)
    stop_dequeue: bool = key("timerStopDequeue", False, "no timer is delivered until it is off", live=True)
    mapped_file_size: int = key("mappedFileSizeTimerLog", 104_857_600, "bytes of one file of the timer log", low=4096)
    append_topic_for_delete_key: bool = key(
        "appendTopicForTimerDeleteKey",
        False,
        "a recall writes `topic+id` (RocketMQ before 5.5) instead of the id; both forms are understood",
        live=True,
    )
    recall_enable: bool = key("recallMessageEnable", False, "producers may recall timer messages", live=True)
    recall_when_not_writeable: bool = key(
        "allowRecallWhenBrokerNotWriteable", True, "recalls are accepted although brokerPermission has no 2", live=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """When half messages are checked, how often, and how their outcomes are written."""

    timeout_ms: int = key(
        "transactionTimeOut",
        6000,
        "ms after its birth until a half message without an outcome is checked",
        type=Type.LONG,
        low=0,
        live=True,
    )
    check_interval_ms: int = key(
        "transactionCheckInterval", 30_000, "ms between two rounds of checks", type=Type.LONG, low=1, live=True
    )
    check_max: int = key(
        "transactionCheckMax",
        15,
        "checks of a half message without an outcome, until it is put into TRANS_CHECK_MAX_TIME_TOPIC",
        low=1,
        live=True,
    )
    op_msg_max_size: int = key(
        "transactionOpMsgMaxSize", 4096, "bytes of outcomes that one op message records at most", low=24, live=True
    )
    op_batch_interval_ms: int = key(
        "transactionOpBatchInterval", 3000, "ms that an outcome may wait for the op message with others", low=0, live=True
    )
    metrics: bool = key("enableTransactionMetrics", True, "metrics of transactions, with metricsExporterType PROM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordination:
    """What the broker coordinates between clients."""

    lock_mode: str = key(
        "lockMode",
        "loose",
        "lock mode of ordered consumption: `loose` (this broker grants locks), `strict` (a quorum of the group does), or "
        "one of a plug-in",
        pattern=r"[A-Za-z0-9_.-]{1,64}",
        allowed="the name of a lock mode",
        area="Plug-ins",
    )
    store_reply_message_enable: bool = key(
        "storeReplyMessageEnable",
        True,
        "the reply to a request message is also stored in the reply topic, not only sent to the waiting client",
        live=True,
    )
