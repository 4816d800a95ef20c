"""Sections of a broker's store: folders, commit log, consume queues, index, flushing, retention."""

from dataclasses import dataclass
from enum import StrEnum

from rmqkit.settings.declaration import key, within
from rmqkit.settings.table import Type, Value


class FlushDiskType(StrEnum):
    """When a put is answered: after the disk has it, or after the page cache has it (`FlushDiskType`)."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


def whole_entries(value: Value) -> int:
    """MessageStoreConfig.getMappedFileSizeConsumeQueue: up to the next multiple of the 20 bytes of an entry."""
    return -(-int(value) // 20) * 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePaths:
    """Where the store lives: absolute paths."""

    store_path_root_dir: str = key("storePathRootDir", "${user.home}/store", "folder of the store", type=Type.PATH)
    store_path_commit_log: str = key(
        "storePathCommitLog",
        None,
        "folder of the commit log; `commitlog` under storePathRootDir by default",
        type=Type.PATH,
        pattern=r"[^,]*",
        allowed="one folder (several, separated by commas, are not supported)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLogSettings:
    """The commit log, and the engine that keeps it."""

    storage_engine: str = key(
        "storageEngine",
        "mapped",
        "what keeps the messages: `mapped` (RocketMQ's files), `memory`, or one that a plug-in brings",
        pattern=r"[A-Za-z0-9_.-]{1,64}",
        allowed="the name of a storage engine",
        area="Plug-ins",
    )
    mapped_file_size_commit_log: int = key(
        "mappedFileSizeCommitLog", 1_073_741_824, "bytes of one commit-log file", low=1024
    )
    check_crc_on_recover: bool = key("checkCRCOnRecover", True, "recovery verifies the checksum of each body")
    enabled_append_prop_crc: bool = key(
        "enabledAppendPropCRC", False, "each record carries a checksum over the whole of it, in its properties"
    )
    memory_engine_size_max: int = key(
        "memoryEngineSizeMax",
        268_435_456,
        "bytes that the storage engine `memory` keeps; the oldest messages go first",
        low=16_777_216,
        area="Plug-ins",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushSettings:
    """When bytes reach the disk.

    The group `commit_*` counts only with `transient_store_pool_enable`: new records then wait in memory and are written
    to the file at `commit_interval_commit_log_ms`, before they are flushed.
    """

    flush_disk_type: FlushDiskType = key(
        "flushDiskType", FlushDiskType.ASYNC_FLUSH, "SYNC_FLUSH answers a send once the disk has it"
    )
    flush_interval_commit_log_ms: int = key(
        "flushIntervalCommitLog", 500, "time between two flushes of the commit log, in ms", low=1, live=True
    )
    flush_commit_log_least_pages: int = key(
        "flushCommitLogLeastPages", 4, "flush only when so many 4-KiB pages are new", low=0, live=True
    )
    flush_commit_log_thorough_interval_ms: int = key(
        "flushCommitLogThoroughInterval", 10_000, "flush whatever is new at least so often, in ms", low=1, live=True
    )
    transient_store_pool_enable: bool = key(
        "transientStorePoolEnable", False, "new records wait in memory until the next commit to the file"
    )
    commit_interval_commit_log_ms: int = key(
        "commitIntervalCommitLog", 200, "time between two such commits, in ms", low=1, live=True
    )
    commit_commit_log_least_pages: int = key(
        "commitCommitLogLeastPages", 4, "commit only when so many 4-KiB pages are new", low=0, live=True
    )
    commit_commit_log_thorough_interval_ms: int = key(
        "commitCommitLogThoroughInterval", 200, "commit whatever is new at least so often, in ms", low=1, live=True
    )
    sync_flush_timeout_ms: int = key(
        "syncFlushTimeout",
        5000,
        "a send that waits longer for the disk is answered FLUSH_DISK_TIMEOUT, in ms",
        low=1,
        live=True,
    )
    flush_interval_consume_queue_ms: int = key(
        "flushIntervalConsumeQueue", 1000, "time between two flushes of the consume queues, in ms", low=1, live=True
    )
    flush_consume_queue_least_pages: int = key(
        "flushConsumeQueueLeastPages", 2, "flush only when so many 4-KiB pages are new", low=0, live=True
    )
    flush_consume_queue_thorough_interval_ms: int = key(
        "flushConsumeQueueThoroughInterval", 60_000, "flush whatever is new at least so often, in ms", low=1, live=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeQueueSettings:
    """The consume queues and their extension files."""

    mapped_file_size_consume_queue: int = key(
        "mappedFileSizeConsumeQueue",
        6_000_000,
        "bytes of one consume-queue file, rounded up to whole entries of 20 bytes",
        convert=whole_entries,
        low=20,
    )
    enable_consume_queue_ext: bool = key(
        "enableConsumeQueueExt",
        False,
        "each queue entry gets a unit with tags code, store time and bit map in consumequeue_ext/",
    )
    mapped_file_size_consume_queue_ext: int = key(
        "mappedFileSizeConsumeQueueExt", 50_331_648, "bytes of a file of those units", low=4096
    )
    put_msg_index_hight_water: int = key(
        "putMsgIndexHightWater", 600_000, "records that may wait for dispatch before puts are held back", low=1, live=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """The index files, for queries by key."""

    message_index_enable: bool = key("messageIndexEnable", True, "messages can be found by key")
    max_hash_slot_num: int = key("maxHashSlotNum", 5_000_000, "hash slots of one index file", low=1, high=100_000_000)
    max_index_num: int = key("maxIndexNum", 20_000_000, "entries of one index file", low=2, high=100_000_000)
    max_msgs_num_batch: int = key("maxMsgsNumBatch", 64, "most messages that a query by key answers", low=1, live=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """When old files are deleted. Ratios are percent of the disk."""

    file_reserved_time_hours: int = key(
        "fileReservedTime", 72, "hours that a full file is kept after its last write", low=0, live=True
    )
    delete_when: str = key(
        "deleteWhen",
        "04",
        "hours of the day at which expired files are deleted: `04` or `04;16`",
        pattern=r"(?:[01]?\d|2[0-3])(?:;(?:[01]?\d|2[0-3]))*",
        allowed='hours of the day, such as "04" or "04;16"',
        live=True,
    )
    disk_max_used_space_ratio: int = key(
        "diskMaxUsedSpaceRatio",
        75,
        "percent of the disk above which expired files are deleted at any hour; held within 10 and 95",
        convert=within(10, 95),
        low=0,
        high=100,
        live=True,
    )
    disk_space_warning_level_ratio: int = key(
        "diskSpaceWarningLevelRatio",
        90,
        "percent above which sends are refused; held within 35 and 90",
        convert=within(35, 90),
        low=0,
        high=100,
        live=True,
    )
    disk_space_clean_forcibly_ratio: int = key(
        "diskSpaceCleanForciblyRatio",
        85,
        "percent above which files are deleted before their time; held within 30 and 85",
        convert=within(30, 85),
        low=0,
        high=100,
        live=True,
    )
    clean_file_forcibly_enable: bool = key(
        "cleanFileForciblyEnable", True, "files may be deleted before their time when the disk is nearly full", live=True
    )
    clean_resource_interval_ms: int = key(
        "cleanResourceInterval", 10_000, "ms between two searches for files to delete", low=100, live=True
    )
    delete_commit_log_files_interval_ms: int = key(
        "deleteCommitLogFilesInterval", 100, "ms between the deletion of two commit-log files", low=0, live=True
    )
    delete_file_batch_max: int = key("deleteFileBatchMax", 10, "most files that one round deletes", low=1, live=True)
