"""Encode and decode HA frames: the stream between a master and a slave, on a connection of its own.

    slave -> master   int64: end of the slave's log, both heartbeat and acknowledgement
    master -> slave   int64 offset, int32 size, then `size` bytes of the log from that offset;
                      size 0 is a heartbeat

All numbers are big-endian. The stream has no handshake: it does not say which slave is at the other
end. rmqkit's slaves send that in request 906 (EXCHANGE_BROKER_HA_INFO).

Source: `store/.../ha/DefaultHAClient.java`, `store/.../ha/DefaultHAConnection.java`.
"""

from struct import Struct

from rmqkit.errors import RemoteProtocolError

REPORT_SIZE = 8
TRANSFER_HEAD_SIZE = 12
#: bytes of one transfer, including its head, that fit into the buffer of Apache's slave
TRANSFER_SIZE_MAX = 4 * 1024 * 1024

_REPORT = Struct(">q")
_HEAD = Struct(">qi")


def encode_report(offset: int) -> bytes:
    """Return the frame by which a slave reports the end of its log."""
    return _REPORT.pack(offset)


def transfer_head(offset: int, size: int) -> bytes:
    """Return the 12 bytes that precede `size` bytes of the log from `offset`."""
    return _HEAD.pack(offset, size)


class Reports:
    """The receive side of a master.

    `feed` returns the newest complete report, or None if `data` completes none.
    """

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> int | None:
        data = self._buffer + data
        whole = len(data) - len(data) % REPORT_SIZE
        self._buffer = data[whole:]
        if not whole:
            return None
        (newest,) = _REPORT.unpack_from(data, whole - REPORT_SIZE)
        return int(newest)


class Transfers:
    """The receive side of a slave: `feed` returns (offset, log bytes) of each completed transfer.

    Raises RemoteProtocolError for an offset or size that no master sends. Transfers before it in
    the same chunk are lost; the slave receives them again after it reconnects.
    """

    __slots__ = ("_buffer", "_need")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._need = TRANSFER_HEAD_SIZE

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        held = self._buffer
        held += data
        if len(held) < self._need:
            return []
        found: list[tuple[int, bytes]] = []
        position, end = 0, len(held)
        while end - position >= TRANSFER_HEAD_SIZE:
            offset, size = _HEAD.unpack_from(held, position)
            if not 0 <= size <= TRANSFER_SIZE_MAX - TRANSFER_HEAD_SIZE or offset < 0:
                raise RemoteProtocolError(f"transfer of {size} bytes for offset {offset}: the peer is no master")
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
