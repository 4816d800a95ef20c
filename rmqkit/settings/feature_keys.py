"""Rows of delay levels, and of a broker's features that are still to come: timers, transactions, pop and others.

A message that needs one of them is refused when it arrives (as Apache answers with the feature off), so a key that
tunes the feature can be taken without harm. Those that would make stored messages vanish from their readers end the
start instead.
"""

from __future__ import annotations

from rmqkit.settings.table import STATISTICS, UNREAD, Row, Type, Value, in_area, later, no_effect, refused, works

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def delays_ms(value: Value) -> tuple[int, ...]:
    """ScheduleMessageService.parseDelayLevel: "1s 5s 1m" as milliseconds."""
    return tuple(int(each[:-1]) * _UNITS_MS[each[-1]] for each in str(value).split(" "))


TIMERS = in_area(
    "Timer and delay",
    works(
        "messageDelayLevel",
        Type.STR,
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "delay.levels_ms",
        "the delay of each level from 1 on; what is waiting keeps the time it was given",
        pattern=r"[0-9]{1,9}[smhd]( [0-9]{1,9}[smhd]){0,255}",
        allowed="1 to 256 times separated by one space, each a number and s, m, h or d",
        convert=delays_ms,
    ),
    works(
        "flushDelayOffsetInterval",
        Type.LONG,
        10_000,
        "delay.flush_delay_offset_interval_ms",
        "ms between two writes of delayOffset.json",
        live=True,
        low=1,
    ),
    works(
        "scheduleAsyncDeliverMaxPendingLimit",
        Type.INT,
        2000,
        "delay.pending_max",
        "deliveries of one delay level that may wait for their disk",
        live=True,
        low=1,
    ),
    works(
        "delayOffsetUpdateVersionStep",
        Type.LONG,
        200,
        "delay.delay_offset_update_version_step",
        "deliveries between two steps of the data version of delayOffset.json",
        live=True,
        low=1,
    ),
    *no_effect(STATISTICS, "enableScheduleMessageStats: bool = true"),
    *no_effect(
        "deliveries never wait for one another; one that fails holds back only the progress of its level",
        """
        enableScheduleAsyncDeliver: bool = false
        scheduleAsyncDeliverMaxResendNum2Blocked: int = 3
        """,
    ),
    *later(
        "timer messages",
        """
        timerWheelEnable: bool = true
        mappedFileSizeTimerLog: int = 104857600
        timerPrecisionMs: int = 1000
        timerRollWindowSlot: int = 172800
        timerFlushIntervalMs: int = 1000
        timerGetMessageThreadNum: int = 3
        timerPutMessageThreadNum: int = 3
        timerEnableDisruptor: bool = false
        timerEnableCheckMetrics: bool = true
        timerInterceptDelayLevel: bool = false
        timerMaxDelaySec: int = 259200
        timerStopEnqueue: bool = false
        timerCheckMetricsWhen: str = 05
        timerSkipUnknownError: bool = false
        timerWarmEnable: bool = false
        timerStopDequeue: bool = false
        timerEnableRetryUntilSuccess: bool = false
        timerCongestNumEachSlot: int = 2147483647
        timerMetricSmallThreshold: int = 1000000
        timerProgressLogIntervalMs: int = 10000
        timerRecallToTimeWheelEnable: bool = true
        timerRecallToTimelineEnable: bool = true
        timerReputServiceCorePoolSize: int = 6
        timerReputServiceMaxPoolSize: int = 6
        timerReputServiceQueueCapacity: int = 10000
        timerWheelSnapshotFlush: bool = false
        timerWheelSnapshotIntervalMs: int = 10000
        appendTopicForTimerDeleteKey: bool = false
        recallMessageEnable: bool = false
        allowRecallWhenBrokerNotWriteable: bool = true
        """,
    ),
)

TRANSACTIONS = in_area(
    "Transactions",
    *later(
        "transactions",
        """
        transactionTimeOut: long = 6000
        transactionCheckMax: int = 15
        transactionCheckInterval: long = 30000
        transactionMetricFlushInterval: long = 10000
        transactionOpMsgMaxSize: int = 4096
        transactionOpBatchInterval: int = 3000
        transWriteOriginTransHalfEnable: bool = true
        """,
    ),
)

POP = in_area(
    "Pop",
    *later(
        "pop consumption",
        """
        popPollingSize: int = 1024
        popPollingMapSize: int = 100000
        popPollingMapExpireTimeSeconds: int = 600
        maxPopPollingSize: long = 100000
        reviveQueueNum: int = 8
        reviveInterval: long = 1000
        reviveMaxSlow: long = 3
        reviveScanTime: long = 10000
        enableSkipLongAwaitingAck: bool = false
        reviveAckWaitMs: long = 180000
        enablePopLog: bool = false
        enablePopBufferMerge: bool = false
        popCkStayBufferTime: int = 10000
        popCkStayBufferTimeOut: int = 3000
        popCkMaxBufferSize: int = 200000
        popCkOffsetMaxQueueSize: int = 20000
        enablePopBatchAck: bool = false
        popLongPollingForceNotifyInterval: long = 800
        enableNotifyBeforePopCalculateLag: bool = true
        enableNotifyAfterPopOrderLockRelease: bool = true
        initPopOffsetByCheckMsgInMem: bool = true
        retrieveMessageFromPopRetryTopicV1: bool = true
        enableRetryTopicV2: bool = false
        popFromRetryProbability: int = 20
        popFromRetryProbabilityForPriority: int = 0
        popReviveConcurrency: int = 32
        popReviveSkipIfGroupAbsent: bool = true
        priorityOrderAsc: bool = true
        useSeparateRetryQueue: bool = false
        useMessageFilterForNotification: bool = true
        maxMessageFilterNumForNotification: int = 64
        popConsumerFSServiceInit: bool = true
        popConsumerKVServiceLog: bool = false
        popConsumerKVServiceInit: bool = false
        popConsumerKVServiceEnable: bool = false
        popReviveMaxReturnSizePerRead: int = 16384
        popReviveMaxAttemptTimes: int = 16
        popResponseReturnActualRetryTopic: bool = false
        popInflightMessageThreshold: long = 10000
        enablePopMessageThreshold: bool = false
        skipWhenCKRePutReachMaxTimes: bool = false
        appendAckAsync: bool = false
        appendCkAsync: bool = false
        serverLoadBalancerEnable: bool = true
        defaultMessageRequestMode: enum(PULL|POP) = PULL
        defaultPopShareQueueNum: int = -1
        loadBalancePollNameServerInterval: long = 30000
        """,
    ),
)

