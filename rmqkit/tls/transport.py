"""One side of a TLS connection without a socket, over `ssl.MemoryBIO`.

The driver passes the bytes that it has read to `feed`, which returns the plain bytes in them. It
passes what the node sends to `encrypt`. After either call, `take` returns the bytes to write to the
socket: records, handshake messages and alerts.

    handshake  ->  open, failed
    open       ->  ended, failed
    ended      ->  (end)
    failed     ->  (end)

- `feed` always takes out everything that can be decrypted. So the input buffer holds at most one
  incomplete record (16 KiB) or handshake message, whose size OpenSSL limits.
- One `feed` returns at most as many plain bytes as its argument has, and 16 KiB of the record that
  the call before left incomplete.
- Before the handshake is over `feed` returns nothing, and `encrypt` must not be called.
- An error ends the transport. `take` then returns the alert for the peer.
- The end of a connection without the peer's close_notify is no error here: frames have lengths, so
  the node notices an incomplete frame.
- Renegotiation is off (`contexts.py`).
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from enum import StrEnum

from rmqkit.errors import RmqkitError
from rmqkit.runtime.connection import Buffer
from rmqkit.runtime.states import Moves, StateMachine

#: the first byte of a TLS handshake; a frame and the HA protocols begin with 0x00 to 0x01
HANDSHAKE_BYTE = 0x16
#: bytes of one decrypted record
RECORD_SIZE_MAX = 16_384
#: bytes that drivers feed in one turn. With the rest of a record, at most 64 KiB plain bytes result
FEED_SIZE_MAX = 49_152
#: bytes passed to one write; larger ones take longer per byte
PIECE_SIZE = 65_536
#: what OpenSSL's reason means for a user
REASONS = {
    "WRONG_VERSION_NUMBER": "the peer's bytes are not TLS",
    "HTTP_REQUEST": "the peer's bytes are not TLS",
    "UNKNOWN_PROTOCOL": "the peer's bytes are not TLS",
    "UNSUPPORTED_PROTOCOL": "the peer offers no protocol version that is allowed here",
    "NO_SHARED_CIPHER": "the peer offers no cipher suite that is allowed here",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer has no client certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust our certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer requires a client certificate",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the peer found no common protocol version or cipher suite",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer does not allow our protocol version",
}


class TlsError(RmqkitError):
    """A handshake or a record failed; the connection must be closed."""


class TlsState(StrEnum):
    """Where a transport is; see the head of this module."""

    HANDSHAKE = "handshake"
    OPEN = "open"
    #: the peer has sent close_notify
    ENDED = "ended"
    FAILED = "failed"


MOVES: Moves[TlsState] = Moves(
    {
        TlsState.HANDSHAKE: (TlsState.OPEN, TlsState.FAILED),
        TlsState.OPEN: (TlsState.ENDED, TlsState.FAILED),
        TlsState.ENDED: (),
        TlsState.FAILED: (),
    }
)


class TlsTransport(StateMachine[TlsState]):
    """One side of a TLS connection: the server's if `server_name` is None, else the client's.

    `server_name` is the name or address that the server's certificate must have, if the context
    checks it.
    """

    def __init__(self, context: ssl.SSLContext, server_name: str | None = None) -> None:
        super().__init__(MOVES)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )

    @property
    def is_open(self) -> bool:
        """Whether the handshake is over and the connection has not ended."""
        return self.state is TlsState.OPEN

    @property
    def has_output(self) -> bool:
        """Whether `take` would return anything."""
        return self._outgoing.pending > 0

    def begin(self) -> None:
        """Start the handshake of a client: `take` then returns its first message.

        Raises TlsError.
        """
        self.feed(b"")

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the peer. Return the plain bytes, b"" if there are none yet.

        Raises TlsError; the transport has failed then.
        """
        if self.state is TlsState.ENDED:
            return b""
        self._incoming.write(data)
        found: list[bytes] = []
        try:
            if self.state is TlsState.HANDSHAKE:
                self._object.do_handshake()
                self.move(TlsState.OPEN)
            while piece := self._object.read(RECORD_SIZE_MAX):
                found.append(piece)
            self.move(TlsState.ENDED)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.move(TlsState.ENDED if self.state is TlsState.OPEN else TlsState.FAILED)
            if self.state is TlsState.FAILED:
                raise TlsError("TLS: the peer ended the handshake") from None
        except ssl.SSLError as error:
            self.move(TlsState.FAILED)
            raise TlsError(f"TLS: {reason_of(error)}") from None
        return found[0] if len(found) == 1 else b"".join(found)

    def encrypt(self, buffers: list[Buffer]) -> None:
        """Encrypt what the node sends. Does nothing if the connection has ended.

        The buffers are joined: each write makes at least one record, which costs 5 µs and 22 bytes.
        Raises TlsError.
        """
        if self.state is not TlsState.OPEN:
            return
        view = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        done = 0
        try:
            while done < len(view):
                done += self._object.write(view[done : done + PIECE_SIZE])
        except ssl.SSLError as error:
            self.move(TlsState.FAILED)
            raise TlsError(f"TLS: {reason_of(error)}") from None

    def close(self) -> None:
        """Tell the peer that nothing follows (close_notify), if the handshake is over."""
        if self.state is TlsState.OPEN:
            with suppress(ssl.SSLError):  # SSLWantReadError: the peer has not ended its side yet
                self._object.unwrap()

    def take(self) -> bytes:
        """Return the bytes for the peer's socket and forget them."""
        return self._outgoing.read()

    def validate(self) -> None:
        """Raise AssertionError if a complete record was left undecrypted."""
        if self.state is TlsState.OPEN:
            assert self._object.pending() == 0


def reason_of(error: ssl.SSLError) -> str:
    """Return why TLS failed, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is not accepted: {error.verify_message}"
    reason = error.reason or ""
    return REASONS.get(reason) or reason.replace("_", " ").lower() or str(error)
