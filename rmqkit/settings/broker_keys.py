"""Rows of a broker: identity, addresses, topics, registration.

Apache keeps them in BrokerConfig and BrokerIdentity.
"""

from __future__ import annotations

from rmqkit.settings.sections import BrokerRole
from rmqkit.settings.table import (
    ONE_THREAD,
    STATISTICS,
    UNREAD,
    Row,
    Type,
    Value,
    in_area,
    later,
    no_effect,
    works,
)

ADDRESSES = r"(?:(?:\[[0-9a-fA-F:.]+\]|[^\s:;\[\]]+):[0-9]{1,5}(?:;|$))*"
NAME = r"[^\x00-\x20\x7f]{1,255}"
NAME_WORDS = "1 to 255 characters without spaces"


def addresses(value: Value) -> tuple[str, ...]:
    return tuple(part for part in str(value).split(";") if part)


def registration_period(value: Value) -> int:
    """BrokerController.start holds the period within these bounds, and so do we."""
    return max(10_000, min(int(value), 60_000))


IDENTITY = in_area(
    "Identity and addresses",
    works(
        "brokerName",
        Type.STR,
        "${host.name}",
        "identity.broker_name",
        "name of the broker group; the machine's name by default",
        pattern=NAME,
        allowed=NAME_WORDS,
    ),
    works(
        "brokerClusterName",
        Type.STR,
        "DefaultCluster",
        "identity.broker_cluster_name",
        "name of the cluster; also the name of a topic when clusterTopicEnable is on",
        pattern=NAME,
        allowed=NAME_WORDS,
    ),
    works(
        "brokerId",
        Type.LONG,
        0,
        "identity.broker_id",
        "0 is the master of its group; a master is 0 whatever is written",
        low=-1,
    ),
    works(
        "brokerRole",
        Type.ENUM,
        "ASYNC_MASTER",
        "identity.broker_role",
        "SYNC_MASTER waits for inSyncReplicas copies (1 is the master's own); a SLAVE copies the master of its brokerName",
        choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
        convert=lambda value: BrokerRole(str(value)),
    ),
    works(
        "regionId",
        Type.STR,
        "DefaultRegion",
        "identity.region_id",
        "what stored messages carry in their property MSG_REGION",
    ),
    works(
        "traceOn", Type.BOOL, True, "identity.trace_on", "what stored messages carry in their property TRACE_ON", live=True
    ),
    works(
        "brokerIP1",
        Type.STR,
        "${host.address}",
        "network.broker_ip1",
        "address given to clients",
        pattern=NAME,
        allowed="an address",
    ),
    works(
        "brokerIP2",
        Type.STR,
        "${host.address}",
        "network.broker_ip2",
        "address given to slaves",
        pattern=NAME,
        allowed="an address",
    ),
    works(
        "listenPort",
        Type.INT,
        10911,
        "network.listen_port",
        "main port; the port two below serves all but pull and pop; 0 lets the system choose",
        low=0,
        high=65535,
    ),
    works(
        "haListenPort",
        Type.INT,
        0,
        "network.ha_listen_port",
        "port for replication; listenPort + 1 when not above 0",
        low=-1,
        high=65535,
    ),
    works(
        "namesrvAddr",
        Type.STR,
        "${env.NAMESRV_ADDR}",
        "network.namesrv_addrs",
        "name servers, `host:port;host:port`; the variable NAMESRV_ADDR by default",
        pattern=ADDRESSES,
        allowed="host:port;host:port",
        convert=addresses,
    ),
    *no_effect(
        "Java's installation folder and logs have no counterpart",
        """
        rocketmqHome: path = ${ROCKETMQ_HOME}
        brokerConfigPath: path = -
        isolateLogEnable: bool = false
        """,
    ),
    *no_effect(
        "only keys marked live can be changed at run time, whatever this says",
        "configBlackList: str = configBlackList;brokerConfigPath",
    ),
    *no_effect(
        "set by how the broker was started, not by hand",
        """
        isInBrokerContainer: bool = false
        isBrokerContainer: bool = false
        """,
    ),
    *later(
        "name servers looked up at an address server or in the DNS",
        """
        fetchNamesrvAddrByAddressServer: bool = false
        fetchNameSrvAddrByDnsLookup: bool = false
        fetchNamesrvAddrInterval: long = 10000
        updateNameServerAddrPeriod: int = 120000
        rmqAddressServerDomain: str = -
        rmqAddressServerSubGroup: str = -
        """,
    ),
)

