"""Reading a queue: which messages one pull gets, and what it is told when there are none.

The rules are upstream's `DefaultMessageStore.getMessage`: the statuses and next offsets by where the asked offset stands
to the queue's range; the first message always, then as long as counts and bytes stay within what was asked for and
within the broker's own bounds (which are narrower for messages too old to be in memory); a filter looks at a bounded
number of entries; entries whose record has left the log are passed over up to the next file.

An entry may hold the address of its unit of the queue's extension in place of a tags code; then that unit is asked.

Messages that lie side by side in the log come back as one slice of it. A record is served only when its size, magic and
physical offset are those its queue entry promises: anything else is damage and is passed over.
"""

from struct import Struct

from rmqkit.config import PullSettings
from rmqkit.runtime.connection import Buffer
from rmqkit.store.contract import GetStatus, Read, RecordMatch, TagMatch
from rmqkit.store.log.commit_log import CommitLog
from rmqkit.store.log.scan import MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN
from rmqkit.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue
from rmqkit.store.queues.extension import ADDRESS_MAX, may_match

#: a pull is never given more (`DefaultMessageStore.MAX_PULL_MSG_SIZE`), nor asked to stop under 100 bytes
PULL_SIZE_MAX = 128 * 1024 * 1024
PULL_SIZE_MIN = 100
#: how much of the log is looked at as one view
_WINDOW = 262_144
_UNITS = 64
#: of a record: its size, magic and physical offset
_marks = Struct(">iI20xq").unpack_from
_MAGICS = (MAGIC_V1, MAGIC_V2)
_units = Struct(">qiq").iter_unpack


class Slices:
    """Whole records of the log, joined where they lie side by side."""

    def __init__(self, log: CommitLog, window_size: int) -> None:
        self.log = log
        self.buffers: list[Buffer] = []
        self._window_size = window_size
        self._window: Buffer = b""
        self._window_at = 0
        self._window_end = 0
        #: the slice that is growing, as offsets within the window
        self._start = 0
        self._end = 0

    def take(self, phy_offset: int, size: int, record_match: RecordMatch | None) -> GetStatus:
        """Take the record if it is wanted: FOUND, NO_MATCHED_MESSAGE, or MESSAGE_WAS_REMOVING when the log has no such.

        One call a record: this is most of what a pull costs.
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
            # `_close` without the call: with several queues in the log most records end a slice.
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
    """`offset_max` bounds what is visible; `memory_size` is how many bytes at the log's end count as in memory.

    On a slave the next offset of a miss stays what was asked for: its queue may lack what the master's has.
    """
    offset_min = min(queue.offset_min, offset_max)
    missed = _miss(offset, offset_min, offset_max)
    if missed is not None:
        status, offset_next = missed
        return Read(status, offset if is_slave else offset_next, offset_min, offset_max)

    size_max = min(max(size_max, PULL_SIZE_MIN), PULL_SIZE_MAX)
    memory_from = log.offset_written - memory_size
    slices = Slices(log, min(size_max, _WINDOW))
    status = GetStatus.NO_MATCHED_MESSAGE
    count = size = 0
    phy_last = phy_skip_to = -1
    in_memory, on_disk = _bounds(settings, count_max, size_max)
    position, full = offset, False
    end = min(offset_max, offset + max(settings.max_filter_message_size, count_max * UNIT_SIZE) // UNIT_SIZE)
    address_max, take, found = ADDRESS_MAX, slices.take, GetStatus.FOUND
    while position < end and not full:
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


def _next_file(queue: ConsumeQueue, position: int) -> int:
    """The first entry of the file behind the one that holds `position`."""
    per_file = queue.files.file_size // UNIT_SIZE
    return position + per_file - position % per_file


def _bounds(settings: PullSettings, count_max: int, size_max: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """How many messages and bytes an answer may hold: while it stands in the page cache, and further back."""
    in_memory = (
        min(count_max, settings.max_transfer_count_on_message_in_memory),
        min(size_max, settings.max_transfer_bytes_on_message_in_memory),
    )
    on_disk = (
        min(count_max, settings.max_transfer_count_on_message_in_disk),
        min(size_max, settings.max_transfer_bytes_on_message_in_disk),
    )
    return in_memory, on_disk


def _miss(offset: int, offset_min: int, offset_max: int) -> tuple[GetStatus, int] | None:
    """Status and next offset when nothing can be read there."""
    if offset_max == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < offset_min:
        return GetStatus.OFFSET_TOO_SMALL, offset_min
    if offset == offset_max:
        return GetStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > offset_max:
        return GetStatus.OFFSET_OVERFLOW_BADLY, offset_max
    return None
