"""Rows of replication, and of what is still to come: acting master, controller mode, access control."""

from __future__ import annotations

from typing import Any

from rmqkit.settings.table import UNREAD, Row, Type, Value, changed, in_area, later, no_effect, refused, works

#: brokers of a group
REPLICAS_MAX = 9
#: what Apache's slave can take in one piece is 4 MiB with its header
HA_BATCH_SIZE_MAX = 4_194_304 - 12

NAMES = r"[a-z0-9-]*(?:[;,][a-z0-9-]+)*"


def names(value: Value) -> tuple[str, ...]:
    return tuple(part for part in str(value).replace(",", ";").split(";") if part)


def _key(key: str, type_: Type, default: Value | None, field: str, text: str, **more: Any) -> Row:
    return works(key, type_, default, field if "." in field else f"replication.{field}", text, **more)


REPLICAS = (
    _key(
        "totalReplicas",
        Type.INT,
        1,
        "total_replicas",
        "brokers of the group; above 1 a SYNC_MASTER refuses puts while too few are in sync",
        low=1,
        high=REPLICAS_MAX,
    ),
    _key(
        "inSyncReplicas",
        Type.INT,
        1,
        "in_sync_replicas",
        "copies that a put of a SYNC_MASTER waits for, its own included",
        low=1,
        high=REPLICAS_MAX,
        live=True,
    ),
    _key(
        "minInSyncReplicas",
        Type.INT,
        1,
        "min_in_sync_replicas",
        "copies below which enableAutoInSyncReplicas does not go",
        low=1,
        high=REPLICAS_MAX,
        live=True,
    ),
    _key(
        "enableAutoInSyncReplicas",
        Type.BOOL,
        False,
        "auto_in_sync",
        "waits for the slaves that are in sync, from inSyncReplicas down to minInSyncReplicas, instead of refusing puts",
        live=True,
    ),
    _key(
        "slaveTimeout",
        Type.INT,
        3000,
        "slave_timeout_ms",
        "ms that a put waits for its copies; then the answer is FLUSH_SLAVE_TIMEOUT: stored, copies unknown",
        low=1,
        live=True,
    ),
    _key(
        "slaveReadEnable",
        Type.BOOL,
        False,
        "slave_read_enable",
        "consumers that read old messages are sent to a slave",
        live=True,
    ),
    _key(
        "haMasterAddress",
        Type.STR,
        None,
        "ha.master_address",
        "where a slave finds its master's port for replication; else the name server says it",
        pattern=r"|\S+:\d{1,5}",
        allowed="host:port",
    ),
    _key(
        "haSendHeartbeatInterval",
        Type.INT,
        5000,
        "ha.heartbeat_ms",
        "ms of silence after which master and slave send each other a sign of life",
        low=1,
    ),
    _key(
        "haHousekeepingInterval",
        Type.INT,
        20_000,
        "ha.housekeeping_ms",
        "ms of silence after which a connection between master and slave is given up",
        low=1,
    ),
    _key(
        "haTransferBatchSize",
        Type.INT,
        32_768,
        "ha.batch_size",
        "bytes of log that a master sends in one piece",
        low=1,
        high=HA_BATCH_SIZE_MAX,
    ),
    _key(
        "haMaxGapNotInSync",
        Type.INT,
        268_435_456,
        "ha_max_gap",
        "a slave that lacks as many bytes is not in sync",
        low=1,
        live=True,
    ),
    _key(
        "haFlowControlEnable",
        Type.BOOL,
        False,
        "ha.flow_control",
        "bounds what a master sends its slaves (Apache counts headers only, here all bytes count)",
        live=True,
    ),
    _key(
        "maxHaTransferByteInSecond",
        Type.LONG,
        104_857_600,
        "ha.bytes_per_second_max",
        "that bound, in bytes a second over all slaves",
        low=1,
        live=True,
    ),
    _key(
        "offsetCheckInSlave",
        Type.BOOL,
        False,
        "offset_check_in_slave",
        "a slave corrects the offsets of consumers as a master does",
        live=True,
    ),
    _key(
        "syncFromLastFile",
        Type.BOOL,
        False,
        "sync_from_last_file",
        "a slave that has nothing starts at its master's last log file, and never has what is older",
    ),
    _key(
        "haAcceptAnonymous",
        Type.BOOL,
        True,
        "accept_anonymous",
        "slaves that do not say who they are (Apache's) count as copies, at most one for each registered slave of a host",
    ),
    _key(
        "haTruncateAhead",
        Type.BOOL,
        False,
        "truncate_ahead",
        "a slave with messages that its master never had copies them to `diverged/` and cuts them off; else it stops",
    ),
    _key(
        "drillFaultsEnable",
        Type.BOOL,
        False,
        "drill_faults",
        "drills may cut this node off through a socket in its folder that its own user alone can open",
    ),
    _key(
        "drillDefects",
        Type.STR,
        "",
        "drill_defects",
        "defects planted on purpose, by name: `a;b`; drills prove with them that they would find such a thing",
        pattern=NAMES,
        allowed="names of defects separated by ;",
        convert=names,
    ),
)

