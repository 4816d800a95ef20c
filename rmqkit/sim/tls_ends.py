"""A TCP connection with TLS in the simulator: an `End` whose bytes pass through a `TlsTransport`.

The transport, the contexts and the limits of handshakes are those of the shell
(`rmqkit.shell.tls_stream`). The pipe sees only encrypted bytes, so that cuts, delays, resets and
isolation hit handshake messages and records at any byte. The node gets `opened` when the handshake
is over. An accepted connection whose handshake fails is unknown to it.

**One seed, one run.** The keys and random numbers of TLS come from OpenSSL, so two runs with one
seed send different bytes. Their sizes decide about times and cuts, and must be the same. They are
with TLS 1.3, certificates with Ed25519 keys, whose signatures have 64 bytes (those of ECDSA vary),
and without session tickets. The trace gets the plain bytes before their encryption, and the size of
what goes to the pipe. Another version of OpenSSL may send messages of other sizes.

Not simulated: mode permissive, and the reload of changed certificates. OpenSSL compares the
validity of certificates with the clock of the machine, not with virtual time.
"""

from typing import TYPE_CHECKING

from rmqkit.runtime.connection import Connection
from rmqkit.sim.ends import CLOSED, End, Pipe
from rmqkit.tls.node_tls import NodeTls
from rmqkit.tls.transport import FEED_SIZE_MAX, TlsError, TlsState

if TYPE_CHECKING:
    from rmqkit.sim.net import SimNet
    from rmqkit.sim.process import Process


class TlsEnd(End):
    """One side of a connection with TLS, from the first byte of its handshake on."""

    __slots__ = ("_early", "_is_late", "tls", "transport")

    def __init__(self, net: "SimNet", process: "Process", conn: Connection, out: Pipe, tls: NodeTls) -> None:
        super().__init__(net, process, conn, out)
        self.tls = tls
        self.transport = tls.dialled(conn.peer.host) if conn.dialled else tls.accepted()
        #: plain bytes that the node does not read yet. They came with the end of the handshake.
        #: An empty segment at the front of the inbox stands for them
        self._early = b""
        #: whether the time for the handshake is over
        self._is_late = False
        self.is_known = conn.dialled
        conn.is_open = False
        out.is_encrypted = True

    # --- the handshake ----------------------------------------------------------------------------

    def _opened(self) -> None:
        """Begin the handshake: the TCP connection is open."""
        self.conn.driver = self
        self.net.at_us(self.net.clock_us() + self.tls.handshake_ms * 1000, self._late)
        if self.conn.dialled:
            self.transport.begin()
            self.flush()
        else:
            self.tls.handshakes.begin(self)

    def _handshake_over(self) -> None:
        """Report the connection to its node."""
        self.tls.handshakes.end(self)
        self.is_known = True
        super()._opened()

    def end_handshake(self, reason: str) -> None:
        """End a connection whose handshake is not over, in favour of newer ones."""
        self._failed(reason)

    def _late(self) -> None:
        if not self.is_over and not self.conn.is_open:
            self._is_late = True
            self.process.ready(self)

    def _failed(self, reason: str) -> None:
        """End the connection because of a TLS error, with the alert for the peer."""
        alert = self.transport.take()
        if alert and not self.pending:
            self.out.send(alert)
        self._log_failure(reason)
        super().lost(reason)

    def _log_failure(self, reason: str) -> None:
        if not self.conn.dialled:
            process = self.process
            self.tls.handshakes.log_failure(process.log, process.clock.mono_ms, str(self.conn.peer), reason)

    # --- input ------------------------------------------------------------------------------------

    def take(self) -> None:
        if self._is_late and not self.is_over and not self.conn.is_open:
            self._failed(f"TLS: the handshake took more than {self.tls.handshake_ms} ms")
        else:
            super().take()

    def lost(self, reason: str) -> None:
        if reason == CLOSED and not self.conn.is_open:
            reason = "TLS: closed by peer during the handshake"
            self._log_failure(reason)
        super().lost(reason)

    def vanish(self) -> None:
        self.tls.handshakes.end(self)
        super().vanish()

    def _reads(self) -> bool:
        """The handshake needs input, even if the node does not read."""
        return not self.conn.is_open or super()._reads()

    def _read(self, room: int = FEED_SIZE_MAX) -> bytes:
        """Return plain bytes, b"" if the input has none for the node."""
        if self._early:
            self.inbox.popleft()
            plain, self._early = self._early, b""
            return plain
        is_handshake = not self.conn.is_open
        if is_handshake and not self.tls.handshakes.may_step(self.net.clock_us()):
            return b""
        transport = self.transport
        try:
            plain = transport.feed(super()._read(room))
        except TlsError as error:
            self._failed(str(error))
            return b""
        if transport.has_output:
            self.process.node.outbox.dirty.append(self.conn)
        if is_handshake and transport.state is not TlsState.HANDSHAKE:
            self._handshake_over()
        self.is_ended = self.is_ended or transport.state is TlsState.ENDED
        if self.is_over:
            return b""
        if plain and not self._reads():  # the node has stopped to read in its `opened`
            self._early, plain = plain, b""
            self.inbox.appendleft(b"")
        return plain

    # --- output -----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Encrypt what the node has sent, and write it with the transport's own messages."""
        conn, transport = self.conn, self.transport
        if conn.is_open:
            try:
                self._encrypt()
            except TlsError as error:
                self._failed(str(error))
                return
            if conn.closing:
                transport.close()
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
        if self.conn.is_open:
            self.flush()  # tells the peer that nothing follows
            if not self.is_over:
                super().finish()
        elif not self.conn.out:
            super().lost(self.conn.closing)

    def _encrypt(self) -> None:
        """Raises TlsError."""
        conn = self.conn
        if conn.out:
            plain = b"".join(conn.out)
            self.net.world.trace(plain)
            self.transport.encrypt([plain])
            conn.out.clear()
            conn.out_size -= len(plain)

    def _emptied(self) -> None:
        # A handshake message was sent. Bytes of the node may still wait for the end of the
        # handshake, even if it has closed its dial.
        if self.conn.is_open:
            super()._emptied()

    def _over(self, reason: str) -> None:
        self.tls.handshakes.end(self)
        self._early = b""
        super()._over(reason)
