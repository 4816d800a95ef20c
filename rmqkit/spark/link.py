"""A Spark worker's connection to one node: requests are sent ahead of the responses to others.

A worker process keeps one idle connection per address, for the ranges that it reads one after the
other (`take`, `give`). While that connection is taken, another `take` of the same address opens a
new one. No thread watches idle connections. `give` closes those that were idle for more than
`IDLE_S`. `take` checks whether the peer has closed the connection. A forked process starts without
any.

Source: `remoting/.../netty/NettyRemotingClient.java` for what a connection carries.
"""

import os
import select
import socket
import time
from collections import deque
from struct import Struct

import msgspec

from rmqkit.access.signature import Credentials
from rmqkit.client_keys import choose_keys
from rmqkit.errors import PeerUnreachable, RemoteProtocolError
from rmqkit.runtime.connection import Address
from rmqkit.tls.client_choice import choose_tls, encrypted
from rmqkit.wire.remoting.frames import CODEC_ROCKETMQ, Frame, FrameBuffer, frame
from rmqkit.wire.remoting.headers import FLAG_RESPONSE, Head, decode_head, encode_request
from rmqkit.wire.schema import Ext, to_ext

#: An idle connection older than this, in seconds, is closed when the next one is given back.
IDLE_S = 60.0
#: Limit of the bytes of one receive.
READ_SIZE = 512 * 1024
#: Limit of a response in bytes. A broker ends a pull response at 128 MiB
#: (`DefaultMessageStore.MAX_PULL_MSG_SIZE`), plus one message.
ANSWER_SIZE_MAX = 256 * 1024 * 1024

_binary_marks = Struct(">h3xii").unpack_from
#: Size in bytes of a binary header without remark and fields.
_BINARY_MIN = 21


class LinkReply(msgspec.Struct, frozen=True, gc=False):
    """A response. The rest of its header is decoded on demand."""

    opaque: int
    code: int
    frame: Frame

    @property
    def body(self) -> bytes:
        return self.frame.body

    @property
    def head(self) -> Head:
        """The decoded header. Raises RemoteProtocolError."""
        return decode_head(self.frame)


def _marks(answer: Frame) -> tuple[int, int, int]:
    """Return code, opaque and flag of a header. Raises RemoteProtocolError."""
    if answer.codec == CODEC_ROCKETMQ and len(answer.header) >= _BINARY_MIN:
        return _binary_marks(answer.header)
    head = decode_head(answer)
    return head.code, head.opaque, head.flag


class Link:
    """One connection, with TLS if RMQKIT_TLS says so (`rmqkit.tls.client_choice`), and with the
    keys that `rmqkit.client_keys` finds in the environment.

    Methods that send or receive raise PeerUnreachable or RemoteProtocolError. After that the link
    can only be closed.
    """

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self.pid = os.getpid()
        #: Since when the connection is idle (monotonic seconds).
        self.idle_since_s = 0.0
        #: Number of requests without a response so far.
        self.waiting = 0
        self._opaque = 0
        self._timeout_s = timeout_s
        self._cut = FrameBuffer(ANSWER_SIZE_MAX)
        self._received: deque[Frame] = deque()
        keys = choose_keys()
        #: Signs extFields. None: requests are not signed.
        self.sign = Credentials(*keys).sign if keys is not None else None
        tls = choose_tls(None)
        try:
            self._socket = socket.create_connection(address, timeout=timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = encrypted(self._socket, address.host, tls)
        except OSError as error:
            raise PeerUnreachable(
                f"cannot connect to {address}: {error.strerror or error}", kind="connect", address=str(address)
            ) from None

    def close(self) -> None:
        self._socket.close()

    def allow(self, timeout_s: float) -> None:
        """Set how long a receive waits for the next bytes, in seconds."""
        self._timeout_s = timeout_s
        self._socket.settimeout(timeout_s)

    @property
    def is_usable(self) -> bool:
        """Whether the peer has neither closed the idle connection nor sent anything on it."""
        try:
            return not select.select([self._socket], [], [], 0)[0]
        except (OSError, ValueError):
            return False

    def opaque(self) -> int:
        """Return the request id for the next request."""
        self._opaque = self._opaque % 0x7FFFFFFF + 1
        return self._opaque

    def send(self, requests: bytes, count: int) -> None:
        """Send `count` whole frames."""
        try:
            self._socket.sendall(requests)
        except OSError as error:
            raise self._lost(error) from None
        self.waiting += count

    def receive(self) -> LinkReply:
        """Return the next response, whichever request it belongs to."""
        while True:
            while not self._received:
                self._read()
            answer = self._received.popleft()
            code, opaque, flag = _marks(answer)
            # Skip a broker's request to its clients: this connection serves none.
            if flag & FLAG_RESPONSE:
                self.waiting -= 1
                return LinkReply(opaque, code, answer)

    def ask(self, code: int, ext: Ext) -> LinkReply:
        """Send a request and return its response, whatever its code.

        Responses to other requests are dropped.
        """
        opaque = self.opaque()
        fields = to_ext(ext) if self.sign is None else self.sign(to_ext(ext))
        self.send(frame(encode_request(code, opaque, fields)), 1)
        while (answer := self.receive()).opaque != opaque:
            pass
        return answer

    def _read(self) -> None:
        if self._cut.error is not None:
            raise RemoteProtocolError(f"{self.address} sent a {self._cut.error}")
        try:
            data = self._socket.recv(READ_SIZE)
        except OSError as error:
            raise self._lost(error) from None
        if not data:
            raise PeerUnreachable(f"{self.address} closed the connection", kind="lost", address=str(self.address))
        self._received += self._cut.feed(data)

    def _lost(self, error: OSError) -> PeerUnreachable:
        if isinstance(error, TimeoutError):
            text, kind = f"no answer from {self.address} within {self._timeout_s:g} s", "timeout"
        else:
            text, kind = f"the connection to {self.address} is lost: {error.strerror or error}", "lost"
        return PeerUnreachable(text, kind=kind, address=str(self.address))


_idle: dict[Address, Link] = {}


def take(address: Address, timeout_s: float) -> Link:
    """Return the idle connection to the address, or a new one. Raises PeerUnreachable."""
    link = _idle.pop(address, None)
    if link is not None:
        if link.pid == os.getpid() and link.is_usable:
            link.allow(timeout_s)
            return link
        link.close()
    return Link(address, timeout_s)


def give(link: Link) -> None:
    """Keep a connection for the next `take` of its address.

    It is closed instead if responses are outstanding, if another process opened it, or if there is
    an idle connection to the address already.
    """
    now_s = time.monotonic()
    for address in [address for address, each in _idle.items() if now_s - each.idle_since_s > IDLE_S]:
        _idle.pop(address).close()
    if link.waiting or link.pid != os.getpid() or link.address in _idle:
        link.close()
        return
    link.idle_since_s = now_s
    _idle[link.address] = link


def close_idle() -> None:
    """Close all idle connections."""
    while _idle:
        _idle.popitem()[1].close()