ACTING = (
    _key(
        "enableSlaveActingMaster",
        Type.BOOL,
        False,
        "acting.enable",
        "the slave with the smallest id acts for a master that is gone: reads, locks, offsets, delayed messages",
    ),
    _key(
        "enableRemoteEscape",
        Type.BOOL,
        False,
        "acting.remote_escape",
        "an acting master may put delayed messages on masters of other groups; `escapeStrategy` says more",
    ),
    _key(
        "skipPreOnline",
        Type.BOOL,
        False,
        "acting.skip_pre_online",
        "a broker that starts registers at once, without taking back what the others know better",
    ),
    _key(
        "compatibleWithOldNameSrv",
        Type.BOOL,
        True,
        "acting.old_nameservers",
        "asks name servers older than 5.0 in their own words where they do not know the newer ones",
    ),
    _key(
        "brokerHeartbeatInterval",
        Type.INT,
        1000,
        "acting.heartbeat_ms",
        "ms between two signs of life to each name server, with enableSlaveActingMaster",
        low=10,
        high=60_000,
    ),
    _key(
        "sendHeartbeatTimeoutMillis",
        Type.INT,
        1000,
        "acting.heartbeat_timeout_ms",
        "ms after which a name server that does not answer is asked anew",
        low=10,
        high=60_000,
    ),
    _key(
        "brokerNotActiveTimeoutMillis",
        Type.LONG,
        10_000,
        "acting.not_active_ms",
        "ms of silence after which name servers take the broker out, and after which it does not trust itself any more",
        low=100,
        high=600_000,
    ),
    _key(
        "syncBrokerMemberGroupPeriod",
        Type.INT,
        1000,
        "acting.member_sync_ms",
        "ms between two questions who of the group is alive",
        low=10,
        high=60_000,
    ),
)

REPLICATION = in_area(
    "Replication and acting master",
    *REPLICAS,
    *later(
        "controller mode, or slave acting master",
        """
        haMaxTimeSlaveNotCatchup: long = 15000
        syncMasterFlushOffsetWhenStartup: bool = false
        asyncLearner: bool = false
        allAckInSyncStateSet: bool = false
        """,
    ),
    *no_effect(
        UNREAD,
        """
        maxSlaveResendLength: long = 268435456
        maxChecksumRange: long = 1073741824
        """,
    ),
    *ACTING,
    *later("delaying a broker's registration", "disappearTimeAfterStart: int = -1"),
    _key(
        "lockInStrictMode",
        Type.BOOL,
        False,
        "acting.lock_in_strict_mode",
        "queue locks are granted by a quorum of the group: `lockMode = strict`",
    ),
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
