"""Small nodes for driver tests. Every toy checks the node contract while it runs:

- each connection gets at most one `opened` and exactly one `closed`;
- nothing follows `closed`;
- a connection is read at most once per turn;
- the phases of a turn keep their order.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rmqkit.runtime.connection import Address, Connection
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Completion, Ports

READ_SIZE_MAX = 262_144
#: phases of a turn, in order
_DONE, _NETWORK, _DUES = range(3)


class Toy(BaseNode):
    """Records its events: `data` has the bytes received, `reasons` why connections closed."""

    def __init__(self, name: str, ports: Ports) -> None:
        super().__init__(name, ports)
        self.opens: list[Connection] = []
        self.dials: list[Connection] = []
        self.data: dict[Connection, bytearray] = {}
        self.reasons: dict[Connection, str] = {}
        self.drains: list[Connection] = []
        self.chunk_sizes: list[int] = []
        self.turns = 0
        self._phase = _DONE
        self._read_in_turn: list[Connection] = []

    # --- for tests ----------------------------------------------------------------

    def dial(self, peer: Address, tag: str = "toy", send: bytes = b"") -> Connection:
        conn = self.outbox.dial(peer, tag)
        self.dials.append(conn)
        if send:
            self.outbox.send(conn, send)
        return conn

    def got(self, conn: Connection) -> bytes:
        return bytes(self.data.get(conn, b""))

    def validate(self) -> None:
        """Check, at the end of a test, that every connection was closed."""
        for conn in [*self.opens, *self.dials]:
            assert conn in self.reasons, f"{conn} of {self.name} was never closed"

    # --- the node's interface -----------------------------------------------------

    def opened(self, conn: Connection) -> None:
        self._enter(_NETWORK)
        assert conn not in self.opens, f"{conn} opened twice"
        assert conn not in self.reasons, f"{conn} opened after closed"
        assert conn.is_open
        assert conn.dialled == (conn in self.dials)
        self.opens.append(conn)
        self.on_opened(conn)

    def received(self, conn: Connection, data: bytes) -> None:
        self._enter(_NETWORK)
        assert type(data) is bytes
        assert 0 < len(data) <= READ_SIZE_MAX
        assert conn in self.opens, f"bytes of {conn} before opened"
        assert conn not in self.reasons, f"bytes of {conn} after closed"
        assert conn.reading, f"bytes of {conn} while the node does not read"
        assert not conn.closing, f"bytes of {conn} after the node has closed it"
        assert conn not in self._read_in_turn, f"{conn} read twice in one turn"
        self._read_in_turn.append(conn)
        self.chunk_sizes.append(len(data))
        self.data.setdefault(conn, bytearray()).extend(data)
        self.on_received(conn, data)

    def drained(self, conn: Connection) -> None:
        self._enter(_NETWORK)
        assert conn in self.opens
        assert conn not in self.reasons
        self.drains.append(conn)
        self.on_drained(conn)

    def closed(self, conn: Connection, reason: str) -> None:
        self._enter(_NETWORK)
        assert conn not in self.reasons, f"{conn} closed twice"
        assert conn in self.opens or conn in self.dials, f"closed of {conn}, which was never known"
        assert not conn.is_open
        assert reason
        self.reasons[conn] = reason
        self.on_closed(conn, reason)

    def done(self, completion: Completion, error: OSError | None) -> None:
        self._enter(_DONE)
        completion(error)

    def run_due(self) -> None:
        self._enter(_DUES)
        super().run_due()

    def settle(self) -> None:
        self.turns += 1
        self._phase = _DONE
        self._read_in_turn.clear()

    def _enter(self, phase: int) -> None:
        assert phase >= self._phase, f"phase {phase} of a turn after phase {self._phase}"
        self._phase = phase

    # --- for subclasses -----------------------------------------------------------

    def on_opened(self, conn: Connection) -> None: ...
    def on_received(self, conn: Connection, data: bytes) -> None: ...
    def on_drained(self, conn: Connection) -> None: ...
    def on_closed(self, conn: Connection, reason: str) -> None: ...


class Echo(Toy):
    def on_received(self, conn: Connection, data: bytes) -> None:
        self.outbox.send(conn, data)


class Scripted(Toy):
    """A toy with given reactions: `on={"opened": f, ...}`.

    Each function is called with the node and the arguments of the event.
    """

    def __init__(self, name: str, ports: Ports, on: dict[str, Callable[..., Any]]) -> None:
        super().__init__(name, ports)
        self._on = on

    def on_opened(self, conn: Connection) -> None:
        self._do("opened", conn)

    def on_received(self, conn: Connection, data: bytes) -> None:
        self._do("received", conn, data)

    def on_drained(self, conn: Connection) -> None:
        self._do("drained", conn)

    def on_closed(self, conn: Connection, reason: str) -> None:
        self._do("closed", conn, reason)

    def start(self) -> None:
        self._do("start")

    def stop(self) -> None:
        if "stop" in self._on:
            self._do("stop")
        else:
            self.stopped = True

    def _do(self, event: str, *args: Any) -> None:
        react = self._on.get(event)
        if react is not None:
            react(self, *args)


def pattern(size: int, seed: int = 0) -> bytes:
    """Return bytes in which a misplaced piece is always noticed."""
    step = b"".join((seed * 1_000_003 + number).to_bytes(8, "big") for number in range(min(size, 1 << 19) // 8 + 1))
    return (step * (size // len(step) + 1))[:size]


def chunked(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cut data into pieces of the given sizes, repeated as needed."""
    pieces, position, turn = [], 0, 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        pieces.append(data[position : position + size])
        position += size
        turn += 1
    return pieces
