"""Reads a queue: which messages one pull gets, or the status and next offset if it gets none.

The rules are those of Apache's `DefaultMessageStore.getMessage`:

- An offset outside the queue's range yields a status and the next offset to read from.
- The first matching message is always returned. More follow while count and bytes stay within the
  request and within the broker's limits, which are lower for messages too old to be in memory.
- A filter examines a bounded number of entries.
- If records of entries have left the log, the entries are skipped up to the log's minimum.

An entry may hold the address of a unit in the queue's extension instead of a tags code. The tag
filter then uses that unit.

Adjacent messages in the log are returned as one slice of it. A record is served only if its size,
magic and physical offset match its queue entry. Anything else is damage and is skipped.

Most pulls want every message and get small ones. `_read_run` reads these as a whole. Messages of
several queues lie between each other in the log, so it joins them: one buffer to send costs less
than a slice for each message. Whatever is unusual, such as damage, is left to the loop over the
entries.
"""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct

from rmqkit.config import PullSettings
from rmqkit.runtime.connection import Buffer
from rmqkit.store.contract import GetStatus, Read, RecordMatch, TagMatch
from rmqkit.store.log.commit_log import CommitLog
from rmqkit.store.log.scan import MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN
from rmqkit.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue, layout_of_units
from rmqkit.store.queues.extension import ADDRESS_MAX, may_match

#: the byte limit of a pull is clamped to this range (`DefaultMessageStore.MAX_PULL_MSG_SIZE`)
PULL_SIZE_MAX = 128 * 1024 * 1024
PULL_SIZE_MIN = 100
#: bytes of the log that one view covers
WINDOW = 262_144
#: the most bytes of the log between the first and the last message of a run
RUN_SPAN_MAX = 4 * 1024 * 1024
#: bytes; messages that are larger on average are sent as slices, because joining copies them
JOINED_SIZE_MAX = 4096
_UNITS = 64
#: size, magic and physical offset of a record
_MARKS = Struct(">iI20xq")
_marks, _MARKS_SIZE = _MARKS.unpack_from, _MARKS.size
_MAGICS = (MAGIC_V1, MAGIC_V2)
_FOUND = GetStatus.FOUND
_new = tuple.__new__
_units = Struct(">qiq").iter_unpack


class Slices:
    """Collects whole records of the log; adjacent records become one slice."""

    def __init__(self, log: CommitLog, window_size: int) -> None:
        self.log = log
        self.buffers: list[Buffer] = []
        self._window_size = window_size
        self._window: Buffer = b""
        self._window_at = 0
        self._window_end = 0
        #: the slice that is being extended, as offsets within the window
        self._start = 0
        self._end = 0

    def take(self, phy_offset: int, size: int, record_match: RecordMatch | None) -> GetStatus:
        """Add the record if it matches.

        Returns FOUND, NO_MATCHED_MESSAGE, or MESSAGE_WAS_REMOVING if the log has no such record.
        Called once per record, this is most of the cost of a pull.
        """
        at = phy_offset - self._window_at
        end = phy_offset + size
        if at < 0 or end > self._window_end:
            self._close()
            self._window = self.log.view(phy_offset, max(size, self._window_size))
            self._window_at = phy_offset
            self._window_end = phy_offset + len(self._window)
            at = 0
        if size < RECORD_SIZE_MIN or end > self._window_end:
            return GetStatus.MESSAGE_WAS_REMOVING
        found, magic, phy = _marks(self._window, at)
        if found != size or phy != phy_offset or magic not in _MAGICS:
            return GetStatus.MESSAGE_WAS_REMOVING
        if record_match is not None and not record_match(self._window[at : at + size]):
            return GetStatus.NO_MATCHED_MESSAGE
        if at != self._end:
            # `_close` inlined: if the log holds several queues, most records end a slice.
            if self._end > self._start:
                self.buffers.append(self._window[self._start : self._end])
            self._start = at
        self._end = at + size
        return GetStatus.FOUND

    def _close(self) -> None:
        if self._end > self._start:
            self.buffers.append(self._window[self._start : self._end])
        self._start = self._end = 0

    def finish(self) -> list[Buffer]:
        self._close()
        return self.buffers


