"""The storage engine contract: what the broker, replication and plug-in authors may rely on.

An engine is a part of one broker node: it runs in the node's turns, uses the node's `Ports`, and puts its background work
(recovery, flushing, retention, index building) into the node's `Duties`. It offers one byte-addressed log (the commit
log), queues of it by (topic, queue id), and an index by key. The contract suite in `rmqkit.testing.storage` runs over
every engine.

How a put goes:

    append(put) ... append(put)          in handlers: offsets are assigned, nothing is on disk yet
    settle() -> arrivals                 end of turn: ONE write of all records, then queues know them (readable)
    offset_written / offset_synced       rise; the broker finishes the puts that waited for them

- `append` returns a `PutResult`; status other than PUT_OK means nothing was appended. Queue offsets are dense.
- A record is readable (read, query, offsets) once `settle` has written it; not before.
- A failed write leaves offsets where they were before the turn: `settle` raises `StoreWriteError`, the puts of the turn are
  answered with an error and were not stored; the engine stays usable (a full disk is not the end).
- A failed sync is never retried: `failed` says why, `offset_synced` stays, puts are refused from then on.
- `sync(offset)` asks for durability up to that offset; calls while a sync runs join the next one (group commit).
- The engine decides by itself when to sync in ASYNC_FLUSH mode; the broker calls `sync` only for puts that wait for it.
- `offset_confirmed` bounds what readers see; without replication the broker leaves it at None (everything written).
- Until `ready` is true only `progress` and `stop` may be used.

Limits and names from the wire: the broker checks topic names, the engine still refuses a name that would leave its folder.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from rmqkit.errors import RmqkitError
from rmqkit.runtime.connection import Buffer
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Completion, Ports


class PutStatus(IntEnum):
    """Upstream's PutMessageStatus, in its order (`store/.../PutMessageStatus.java`)."""

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
    """Upstream's GetMessageStatus (`store/.../GetMessageStatus.java`)."""

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
    """The write of this turn failed; nothing of the turn is stored. `error` is the OSError (ENOSPC, EIO, …)."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the commit log could not be written: {error.strerror or error}")
        self.error = error


class Put(NamedTuple):
    """One message for the log. Hosts are 8 or 20 bytes: raw IP and port as int32, as records hold them."""

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
    #: what the queue entry holds: java_hash of TAGS, 0 without, a due time for the schedule topic
    tags_code: int


class PutResult(NamedTuple):
    """`phy_offset` and `queue_offset` of the first record, `phy_offset_next` one past the last; -1 unless PUT_OK.

    `phy_offsets` has each record's offset when a batch was put, else is empty.
    """

    status: PutStatus
    phy_offset: int = -1
    queue_offset: int = -1
    phy_offset_next: int = -1
    phy_offsets: Sequence[int] = ()


class Arrival(NamedTuple):
    """A record has become readable."""

    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int


class Read(NamedTuple):
    """`buffers` are whole records end to end, slices of the log where the engine can."""

    status: GetStatus
    offset_next: int
    offset_min: int
    offset_max: int
    buffers: Sequence[Buffer] = ()
    #: messages in `buffers` (an inner batch counts its messages), and their bytes
    message_count: int = 0
    size: int = 0
    #: physical offset of the last record read, for the suggestion to read from a slave
    phy_offset_last: int = -1


class IndexHits(NamedTuple):
    buffers: Sequence[Buffer]
    updated_ms: int
    updated_phy_offset: int


class Entry(NamedTuple):
    """One entry of a queue. `size` is 0 for a number that no record has."""

    queue_offset: int
    phy_offset: int
    size: int
    tags_code: int


class QueueRange(NamedTuple):
    topic: str
    queue_id: int
    offset_min: int
    offset_max: int


#: (topic, properties) -> the bits of the groups that want such a message; empty when nobody works them out
BitMap = Callable[[str, bytes], bytes]


class EngineParts(NamedTuple):
    """What a factory of `rmqkit_storage_engines` gets. `config` is the node's `rmqkit.config.NodeConfig`.

    `bit_map` is for engines that keep such bits with their queue entries (`enableConsumeQueueExt`).
    """

    ports: Ports
    duties: Duties
    config: Any
    #: bytes of memory of the machine: records nearer to the end of the log than a share of it count as cached
    memory_size: int = 8 << 30
    bit_map: BitMap | None = None


TagMatch = Callable[[int], bool]
RecordMatch = Callable[[Buffer], bool]


class StorageEngine(Protocol):
    #: False while recovering or after `stop`
    ready: bool
    #: one line about recovery: "commit log 3/7 files" …
    progress: str
    #: why puts are refused for good (a failed sync), or for now (disk full); "" when writeable
    failed: str
    #: whether that is for good
    is_broken: bool
    offset_confirmed: int | None

    # --- life
    def start(self) -> None:
        """Take the lock, look at the files, begin recovery as duties. Raises RmqkitError (locked, damaged): one line
        that says what and what to do; nothing was changed. A duty that finds damage raises CannotStart."""

    def stop(self, then: Callable[[], None]) -> None:
        """Flush everything, write the checkpoint, remove `abort`; `then` is called when all is durable."""

    def settle(self) -> Sequence[Arrival]:
        """End of turn. Raises StoreWriteError."""

    def configure(self, config: Any) -> None:
        """Live settings have changed: use this `NodeConfig` from now on."""

    # --- the log
    def append(self, put: Put) -> PutResult: ...

    def append_batch(self, put: Put, messages: Sequence[tuple[int, bytes, bytes, int]]) -> PutResult:
        """Records of one queue with consecutive offsets; `put` has what they share, each message is (flag, body,
        properties, tags_code). All or nothing, in one file."""

    @property
    def offset_min(self) -> int: ...
    @property
    def offset_max(self) -> int:
        """End of the log, records of this turn included."""

    @property
    def offset_written(self) -> int: ...
    @property
    def offset_synced(self) -> int: ...

    def sync(self, offset: int, then: Callable[[bool], None]) -> None:
        """`then(True)` when everything below `offset` is durable, `then(False)` when it never will be."""

    def record(self, phy_offset: int) -> Buffer | None:
        """The whole record that starts there, or None."""

    def read_log(self, phy_offset: int, size_max: int) -> Buffer:
        """Raw written bytes, not across a file end; empty at the end of the log. For replication."""

    def append_log(self, phy_offset: int, data: Buffer) -> bool:
        """Replicated bytes at the end of the log, cut anywhere; False when `phy_offset` is not the end."""

    def truncate(self, phy_offset: int, then: Completion) -> None:
        """Cut log and queues at a record's start, on disk."""

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
        """Entries from `offset` on, for the broker's own readers, who want to know the tags code (a due time); perhaps
        fewer than there are, none outside of the queue's range or where they cannot be read."""

    def queue_range(self, topic: str, queue_id: int) -> QueueRange:
        """Zeroes for a queue that has nothing."""

    def queue_is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the message is recent enough to be in the page cache (upstream's checkInMemByConsumeOffset)."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int: ...

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store timestamp of a queue entry, -1 when there is none."""

    def queues(self) -> Iterable[QueueRange]:
        """The queues that have, or had, messages, by topic and queue id."""

    def delete_topics(self, topics: Sequence[str]) -> int:
        """Remove the queues of these topics; how many queues went."""

    def clean_log(self) -> None:
        """Begin to remove the log files whose time is over, at whatever hour."""

    def clean_queues(self) -> None:
        """Begin to remove queue files whose records have all left the log. Numbers of queues stay."""

    # --- index
    def query(self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int) -> IndexHits: ...

    # --- what is asked about it
    def facts(self) -> dict[str, str]:
        """Runtime facts under upstream's names (commitLogMinOffset, commitLogDiskRatio, dispatchBehindBytes …)."""


EngineFactory = Callable[[EngineParts], StorageEngine]
