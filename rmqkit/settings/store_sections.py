"""Sections of a broker's store: folders, commit log, consume queues, index, flushing, retention."""

from dataclasses import dataclass
from enum import StrEnum

from rmqkit.settings.declaration import key, within
from rmqkit.settings.table import Type, Value


class FlushDiskType(StrEnum):
    """When a put is answered: once its record is on disk, or before."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


def whole_entries(value: Value) -> int:
    """Round up to a multiple of the 20 bytes of an entry.

    Source: `MessageStoreConfig.getMappedFileSizeConsumeQueue`.
    """
    return -(-int(value) // 20) * 20


def whole_batch_entries(value: Value) -> int:
    """Round up to a multiple of the 46 bytes of an entry; Apache takes the size as it is."""
    return -(-int(value) // 46) * 46


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePaths:
    """The folders of the store, as absolute paths."""

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
    """The commit log, and the storage engine."""

    storage_engine: str = key(
        "storageEngine",
        "mapped",
        "storage engine: `mapped` (RocketMQ's files), `memory`, or one of a plug-in",
        pattern=r"[A-Za-z0-9_.-]{1,64}",
        allowed="the name of a storage engine",
        area="Plug-ins",
    )
    mapped_file_size_commit_log: int = key(
        "mappedFileSizeCommitLog", 1_073_741_824, "size of a commit-log file, in bytes", low=1024
    )
    check_crc_on_recover: bool = key("checkCRCOnRecover", True, "recovery verifies the checksum of each body")
    enabled_append_prop_crc: bool = key(
        "enabledAppendPropCRC", False, "each record has a checksum over the whole record, in its properties"
    )
    memory_engine_size_max: int = key(
        "memoryEngineSizeMax",
        268_435_456,
        "most bytes that the storage engine `memory` keeps; it drops the oldest messages first",
        low=16_777_216,
        area="Plug-ins",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushSettings:
    """When bytes reach the disk.

    The `commit_*` fields apply only with `transient_store_pool_enable`: new records then wait in
    memory, and are written to the file every `commit_interval_commit_log_ms`, before they are
    flushed.
    """

    flush_disk_type: FlushDiskType = key(
        "flushDiskType",
        FlushDiskType.ASYNC_FLUSH,
        "SYNC_FLUSH answers a send once it is on disk, ASYNC_FLUSH before that",
    )
    flush_interval_commit_log_ms: int = key(
        "flushIntervalCommitLog", 500, "ms between two flushes of the commit log", low=1, live=True
    )
    flush_commit_log_least_pages: int = key(
        "flushCommitLogLeastPages", 4, "new 4-KiB pages of the commit log below which a flush is skipped", low=0, live=True
    )
    flush_commit_log_thorough_interval_ms: int = key(
        "flushCommitLogThoroughInterval",
        10_000,
        "ms after which the commit log is flushed, however few pages are new",
        low=1,
        live=True,
    )
    transient_store_pool_enable: bool = key(
        "transientStorePoolEnable", False, "new records wait in memory until they are committed: written to the file"
    )
    commit_interval_commit_log_ms: int = key(
        "commitIntervalCommitLog", 200, "ms between two commits, with transientStorePoolEnable", low=1, live=True
    )
    commit_commit_log_least_pages: int = key(
        "commitCommitLogLeastPages", 4, "new 4-KiB pages below which a commit is skipped", low=0, live=True
    )
    commit_commit_log_thorough_interval_ms: int = key(
        "commitCommitLogThoroughInterval",
        200,
        "ms after which new records are committed, however few pages are new",
        low=1,
        live=True,
    )
    sync_flush_timeout_ms: int = key(
        "syncFlushTimeout",
        5000,
        "ms that a send waits for the disk; then the answer is FLUSH_DISK_TIMEOUT",
        low=1,
        live=True,
    )
    flush_interval_consume_queue_ms: int = key(
        "flushIntervalConsumeQueue", 1000, "ms between two flushes of the consume queues", low=1, live=True
    )
    flush_consume_queue_least_pages: int = key(
        "flushConsumeQueueLeastPages",
        2,
        "new 4-KiB pages of a consume queue below which its flush is skipped",
        low=0,
        live=True,
    )
    flush_consume_queue_thorough_interval_ms: int = key(
        "flushConsumeQueueThoroughInterval",
        60_000,
        "ms after which the consume queues are flushed, however few pages are new",
        low=1,
        live=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeQueueSettings:
    """The consume queues and their extension files."""

    mapped_file_size_consume_queue: int = key(
        "mappedFileSizeConsumeQueue",
        6_000_000,
        "size of a consume-queue file, in bytes, rounded up to whole entries of 20 bytes",
        convert=whole_entries,
        low=20,
    )
    mapper_file_size_batch_consume_queue: int = key(
        "mapperFileSizeBatchConsumeQueue",
        13_800_000,
        "size of a queue file of a topic with queue.type=BatchCQ, in bytes, rounded up to whole entries of 46 bytes",
        convert=whole_batch_entries,
        low=46,
    )
    enable_consume_queue_ext: bool = key(
        "enableConsumeQueueExt",
        False,
        "each queue entry has a unit in consumequeue_ext/ with tags code, store time and bit map",
    )
    mapped_file_size_consume_queue_ext: int = key(
        "mappedFileSizeConsumeQueueExt", 50_331_648, "size of a file in consumequeue_ext/, in bytes", low=4096
    )
    put_msg_index_hight_water: int = key(
        "putMsgIndexHightWater", 600_000, "records waiting for dispatch above which puts are delayed", low=1, live=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """The index files, for queries by key."""

    message_index_enable: bool = key("messageIndexEnable", True, "messages are indexed and can be found by key")
    max_hash_slot_num: int = key("maxHashSlotNum", 5_000_000, "hash slots of an index file", low=1, high=100_000_000)
    max_index_num: int = key("maxIndexNum", 20_000_000, "entries of an index file", low=2, high=100_000_000)
    max_msgs_num_batch: int = key("maxMsgsNumBatch", 64, "most messages in the answer to a query by key", low=1, live=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """When old files are deleted. Ratios are percent of the disk."""

    file_reserved_time_hours: int = key(
        "fileReservedTime", 72, "hours after its last write for which a full file is kept", low=0, live=True
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
        "percent of the disk above which expired files are deleted at any hour; clamped to 10 to 95",
        convert=within(10, 95),
        low=0,
        high=100,
        live=True,
    )
    disk_space_warning_level_ratio: int = key(
        "diskSpaceWarningLevelRatio",
        90,
        "percent of the disk above which sends are refused; clamped to 35 to 90",
        convert=within(35, 90),
        low=0,
        high=100,
        live=True,
    )
    disk_space_clean_forcibly_ratio: int = key(
        "diskSpaceCleanForciblyRatio",
        85,
        "percent of the disk above which files are deleted before they expire; clamped to 30 to 85",
        convert=within(30, 85),
        low=0,
        high=100,
        live=True,
    )
    clean_file_forcibly_enable: bool = key(
        "cleanFileForciblyEnable",
        True,
        "files may be deleted before they expire if the disk is nearly full (diskSpaceCleanForciblyRatio)",
        live=True,
    )
    clean_resource_interval_ms: int = key(
        "cleanResourceInterval", 10_000, "ms between two searches for files to delete", low=100, live=True
    )
    delete_commit_log_files_interval_ms: int = key(
        "deleteCommitLogFilesInterval", 100, "ms between the deletion of two commit-log files", low=0, live=True
    )
    delete_file_batch_max: int = key("deleteFileBatchMax", 10, "most files that one search deletes", low=1, live=True)