TOPICS = in_area(
    "Topics and groups",
    works(
        "brokerPermission",
        Type.INT,
        6,
        "topics.broker_permission",
        "what the whole broker allows: 4 read, 2 write, 6 both",
        live=True,
        low=0,
        high=7,
    ),
    works(
        "defaultTopicQueueNums",
        Type.INT,
        8,
        "topics.default_topic_queue_nums",
        "queues of TBW102, and the most that a topic created by a send gets",
        live=True,
        low=1,
        high=65535,
    ),
    works(
        "autoCreateTopicEnable",
        Type.BOOL,
        True,
        "topics.auto_create_topic_enable",
        "a send to a new topic creates it",
        live=True,
    ),
    works(
        "autoCreateSubscriptionGroup",
        Type.BOOL,
        True,
        "topics.auto_create_subscription_group",
        "a new consumer group is created when it first shows up",
        live=True,
    ),
    works(
        "clusterTopicEnable",
        Type.BOOL,
        True,
        "topics.cluster_topic_enable",
        "the topic named after the cluster may be written",
    ),
    works(
        "brokerTopicEnable",
        Type.BOOL,
        True,
        "topics.broker_topic_enable",
        "the topic named after the broker may be written",
    ),
    works(
        "traceTopicEnable",
        Type.BOOL,
        False,
        "topics.trace_topic_enable",
        "the topic for message traces exists from the start",
    ),
    works(
        "msgTraceTopicName",
        Type.STR,
        "RMQ_SYS_TRACE_TOPIC",
        "topics.msg_trace_topic_name",
        "name of the topic for message traces",
        pattern=r"[%|a-zA-Z0-9_-]{1,127}",
        allowed="a topic name: up to 127 of a-z A-Z 0-9 _ - % |",
    ),
    works(
        "validateSystemTopicWhenUpdateTopic",
        Type.BOOL,
        True,
        "topics.validate_system_topic_when_update_topic",
        "system topics cannot be created or changed by an admin call",
        live=True,
    ),
    works(
        "enableMixedMessageType",
        Type.BOOL,
        False,
        "topics.enable_mixed_message_type",
        "topics may have the attribute message.type MIXED",
        live=True,
    ),
    works(
        "clearRetryTopicWhenDeleteTopic",
        Type.BOOL,
        True,
        "topics.clear_retry_topic_when_delete_topic",
        "with a topic go the retry topics that pop consumption made for it",
        live=True,
    ),
    works(
        "enableSplitMetadata",
        Type.BOOL,
        True,
        "topics.enable_split_metadata",
        "tables of topics and groups are sent in pages to a peer that asks for pages",
        live=True,
    ),
    works(
        "splitMetadataSize",
        Type.INT,
        2000,
        "topics.split_metadata_size",
        "topics or groups of a page at most",
        low=1,
        live=True,
    ),
    *no_effect("system groups are not created when a client shows up, they are there", "enableCreateSysGroup: bool = true"),
)

REGISTRATION = in_area(
    "Registration with name servers",
    works(
        "registerNameServerPeriod",
        Type.INT,
        30_000,
        "registration.register_name_server_period_ms",
        "time between two registrations, held within 10,000 and 60,000 ms",
        live=True,
        convert=registration_period,
    ),
    works(
        "registerBrokerTimeoutMills",
        Type.INT,
        24_000,
        "registration.register_broker_timeout_ms",
        "how long a name server may take to answer one, in ms",
        live=True,
        low=1,
    ),
    works(
        "forceRegister",
        Type.BOOL,
        True,
        "registration.force_register",
        "registers each period even when nothing changed; off: asks the name server first",
        live=True,
    ),
    *later("registering a changed topic alone instead of with all others", "enableSingleTopicRegister: bool = false"),
    *later("compressed registration bodies", "compressedRegister: bool = false"),
    *later(
        "registrations in several parts",
        """
        enableSplitRegistration: bool = false
        splitRegistrationSize: int = 800
        """,
    ),
)

POOLS = in_area(
    "Threads, queues and tuning of Java",
    *no_effect(
        ONE_THREAD,
        """
        sendMessageThreadPoolNums: int = -
        putMessageFutureThreadPoolNums: int = -
        pullMessageThreadPoolNums: int = -
        litePullMessageThreadPoolNums: int = -
        ackMessageThreadPoolNums: int = 16
        processReplyMessageThreadPoolNums: int = -
        queryMessageThreadPoolNums: int = -
        adminBrokerThreadPoolNums: int = 16
        clientManageThreadPoolNums: int = 32
        consumerManageThreadPoolNums: int = 32
        loadBalanceProcessorThreadPoolNums: int = 32
        heartbeatThreadPoolNums: int = -
        recoverThreadPoolNums: int = 32
        endTransactionThreadPoolNums: int = -
        sendThreadPoolQueueCapacity: int = 10000
        putThreadPoolQueueCapacity: int = 10000
        pullThreadPoolQueueCapacity: int = 100000
        litePullThreadPoolQueueCapacity: int = 100000
        ackThreadPoolQueueCapacity: int = 100000
        replyThreadPoolQueueCapacity: int = 10000
        queryThreadPoolQueueCapacity: int = 20000
        clientManagerThreadPoolQueueCapacity: int = 1000000
        consumerManagerThreadPoolQueueCapacity: int = 1000000
        heartbeatThreadPoolQueueCapacity: int = 50000
        endTransactionPoolQueueCapacity: int = 100000
        adminBrokerThreadPoolQueueCapacity: int = 10000
        loadBalanceThreadPoolQueueCapacity: int = 100000
        enableFastChannelEventProcess: bool = false
        recoverConcurrently: bool = false
        """,
    ),
    *no_effect(
        STATISTICS,
        """
        accountStatsEnable: bool = true
        accountStatsPrintZeroValues: bool = true
        maxStatsIdleTimeInMinutes: int = -1
        commercialBaseCount: int = 1
        commercialSizePerMsg: int = 4096
        enableDetailStat: bool = true
        autoDeleteUnusedStats: bool = true
        printChannelGroups: bool = false
        printChannelGroupsMinNum: int = 5
        """,
    ),
    *no_effect(UNREAD, "highSpeedMode: bool = false"),
    *no_effect(
        "each connection and the node as a whole have limits of their own (see `Network and limits`)",
        "enableNetWorkFlowControl: bool = false",
    ),
)

ROWS: tuple[Row, ...] = IDENTITY + TOPICS + REGISTRATION + POOLS
