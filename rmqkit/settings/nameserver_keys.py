"""Rows of a name server (Apache's NamesrvConfig), with the keys of the controller that Apache can run inside it."""

from __future__ import annotations

from rmqkit.settings.table import ONE_THREAD, Row, Type, Value, in_area, later, no_effect, refused, works


def seconds_as_ms(value: Value) -> int:
    return int(value) * 1000


NAMESERVER = in_area(
    "Name server",
    works("listenPort", Type.INT, 9876, "nameserver.listen_port", "port; 0 lets the system choose", low=0, high=65535),
    works(
        "bindAddress",
        Type.STR,
        "0.0.0.0",
        "nameserver.bind_address",
        "address to listen on",
        pattern=r"\S+",
        allowed="an address",
    ),
    works(
        "kvConfigPath",
        Type.PATH,
        "${user.home}/namesrv/kvConfig.json",
        "nameserver.kv_config_path",
        "file of the key-value configuration",
    ),
    works(
        "configStorePath",
        Type.PATH,
        "${user.home}/namesrv/namesrv.properties",
        "nameserver.config_store_path",
        "file that keeps what was changed at run time",
    ),
    works(
        "scanNotActiveBrokerInterval",
        Type.LONG,
        5000,
        "nameserver.scan_not_active_broker_interval_ms",
        "time between two looks for silent brokers, in ms",
        live=True,
        low=10,
    ),
    works(
        "orderMessageEnable",
        Type.BOOL,
        False,
        "nameserver.order_message_enable",
        "routes carry the order configuration of their topic",
        live=True,
    ),
    works(
        "returnOrderTopicConfigToBroker",
        Type.BOOL,
        True,
        "nameserver.return_order_topic_config_to_broker",
        "a registering broker is told which topics are ordered",
        live=True,
    ),
    works(
        "enableAllTopicList",
        Type.BOOL,
        True,
        "nameserver.enable_all_topic_list",
        "the list of all topics may be asked for",
        live=True,
    ),
    works(
        "enableTopicList",
        Type.BOOL,
        True,
        "nameserver.enable_topic_list",
        "lists of topics by cluster, unit or system may be asked for",
        live=True,
    ),
    works(
        "needWaitForService",
        Type.BOOL,
        False,
        "nameserver.need_wait_for_service",
        "routes are refused until waitSecondsForService have passed since the start",
        live=True,
    ),
    works(
        "waitSecondsForService",
        Type.INT,
        45,
        "nameserver.wait_for_service_ms",
        "that time, in s",
        live=True,
        low=0,
        convert=seconds_as_ms,
    ),
    works(
        "deleteTopicWithBrokerRegistration",
        Type.BOOL,
        False,
        "nameserver.delete_topic_with_broker_registration",
        "topics that a registration no longer names are deleted",
        live=True,
    ),
    works(
        "supportActingMaster",
        Type.BOOL,
        False,
        "nameserver.support_acting_master",
        "a group without its master is shown with its smallest live broker id in the master's place, read-only",
        live=True,
    ),
    works(
        "notifyMinBrokerIdChanged",
        Type.BOOL,
        False,
        "nameserver.notify_min_broker_id_changed",
        "the members of a group are told at once when its smallest live broker id changes",
        live=True,
    ),
    *no_effect("unregistering is done at once, not queued", "unRegisterBrokerQueueCapacity: int = 3000"),
    *no_effect(
        ONE_THREAD,
        """
        clientRequestThreadPoolNums: int = 8
        defaultThreadPoolNums: int = 16
        clientRequestThreadPoolQueueCapacity: int = 50000
        defaultThreadPoolQueueCapacity: int = 10000
        """,
    ),
    *no_effect(
        "the route lookup of Apache's test clusters in a production cluster does not exist here",
        """
        clusterTest: bool = false
        productEnvName: str = center
        """,
    ),
    *no_effect("Java's installation folder has no counterpart", "rocketmqHome: path = ${ROCKETMQ_HOME}"),
    *no_effect(
        "only keys marked live can be changed at run time, whatever this says",
        "configBlackList: str = configBlackList;configStorePath;kvConfigPath",
    ),
)

CONTROLLER = in_area(
    "Controller and DLedger",
    refused("no controller would run, and no master would be elected", "enableControllerInNamesrv", Type.BOOL, False, True),
    *later(
        "controller mode",
        """
        controllerType: enum(DLedger|jRaft) = DLedger
        controllerDLegerGroup: str = -
        controllerDLegerPeers: str = -
        controllerDLegerSelfId: str = -
        controllerStorePath: path = ""
        mappedFileSize: int = 1073741824
        electMasterMaxRetryCount: int = 3
        enableElectUncleanMaster: bool = false
        isProcessReadEvent: bool = false
        notifyBrokerRoleChanged: bool = true
        scanInactiveMasterInterval: long = 5000
        controllerThreadPoolNums: int = 16
        controllerRequestThreadPoolQueueCapacity: int = 50000
        jRaftControllerRPCAddr: str = localhost:9770,localhost:9771,localhost:9772
        jRaftElectionTimeoutMs: int = 1000
        jRaftGroupId: str = jRaft-Controller
        jRaftInitConf: str = localhost:9880,localhost:9881,localhost:9882
        jRaftScanWaitTimeoutMs: int = 1000
        jRaftServerId: str = localhost:9880
        jRaftSnapshotIntervalSecs: int = 3600
        """,
    ),
)

ROWS: tuple[Row, ...] = NAMESERVER + CONTROLLER
