"""Reads a queue of a BatchCQ topic: the same rules as `queue_reader`, for records of many messages.

- A pull gets the whole record that holds the requested offset. The next offset follows the last
  message of the last record.
- Each message of a record counts towards the limits of a pull. A record that would exceed them is
  left for the next pull, unless it is the first.
- Filters decide about whole records: by the tags code of the unit, and by the record's properties.

Source: `store/.../DefaultMessageStore.java` (`getMessage`, `isTheBatchFull`).
"""

from rmqkit.config import PullSettings
from rmqkit.store.contract import GetStatus, Read, RecordMatch, TagMatch
from rmqkit.store.log.commit_log import CommitLog
from rmqkit.store.queue_reader import PULL_SIZE_MAX, PULL_SIZE_MIN, WINDOW, Slices, bounds_of, missed
from rmqkit.store.queues.batch_queue import BATCH_UNIT, BATCH_UNIT_SIZE, BatchQueue
from rmqkit.store.queues.consume_queue import ConsumeQueue

_UNITS = 64


def read_batch_queue(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    *,
    offset_max: int,
    count_max: int,
    size_max: int,
    settings: PullSettings,
    memory_size: int,
    is_slave: bool,
    tag_match: TagMatch | None = None,
    record_match: RecordMatch | None = None,
) -> Read:
    """Return what one pull of a `BatchQueue` gets. The arguments are those of `read_queue`."""
    assert isinstance(queue, BatchQueue)
    offset_min = min(queue.offset_min, offset_max)
    miss = missed(offset, offset_min, offset_max)
    if miss is not None:
        return Read(miss[0], offset if is_slave else miss[1], offset_min, offset_max)

    size_max = min(max(size_max, PULL_SIZE_MIN), PULL_SIZE_MAX)
    memory_from = log.offset_written - memory_size
    slices = Slices(log, min(size_max, WINDOW))
    status = GetStatus.NO_MATCHED_MESSAGE
    count = size = 0
    phy_last = phy_skip_to = -1
    in_memory, on_disk = bounds_of(settings, count_max, size_max)
    scan_max = max(settings.max_filter_message_size, count_max * BATCH_UNIT_SIZE)
    position, full = offset, False
    number = queue.number_at(offset)
    while position < offset_max and not full:
        units = queue.units(number, _UNITS)
        if not units:
            if not count:
                status = GetStatus.OFFSET_FOUND_NULL
                position = _next_file(queue, number, offset_max)
            break
        for phy_offset, record_size, tags_code, _, base, messages, _, _ in BATCH_UNIT.iter_unpack(units):
            full = base >= offset_max or (base - offset) * BATCH_UNIT_SIZE >= scan_max or size >= size_max
            if count and not full:
                count_bound, size_bound = in_memory if phy_offset >= memory_from else on_disk
                full = count >= count_bound or count + messages > count_max or size + record_size > size_bound
            if full:
                break
            number += 1
            position = base + messages
            phy_last = phy_offset
            if phy_offset < phy_skip_to or (tag_match is not None and not tag_match(tags_code)):
                continue
            taken = slices.take(phy_offset, record_size, record_match)
            if taken is not GetStatus.FOUND:
                if not count:
                    status = taken
                if taken is GetStatus.MESSAGE_WAS_REMOVING and phy_offset < log.offset_min:
                    phy_skip_to = log.offset_min
                continue
            count += messages
            size += record_size
    queue.note_read(number)
    return Read(
        GetStatus.FOUND if count else status, position, offset_min, offset_max, slices.finish(), count, size, phy_last
    )


def _next_file(queue: BatchQueue, number: int, offset_max: int) -> int:
    """Return the first queue offset of the file after the one with unit `number`."""
    per_file = queue.files.file_size // BATCH_UNIT_SIZE
    unit = queue.numbered(number + per_file - number % per_file)
    return offset_max if unit is None else min(unit.base, offset_max)
