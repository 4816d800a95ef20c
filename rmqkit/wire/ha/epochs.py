"""Encode and decode HA frames of controller mode: a handshake with epochs, then the log.

    slave -> master   handshake, 16 bytes: int32 1, int16 from the last file, int16 is a learner,
                      int64 broker id
    master -> slave   handshake: int32 1, int32 size of the list, int64 end of the log, int32 last
                      epoch (-1: none); then per epoch int32 number, int64 start
    slave -> master   report, 12 bytes: int32 2, int64 end of the slave's log
    master -> slave   transfer, 36 bytes: int32 2, int32 size, int64 offset, int32 epoch, int64 its
                      start, int64 confirm offset; then `size` bytes of the log. Size 0 is a
                      heartbeat

All numbers are big-endian. The first number is the state of the connection, as in Apache's
`HAConnectionState`. A frame for another state than the reader's ends the connection.

Source: `store/.../ha/autoswitch/{AutoSwitchHAClient,AutoSwitchHAConnection}.java`.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.ha.stream import TRANSFER_SIZE_MAX

HANDSHAKE, TRANSFER = 1, 2
#: epochs in one handshake that fit into the buffer of Apache's slave
EPOCHS_MAX = 1000

_SLAVE = Struct(">ihhq")
_MASTER = Struct(">iiqi")
_EPOCH = Struct(">iq")
_REPORT = Struct(">iq")
_TRANSFER = Struct(">iiqiqq")
_STATE = Struct(">i")


class EpochStart(NamedTuple):
    """A master's epoch: its number, and the offset where its first message was written."""

    epoch: int
    start: int


class SlaveHandshake(NamedTuple):
    """What a slave says of itself. `from_last_file`: an empty slave wants only the last file."""

    broker_id: int
    from_last_file: bool
    is_learner: bool


class MasterHandshake(NamedTuple):
    """A master's epochs, oldest first, and the end of its log."""

    log_end: int
    epochs: tuple[EpochStart, ...]


class EpochTransfer(NamedTuple):
    """Bytes of the log, all of one epoch. `confirmed` is the master's confirm offset."""

    offset: int
    epoch: EpochStart
    confirmed: int
    body: bytes


def encode_slave_handshake(handshake: SlaveHandshake) -> bytes:
    return _SLAVE.pack(HANDSHAKE, handshake.from_last_file, handshake.is_learner, handshake.broker_id)


def encode_master_handshake(handshake: MasterHandshake) -> bytes:
    """Return the frame; of more than `EPOCHS_MAX` epochs the newest are sent."""
    epochs = handshake.epochs[-EPOCHS_MAX:]
    last = epochs[-1].epoch if epochs else -1
    head = _MASTER.pack(HANDSHAKE, len(epochs) * _EPOCH.size, handshake.log_end, last)
    return head + b"".join(_EPOCH.pack(*each) for each in epochs)


def encode_epoch_report(offset: int) -> bytes:
    """Return the frame by which a slave reports the end of its log."""
    return _REPORT.pack(TRANSFER, offset)


def epoch_transfer_head(offset: int, size: int, epoch: Sequence[int], confirmed: int) -> bytes:
    """Return the 36 bytes that precede `size` bytes of the log from `offset`."""
    return _TRANSFER.pack(TRANSFER, size, offset, epoch[0], epoch[1], confirmed)


def _state_of(data: bytes | bytearray, position: int, expected: int) -> None:
    (state,) = _STATE.unpack_from(data, position)
    if state != expected:
        raise RemoteProtocolError(f"frame for HA state {state} in state {expected}: the peer is not in controller mode")


class EpochReports:
    """The receive side of a master: first the slave's handshake, then its reports."""

    __slots__ = ("_buffer", "handshake")

    def __init__(self) -> None:
        self._buffer = b""
        #: the slave's handshake, None until it has arrived
        self.handshake: SlaveHandshake | None = None

    def feed(self, data: bytes) -> int | None:
        """Return the newest complete report, None if there is none.

        Raises RemoteProtocolError for a frame of another state.
        """
        data = self._buffer + data
        position = 0
        if self.handshake is None:
            if len(data) < _SLAVE.size:
                self._buffer = data
                return None
            _state_of(data, 0, HANDSHAKE)
            _, from_last_file, is_learner, broker_id = _SLAVE.unpack_from(data, 0)
            self.handshake = SlaveHandshake(broker_id, bool(from_last_file), bool(is_learner))
            position = _SLAVE.size
        newest = None
        while len(data) - position >= _REPORT.size:
            _state_of(data, position, TRANSFER)
            newest = int(_REPORT.unpack_from(data, position)[1])
            position += _REPORT.size
        self._buffer = data[position:]
        return newest


class EpochTransfers:
    """The receive side of a slave: first the master's handshake, then transfers."""

    __slots__ = ("_buffer", "_is_greeted")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_greeted = False

    def feed(self, data: bytes) -> list[MasterHandshake | EpochTransfer]:
        """Return the frames that `data` completes.

        Raises RemoteProtocolError for a frame that no master sends.
        """
        held = self._buffer
        held += data
        found: list[MasterHandshake | EpochTransfer] = []
        if not self._is_greeted:
            handshake = self._greeting(held)
            if handshake is None:
                return found
            self._is_greeted = True
            found.append(handshake)
        position, end = 0, len(held)
        while end - position >= _TRANSFER.size:
            _state_of(held, position, TRANSFER)
            _, size, offset, epoch, start, confirmed = _TRANSFER.unpack_from(held, position)
            if not 0 <= size <= TRANSFER_SIZE_MAX - _TRANSFER.size or offset < 0:
                raise RemoteProtocolError(f"transfer of {size} bytes for offset {offset}: the peer is no master")
            begin = position + _TRANSFER.size
            if end - begin < size:
                break
            found.append(EpochTransfer(offset, EpochStart(epoch, start), confirmed, bytes(held[begin : begin + size])))
            position = begin + size
        del held[:position]
        return found

    @staticmethod
    def _greeting(held: bytearray) -> MasterHandshake | None:
        if len(held) < _MASTER.size:
            return None
        _state_of(held, 0, HANDSHAKE)
        _, size, log_end, _ = _MASTER.unpack_from(held, 0)
        if not 0 <= size <= EPOCHS_MAX * _EPOCH.size or size % _EPOCH.size:
            raise RemoteProtocolError(f"a list of epochs of {size} bytes: the peer is no master in controller mode")
        end = _MASTER.size + size
        if len(held) < end:
            return None
        epochs = tuple(EpochStart(*each) for each in _EPOCH.iter_unpack(held[_MASTER.size : end]))
        del held[:end]
        return MasterHandshake(log_end, epochs)
