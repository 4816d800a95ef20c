"""The storage engine contract: what the broker, replication and plug-in authors can rely on.

An engine is part of one broker node. It runs in the node's turns, uses the node's `Ports` and adds
its background work (recovery, flushing, retention, indexing) to the node's `Duties`. It provides
one byte-addressed log (the commit log), consume queues over it by (topic, queue id), and an index
by key. The contract suite in `rmqkit.testing.storage` runs against every engine.

The path of a put:

    append(put) ... append(put)       in handlers: offsets are assigned, nothing is on disk yet
    settle() -> arrivals              end of turn: ONE write of all records, then queue entries
    offset_written / offset_synced    rise; the broker replies to the puts that waited for them

- `append` returns a `PutResult`. Any status but PUT_OK means that nothing was appended. Queue
  offsets are dense.
- A record is readable (read, query, offsets) once `settle` has written it, not before.
- After a failed write the offsets are those from before the turn. `settle` raises
  `StoreWriteError`, the broker answers the puts of the turn with an error, and none of them is
  stored. The engine stays usable: a full disk is not fatal.
- A failed sync is never retried. `failed` gives the reason, `offset_synced` stays where it is, and
  the engine refuses puts from then on.
- `sync(offset)` requests durability up to that offset. Calls made during a running sync join the
  next one (group commit).
- In ASYNC_FLUSH mode the engine decides when to sync. The broker calls `sync` only for puts that
  wait for it.
- `offset_confirmed` bounds what readers see. Without replication the broker leaves it at None:
  everything written is visible.
- Until `ready` is true, only `progress` and `stop` may be used.

The broker validates topic names from the wire. The engine still refuses a name that would resolve
to a path outside its folder.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple, Protocol

from rmqkit.errors import RmqkitError
from rmqkit.runtime.connection import Buffer
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Completion, Ports


class PutStatus(IntEnum):
    """Apache's PutMessageStatus, in its order (`store/.../PutMessageStatus.java`)."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3
    SERVICE_NOT_AVAILABLE = 4
    CREATE_MAPPED_FILE_FAILED = 5
    MESSAGE_ILLEGAL = 6
    PROPERTIES_SIZE_EXCEEDED = 7
    OS_PAGE_CACHE_BUSY = 8
    UNKNOWN_ERROR = 9
    IN_SYNC_REPLICAS_NOT_ENOUGH = 10


class GetStatus(IntEnum):
    """Apache's GetMessageStatus (`store/.../GetMessageStatus.java`)."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    OFFSET_RESET = 9


class StoreWriteError(RmqkitError):
    """The write of this turn failed and none of its puts is stored.

    `error` is the OSError (ENOSPC, EIO, …).
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the commit log could not be written: {error.strerror or error}")
        self.error = error


class Put(NamedTuple):
    """One message for the log.

    A host is 8 or 20 bytes, as in a record: the raw IPv4 or IPv6 address, then the port as int32.
    """

    topic: str
    queue_id: int
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    properties: bytes
    #: tags code of the queue entry: Java's hash of TAGS, 0 without tags; on the schedule topic the
    #: due time in ms
    tags_code: int


_BORN, _STORED = Struct(">q8s"), Struct(">8si")


class PutRun(NamedTuple):
    """Messages by column, for any queues, in the order in which their records follow each other.

    Their hosts have IPv4 addresses. A column may be any sequence, all have one length.
    """

    #: topic and queue id
    queues: Sequence[tuple[str, int]]
    flags: Sequence[int]
    sys_flags: Sequence[int]
    #: birth time and host, as a record has them: 16 bytes
    born: Sequence[bytes]
    #: store host and reconsume times, as a record has them: 12 bytes
    stored: Sequence[bytes]
    #: checksums of the bodies, as a record has them
    body_crcs: Sequence[int]
    bodies: Sequence[bytes]
    properties: Sequence[bytes]
    tags_codes: Sequence[int]

    def part(self, begin: int, end: int) -> "PutRun":
        return PutRun._make([column[begin:end] for column in self])

    def puts(self) -> Iterator[Put]:
        """Yield the messages one by one."""
        for (topic, queue_id), flag, sys_flag, born, stored, _, body, properties, code in zip(*self, strict=True):
            born_ms, born_host = _BORN.unpack(born)
            host, times = _STORED.unpack(stored)
            yield Put(topic, queue_id, flag, sys_flag, born_ms, born_host, host, times, 0, body, properties, code)


