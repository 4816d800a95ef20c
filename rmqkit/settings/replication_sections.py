"""Sections of a broker's group: copies, HA connections, the acting master, drills."""

from dataclasses import dataclass

from rmqkit.settings.broker_sections import addresses
from rmqkit.settings.declaration import key, parts
from rmqkit.settings.table import Type

#: most brokers of a group
REPLICAS_MAX = 9
#: bytes of log in one transfer; Apache's slave accepts 4 MiB, header included
HA_BATCH_SIZE_MAX = 4_194_304 - 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """How a group keeps copies.

    With `total_replicas` above 1, a SYNC_MASTER counts its in-sync slaves before it accepts a put.
    Otherwise a put waits for `in_sync_replicas` copies.
    """

    total_replicas: int = key(
        "totalReplicas",
        1,
        "number of brokers of the group; above 1 a SYNC_MASTER refuses puts while too few are in sync",
        low=1,
        high=REPLICAS_MAX,
    )
    in_sync_replicas: int = key(
        "inSyncReplicas",
        1,
        "copies that a put of a SYNC_MASTER waits for, the master's included",
        low=1,
        high=REPLICAS_MAX,
        live=True,
    )
    min_in_sync_replicas: int = key(
        "minInSyncReplicas",
        1,
        "lower limit of enableAutoInSyncReplicas, in copies",
        low=1,
        high=REPLICAS_MAX,
        live=True,
    )
    auto_in_sync: bool = key(
        "enableAutoInSyncReplicas",
        False,
        "with fewer slaves in sync, puts wait for those (down to minInSyncReplicas) instead of being refused",
        live=True,
    )
    slave_timeout_ms: int = key(
        "slaveTimeout",
        3000,
        "ms that a put waits for its copies; then the answer is FLUSH_SLAVE_TIMEOUT: stored, copies unknown",
        low=1,
        live=True,
    )
    slave_read_enable: bool = key(
        "slaveReadEnable", False, "consumers that read old messages are sent to a slave", live=True
    )
    ha_max_gap: int = key(
        "haMaxGapNotInSync", 268_435_456, "bytes behind the master at which a slave is not in sync", low=1, live=True
    )
    offset_check_in_slave: bool = key(
        "offsetCheckInSlave", False, "a slave corrects the offsets of consumers, as a master does", live=True
    )
    sync_from_last_file: bool = key(
        "syncFromLastFile",
        False,
        "an empty slave starts at its master's last log file, and never gets older messages",
    )
    accept_anonymous: bool = key(
        "haAcceptAnonymous",
        True,
        "slaves that send no id (Apache's) count as copies, per host at most one for each registered slave",
    )
    truncate_ahead: bool = key(
        "haTruncateAhead",
        False,
        "a slave with messages that its master never had copies them to `diverged/` and truncates its log; else it stops",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HaSettings:
    """The connections between a master and its slaves."""

    master_address: str = key(
        "haMasterAddress",
        None,
        "address of the master's port for replication; by default from the name server",
        unset="",
        pattern=r"|\S+:\d{1,5}",
        allowed="host:port",
    )
    heartbeat_ms: int = key(
        "haSendHeartbeatInterval", 5000, "ms of silence after which master and slave send each other a heartbeat", low=1
    )
    housekeeping_ms: int = key(
        "haHousekeepingInterval",
        20_000,
        "ms of silence after which a connection between master and slave is closed",
        low=1,
    )
    batch_size: int = key(
        "haTransferBatchSize", 32_768, "most bytes of log in one transfer to a slave", low=1, high=HA_BATCH_SIZE_MAX
    )
    flow_control: bool = key(
        "haFlowControlEnable",
        False,
        "limits the rate at which a master sends to its slaves (Apache counts headers only, rmqkit all bytes)",
        live=True,
    )
    bytes_per_second_max: int = key(
        "maxHaTransferByteInSecond",
        104_857_600,
        "limit of haFlowControlEnable, in bytes per second over all slaves",
        type=Type.LONG,
        low=1,
        live=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActingSettings:
    """A slave that acts for its master, and how the members of a group learn of each other.

    An empty `escape_strategy` means `auto` with `remote_escape`, else `local`.
    """

    enable: bool = key(
        "enableSlaveActingMaster",
        False,
        "the slave with the smallest id acts for a master that is down: reads, locks, offsets, delayed messages",
    )
    remote_escape: bool = key(
        "enableRemoteEscape",
        False,
        "an acting master may put delayed messages on masters of other groups; see `escapeStrategy`",
    )
    escape_strategy: str = key(
        "escapeStrategy",
        "",
        "where an acting master puts due messages: `none`, `local` (another master in this process), `remote` (a master of "
        "another group), `auto` (local, then remote), or one of a plug-in; empty: by enableRemoteEscape",
        pattern=r"[A-Za-z0-9_.-]{0,64}",
        allowed="the name of an escape strategy",
        area="Plug-ins",
    )
    skip_pre_online: bool = key(
        "skipPreOnline", False, "a starting broker registers at once, without fetching newer metadata from its group"
    )
    old_nameservers: bool = key(
        "compatibleWithOldNameSrv",
        True,
        "the broker sends a name server older than 5.0 the older request if it does not support the newer one",
    )
    heartbeat_ms: int = key(
        "brokerHeartbeatInterval",
        1000,
        "ms between two heartbeats to each name server, with enableSlaveActingMaster",
        low=10,
        high=60_000,
    )
    heartbeat_timeout_ms: int = key(
        "sendHeartbeatTimeoutMillis",
        1000,
        "ms after which an unanswered heartbeat to a name server is repeated",
        low=10,
        high=60_000,
    )
    not_active_ms: int = key(
        "brokerNotActiveTimeoutMillis",
        10_000,
        "ms of silence after which name servers remove the broker, and after which it isolates itself",
        type=Type.LONG,
        low=100,
        high=600_000,
    )
    member_sync_ms: int = key(
        "syncBrokerMemberGroupPeriod", 1000, "ms between two queries for the live members of the group", low=10, high=60_000
    )
    lock_in_strict_mode: bool = key(
        "lockInStrictMode", False, "a quorum of the group grants queue locks, as with `lockMode = strict`"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionSettings:
    """Controller mode: a group of controllers elects the master of a broker group.

    `epoch_path` and `identity_path` are empty unless set: the files are in the store folder then.
    """

    enable: bool = key(
        "enableControllerMode",
        False,
        "controllers elect the master of the group; brokerRole and brokerId have no effect",
        area="Controller and DLedger",
    )
    controllers: tuple[str, ...] = key(
        "controllerAddr",
        "",
        "addresses of the controllers, `host:port;host:port`",
        convert=addresses,
        unset=(),
        pattern=r"(?:(?:\[[0-9a-fA-F:.]+\]|[^\s:;\[\]]+):[0-9]{1,5}(?:;|$))*",
        allowed="host:port;host:port",
        area="Controller and DLedger",
    )
    poll_ms: int = key(
        "syncBrokerMetadataPeriod",
        5000,
        "ms between two questions to the controllers for the group's master",
        type=Type.LONG,
        low=10,
        high=60_000,
        area="Controller and DLedger",
    )
    check_ms: int = key(
        "checkSyncStateSetPeriod",
        5000,
        "ms between two checks of a master for slaves that have fallen behind",
        type=Type.LONG,
        low=10,
        high=60_000,
        area="Controller and DLedger",
    )
    leader_poll_ms: int = key(
        "syncControllerMetadataPeriod",
        10_000,
        "ms between two questions for the leader of the controllers",
        type=Type.LONG,
        low=10,
        high=60_000,
        area="Controller and DLedger",
    )
    heartbeat_timeout_ms: int = key(
        "controllerHeartBeatTimeoutMills",
        10_000,
        "ms of silence after which the controllers count a member as dead; rmqkit's controllers replace a silent "
        "rmqkit master after half of it. A master that no leader answers refuses messages after two fifths of it, "
        "at least three heartbeats; with Apache's controllers after four fifths",
        type=Type.LONG,
        low=100,
        high=600_000,
        area="Controller and DLedger",
    )
    priority: int = key(
        "brokerElectionPriority",
        2_147_483_647,
        "of members with equal logs the one with the smallest number is elected",
        low=0,
        high=2_147_483_647,
        area="Controller and DLedger",
    )
    catch_up_ms: int = key(
        "haMaxTimeSlaveNotCatchup",
        15_000,
        "ms after which a slave that lacks messages leaves the set of in-sync replicas",
        type=Type.LONG,
        low=100,
        live=True,
    )
    all_ack: bool = key(
        "allAckInSyncStateSet",
        False,
        "in controller mode a message waits for all in-sync replicas, and none that was acknowledged is lost by an "
        "election; else it waits for inSyncReplicas of them",
        live=True,
    )
    is_learner: bool = key(
        "asyncLearner", False, "in controller mode this broker copies the log, but is never in sync nor elected"
    )
    epoch_path: str = key(
        "storePathEpochFile",
        None,
        "file of the log's epochs; `epochFileCheckpoint` under storePathRootDir by default",
        unset="",
        type=Type.PATH,
        area="Controller and DLedger",
    )
    identity_path: str = key(
        "storePathBrokerIdentity",
        None,
        "file of the broker's id in its group; `brokerIdentity` under storePathRootDir by default",
        unset="",
        type=Type.PATH,
        area="Controller and DLedger",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillSettings:
    """What drills may do to a node."""

    faults: bool = key(
        "drillFaultsEnable",
        False,
        "drills may isolate this node, through a socket in its folder that only its user can open",
    )
    defects: tuple[str, ...] = key(
        "drillDefects",
        "",
        "names of defects to plant, `a;b`; drills use them to prove that they find such defects",
        convert=parts,
        pattern=r"[a-z0-9-]*(?:[;,][a-z0-9-]+)*",
        allowed="names of defects separated by ;",
    )
