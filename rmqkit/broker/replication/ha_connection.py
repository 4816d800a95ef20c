"""One slave's connection as its master has it: what the slave has reported, what was sent to it, and whether it counts.

Reading: only the newest complete report of what came counts. The first one says where to begin: at that offset, or, when
the slave has nothing, at the first byte of the log for a slave that asked for all of it, else at the start of the last
file as Apache's masters do. A report never goes back, and never beyond what this master has written.

Writing: pieces of at most `haTransferBatchSize`, none across the end of a file, as many as `WINDOW` bytes ahead of the
slave's last report. Between reports and within the window the master does not wait for the slave.

Source: `store/.../ha/DefaultHAConnection.java`.
"""

from typing import NamedTuple

from rmqkit.runtime.connection import Address, Buffer, Connection
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.ha import Reports, transfer_head

#: bytes sent and not reported yet, beyond which a slave is waited for
WINDOW = 8 * 1024 * 1024
#: bytes handed to one connection in one turn
TURN_MAX = 2 * 1024 * 1024


class Binding(NamedTuple):
    """Which member of the group a connection belongs to, as the slave said (906)."""

    broker_id: int
    address: str
    #: wants the log from its first byte on
    from_start: bool


class HaConnections:
    """The connections of slaves; `HaServer` opens and closes them, `Members` decides which of them count."""

    def __init__(self) -> None:
        #: by connection id
        self.links: dict[int, ReplicaLink] = {}
        #: hosts (port 0) whose last connection was refused, with the reason; the newest last
        self.refused: dict[Address, str] = {}


class ReplicaLink:
    __slots__ = (
        "acked",
        "binding",
        "bytes_sent",
        "conn",
        "read_ms",
        "reports",
        "sent",
        "started_at",
        "why",
        "written_ms",
    )

    def __init__(self, conn: Connection, now_ms: int) -> None:
        self.conn = conn
        self.binding: Binding | None = None
        self.reports = Reports()
        #: the slave's end of log as it reported it; -1 before its first report
        self.acked = -1
        #: where the next piece begins; -1 before the first report
        self.sent = -1
        #: where it began
        self.started_at = -1
        self.bytes_sent = 0
        self.read_ms = self.written_ms = now_ms
        self.why = ""

    @property
    def peer(self) -> Address:
        return self.conn.peer

    def begin(self, reported: int, store: StorageEngine, file_size: int) -> None:
        """The first report has come."""
        self.acked = reported
        self.sent = reported
        if reported == 0:
            whole = self.binding is not None and self.binding.from_start
            end = store.offset_written
            last_file = end - end % file_size
            self.sent = store.offset_min if whole else max(store.offset_min, last_file)
        self.started_at = self.sent

    def pieces(self, store: StorageEngine, batch_size: int, size_max: int) -> list[Buffer]:
        """What to send now, heads and bodies in turn; empty when the slave has everything or is to be waited for."""
        found: list[Buffer] = []
        limit = min(max(self.acked, self.started_at) + WINDOW, self.sent + min(TURN_MAX, size_max))
        end = min(store.offset_written, limit)
        while self.sent < end:
            data = store.read_log(self.sent, min(batch_size, end - self.sent))
            size = len(data)
            if not size:
                break
            found += (transfer_head(self.sent, size), data)
            self.sent += size
            self.bytes_sent += size
        return found
