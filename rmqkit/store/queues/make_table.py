"""Makes the queue table of an engine, of the kind that the settings ask for."""

from collections.abc import Callable

from rmqkit.config import ConsumeQueueSettings
from rmqkit.runtime.connection import Buffer
from rmqkit.runtime.ports import Disk
from rmqkit.store.contract import EngineParts
from rmqkit.store.queues.table import BatchFolder, QueueTable


def make_table(
    root: str,
    disk: Disk,
    settings: ConsumeQueueSettings,
    parts: EngineParts,
    record_at: Callable[[int], Buffer | None],
) -> QueueTable:
    """Return an empty table for the store folder `root`.

    `record_at` returns the record at a physical offset; None if it has left the log.
    """
    folder, file_size = f"{root}/consumequeue", settings.mapped_file_size_consume_queue
    batches = BatchFolder(
        f"{root}/batchconsumequeue", settings.mapper_file_size_batch_consume_queue, parts.is_batch_topic, record_at
    )
    if not settings.enable_consume_queue_ext:
        return QueueTable(disk, folder, file_size, batches)
    # Imported only if the setting asks for it.
    from rmqkit.store.queues.extension_table import ExtQueueTable

    return ExtQueueTable(
        disk,
        folder,
        file_size,
        batches,
        ext_folder=f"{root}/consumequeue_ext",
        ext_file_size=settings.mapped_file_size_consume_queue_ext,
        bit_map=parts.bit_map,
    )
