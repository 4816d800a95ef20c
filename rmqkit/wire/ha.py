"""HA frames: the stream between a master and a slave, on a connection of its own.

    slave -> master   int64: the end of the slave's log; sign of life and acknowledgement in one
    master -> slave   int64 offset, int32 size, then as many bytes of the log from there; size 0 is a sign of life

Big-endian, without a greeting: who the slave is and what it asks for is told elsewhere.

Source: `store/.../ha/DefaultHAClient.java`, `store/.../ha/DefaultHAConnection.java`.
"""

from struct import Struct

from rmqkit.errors import RemoteProtocolError

REPORT_SIZE = 8
TRANSFER_HEAD_SIZE = 12
#: what Apache's slave can hold of one transfer, its head included
TRANSFER_SIZE_MAX = 4 * 1024 * 1024

_REPORT = Struct(">q")
_HEAD = Struct(">qi")


def encode_report(offset: int) -> bytes:
    return _REPORT.pack(offset)


def transfer_head(offset: int, size: int) -> bytes:
    return _HEAD.pack(offset, size)


class Reports:
    """The receive side of a master: `feed` gives the newest complete report, None while there is none."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> int | None:
        data = self._held + data
        whole = len(data) - len(data) % REPORT_SIZE
        self._held = data[whole:]
        if not whole:
            return None
        (newest,) = _REPORT.unpack_from(data, whole - REPORT_SIZE)
        return int(newest)


class Transfers:
    """The receive side of a slave: `feed` gives (offset, bytes of the log) of each complete transfer.

    Raises RemoteProtocolError for a size that no master sends; transfers before it are lost with the connection.
    """

    __slots__ = ("_held", "_need")

    def __init__(self) -> None:
        self._held = bytearray()
        self._need = TRANSFER_HEAD_SIZE

    @property
    def pending(self) -> int:
        return len(self._held)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        held = self._held
        held += data
        if len(held) < self._need:
            return []
        found: list[tuple[int, bytes]] = []
        position, end = 0, len(held)
        while end - position >= TRANSFER_HEAD_SIZE:
            offset, size = _HEAD.unpack_from(held, position)
            if not 0 <= size <= TRANSFER_SIZE_MAX - TRANSFER_HEAD_SIZE or offset < 0:
                raise RemoteProtocolError(f"a transfer of {size} bytes for offset {offset}: this is no master's stream")
            begin = position + TRANSFER_HEAD_SIZE
            if end - begin < size:
                self._need = TRANSFER_HEAD_SIZE + size
                break
            found.append((offset, bytes(held[begin : begin + size])))
            position = begin + size
        else:
            self._need = TRANSFER_HEAD_SIZE
        del held[:position]
        return found