class PutResult(NamedTuple):
    """The result of a put.

    `phy_offset` and `queue_offset` belong to the first record, `phy_offset_next` is one past the
    last record. All three are -1 unless `status` is PUT_OK. `phy_offsets` holds the offset of each
    record of a batch; it is empty for a single put.
    """

    status: PutStatus
    phy_offset: int = -1
    queue_offset: int = -1
    phy_offset_next: int = -1
    phy_offsets: Sequence[int] = ()
    #: number of messages of an inner batch; 0 for any other put
    inner_count: int = 0


class Arrival(NamedTuple):
    """A record has become readable, or `record_count` records of one queue with one tags code.

    Their queue offsets follow each other from `queue_offset` on.
    """

    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
    record_count: int = 1


class Read(NamedTuple):
    """The result of reading a queue.

    `buffers` hold whole records end to end. They are slices of the log if the engine supports it.
    """

    status: GetStatus
    offset_next: int
    offset_min: int
    offset_max: int
    buffers: Sequence[Buffer] = ()
    #: number of messages in `buffers` (each message of an inner batch counts), and their bytes
    message_count: int = 0
    size: int = 0
    #: physical offset of the last entry examined; decides whether to suggest reading from a slave
    phy_offset_last: int = -1


class IndexHits(NamedTuple):
    """The records that an index query found, and how far the index reaches.

    `updated_ms` and `updated_phy_offset` are the store time and offset of the newest indexed
    record.
    """

    buffers: Sequence[Buffer]
    updated_ms: int
    updated_phy_offset: int


class Entry(NamedTuple):
    """One entry of a queue. `size` is 0 if no record has this queue offset (a filled gap).

    The record of an inner batch has one entry for all its messages: `message_count` queue offsets.
    """

    queue_offset: int
    phy_offset: int
    size: int
    tags_code: int
    message_count: int = 1


class QueueRange(NamedTuple):
    """The readable offsets of a queue: `offset_min` up to, but not including, `offset_max`."""

    topic: str
    queue_id: int
    offset_min: int
    offset_max: int


#: (topic, properties) -> bit map of the groups whose filters match; empty if none was computed
BitMap = Callable[[str, bytes], bytes]
#: topic -> whether its attribute `queue.type` is BatchCQ; None if the topic is unknown
IsBatchTopic = Callable[[str], bool | None]


class EngineParts(NamedTuple):
    """The argument of a factory from `rmqkit_storage_engines`.

    `config` is the node's `rmqkit.config.NodeConfig`. `bit_map` is for engines that store filter
    bits with their queue entries (`enableConsumeQueueExt`). `is_batch_topic` is for engines that
    store inner batches (`append_inner_batch`); it may be called from `start` on.
    """

    ports: Ports
    duties: Duties
    config: Any
    #: the machine's memory in bytes; the newest part of the log that fits a share of it counts as
    #: cached (`accessMessageInMemoryMaxRatio`)
    memory_size: int = 8 << 30
    bit_map: BitMap | None = None
    is_batch_topic: IsBatchTopic = lambda topic: None


TagMatch = Callable[[int], bool]
RecordMatch = Callable[[Buffer], bool]


