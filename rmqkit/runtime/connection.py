"""Connections and the outbox: a node's view of the network, and its requests for network effects.

The driver creates a `Connection` when it accepts one; `Outbox.dial` creates one that this node
opens. For the node it is a value: it reads `tag` and `peer`, stores its own data in `state`, and
requests effects through its `Outbox`. Effects happen at the end of the turn: the driver processes
the outbox's lists in the order of the calls, so that a run is repeatable, and empties them.

Rules between node and driver:

- Every connection that the driver reported by `opened`, and every dialled one, ends with exactly
  one `closed`.
- Buffers passed to `send` while a connection is being dialled are sent once it opens; on a closed
  one they are dropped.
- Buffers are sent without a copy and in order. After `send` the node must not change a bytearray,
  nor the memory under a view.
- `Outbox.close` sends pending bytes first, `Outbox.abort` drops them.
- A peer that dialled us: above `outbox_high_water` pending bytes the driver stops reading it. Once
  they fall to `outbox_low_water` it resumes reading and calls `drained`.
- A peer that we dialled is always read, and `drained` is called for it, too. If both sides stopped
  reading, neither could ever continue.
"""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

Buffer = bytes | bytearray | memoryview


class Address(NamedTuple):
    """Host (name or IP) and port of a peer."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse `host:port` or `[v6]:port`. Raises ValueError, which quotes the text."""
        host, colon, port = text.strip().rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 <= int(port) <= 65535:
            raise ValueError(f"{text!r} is not an address of the form host:port")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


@dataclass(slots=True, eq=False)
class Connection:
    """One TCP connection.

    The node may read the fields up to `state`, and sets `frame_count`; the rest belongs to the
    driver.
    """

    id: int
    tag: str
    peer: Address
    _: KW_ONLY
    local: Address | None = None
    dialled: bool = False
    is_open: bool = field(init=False)
    state: Any = None
    reading: bool = True
    closing: str = ""
    out: list[Buffer] = field(default_factory=list)
    out_size: int = 0
    driver: Any = None
    #: frames that the last read completed; 0 for protocols without frames
    frame_count: int = 0

    def __post_init__(self) -> None:
        self.is_open = not self.dialled

    @property
    def is_remote(self) -> bool:
        """Whether the peer's address belongs to another machine.

        False if the local address is unknown (connections that tests create).
        """
        host, local = self.peer.host, self.local
        return local is not None and host != local.host and host != "::1" and not host.startswith("127.")

    def __repr__(self) -> str:
        return f"<{self.tag} connection {self.id} {'to' if self.dialled else 'from'} {self.peer}>"


class Outbox:
    """The network effects that a node requests in the current turn."""

    __slots__ = ("_next_id", "closes", "dials", "dirty", "reads_changed")

    def __init__(self) -> None:
        #: connections with bytes that the driver has not sent yet
        self.dirty: list[Connection] = []
        self.dials: list[Connection] = []
        #: (connection, whether pending bytes are sent first)
        self.closes: list[tuple[Connection, bool]] = []
        self.reads_changed: list[Connection] = []
        self._next_id = -1

    def send(self, conn: Connection, *buffers: Buffer) -> None:
        """Send the buffers in order; does nothing if the connection is closing."""
        if conn.closing:
            return
        if not conn.out and conn.is_open:
            self.dirty.append(conn)
        conn.out.extend(buffers)
        for buffer in buffers:
            conn.out_size += len(buffer)

    def dial(self, peer: Address, tag: str) -> Connection:
        """Start to connect. The driver reports `opened` or `closed` in a later turn.

        Dialled connections have negative ids.
        """
        conn = Connection(self._next_id, tag, peer, dialled=True)
        self._next_id -= 1
        self.dials.append(conn)
        return conn

    def close(self, conn: Connection, reason: str) -> None:
        """Close the connection once its pending bytes are sent."""
        if not conn.closing:
            conn.closing = reason
            self.closes.append((conn, True))

    def abort(self, conn: Connection, reason: str) -> None:
        """Close the connection now and drop its pending bytes."""
        conn.closing = reason
        self.closes.append((conn, False))

    def read(self, conn: Connection, reading: bool) -> None:
        """Stop or resume reading from a peer."""
        if conn.reading != reading:
            conn.reading = reading
            self.reads_changed.append(conn)

    @property
    def is_empty(self) -> bool:
        return not (self.dirty or self.dials or self.closes or self.reads_changed)
