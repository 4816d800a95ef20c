"""A Spark worker's connection to one node: pipelined requests, responses stay in one buffer.

All bytes are received into one buffer that grows as needed. A `LinkReply` refers to its body by
positions in this buffer, so the records of many responses become columns without being copied
first. `forget` drops the responses that were received and moves the remaining bytes to the front of
the buffer; earlier positions are then invalid.

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
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from rmqkit.access.signature import Credentials
from rmqkit.client_keys import choose_keys
from rmqkit.errors import PeerUnreachable, RemoteProtocolError
from rmqkit.runtime.connection import Address
from rmqkit.tls.client_choice import choose_tls, encrypted
from rmqkit.wire.remoting.frames import CODEC_JSON, CODEC_ROCKETMQ, Frame, frame
from rmqkit.wire.remoting.headers import FLAG_RESPONSE, Head, decode_head, encode_request
from rmqkit.wire.schema import Ext, to_ext

#: An idle connection older than this, in seconds, is closed when the next one is given back.
IDLE_S = 60.0
BUFFER_SIZE = 1024 * 1024
#: An idle connection does not keep a buffer larger than this, in bytes.
BUFFER_KEPT_MAX = 16 * 1024 * 1024
#: Minimum free space in the buffer for one receive, in bytes.
READ_SIZE_MIN = 256 * 1024
#: Limit of a response in bytes. A broker ends a pull response at 128 MiB
#: (`DefaultMessageStore.MAX_PULL_MSG_SIZE`), plus one message.
ANSWER_SIZE_MAX = 256 * 1024 * 1024

_HEAD = Struct(">iI").unpack_from


class LinkReply(NamedTuple):
    """A response. Its body is `buffer[begin:end]` of the link. The header is decoded on demand."""

    opaque: int
    code: int
    begin: int
    end: int
    codec: int
    header: bytes

    @property
    def head(self) -> Head:
        """The decoded header. Raises RemoteProtocolError."""
        return decode_head(Frame(self.codec, self.header, b""))

    @property
    def fields(self) -> dict[str, Any]:
        return self.head.ext_fields or {}

    @property
    def remark(self) -> str:
        return self.head.remark or ""


class _JsonHead(msgspec.Struct, gc=False):
    code: int
    flag: int = 0
    opaque: int = 0


_read_json = msgspec.json.Decoder(_JsonHead).decode
_binary_marks = Struct(">h3xii").unpack_from
#: Size in bytes of a binary header without remark and fields.
_BINARY_MIN = 21


def _marks(codec: int, header: bytes) -> tuple[int, int, int]:
    """Return code, opaque and flag of a header. Raises RemoteProtocolError."""
    if codec == CODEC_ROCKETMQ and len(header) >= _BINARY_MIN:
        return _binary_marks(header)
    try:
        # Brokers of Apache answer in JSON. A pull's fields are rarely of interest.
        read = _read_json(header) if codec == CODEC_JSON else decode_head(Frame(codec, header, b""))
    except msgspec.MsgspecError:
        read = decode_head(Frame(codec, header, b""))
    return read.code, read.opaque, read.flag


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
        self.buffer = bytearray(BUFFER_SIZE)
        #: Number of received bytes in the buffer.
        self.held = 0
        self._opaque = 0
        self._timeout_s = timeout_s
        self._at = 0
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
        self.buffer = bytearray()

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
            found = self._cut()
            if found is not None:
                self.waiting -= 1
                return found
            self._read()

    def ask(self, code: int, ext: Ext) -> tuple[LinkReply, bytes]:
        """Send a request and return its response, whatever its code, and the response's body.

        Responses to other requests are dropped.
        """
        opaque = self.opaque()
        fields = to_ext(ext) if self.sign is None else self.sign(to_ext(ext))
        self.send(frame(encode_request(code, opaque, fields)), 1)
        while (answer := self.receive()).opaque != opaque:
            pass
        body = bytes(self.buffer[answer.begin : answer.end])
        self.forget()
        return answer, body

    def forget(self) -> None:
        """Drop the bytes of all responses that `receive` has returned."""
        rest = self.held - self._at
        self.buffer[:rest] = self.buffer[self._at : self.held]
        self._at, self.held = 0, rest

    def _cut(self) -> LinkReply | None:
        at, held = self._at, self.held
        if held - at < 8:
            return None
        length, mark = _HEAD(self.buffer, at)
        header_size = mark & 0xFFFFFF
        if not 4 + header_size <= length <= ANSWER_SIZE_MAX:
            raise RemoteProtocolError(f"{self.address} sent a frame of {length} bytes with a header of {header_size}")
        end = at + 4 + length
        if end > held:
            self._make_room(end)
            return None
        self._at = end
        begin = at + 8 + header_size
        header = bytes(self.buffer[at + 8 : begin])
        codec = mark >> 24
        code, opaque, flag = _marks(codec, header)
        if not flag & FLAG_RESPONSE:
            return self._cut()  # a broker's request to its clients; this connection serves none
        return LinkReply(opaque, code, begin, end, codec, header)

    def _read(self) -> None:
        self._make_room(self.held + READ_SIZE_MIN)
        try:
            with memoryview(self.buffer) as every, every[self.held :] as room:
                size = self._socket.recv_into(room)
        except OSError as error:
            raise self._lost(error) from None
        if not size:
            raise PeerUnreachable(f"{self.address} closed the connection", kind="lost", address=str(self.address))
        self.held += size

    def _make_room(self, size: int) -> None:
        """Grow the buffer to at least `size` bytes, and at least to twice its size."""
        if len(self.buffer) < size:
            buffer = bytearray(max(size, 2 * len(self.buffer)))
            buffer[: self.held] = self.buffer[: self.held]
            self.buffer = buffer

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
    an idle connection to the address already. A buffer above BUFFER_KEPT_MAX shrinks.
    """
    now_s = time.monotonic()
    for address in [address for address, each in _idle.items() if now_s - each.idle_since_s > IDLE_S]:
        _idle.pop(address).close()
    if link.waiting or link.pid != os.getpid() or link.address in _idle:
        link.close()
        return
    link.forget()
    if len(link.buffer) > BUFFER_KEPT_MAX:
        link.buffer = link.buffer[: max(BUFFER_SIZE, link.held)]
    link.idle_since_s = now_s
    _idle[link.address] = link
