"""Rows of a broker whose features are still to come: replication, acting master, controller mode, access control."""

from __future__ import annotations

from rmqkit.settings.table import Row, Type, changed, in_area, later, no_effect, refused

REPLICATION = in_area(
    "Replication and acting master",
    *later(
        "replication",
        """
        totalReplicas: int = 1
        inSyncReplicas: int = 1
        minInSyncReplicas: int = 1
        enableAutoInSyncReplicas: bool = false
        allAckInSyncStateSet: bool = false
        slaveTimeout: int = 3000
        slaveReadEnable: bool = false
        haMasterAddress: str = -
        haSendHeartbeatInterval: int = 5000
        haHousekeepingInterval: int = 20000
        haTransferBatchSize: int = 32768
        haMaxGapNotInSync: int = 268435456
        haFlowControlEnable: bool = false
        maxHaTransferByteInSecond: long = 104857600
        haMaxTimeSlaveNotCatchup: long = 15000
        maxSlaveResendLength: long = 268435456
        offsetCheckInSlave: bool = false
        syncMasterFlushOffsetWhenStartup: bool = false
        maxChecksumRange: long = 1073741824
        syncFromLastFile: bool = false
        asyncLearner: bool = false
        """,
    ),
    *later(
        "slave acting master",
        """
        enableSlaveActingMaster: bool = false
        enableRemoteEscape: bool = false
        skipPreOnline: bool = false
        compatibleWithOldNameSrv: bool = true
        brokerHeartbeatInterval: int = 1000
        sendHeartbeatTimeoutMillis: int = 1000
        brokerNotActiveTimeoutMillis: long = 10000
        syncBrokerMemberGroupPeriod: int = 1000
        disappearTimeAfterStart: int = -1
        """,
    ),
    *later("queue locks that a quorum of the group grants; `true` is refused until then", "lockInStrictMode: bool = false"),
    *no_effect("what is not confirmed is never shown to consumers", "readUnCommitted: bool = false"),
    refused(
        "two brokers would write one queue: Apache's duplication mode is not supported",
        "duplicationEnable",
        Type.BOOL,
        False,
        True,
    ),
)

CONTROLLER = in_area(
    "Controller and DLedger",
    refused("no master would be elected: controller mode is not built yet", "enableControllerMode", Type.BOOL, False, True),
    *later(
        "controller mode",
        """
        controllerAddr: str = ""
        fetchControllerAddrByDnsLookup: bool = false
        syncBrokerMetadataPeriod: long = 5000
        checkSyncStateSetPeriod: long = 5000
        syncControllerMetadataPeriod: long = 10000
        controllerHeartBeatTimeoutMills: long = 10000
        brokerElectionPriority: int = 2147483647
        storePathEpochFile: path = -
        storePathBrokerIdentity: path = -
        """,
    ),
    refused(
        "messages would not be replicated by Raft: DLedger is not supported",
        "enableDLegerCommitLog",
        Type.BOOL,
        False,
        True,
    ),
    *no_effect(
        "DLedger is not supported",
        """
        storePathDLedgerCommitLog: path = -
        dLegerGroup: str = -
        dLegerPeers: str = -
        dLegerSelfId: str = -
        preferredLeaderId: str = -
        enableBatchPush: bool = false
        """,
    ),
)

SECRETS = ("initAuthenticationUser", "innerClientAuthenticationCredentials")

ACCESS = in_area(
    "Access control",
    refused("everybody could do everything: access control is not built yet", "aclEnable", Type.BOOL, False, True),
    refused(
        "nobody would be asked who they are: authentication is not built yet",
        "authenticationEnabled",
        Type.BOOL,
        False,
        True,
    ),
    refused(
        "everybody could do everything: authorization is not built yet", "authorizationEnabled", Type.BOOL, False, True
    ),
    *(
        changed(row, secret=row.key in SECRETS)
        for row in later(
            "access control",
            """
            configName: str = -
            clusterName: str = -
            authConfigPath: path = -
            authenticationProvider: str = -
            authenticationMetadataProvider: str = -
            authenticationStrategy: str = -
            authenticationWhitelist: str = -
            initAuthenticationUser: str = -
            innerClientAuthenticationCredentials: str = -
            authorizationProvider: str = -
            authorizationMetadataProvider: str = -
            authorizationStrategy: str = -
            authorizationWhitelist: str = -
            migrateAuthFromV1Enabled: bool = false
            userCacheMaxNum: int = 1000
            userCacheExpiredSecond: int = 600
            userCacheRefreshSecond: int = 60
            aclCacheMaxNum: int = 1000
            aclCacheExpiredSecond: int = 600
            aclCacheRefreshSecond: int = 60
            statefulAuthenticationCacheMaxNum: int = 10000
            statefulAuthenticationCacheExpiredSecond: int = 60
            statefulAuthorizationCacheMaxNum: int = 10000
            statefulAuthorizationCacheExpiredSecond: int = 60
            """,
        )
    ),
)

ROWS: tuple[Row, ...] = REPLICATION + CONTROLLER + ACCESS
