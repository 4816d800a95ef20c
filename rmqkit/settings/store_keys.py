"""Rows of the store (Apache's MessageStoreConfig, but for replication, timers and other features)."""

from __future__ import annotations

from rmqkit.settings.sections import FlushDiskType
from rmqkit.settings.table import UNREAD, Row, Type, Value, in_area, later, no_effect, refused, works

ONE_WRITER = "a single-threaded store has one writer: no lock to choose"
NO_MAPPING = "files are written with pwrite, never through a mapping"
IN_TURN = "dispatch runs in the store's own turn, not in threads"


def whole_entries(value: Value) -> int:
    """MessageStoreConfig.getMappedFileSizeConsumeQueue: up to the next multiple of the 20 bytes of an entry."""
    return -(-int(value) // 20) * 20


def within(low: int, high: int) -> object:
    """A converter that holds a number within bounds, as Apache's store does silently."""
    return lambda value: max(low, min(int(value), high))


FILES = in_area(
    "Store: files",
    works("storePathRootDir", Type.PATH, "${user.home}/store", "paths.store_path_root_dir", "folder of the store"),
    works(
        "storePathCommitLog",
        Type.PATH,
        None,
        "paths.store_path_commit_log",
        "folder of the commit log; `commitlog` under storePathRootDir by default",
        pattern=r"[^,]*",
        allowed="one folder (several, separated by commas, are not supported)",
    ),
    works(
        "mappedFileSizeCommitLog",
        Type.INT,
        1_073_741_824,
        "commit_log.mapped_file_size_commit_log",
        "bytes of one commit-log file",
        low=1024,
    ),
    works(
        "mappedFileSizeConsumeQueue",
        Type.INT,
        6_000_000,
        "consume_queue.mapped_file_size_consume_queue",
        "bytes of one consume-queue file, rounded up to whole entries of 20 bytes",
        low=20,
        convert=whole_entries,
    ),
    works(
        "putMsgIndexHightWater",
        Type.INT,
        600_000,
        "consume_queue.put_msg_index_hight_water",
        "records that may wait for dispatch before puts are held back",
        live=True,
        low=1,
    ),
    works("messageIndexEnable", Type.BOOL, True, "index.message_index_enable", "messages can be found by key"),
    *no_effect("the index always catches up with the log from where it ends", "messageIndexSafe: bool = false"),
    works(
        "maxHashSlotNum",
        Type.INT,
        5_000_000,
        "index.max_hash_slot_num",
        "hash slots of one index file",
        low=1,
        high=100_000_000,
    ),
    works("maxIndexNum", Type.INT, 20_000_000, "index.max_index_num", "entries of one index file", low=2, high=100_000_000),
    works(
        "maxMsgsNumBatch",
        Type.INT,
        64,
        "index.max_msgs_num_batch",
        "most messages that a query by key answers",
        live=True,
        low=1,
    ),
    works(
        "checkCRCOnRecover",
        Type.BOOL,
        True,
        "commit_log.check_crc_on_recover",
        "recovery verifies the checksum of each body",
    ),
    refused("messages in those folders would not be seen", "readOnlyCommitLogStorePaths", Type.STR, None, unless=("",)),
    works(
        "enableConsumeQueueExt",
        Type.BOOL,
        False,
        "consume_queue.enable_consume_queue_ext",
        "each queue entry gets a unit with tags code, store time and bit map in consumequeue_ext/",
    ),
    works(
        "mappedFileSizeConsumeQueueExt",
        Type.INT,
        50331648,
        "consume_queue.mapped_file_size_consume_queue_ext",
        "bytes of a file of those units",
        low=4096,
    ),
    refused(
        "the queues of a RocksDB store could not be read",
        "storeType",
        Type.ENUM,
        "default",
        "defaultRocksDB",
        choices=("default", "defaultRocksDB"),
    ),
    refused("store plug-ins of Java cannot be loaded; see storageEngine", "messageStorePlugIn", Type.STR, "", unless=("",)),
    refused(
        "topics and offsets kept in RocksDB could not be read",
        "configManagerVersion",
        Type.ENUM,
        "v1",
        "v2",
        choices=("v1", "v2"),
    ),
    *no_effect(
        "expectConsumerNumUseFilter and maxErrorRateOfBloomFilter decide it, at Apache's broker too",
        "bitMapLengthConsumeQueueExt: int = 64",
    ),
    works(
        "enabledAppendPropCRC",
        Type.BOOL,
        False,
        "commit_log.enabled_append_prop_crc",
        "each record carries a checksum over the whole of it, in its properties",
    ),
    *later("verifying that checksum when a record is read", "forceVerifyPropCRC: bool = false"),
    *no_effect(
        "messageIndexEnable alone decides whether index files are written and read",
        """
        indexFileReadEnable: bool = true
        indexFileWriteEnable: bool = true
        """,
    ),
    *no_effect(
        "recovery always starts from the checkpoint and verifies what it reads",
        """
        checkCommitLogOffsetOnRecover: bool = false
        commitLogRecoverMaxNum: int = 10
        """,
    ),
    *no_effect(UNREAD, "maxTopicLength: int = 127\nmaxRecoveryCommitlogFiles: int = 30"),
    *no_effect(
        "consume queues are corrected when the log loses its oldest file", "correctLogicMinOffsetSleepInterval: int = 1"
    ),
    *no_effect(
        "consume queues are corrected when the log loses its oldest file",
        "correctLogicMinOffsetForceInterval: int = 300000",
    ),
    *no_effect(
        "recovery always rebuilds what is behind and never reads ahead of it", "recheckReputOffsetFromCq: bool = false"
    ),
    *no_effect(
        "recovery always rebuilds what is behind and never reads ahead of it", "enableAcceleratedRecovery: bool = false"
    ),
    *no_effect(
        "one line in the log says what recovery rebuilt", "enableLogConsumeQueueRepeatedlyBuildWhenRecover: bool = false"
    ),
)

FLUSHING = in_area(
    "Store: flushing",
    works(
        "flushDiskType",
        Type.ENUM,
        "ASYNC_FLUSH",
        "flush.flush_disk_type",
        "SYNC_FLUSH answers a send once the disk has it",
        choices=("SYNC_FLUSH", "ASYNC_FLUSH"),
        convert=lambda value: FlushDiskType(str(value)),
    ),
    works(
        "flushIntervalCommitLog",
        Type.INT,
        500,
        "flush.flush_interval_commit_log_ms",
        "time between two flushes of the commit log, in ms",
        live=True,
        low=1,
    ),
    *no_effect("puts never wake the periodic flush, it keeps its interval", "flushCommitLogTimed: bool = true"),
    works(
        "flushCommitLogLeastPages",
        Type.INT,
        4,
        "flush.flush_commit_log_least_pages",
        "flush only when so many 4-KiB pages are new",
        live=True,
        low=0,
    ),
    works(
        "flushCommitLogThoroughInterval",
        Type.INT,
        10_000,
        "flush.flush_commit_log_thorough_interval_ms",
        "flush whatever is new at least so often, in ms",
        live=True,
        low=1,
    ),
    works(
        "transientStorePoolEnable",
        Type.BOOL,
        False,
        "flush.transient_store_pool_enable",
        "new records wait in memory until the next commit to the file",
    ),
    works(
        "commitIntervalCommitLog",
        Type.INT,
        200,
        "flush.commit_interval_commit_log_ms",
        "time between two such commits, in ms",
        live=True,
        low=1,
    ),
    works(
        "commitCommitLogLeastPages",
        Type.INT,
        4,
        "flush.commit_commit_log_least_pages",
        "commit only when so many 4-KiB pages are new",
        live=True,
        low=0,
    ),
    works(
        "commitCommitLogThoroughInterval",
        Type.INT,
        200,
        "flush.commit_commit_log_thorough_interval_ms",
        "commit whatever is new at least so often, in ms",
        live=True,
        low=1,
    ),
    works(
        "syncFlushTimeout",
        Type.INT,
        5000,
        "flush.sync_flush_timeout_ms",
        "a send that waits longer for the disk is answered FLUSH_DISK_TIMEOUT, in ms",
        live=True,
        low=1,
    ),
    works(
        "flushIntervalConsumeQueue",
        Type.INT,
        1000,
        "flush.flush_interval_consume_queue_ms",
        "time between two flushes of the consume queues, in ms",
        live=True,
        low=1,
    ),
    works(
        "flushConsumeQueueLeastPages",
        Type.INT,
        2,
        "flush.flush_consume_queue_least_pages",
        "flush only when so many 4-KiB pages are new",
        live=True,
        low=0,
    ),
    works(
        "flushConsumeQueueThoroughInterval",
        Type.INT,
        60_000,
        "flush.flush_consume_queue_thorough_interval_ms",
        "flush whatever is new at least so often, in ms",
        live=True,
        low=1,
    ),
    *no_effect(
        "memory for new records is taken as it is needed, not from a pool of buffers",
        """
        transientStorePoolSize: int = 5
        sharedByteBufferNum: int = 16
        fastFailIfNoBufferInStorePool: bool = false
        """,
    ),
    *no_effect(
        NO_MAPPING,
        """
        warmMapedFileEnable: bool = false
        flushLeastPagesWhenWarmMapedFile: int = 4096
        writeWithoutMmap: bool = false
        mappedFileSwapEnable: bool = true
        commitLogForceSwapMapInterval: long = 43200000
        commitLogSwapMapInterval: long = 3600000
        commitLogSwapMapReserveFileNum: int = 100
        logicQueueForceSwapMapInterval: long = 43200000
        logicQueueSwapMapInterval: long = 3600000
        cleanSwapedMapInterval: long = 300000
        logicQueueSwapMapReserveFileNum: int = 20
        dataReadAheadEnable: bool = true
        putConsumeQueueDataByFileChannel: bool = true
        """,
    ),
    *no_effect(
        "flushes are due at their intervals; a synchronous put asks for its own", "wakeFlushWhenPutMessage: bool = false"
    ),
    *no_effect(
        "flushes are due at their intervals; a synchronous put asks for its own", "wakeCommitWhenPutMessage: bool = true"
    ),
    *no_effect("a failed flush always stops acknowledging", "enableRunningFlagsInFlush: bool = false"),
    *no_effect(
        ONE_WRITER,
        """
        useReentrantLockWhenPutMessage: bool = true
        useABSLock: bool = false
        spinLockCollisionRetreatOptimalDegree: int = 1000
        topicQueueLockNum: int = 32
        debugLockEnable: bool = false
        maxAsyncPutMessageRequests: int = 5000
        """,
    ),
    *no_effect(UNREAD, "putMessageTimeout: int = 8000"),
    *no_effect(
        IN_TURN,
        """
        dispatchCqThreads: int = 10
        dispatchCqCacheNum: int = 4096
        enableAsyncReput: bool = true
        dispatchFromSenderThread: bool = false
        enableBuildConsumeQueueConcurrently: bool = false
        batchDispatchRequestThreadPoolNums: int = 16
        """,
    ),
)

RETENTION = in_area(
    "Store: retention",
    works(
        "fileReservedTime",
        Type.INT,
        72,
        "retention.file_reserved_time_hours",
        "hours that a full file is kept after its last write",
        live=True,
        low=0,
    ),
    works(
        "deleteWhen",
        Type.STR,
        "04",
        "retention.delete_when",
        "hours of the day at which expired files go: `04` or `04;16`",
        live=True,
        pattern=r"(?:[01]?\d|2[0-3])(?:;(?:[01]?\d|2[0-3]))*",
        allowed='hours of the day, such as "04" or "04;16"',
    ),
    works(
        "diskMaxUsedSpaceRatio",
        Type.INT,
        75,
        "retention.disk_max_used_space_ratio",
        "percent of the disk above which expired files go at any hour; held within 10 and 95",
        live=True,
        low=0,
        high=100,
        convert=within(10, 95),
    ),
    works(
        "diskSpaceCleanForciblyRatio",
        Type.INT,
        85,
        "retention.disk_space_clean_forcibly_ratio",
        "percent above which files go before their time; held within 30 and 85",
        live=True,
        low=0,
        high=100,
        convert=within(30, 85),
    ),
    works(
        "diskSpaceWarningLevelRatio",
        Type.INT,
        90,
        "retention.disk_space_warning_level_ratio",
        "percent above which sends are refused; held within 35 and 90",
        live=True,
        low=0,
        high=100,
        convert=within(35, 90),
    ),
    works(
        "cleanFileForciblyEnable",
        Type.BOOL,
        True,
        "retention.clean_file_forcibly_enable",
        "files may go before their time when the disk is nearly full",
        live=True,
    ),
    works(
        "cleanResourceInterval",
        Type.INT,
        10_000,
        "retention.clean_resource_interval_ms",
        "time between two looks at what can go, in ms",
        live=True,
        low=100,
    ),
    works(
        "deleteCommitLogFilesInterval",
        Type.INT,
        100,
        "retention.delete_commit_log_files_interval_ms",
        "pause between two commit-log files that go, in ms",
        live=True,
        low=0,
    ),
    *no_effect("removing queue files does not hold anything up", "deleteConsumeQueueFilesInterval: int = 100"),
    works(
        "deleteFileBatchMax",
        Type.INT,
        10,
        "retention.delete_file_batch_max",
        "most files that go in one round",
        live=True,
        low=1,
    ),
    *no_effect(
        "a file is removed once nothing reads it, so none hangs",
        """
        destroyMapedFileIntervalForcibly: int = 120000
        redeleteHangedFileInterval: int = 120000
        maxBatchDeleteFilesNum: int = 50
        """,
    ),
    *no_effect(
        "one disk holds the store; its own ratios above decide",
        """
        replicasPerDiskPartition: int = 1
        logicalDiskSpaceCleanForciblyThreshold: double = 0.8
        """,
    ),
)

ROCKSDB = in_area(
    "RocksDB",
    *no_effect(
        "there is no RocksDB in this store",
        """
        cleanRocksDBDirtyCQIntervalMin: long = 60
        statRocksDBCQIntervalSec: long = 10
        memTableFlushIntervalMs: long = 3600000
        realTimePersistRocksDBConfig: bool = true
        enableRocksDBLog: bool = false
        rocksdbCQDoubleWriteEnable: bool = false
        combineCQLoadingCQTypes: str = default;defaultRocksDB
        combineCQPreferCQType: str = default
        combineAssignOffsetCQType: str = default
        combineCQEnableCheckSelf: bool = false
        combineCQMaxExtraSearchCommitLogFiles: int = 3
        bottomMostCompressionTypeForConsumeQueueStore: str = zstd
        rocksdbCompressionType: str = lz4
        rocksdbFlushWalFrequency: int = 1024
        rocksdbWalFileRollingThreshold: long = 1073741824
        combineCQUseRocksdbForLmq: bool = false
        indexRocksDBEnable: bool = false
        iteratorWhenUseRocksdbConsumeQueue: bool = true
        maxRocksDBIndexQueryDays: int = 7
        timerRocksDBEnable: bool = false
        timerRocksDBPrecisionMs: long = 1000
        timerRocksDBRollIntervalHours: int = 1
        timerRocksDBRollMaxTps: double = 8000.0
        timerRocksDBRollRangeHours: int = 2
        timerRocksDBStopScan: bool = false
        timerRocksDBTimeExpiredMaxTps: double = 200000.0
        transRocksDBEnable: bool = false
        transactionCheckRocksdbCoreThreads: int = 2
        transactionCheckRocksdbMaxThreads: int = 5
        transactionCheckRocksdbQueueCapacity: int = 2000
        useSeparateStorePathForRocksdbCQ: bool = false
        useSingleRocksDBForAllConfigs: bool = false
        persistConsumerOffsetIncrementally: bool = false
        """,
    ),
)

ROWS: tuple[Row, ...] = FILES + FLUSHING + RETENTION + ROCKSDB
