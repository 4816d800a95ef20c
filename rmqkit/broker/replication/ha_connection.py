"""One slave's connection, on the master: what the slave has reported, and what was sent to it.

Reading: of the bytes that arrived, only the newest complete report counts. The first report decides
where the master begins to send:

- at the reported offset;
- if the slave has nothing and asked for the whole log: at the first byte of the log;
- if the slave has nothing otherwise: at the start of the last file, as Apache's masters do.

A report never goes back, and never beyond what this master has written.

Writing: pieces of at most `haTransferBatchSize`, none across the end of a file. At most `WINDOW`
bytes are sent beyond the slave's last report. Within that window the master does not wait for
reports.

Source: `store/.../ha/DefaultHAConnection.java`.
"""

from typing import NamedTuple

from rmqkit.runtime.connection import Address, Buffer, Connection
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.ha.epochs import EpochReports
from rmqkit.wire.ha.stream import Reports, transfer_head

#: bytes in flight per slave, sent and not reported yet; above it the master waits for a report
WINDOW = 8 * 1024 * 1024
#: bytes sent on one connection per turn
TURN_MAX = 2 * 1024 * 1024


class Binding(NamedTuple):
    """The member of the group that a connection belongs to, as the slave claimed (906)."""

    broker_id: int
    address: str
    #: whether an empty slave wants the log from its first byte on
    from_start: bool


class HaConnections:
    """The slave connections.

    `HaServer` adds and removes them, `ReplicaMembers` decides which count.
    """

    def __init__(self) -> None:
        #: open slave connections by connection id
        self.links: dict[int, ReplicaLink] = {}
        #: hosts (as addresses with port 0) whose last connection was refused, with the reason;
        #: newest last
        self.refused: dict[Address, str] = {}


class ReplicaLink:
    """One slave connection. Once the slave has reported, `acked` never goes back."""

    __slots__ = (
        "acked",
        "binding",
        "bytes_sent",
        "conn",
        "read_ms",
        "reports",
        "sent",
        "started_at",
        "written_ms",
    )

    def __init__(self, conn: Connection, now_ms: int) -> None:
        self.conn = conn
        self.binding: Binding | None = None
        self.reports: Reports | EpochReports = Reports()
        #: the end of the slave's log as it last reported it; -1 before its first report
        self.acked = -1
        #: the offset of the next byte to send; -1 before the first report
        self.sent = -1
        #: the offset at which sending began; -1 before the first report
        self.started_at = -1
        self.bytes_sent = 0
        self.read_ms = self.written_ms = now_ms

    @property
    def peer(self) -> Address:
        return self.conn.peer

    def begin(self, reported: int, store: StorageEngine, file_size: int) -> None:
        """Take the first report, and decide where to begin sending."""
        self.acked = reported
        self.sent = reported
        if reported == 0:
            whole = self.binding is not None and self.binding.from_start
            end = store.offset_written
            last_file = end - end % file_size
            self.sent = store.offset_min if whole else max(store.offset_min, last_file)
        self.started_at = self.sent

    def pieces(self, store: StorageEngine, batch_size: int, size_max: int) -> list[Buffer]:
        """Return what to send now: heads and bodies in turn.

        At most `size_max` and `TURN_MAX` bytes. Empty if the slave has everything, or if `WINDOW`
        bytes are in flight.
        """
        found: list[Buffer] = []
        limit = min(max(self.acked, self.started_at) + WINDOW, self.sent + min(TURN_MAX, size_max))
        end = min(store.offset_written, limit)
        while self.sent < end:
            data = store.read_log(self.sent, min(batch_size, self.piece_end(end) - self.sent))
            size = len(data)
            if not size:
                break
            found += (self.head(size), data)
            self.sent += size
            self.bytes_sent += size
        return found

    def piece_end(self, end: int) -> int:
        """Return where the next piece ends at the latest."""
        return end

    def head(self, size: int) -> bytes:
        """Return what precedes the next `size` bytes; 0 for a heartbeat."""
        return transfer_head(self.sent, size)
