"""Engine `memory`: the engine `mapped` on an in-memory disk.

For brokers whose messages need not survive a restart. The contract holds except for durability: a
restarted broker is empty.

`memoryEngineSizeMax` bounds the memory used. The log files are small, and retention removes the
oldest ones as soon as half of the bound is used, long before puts would be refused. Retention
ignores message age and the machine's disk usage.
"""

from dataclasses import replace

from rmqkit.config import FlushSettings, IndexSettings, NodeConfig, RetentionSettings, StorePaths
from rmqkit.store.contract import EngineParts, StorageEngine
from rmqkit.store.heap_disk import HeapDisk
from rmqkit.store.mapped import MappedEngine

_DUTY = "store-memory"
_FILE_SIZE = 8_388_608
_RECORD_ROOM = 131_072
_QUEUE_FILE_SIZE = 60_000
_BATCH_QUEUE_FILE_SIZE = 138_000
_INDEX = IndexSettings(max_hash_slot_num=65_536, max_index_num=131_072)
#: remove files while more than 50 % of the bound is used, regardless of their age
_RETENTION = RetentionSettings(
    delete_when="",
    disk_max_used_space_ratio=50,
    disk_space_clean_forcibly_ratio=50,
    clean_resource_interval_ms=100,
    delete_commit_log_files_interval_ms=1,
    delete_file_batch_max=64,
)


def memory_engine(parts: EngineParts) -> StorageEngine:
    """Create the engine for `storageEngine = memory`."""
    clock, duties = parts.ports.clock, parts.duties
    disk = HeapDisk(clock, parts.config.commit_log.memory_engine_size_max, lambda: duties.wake(_DUTY, clock.mono_ms))

    def deliver(now_ms: int) -> None:
        for then, error in disk.take_completed():
            then(error)

    duties.add(_DUTY, deliver, None)
    return MappedEngine(parts._replace(ports=parts.ports._replace(disk=disk)), adapt=_config)


def _config(config: NodeConfig) -> NodeConfig:
    """Return the node's configuration with file sizes and retention that suit memory."""
    file_size = max(_FILE_SIZE, config.send.max_message_size + _RECORD_ROOM)
    return replace(
        config,
        paths=StorePaths(store_path_root_dir="memory", store_path_commit_log="memory/commitlog"),
        commit_log=replace(
            config.commit_log, mapped_file_size_commit_log=min(config.commit_log.mapped_file_size_commit_log, file_size)
        ),
        consume_queue=replace(
            config.consume_queue,
            mapped_file_size_consume_queue=_QUEUE_FILE_SIZE,
            mapper_file_size_batch_consume_queue=_BATCH_QUEUE_FILE_SIZE,
            enable_consume_queue_ext=False,
        ),
        flush=FlushSettings(flush_disk_type=config.flush.flush_disk_type),
        index=replace(_INDEX, message_index_enable=config.index.message_index_enable),
        retention=_RETENTION,
    )