FILTERS = in_area(
    "Pulling",
    works(
        "enablePropertyFilter",
        Type.BOOL,
        False,
        "filters.enable_property_filter",
        "consumers may subscribe by SQL92 and by other expressions over properties",
        live=True,
    ),
    works(
        "enableCalcFilterBitMap",
        Type.BOOL,
        False,
        "filters.enable_calc_filter_bit_map",
        "with enableConsumeQueueExt: who wants a message is worked out when it comes, and pulls by SQL92 read no others",
        live=True,
    ),
    works(
        "filterSupportRetry",
        Type.BOOL,
        False,
        "filters.filter_support_retry",
        "a subscription to a retry topic by an expression filters by the one of the message's own topic",
        live=True,
    ),
    works(
        "expectConsumerNumUseFilter",
        Type.INT,
        32,
        "filters.expect_consumer_num_use_filter",
        "groups with a filter that a topic's bit maps have room for",
        low=1,
        high=10_000,
    ),
    works(
        "maxErrorRateOfBloomFilter",
        Type.INT,
        20,
        "filters.max_error_rate_of_bloom_filter",
        "percent of the records that a bit map may let be read for nothing",
        low=1,
        high=99,
    ),
    works(
        "filterDataCleanTimeSpan",
        Type.LONG,
        86_400_000,
        "filters.filter_data_clean_time_span_ms",
        "ms that a group's filter is kept after the group has gone",
        live=True,
        low=0,
    ),
)

OTHERS = in_area(
    "Other features to come",
    works(
        "storeReplyMessageEnable",
        Type.BOOL,
        True,
        "coordination.store_reply_message_enable",
        "a reply to a request is stored in the reply topic as well, not only handed on to who waits for it",
        live=True,
    ),
    *later(
        "offsets of broadcasting consumers behind a proxy",
        """
        enableBroadcastOffsetStore: bool = true
        broadcastOffsetExpireSecond: long = 120
        broadcastOffsetExpireMaxSecond: long = 300
        """,
    ),
    *later("topics whose queues lie on several brokers", "forwardTimeout: long = 3000"),
    *later(
        "topics kept by compaction",
        """
        enableCompaction: bool = true
        compactionMappedFileSize: int = 104857600
        compactionCqMappedFileSize: int = 10485760
        compactionScheduleInternal: int = 900000
        maxOffsetMapSize: int = 104857600
        compactionThreadNum: int = 6
        """,
    ),
    *later(
        "topics whose queue entries are batches",
        """
        mapperFileSizeBatchConsumeQueue: int = 13800000
        searchBcqByCacheEnable: bool = true
        """,
    ),
    *later(
        "flow control of consumers that read old messages",
        """
        coldDataFlowControlEnable: bool = false
        coldDataScanEnable: bool = false
        timerColdDataCheckIntervalMs: int = 60000
        accessMessageInMemoryHotRatio: int = 26
        coldCtrStrategyEnable: bool = false
        usePIDColdCtrStrategy: bool = true
        cgColdReadThreshold: long = 3145728
        globalColdReadThreshold: long = 104857600
        """,
    ),
    refused("light message queues would stay empty: they are not built yet", "enableLmq", Type.BOOL, False, True),
    refused("messages for several queues would reach only one", "enableMultiDispatch", Type.BOOL, False, True),
    *later(
        "light message queues and lite topics",
        """
        maxLmqConsumeQueueNum: int = 20000
        enableLmqStats: bool = false
        enableLmqQuota: bool = false
        enableLiteEventMode: bool = true
        enableLitePopLog: bool = false
        liteEventCheckInterval: long = 10000
        liteEventFullDispatchDelayTime: long = 10000
        liteEventFullDispatchDelayTimeForWildcardGroup: long = 10000
        liteLagCountMetricsEnable: bool = false
        liteLagLatencyCollectEnable: bool = false
        liteLagLatencyMetricsEnable: bool = false
        liteLagLatencyTopK: int = 50
        liteSubscriptionCheckInterval: long = 120000
        liteSubscriptionCheckTimeoutMills: long = 180000
        liteTtlCheckInterval: long = 120000
        maxClientEventCount: int = 100
        maxLiteSubscriptionCount: long = 100000
        minLiteTTl: long = 900000
        """,
    ),
    *no_effect(UNREAD, "cleanOfflineBrokerInterval: int = 30000"),
)

ROWS: tuple[Row, ...] = TIMERS + TRANSACTIONS + POP + FILTERS + OTHERS
