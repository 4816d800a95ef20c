"""Connections and the outbox: what a node holds of the network, and how it says what it wants done.

A `Connection` is made by the driver (accepted) or by `Outbox.dial` (ours). The node keeps it as a value: it reads its
`tag` and `peer`, hangs its own state on `state`, and asks for effects through its `Outbox`. Nothing happens until the
turn ends: the driver then walks the outbox's lists (in the order of the calls, so a run is repeatable) and empties them.

Rules between the two:
- Every connection a node was told of by `opened`, and every one it dialled, ends with exactly one `closed`.
- `send` on a connection that is being dialled is kept and goes out when it opens; on a closed one it is dropped.
- Buffers are sent as they are, in order; the node must not change a bytearray or the memory under a view it has sent.
- `Outbox.close` lets what was sent before go out first, `Outbox.abort` does not.
- Above `outbox_high_water` waiting bytes the driver stops reading a peer that has dialled us, and calls `drained` when they
  have fallen to `outbox_low_water` and it reads again. A peer that we dialled is read all the same (`drained` is told
  too): if both sides stopped reading, nothing would ever move again.
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
        """`host:port` or `[v6]:port`. Raises ValueError naming the text."""
        host, colon, port = text.strip().rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 <= int(port) <= 65535:
            raise ValueError(f"{text!r} is not an address of the form host:port")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


@dataclass(slots=True, eq=False)
class Connection:
    """One TCP connection. Fields up to `state` are the node's to read, the rest belongs to the driver."""

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

    def __post_init__(self) -> None:
        self.is_open = not self.dialled

    @property
    def is_remote(self) -> bool:
        """Whether the peer is on another machine, as addresses tell; nobody is where there are none (tests by hand)."""
        host, local = self.peer.host, self.local
        return local is not None and host != local.host and host != "::1" and not host.startswith("127.")

    def __repr__(self) -> str:
        return f"<{self.tag} connection {self.id} {'to' if self.dialled else 'from'} {self.peer}>"


class Outbox:
    """The effects of one node in the current turn."""

    __slots__ = ("_next_id", "closes", "dials", "dirty", "reads_changed")

    def __init__(self) -> None:
        #: connections with bytes that were not handed to the network yet
        self.dirty: list[Connection] = []
        self.dials: list[Connection] = []
        #: (connection, keep what was sent before)
        self.closes: list[tuple[Connection, bool]] = []
        self.reads_changed: list[Connection] = []
        self._next_id = -1

    def send(self, conn: Connection, *buffers: Buffer) -> None:
        if conn.closing:
            return
        if not conn.out and conn.is_open:
            self.dirty.append(conn)
        conn.out.extend(buffers)
        for buffer in buffers:
            conn.out_size += len(buffer)

    def dial(self, peer: Address, tag: str) -> Connection:
        """Start connecting; `opened` or `closed` follows in a later turn. Ids of dialled connections are negative."""
        conn = Connection(self._next_id, tag, peer, dialled=True)
        self._next_id -= 1
        self.dials.append(conn)
        return conn

    def close(self, conn: Connection, reason: str) -> None:
        """Close after what was sent before has gone out."""
        if not conn.closing:
            conn.closing = reason
            self.closes.append((conn, True))

    def abort(self, conn: Connection, reason: str) -> None:
        """Close now; bytes that wait are dropped."""
        conn.closing = reason
        self.closes.append((conn, False))

    def read(self, conn: Connection, reading: bool) -> None:
        """Stop or resume reading a peer."""
        if conn.reading != reading:
            conn.reading = reading
            self.reads_changed.append(conn)

    @property
    def is_empty(self) -> bool:
        return not (self.dirty or self.dials or self.closes or self.reads_changed)
