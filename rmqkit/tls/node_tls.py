"""The TLS of one node: which of its connections use it, and the contexts that they get.

**Mode.** Each listener follows `tls.server.mode`. Dialled connections use TLS if `useTLS` or
`tls.enable` is set, or the mode is enforcing, as in Apache's `BrokerStartup` and
`NettyRemotingClient`. They never fall back to plain text. `tls.ha.enable = false` exempts the HA
port and the connection to a master's HA port.

**Reload.** `poll` compares the files with those of the current contexts (inode, size and time of
change). The driver calls it once a second. Changed files are read at the next poll that finds them
unchanged, so that a certificate and its key may be replaced one after the other. New connections
use the new context; open ones keep theirs. If the files cannot be used, the last good context stays
and one line says so.

**Handshakes.** `Handshakes` bounds the accepted connections whose handshake is not over. One more
closes the oldest, so that a client that finishes its handshake gets in beside peers that do not. A
handshake takes 1 ms of the node's thread, so at most `HANDSHAKE_STEPS_MAX` handshakes continue per
turn. The others wait in their sockets.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol

from rmqkit.errors import ConfigError
from rmqkit.runtime.ports import Log
from rmqkit.settings.tls_sections import TlsClientSettings, TlsMode, TlsServerSettings
from rmqkit.tls import contexts
from rmqkit.tls.transport import TlsError, TlsTransport

#: most handshakes of a node that take a step in one turn
HANDSHAKE_STEPS_MAX = 4
#: tag of the HA listener, and of a dial to a master's HA port
HA_TAG = "ha"
#: least interval of the log lines about failed handshakes
LOG_AGAIN_MS = 1000

Stamp = tuple[tuple[int, int, int] | None, ...]


class HalfOpen(Protocol):
    """An accepted connection whose handshake is not over."""

    def end_handshake(self, reason: str) -> None: ...


class Handshakes:
    """The accepted connections of a node in their handshake, oldest first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: dict[HalfOpen, None] = {}
        self._turn_at = -1
        self._steps_left = 0
        self._failed = 0
        self._logged_ms = -LOG_AGAIN_MS

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, each: HalfOpen) -> None:
        """Add a connection. Above the limit, end the oldest."""
        self._open[each] = None
        if len(self._open) > self.most:
            oldest = next(iter(self._open))
            oldest.end_handshake(f"more than tlsHandshakesMax = {self.most} connections are in their TLS handshake")

    def end(self, each: HalfOpen) -> None:
        """Remove a connection whose handshake is over, or which has ended."""
        self._open.pop(each, None)

    def may_step(self, now: int) -> bool:
        """Whether one more handshake may continue in this turn.

        `now` is constant in a turn: the shell's clock in ms, or the simulator's in µs.
        """
        if now != self._turn_at:
            self._turn_at = now
            self._steps_left = HANDSHAKE_STEPS_MAX
        self._steps_left -= 1
        return self._steps_left >= 0

    def log_failure(self, log: Log, now_ms: int, peer: str, reason: str) -> None:
        """Log a failed handshake, at most one line per `LOG_AGAIN_MS`, with their number since."""
        self._failed += 1
        if now_ms - self._logged_ms >= LOG_AGAIN_MS:
            log.warning("tls handshake failed", peer=peer, reason=reason, failed=self._failed)
            self._logged_ms, self._failed = now_ms, 0


class FileContext:
    """A context that is read from files, and read again when they change."""

    def __init__(self, make: Callable[[], ssl.SSLContext], files: Sequence[str]) -> None:
        """Make the context. Raises ConfigError."""
        self._make = make
        self._files = files
        #: the files of the last attempt to make the context, and those of the last poll
        self._tried = self._polled = self._stamp()
        self.context = make()

    def poll(self, log: Log) -> None:
        """Make a new context if the files have changed, but not since the last poll."""
        found = self._stamp()
        is_still, self._polled = found == self._polled, found
        if not is_still or found == self._tried:
            return
        self._tried = found
        try:
            self.context = self._make()
        except ConfigError as error:
            log.error("tls certificate not reloaded", reason=str(error), files=" ".join(self._files))
        else:
            log.info("tls certificate reloaded", files=" ".join(self._files))

    def _stamp(self) -> Stamp:
        return tuple(map(_stamp_of, self._files))


class NodeTls:
    """The TLS of one node; see the head of this module.

    Listeners in mode permissive or enforcing have a `server` context, dials with TLS a `client`
    context.
    """

    def __init__(self, server: TlsServerSettings, client: TlsClientSettings) -> None:
        """Read the certificates. Raises ConfigError."""
        self.handshake_ms = server.handshake_ms
        self.is_enforcing = server.mode is TlsMode.ENFORCING
        self.handshakes = Handshakes(server.handshakes_max)
        self._has_ha = server.ha_enable
        self._server: FileContext | None = None
        self._client: FileContext | None = None
        if server.listens:
            self._server = FileContext(lambda: contexts.server_context(server), contexts.server_files(server))
        if client.use_tls or client.enable or self.is_enforcing:
            self._client = FileContext(lambda: contexts.client_context(client), contexts.client_files(client))

    def accepts(self, tag: str) -> bool:
        """Whether the connections of a listener may use TLS."""
        return self._server is not None and (self._has_ha or tag != HA_TAG)

    def dials(self, tag: str) -> bool:
        """Whether a dialled connection uses TLS. `tag` is its purpose."""
        return self._client is not None and (self._has_ha or tag != HA_TAG)

    def accepted(self) -> TlsTransport:
        """Return the transport of an accepted connection."""
        assert self._server is not None
        return TlsTransport(self._server.context)

    def dialled(self, host: str) -> TlsTransport:
        """Return the transport of a connection to `host`, whose certificate must name it.

        Raises TlsError for a name that no certificate can have.
        """
        assert self._client is not None
        try:
            return TlsTransport(self._client.context, host)
        except ValueError as error:  # includes UnicodeError
            raise TlsError(f"TLS: {host!r} is not a host name that a certificate can have: {error}") from None

    def poll(self, log: Log) -> None:
        """Reload certificates whose files have changed."""
        for each in (self._server, self._client):
            if each is not None:
                each.poll(log)


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
