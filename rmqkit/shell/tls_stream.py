"""A TCP connection with TLS in the shell: a `Stream` whose bytes pass through a `TlsTransport`.

The socket, the poller, the limits and the isolation of drills see only encrypted bytes, so `Stream`
handles them as it does plain ones. This class adds what happens at its two ends:

- `_recv` reads the socket and returns plain bytes to `Stream.ready`. Until there are some, it
  raises BlockingIOError, as a socket without data does.
- `flush` encrypts what the node has sent, and adds the transport's handshake messages and alerts.
  Bytes that the node sends before the handshake is over stay in the connection's list.

The node gets `opened` when the handshake is over. So it executes nothing before, and an accepted
connection whose handshake fails is unknown to it. A handshake ends after `tlsHandshakeMillis` at
the latest.

In mode permissive the first byte decides, which stays in the socket. If it is not TLS's, a plain
`Stream` takes over. The time for a handshake begins with the first byte there: a plain client may
connect and be silent.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from rmqkit.runtime.connection import Connection
from rmqkit.shell.poller import READ
from rmqkit.shell.streams import Stream
from rmqkit.tls.transport import FEED_SIZE_MAX, HANDSHAKE_BYTE, TlsError, TlsState, TlsTransport

if TYPE_CHECKING:
    from rmqkit.runtime.node import Node
    from rmqkit.shell.faults.isolated_socket import IsolatedSocket
    from rmqkit.shell.loop import Loop
    from rmqkit.tls.node_tls import NodeTls


class TlsStream(Stream):
    """A connection with TLS, from the first byte of its handshake on.

    `transport` is None while the first byte of a connection in mode permissive is awaited.
    """

    __slots__ = ("_early", "_is_known", "_recv_raw", "tls", "transport")

    def __init__(self, loop: Loop, node: Node, sock: socket.socket, conn: Connection, tls: NodeTls) -> None:
        """Take over an open socket. Raises TlsError if the peer's name cannot be checked."""
        self.tls = tls
        self.transport: TlsTransport | None = None
        if conn.dialled:
            self.transport = tls.dialled(conn.peer.host)
        elif tls.is_enforcing:
            self.transport = tls.accepted()
        #: plain bytes that came with the end of the handshake, while the node does not read
        self._early = b""
        #: whether the node knows the connection, so that it must get `closed`
        self._is_known = conn.dialled
        super().__init__(loop, node, sock, conn, known=conn.dialled)
        conn.is_open = False
        if self.transport is not None:
            self._begin()

    def use(self, sock: socket.socket | IsolatedSocket) -> None:
        super().use(sock)
        self._recv_raw = sock.recv
        self._recv = self._recv_plain  # type: ignore[assignment]

    # --- input ------------------------------------------------------------------------------------

    def _recv_plain(self, _size: int) -> bytes:
        """Return plain bytes, b"" at the end of the stream. Raises BlockingIOError, OSError.

        `Stream.ready` calls it in place of the socket's `recv`.
        """
        transport = self.transport or self._first_byte()
        if not self.conn.is_open and not self.tls.handshakes.may_step(self.loop.clock.mono_ms):
            raise BlockingIOError
        data = self._recv_raw(FEED_SIZE_MAX)
        if not data:
            if not self.conn.is_open:
                self._failed("TLS: closed by peer during the handshake")
                raise BlockingIOError
            return b""
        plain = self._decrypt(transport, data)
        if plain and self._wants_data():
            return plain
        if transport.state is TlsState.ENDED and not plain:
            return b""
        self._early = plain
        raise BlockingIOError

    def _first_byte(self) -> TlsTransport:
        """Return the transport of a connection in mode permissive whose first byte is TLS's.

        Any other byte stays in the socket, for a plain stream. Raises BlockingIOError then.
        """
        first = self._recv_raw(1, socket.MSG_PEEK)
        if first and first[0] == HANDSHAKE_BYTE:
            self.transport = self.tls.accepted()
            self._begin()
            return self.transport
        if first:
            stream = Stream(self.loop, self.node, self.sock, self.conn, known=True)  # type: ignore[arg-type]
            stream.source, self.source = self.source, ""
            self.node.opened(self.conn)
        else:
            self.lost("closed by peer")
        raise BlockingIOError

    def _decrypt(self, transport: TlsTransport, data: bytes) -> bytes:
        """Return the plain bytes in `data`. Raises BlockingIOError if the connection has ended."""
        self.active_ms = self.loop.clock.mono_ms
        try:
            plain = transport.feed(data)
        except TlsError as error:
            self._failed(str(error))
            raise BlockingIOError from None
        if transport.has_output:
            self.node.outbox.dirty.append(self.conn)
        if not self.conn.is_open and transport.state is not TlsState.HANDSHAKE:
            self._handshake_over()
        if plain and transport.state is TlsState.ENDED:
            self.loop.call_node(self.node, self._peer_ended)
        if self.conn.driver is not self:
            raise BlockingIOError
        return plain

    def _peer_ended(self) -> None:
        if self.conn.driver is self and not self._early:
            self.lost("closed by peer")

    def _wants_data(self) -> bool:
        """Whether the node reads: it may have stopped in its `opened`, in this very turn."""
        return self.conn.reading and not self.conn.closing

    def watch(self) -> None:
        if not self.conn.is_open:
            self.want(True)  # the handshake needs input, even if the node has stopped to read
            return
        super().watch()
        if self._early and self.interest & READ:
            self.loop.call_node(self.node, self._deliver_early)

    def _deliver_early(self) -> None:
        if self._early and self._wants_data() and self.conn.driver is self:
            data, self._early = self._early, b""
            self.node.received(self.conn, data)
            if self.transport is not None and self.transport.state is TlsState.ENDED:
                self.loop.call_node(self.node, self._peer_ended)

    # --- the handshake ----------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the time of the handshake; a client sends its first message."""
        self.loop.after(self.tls.handshake_ms, self._late)
        if not self.conn.dialled:
            self.tls.handshakes.begin(self)
        elif self.transport is not None:
            try:
                self.transport.begin()
            except TlsError as error:
                self._failed(str(error))
                return
            self.flush()

    def _handshake_over(self) -> None:
        """Report the connection to its node."""
        self.tls.handshakes.end(self)
        conn = self.conn
        conn.is_open = self._is_known = True
        if conn.out:
            self.node.outbox.dirty.append(conn)
        if conn.closing:  # the node has closed its dial after sending something
            self.finish()
        else:
            self.watch()
            self.node.opened(conn)

    def end_handshake(self, reason: str) -> None:
        """End a connection whose handshake is not over, in favour of newer ones."""
        self._failed(reason)

    def _late(self) -> None:
        if self.conn.driver is self and not self.conn.is_open:
            self._failed(f"TLS: the handshake took more than {self.tls.handshake_ms} ms")

    def _failed(self, reason: str) -> None:
        """End the connection because of a TLS error. Try to send the alert for the peer."""
        alert = self.transport.take() if self.transport is not None else b""
        if alert and not self.pending:
            with suppress(OSError):
                self._send(alert)
        if not self.conn.dialled:
            self.tls.handshakes.log_failure(self.loop.log, self.loop.clock.mono_ms, str(self.conn.peer), reason)
        self.lost(reason)

    # --- output -----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Encrypt what the node has sent, and write it with the transport's own messages."""
        conn, transport = self.conn, self.transport
        if transport is None or not self._encrypt(transport):
            return
        data = transport.take()
        if not data:
            return
        conn.out_size += len(data)
        if self.pending:
            self.pending.append(data)
            self._check_size()
        else:
            self._write([data])

    def finish(self) -> None:
        """Close after the pending bytes.

        A dial whose node has sent something ends its handshake before.
        """
        conn, transport = self.conn, self.transport
        if transport is None or not conn.is_open:
            if not conn.out:
                self.lost(conn.closing)
        elif self._encrypt(transport):
            transport.close()
            self.flush()
            if conn.driver is self:
                super().finish()

    def _encrypt(self, transport: TlsTransport) -> bool:
        """Encrypt what the node has sent. Return whether the connection lives on."""
        conn = self.conn
        if conn.out and conn.is_open:
            size = sum(map(len, conn.out))
            try:
                transport.encrypt(conn.out)
            except TlsError as error:
                self._failed(str(error))
                return False
            conn.out.clear()
            conn.out_size -= size
        return conn.driver is self

    def _over(self, reason: str) -> None:
        self.tls.handshakes.end(self)
        self._early = b""
        self.transport = None  # the timer of the handshake still refers to this object
        if self._is_known:
            super()._over(reason)
            return
        # The node does not know the connection.
        conn = self.conn
        conn.closing = conn.closing or reason
        conn.driver = None
        conn.out_size = 0
        self.pending.clear()
        self._count(0)
        if self.source:
            self.loop.left(self.source)
