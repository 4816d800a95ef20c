"""A minimal remoting client that makes one call at a time over a blocking socket.

The clients of `rmqkit.api` retry, refresh routes and wait. Here each call is made once, and either
an answer or a failure is the result. That shows whether a node answers.
"""

import socket
import time
from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple, Self

from rmqkit.access.signature import Credentials
from rmqkit.client_keys import choose_keys, keys_of_file
from rmqkit.errors import RemoteProtocolError, RmqkitError
from rmqkit.tls.client_choice import Tls, choose_tls, encrypted
from rmqkit.wire.remoting.frames import FrameBuffer, frame
from rmqkit.wire.remoting.headers import Head, decode_head, encode_request
from rmqkit.wire.schema import Ext, to_ext

READ_SIZE = 65_536


class NoAnswer(RmqkitError):
    """The node did not answer, or answered with an error. The text says which."""


class NodeReply(NamedTuple):
    head: Head
    body: bytes


class Caller:
    """A connection to one node. Every call must end by `deadline_s` (monotonic time, in s).

    `rmqkit.tls.client_choice` describes `tls`. Requests are signed with the keys of the file
    `keys`, by default with those of the environment. Raises NoAnswer if the node cannot be
    connected to, or does not answer in time, ConfigError if a file cannot be used.
    """

    def __init__(self, host: str, port: int, deadline_s: float, tls: Tls = None, keys: str = "") -> None:
        self._deadline_s = deadline_s
        self._buffer = FrameBuffer()
        self._opaque = 0
        found = keys_of_file(keys) if keys else choose_keys()
        self._sign = Credentials(*found).sign if found is not None else None
        settings = choose_tls(tls)
        try:
            self._socket = socket.create_connection((host, port), timeout=self._left_s())
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if settings is not None:
                self._socket = encrypted(self._socket, host, settings)
        except OSError as error:
            raise NoAnswer(f"cannot connect to {host}:{port}: {error.strerror or error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()

    def _left_s(self) -> float:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise NoAnswer("no answer in time")
        return left_s

    def allow(self, timeout_s: float) -> None:
        """Set a new deadline for all further calls together, `timeout_s` from now."""
        self._deadline_s = time.monotonic() + timeout_s

    def call(self, code: int, ext: Ext | None = None, body: bytes = b"") -> NodeReply:
        """Send a request. Return the answer, which may have any code. Raises NoAnswer."""
        self._opaque += 1
        fields: Mapping[str, str] | None = to_ext(ext) if ext is not None else None
        if self._sign is not None:
            fields = self._sign(fields, body)
        header = encode_request(code, self._opaque, fields)
        try:
            self._socket.settimeout(self._left_s())
            self._socket.sendall(frame(header, body))
            while True:
                self._socket.settimeout(self._left_s())
                data = self._socket.recv(READ_SIZE)
                if not data:
                    raise NoAnswer("the connection was closed")
                for each in self._buffer.feed(data):
                    head = decode_head(each)
                    if head.flag & 1 and head.opaque == self._opaque:
                        return NodeReply(head, each.body)
        except (OSError, RemoteProtocolError) as error:
            raise NoAnswer(str(error)) from None

    def ask(self, code: int, ext: Ext | None = None, body: bytes = b"") -> NodeReply:
        """Send a request. Return the answer. Raises NoAnswer, also if its code is an error."""
        return checked(self.call(code, ext, body))


def checked(answer: NodeReply) -> NodeReply:
    """Return the answer. Raises NoAnswer if its code is an error."""
    if answer.head.code != 0:
        raise NoAnswer(f"answer {answer.head.code}: {answer.head.remark or 'no remark'}")
    return answer