def read_queue(
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
    """Return what one pull of the queue gets.

    `offset_max` bounds what is visible. The last `memory_size` bytes of the log count as in memory.
    On a slave a miss keeps the requested offset: its queue may lack entries of the master's.
    """
    offset_min = min(queue.offset_min, offset_max)
    miss = missed(offset, offset_min, offset_max)
    if miss is not None:
        return Read(miss[0], offset if is_slave else miss[1], offset_min, offset_max)
    size_max = min(max(size_max, PULL_SIZE_MIN), PULL_SIZE_MAX)
    memory_from = log.offset_written - memory_size
    in_memory, on_disk = bounds_of(settings, count_max, size_max)
    if record_match is None:
        run = _read_run(log, queue, offset, offset_min, offset_max, memory_from, in_memory, tag_match)
        if run is not None:
            return run
    slices, status = Slices(log, min(size_max, WINDOW)), GetStatus.NO_MATCHED_MESSAGE
    position, count, size, full = offset, 0, 0, False
    phy_last = phy_skip_to = -1
    end = min(offset_max, offset + max(settings.max_filter_message_size, count_max * UNIT_SIZE) // UNIT_SIZE)
    address_max, take, found = ADDRESS_MAX, slices.take, _FOUND
    while position < end and not full and count < max(in_memory[0], on_disk[0], 1):
        units = queue.units(position, min(end - position, max(count_max - count, _UNITS) if tag_match else count_max))
        if not units:
            if not count:
                status = GetStatus.OFFSET_FOUND_NULL
                position = min(_next_file(queue, position), offset_max)
            break
        for phy_offset, record_size, tags_code in _units(units):
            if count:
                count_bound, size_bound = in_memory if phy_offset >= memory_from else on_disk
                if count >= count_bound or size + record_size > size_bound:
                    full = True
                    break
            position += 1
            phy_last = phy_offset
            if phy_offset < phy_skip_to or (
                tag_match is not None
                and not tag_match(tags_code)
                and (tags_code > address_max or not may_match(queue, tag_match, tags_code))
            ):
                continue
            taken = take(phy_offset, record_size, record_match)
            if taken is not found:
                if not count:
                    status = taken
                if taken is GetStatus.MESSAGE_WAS_REMOVING and phy_offset < log.offset_min:
                    phy_skip_to = log.offset_min
                continue
            count += 1
            size += record_size
            if size >= size_max:
                full = True
                break
    return Read(found if count else status, position, offset_min, offset_max, slices.finish(), count, size, phy_last)


@lru_cache(maxsize=256)
def _marks_of(count: int, size: int) -> Callable[[Buffer], tuple[int, ...]]:
    """Return the function that unpacks the marks of this many records of equal size."""
    return Struct(">" + f"iI20xq{size - _MARKS_SIZE}x" * count).unpack


def _read_run(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    offset_min: int,
    offset_max: int,
    memory_from: int,
    in_memory: tuple[int, int],
    tag_match: TagMatch | None,
) -> Read | None:
    """Return what a pull gets, if all messages that it may get can be read as a whole.

    Each record is checked as in `Slices.take`. None if a check or the filter fails, if the entries
    or the records are in two files, if a limit in bytes lies within the run, if the messages may
    not be in memory, or if they are large.
    """
    wanted = min(in_memory[0], offset_max - offset)
    units = queue.units(offset, wanted)
    count = len(units) // UNIT_SIZE
    if not count or count < wanted:
        return None
    values = layout_of_units(count).unpack(units)
    starts, sizes = values[::3], values[1::3]
    first, phy_last, size = starts[0], starts[-1], sum(sizes)
    span = phy_last + sizes[-1] - first
    if first < memory_from or size > in_memory[1] or min(sizes) < RECORD_SIZE_MIN or not size <= span <= RUN_SPAN_MAX:
        return None
    if tag_match is not None and not all(map(tag_match, values[2::3])):
        return None
    body = log.view(first, span)
    if len(body) < span:
        return None
    is_joined = span != size
    if is_joined:
        if size > count * JOINED_SIZE_MAX:
            return None
        body = b"".join([body[start - first : start - first + size] for start, size in zip(starts, sizes, strict=True)])
        if len(body) != size:
            return None
    if sizes.count(sizes[0]) == count:
        marks = _marks_of(count, sizes[0])(body)
        if marks[::3] != sizes or marks[2::3] != starts or marks[1::3].count(queue.magic) != count:
            return None
    else:
        at = 0
        for start, record_size in zip(starts, sizes, strict=True):
            found, magic, phy = _marks(body, at)
            if found != record_size or phy != start or magic not in _MAGICS or not (is_joined or start == first + at):
                return None
            at += record_size
    return _new(Read, (_FOUND, offset + count, offset_min, offset_max, (body,), count, size, phy_last))


def _next_file(queue: ConsumeQueue, position: int) -> int:
    """Return the first entry of the file after the one that holds `position`."""
    per_file = queue.files.file_size // UNIT_SIZE
    return position + per_file - position % per_file


def bounds_of(settings: PullSettings, count_max: int, size_max: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (message, byte) limits of a response: in-memory messages, then older ones."""
    in_memory = (
        min(count_max, settings.max_transfer_count_on_message_in_memory),
        min(size_max, settings.max_transfer_bytes_on_message_in_memory),
    )
    on_disk = (
        min(count_max, settings.max_transfer_count_on_message_in_disk),
        min(size_max, settings.max_transfer_bytes_on_message_in_disk),
    )
    return in_memory, on_disk


def missed(offset: int, offset_min: int, offset_max: int) -> tuple[GetStatus, int] | None:
    """Return status and next offset if nothing can be read at `offset`, else None."""
    if offset_max == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < offset_min:
        return GetStatus.OFFSET_TOO_SMALL, offset_min
    if offset == offset_max:
        return GetStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > offset_max:
        return GetStatus.OFFSET_OVERFLOW_BADLY, offset_max
    return None


def search_by_time(
    time_of: Callable[[int], int], offset_min: int, offset_max: int, timestamp_ms: int, *, upper: bool
) -> int:
    """Return the first offset stored at or after the time.

    `time_of` returns the store time of an offset in ms. With `upper`, return the last offset stored
    at or before the time. The result is always within the range: `offset_min` if every message is
    newer; if every message is older, `offset_max` (with `upper` the last offset).

    Apache: `ConsumeQueue.binarySearchInQueueByTime`.
    """
    low, high = offset_min, offset_max
    while low < high:
        middle = (low + high) // 2
        store_ms = time_of(middle)
        if store_ms < timestamp_ms or (upper and store_ms == timestamp_ms):
            low = middle + 1
        else:
            high = middle
    return max(low - 1, offset_min) if upper else low