class StorageEngine(Protocol):
    #: False during recovery and after `stop`
    ready: bool
    #: one line about the progress of recovery: "consume queues 3/7"
    progress: str
    #: why puts are refused, permanently (a failed sync) or for now (disk full); "" if writeable
    failed: str
    #: whether `failed` is permanent
    is_broken: bool
    #: readers see only records that end at or before this offset; None: everything written
    offset_confirmed: int | None

    # --- life
    def start(self) -> None:
        """Take the lock, check the files and start recovery as duties.

        Raises RmqkitError if the store is locked or damaged: one line with the cause and the
        remedy; the engine has changed nothing. A duty that finds damage later raises CannotStart.
        """

    def stop(self, then: Callable[[], None]) -> None:
        """Flush everything, write the checkpoint and remove `abort`, then call `then`."""

    def settle(self) -> Sequence[Arrival]:
        """Write the records of this turn. Return what became readable. Raises StoreWriteError."""

    def configure(self, config: Any) -> None:
        """Apply changed live settings: use this `NodeConfig` from now on."""

    # --- the log
    def append(self, put: Put) -> PutResult:
        """Add one record to this turn and assign its offsets."""

    def append_some(self, puts: Sequence[Put]) -> list[PutResult]:
        """Like `append` for each put in order, up to the first that is refused.

        Returns a result for each of them; only that of the last one can be a refusal. `puts` is not
        empty.
        """

    def append_batch(self, put: Put, messages: Sequence[tuple[int, bytes, bytes, int]]) -> PutResult:
        """Append records of one queue with consecutive offsets, all or none, in one log file.

        `put` holds the fields that they share. Each message is (flag, body, properties, tags_code).
        `messages` may be a `UniformBatch`, which an engine can store by column. To all others it is
        a sequence of such messages.
        """

    def append_run(self, run: PutRun) -> Sequence[int]:
        """Append the records that `append` would make of the messages of a run, in their order.

        Ends before a message that `append` would refuse, or that the engine takes only alone.
        Returns the sizes of the records that were appended. `offset_max` is behind the last one.
        """

    def append_inner_batch(self, put: Put, count: int) -> PutResult:
        """Append one record that holds `count` messages, for a topic with `queue.type=BatchCQ`.

        The record takes `count` queue offsets, and `queue_offset` of the result is the first. The
        engine adds it to the properties as INNER_BASE. The handler has set INNER_NUM and the bits
        INNER_BATCH and NEED_UNWRAP.
        """

    @property
    def offset_min(self) -> int: ...
    @property
    def offset_max(self) -> int:
        """End of the log, including the records of this turn."""

    @property
    def offset_written(self) -> int: ...
    @property
    def offset_synced(self) -> int: ...
    @property
    def offset_dispatched(self) -> int:
        """End of the last record that the queues have. What is behind it may be half a record."""

    def sync(self, offset: int, then: Callable[[bool], None]) -> None:
        """Call `then(True)` once everything below `offset` is durable.

        Call `then(False)` if it never will be.
        """

    def record(self, phy_offset: int) -> Buffer | None:
        """Return the whole record that starts at `phy_offset`, or None."""

    def read_log(self, phy_offset: int, size_max: int) -> Buffer:
        """Return written bytes for replication; empty at the end of the log.

        The bytes never cross the end of a log file.
        """

    def append_log(self, phy_offset: int, data: Buffer) -> bool:
        """Append replicated bytes, which may start or end inside a record.

        Return False if nothing was appended: `phy_offset` is not the end of the log, or the engine
        takes no bytes now.
        """

    def expect_copy(self, offset_end: int) -> None:
        """Prepare for `append_log` up to about `offset_end`, where the master's log ends now.

        Until the log ends there, queues and index may fall behind: the copy must not wait for them.
        An engine that dispatches at once ignores the call.
        """

    def truncate(self, phy_offset: int, then: Completion) -> None:
        """Truncate log, queues and index at the start of a record, durably."""

    # --- queues
    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        size_max: int,
        tag_match: TagMatch | None = None,
        record_match: RecordMatch | None = None,
    ) -> Read: ...

    def entries(self, topic: str, queue_id: int, offset: int, count_max: int) -> Sequence[Entry]:
        """Return entries from `offset` on, for broker code that needs the tags code (a due time).

        May return fewer entries than exist. Returns none outside the queue's range, or if they
        cannot be read. An entry with several messages may start before `offset`.
        """

    def queue_range(self, topic: str, queue_id: int) -> QueueRange:
        """Return the readable offsets of a queue: zeroes if the queue does not exist."""

    def queue_is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether the message is recent enough to be in the page cache.

        Apache: checkInMemByConsumeOffset.
        """

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the first offset stored at or after the time.

        With `upper`, return the last offset stored at or before it.
        """

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store timestamp of a queue entry in ms, or -1 if there is no such record."""

    def queues(self) -> Iterable[QueueRange]:
        """Return the queues that have or had messages, sorted by topic and queue id."""

    def delete_topics(self, topics: Sequence[str]) -> int:
        """Remove the queues of these topics. Return how many queues were removed."""

    def clean_log(self) -> None:
        """Start removing expired log files now, regardless of the hour (`deleteWhen`)."""

    def clean_queues(self) -> None:
        """Start removing queue files whose records have all left the log.

        The offsets of the queues do not change.
        """

    # --- index
    def query(self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int) -> IndexHits: ...

    # --- runtime facts
    def facts(self) -> dict[str, str]:
        """Return runtime facts under Apache's names.

        Examples: commitLogMinOffset, commitLogDiskRatio, dispatchBehindBytes.
        """


EngineFactory = Callable[[EngineParts], StorageEngine]
