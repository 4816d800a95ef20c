"""Listening sockets: binds them, and accepts connections in bounded batches and within limits.

- Without free descriptors (EMFILE, ENFILE) the listener pauses for `PAUSE_MS`. The pending
  connection stays in the backlog and would otherwise wake the loop again at once.
- At `connections_max` in total, or `connections_per_ip_max` from one source, a new connection is
  accepted and closed at once, so that the peer notices.
- With TLS the node gets a connection once its handshake is over (`tls_stream.py`).
- A source is an IPv4 address or a /64 network of IPv6: a host usually has a whole /64.
"""

import errno
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rmqkit.errors import RmqkitError
from rmqkit.runtime.connection import Address, Connection
from rmqkit.shell.listen_errors import CannotListen, listen_error
from rmqkit.shell.poller import READ
from rmqkit.shell.streams import Stream, address_of

if TYPE_CHECKING:
    from rmqkit.runtime.node import Node
    from rmqkit.shell.loop import Loop

#: most connections that one turn accepts from one listener
ACCEPT_BATCH = 64
#: how long a listener stops accepting when the process has no free descriptor
PAUSE_MS = 100
#: least interval of the log lines of one listener about refused connections
LOG_AGAIN_MS = 1000
_IPV4_MAPPED = bytes(10) + b"\xff\xff"
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: sockets that `reserve` bound and `bind` has not claimed yet, by host and port
_reserved: dict[tuple[str, int], socket.socket] = {}


def reserve(host: str, offsets: Sequence[int], tries: int) -> int:
    """Reserve a port P that the system chooses, with P + offset for each offset, and return P.

    The sockets stay bound until `bind` claims them, so no other process can take a port meanwhile.
    Raises RmqkitError if `tries` ports had a neighbour in use.
    """
    for _ in range(tries):
        chosen = bind(host, 0, 1)
        port = int(chosen.getsockname()[1])
        sockets = {(host, port): chosen}
        try:
            for offset in offsets:
                sockets[host, port + offset] = bind(host, port + offset, 1)
        except RmqkitError:
            for sock in sockets.values():
                sock.close()
            continue
        _reserved.update(sockets)
        return port
    raise RmqkitError(f"no {1 + len(offsets)} ports that belong together are free on {host or 'this machine'}")


def release_reserved() -> None:
    """Close the reserved sockets that nothing claimed: the start of their node failed."""
    while _reserved:
        _reserved.popitem()[1].close()


def bind(host: str, port: int, backlog: int) -> socket.socket:
    """Return a listening socket, the reserved one if there is one.

    Host "" means every IPv4 address, "::" every address. Raises PortTaken or CannotListen.
    """
    if (reserved := _reserved.pop((host, port), None)) is not None:
        reserved.listen(backlog)
        return reserved
    address = Address(host or "0.0.0.0", port)
    try:
        family, _kind, _protocol, _name, target = socket.getaddrinfo(
            address.host, port, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise CannotListen(f"{host!r} is not an address to listen on: {error}") from error
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        sock.bind(target)
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise listen_error(address, error) from error
    return sock


class Listener:
    """A listening socket of one node. An item of the loop."""

    __slots__ = ("_logged_full_ms", "_starved", "fd", "loop", "node", "port", "sock", "tag", "tls")

    def __init__(self, loop: "Loop", node: "Node", tag: str, sock: socket.socket) -> None:
        self.loop = loop
        self.node = node
        self.tag = tag
        self.sock = sock
        self.fd = sock.fileno()
        self.port = int(sock.getsockname()[1])
        tls = loop.tls.get(node)
        #: the node's TLS, None for a listener without
        self.tls = tls if tls is not None and tls.accepts(tag) else None
        self._starved = False
        self._logged_full_ms = -LOG_AGAIN_MS
        loop.items[self.fd] = self
        loop.poller.add(self.fd, READ)

    def ready(self, mask: int) -> None:
        for _ in range(ACCEPT_BATCH):
            try:
                sock, name = self.sock.accept()
            except (BlockingIOError, InterruptedError):
                self._starved = False
                return
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._pause(error)
                    return
                continue  # the peer has closed the connection while it was in the backlog
            isolation = self.loop.isolation
            if isolation is None or not isolation.sets_aside(self, sock, name):
                self.admit(sock, name)

    def admit(self, sock: socket.socket, name: tuple[Any, ...]) -> None:
        """Give an accepted connection to the node, or close it if a limit is reached."""
        limits = self.loop.limits
        source = source_of(name[0])
        if self.loop.stream_count >= limits.connections_max:
            self._log_full(connections_max=limits.connections_max)
            sock.close()
        elif self.loop.by_source.get(source, 0) >= limits.connections_per_ip_max:
            self._log_full(address=source, connections_per_ip_max=limits.connections_per_ip_max)
            sock.close()
        else:
            self._open(sock, name, source)

    def scan(self, now_ms: int) -> None:
        """Do nothing: a listener is never idle."""

    def _open(self, sock: socket.socket, name: tuple[Any, ...], source: str) -> None:
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            local = address_of(sock.getsockname())
        except OSError:  # the peer has reset the connection meanwhile
            sock.close()
            return
        conn = Connection(self.loop.next_id(), self.tag, address_of(name), local=local)
        by_source = self.loop.by_source
        by_source[source] = by_source.get(source, 0) + 1
        if self.tls is None:
            Stream(self.loop, self.node, sock, conn).source = source
            self.node.opened(conn)
        else:
            from rmqkit.shell.tls_stream import TlsStream  # loads `ssl`

            TlsStream(self.loop, self.node, sock, conn, self.tls).source = source

    def _pause(self, error: OSError) -> None:
        if not self._starved:
            self._starved = True
            self.loop.log.error(
                "no descriptor for a new connection", listener=self.tag, error=error.strerror, pause_ms=PAUSE_MS
            )
        self.loop.poller.change(self.fd, 0)
        self.loop.after(PAUSE_MS, self._resume)

    def _resume(self) -> None:
        if self.loop.items.get(self.fd) is self:
            self.loop.poller.change(self.fd, READ)

    def _log_full(self, **limit: Any) -> None:
        now_ms = self.loop.clock.mono_ms
        if now_ms - self._logged_full_ms >= LOG_AGAIN_MS:
            self._logged_full_ms = now_ms
            self.loop.log.warning("connection refused", listener=self.tag, **limit)


def source_of(host: str) -> str:
    """Return the source that a peer's address counts towards: IPv4, or a /64 network of IPv6."""
    if ":" not in host:
        return host
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    if packed.startswith(_IPV4_MAPPED):
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8)) + "/64"
