"""Rows of a broker that decide how messages and clients are served: sending, pulling, clients and their offsets.

Apache keeps them in BrokerConfig and, for the limits of one answer, in MessageStoreConfig.
"""

from __future__ import annotations

from rmqkit.settings.table import STATISTICS, UNREAD, Row, Type, in_area, later, no_effect, works

SENDING = in_area(
    "Sending",
    works(
        "maxMessageSize",
        Type.INT,
        4_194_304,
        "send.max_message_size",
        "largest body, in bytes",
        live=True,
        low=1,
        high=1_073_741_824,
    ),
    works(
        "autoMessageVersionOnTopicLen",
        Type.BOOL,
        True,
        "send.auto_message_version_on_topic_len",
        "topics longer than 127 bytes are stored as version 2 records; off: refused",
    ),
    works(
        "rejectTransactionMessage",
        Type.BOOL,
        False,
        "send.reject_transaction_message",
        "half messages are refused with NO_PERMISSION",
        live=True,
    ),
    *no_effect(
        "there is no send queue: a send is handled in the turn in which it arrives; what waits for the disk is bounded by "
        "waitersMax, and beyond it sends are answered SYSTEM_BUSY",
        """
        brokerFastFailureEnable: bool = true
        waitTimeMillsInSendQueue: long = 200
        osPageCacheBusyTimeOutMills: long = 1000
        """,
    ),
    *later("refusing sends before a given time", "startAcceptSendRequestTimeStamp: long = 0"),
    *no_effect("a put is never blocked: its call waits, and the broker goes on", "asyncSendEnable: bool = true"),
    *no_effect(
        "requests other than sends are served in the turn in which they arrive",
        """
        waitTimeMillsInPullQueue: long = 5000
        waitTimeMillsInLitePullQueue: long = 5000
        waitTimeMillsInHeartbeatQueue: long = 31000
        waitTimeMillsInTransactionQueue: long = 3000
        waitTimeMillsInAckQueue: long = 3000
        waitTimeMillsInAdminBrokerQueue: long = 5000
        """,
    ),
)

PULLING = in_area(
    "Pulling",
    works(
        "longPollingEnable",
        Type.BOOL,
        True,
        "pull.long_polling_enable",
        "a pull that finds nothing waits as long as its client asked for",
        live=True,
    ),
    works(
        "shortPollingTimeMills",
        Type.LONG,
        1000,
        "pull.short_polling_time_ms",
        "how long it waits when longPollingEnable is off, in ms",
        live=True,
        low=0,
    ),
    works(
        "maxTransferBytesOnMessageInMemory",
        Type.INT,
        262_144,
        "pull.max_transfer_bytes_on_message_in_memory",
        "most bytes in one answer",
        live=True,
        low=1,
    ),
    works(
        "maxTransferCountOnMessageInMemory",
        Type.INT,
        32,
        "pull.max_transfer_count_on_message_in_memory",
        "most messages in one answer",
        live=True,
        low=1,
    ),
    works(
        "maxTransferBytesOnMessageInDisk",
        Type.INT,
        65_536,
        "pull.max_transfer_bytes_on_message_in_disk",
        "most bytes in one answer, for messages far behind the end of the log",
        live=True,
        low=1,
    ),
    works(
        "maxTransferCountOnMessageInDisk",
        Type.INT,
        8,
        "pull.max_transfer_count_on_message_in_disk",
        "most messages in one answer, for messages far behind the end of the log",
        live=True,
        low=1,
    ),
    works(
        "accessMessageInMemoryMaxRatio",
        Type.INT,
        40,
        "pull.access_message_in_memory_max_ratio",
        "percent of the machine's memory that counts as near the end of the log",
        live=True,
        low=1,
        high=100,
    ),
    works(
        "maxFilterMessageSize",
        Type.INT,
        16_000,
        "pull.max_filter_message_size",
        "divided by 20: queue entries that one filtering pull may look at",
        live=True,
        low=20,
    ),
    works(
        "defaultQueryMaxNum",
        Type.INT,
        32,
        "pull.default_query_max_num",
        "most messages that a query by unique key answers",
        live=True,
        low=1,
    ),
    *no_effect("pulls of lite consumers are always served", "litePullMessageEnable: bool = true"),
    *later("refusing consumers that pull on their own", "rejectPullConsumerEnable: bool = false"),
    *later(
        "shutting out groups that lag too far behind",
        """
        disableConsumeIfConsumerReadSlowly: bool = false
        consumerFallbehindThreshold: long = 17179869184
        """,
    ),
    *no_effect("answers are slices of the file, sent as they are", "transferMsgByHeap: bool = true"),
    *no_effect("a pull goes on into the next queue file by itself", "travelCqFileNumWhenGetMessage: int = 1"),
    *no_effect(UNREAD, "pullBatchMaxMessageCount: int = 160"),
    *no_effect(
        STATISTICS,
        """
        diskFallRecorded: bool = true
        estimateAccumulation: bool = true
        maxConsumeQueueScan: int = 20000
        sampleCountThreshold: int = 5000
        sampleSteps: int = 32
        """,
    ),
)

CLIENTS = in_area(
    "Clients and consumer offsets",
    works(
        "channelExpiredTimeout",
        Type.LONG,
        120_000,
        "registration.channel_expired_timeout_ms",
        "a client without a heartbeat for so long is forgotten, in ms",
        live=True,
        low=1000,
    ),
    works(
        "notifyConsumerIdsChangedEnable",
        Type.BOOL,
        True,
        "registration.notify_consumer_ids_changed_enable",
        "members of a group are told when it changes",
        live=True,
    ),
    works(
        "flushConsumerOffsetInterval",
        Type.INT,
        5000,
        "offsets.flush_consumer_offset_interval_ms",
        "consumer offsets are written to disk so often, in ms",
        live=True,
        low=100,
    ),
    works(
        "useServerSideResetOffset",
        Type.BOOL,
        True,
        "offsets.use_server_side_reset_offset",
        "resetting a group's offset works without its consumers' help",
        live=True,
    ),
    works(
        "consumerOffsetUpdateVersionStep",
        Type.LONG,
        500,
        "offsets.consumer_offset_update_version_step",
        "commits between two steps of the offsets' data version",
        live=True,
        low=1,
    ),
    *later(
        "groups that subscribe by configuration instead of by heartbeat, and their expiry",
        """
        useStaticSubscription: bool = false
        subscriptionExpiredTimeout: long = 600000
        """,
    ),
    *no_effect("producers are always recorded by their heartbeat", "enableRegisterProducer: bool = true"),
    *no_effect("members of a group are always told at once", "realTimeNotifyConsumerChange: bool = true"),
    *no_effect(
        UNREAD,
        """
        flushConsumerOffsetHistoryInterval: int = 60000
        enableCleanExpiredOffset: bool = false
        """,
    ),
)

ROWS: tuple[Row, ...] = SENDING + PULLING + CLIENTS
