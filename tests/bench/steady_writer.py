"""A client that sends to a group's master all the time, and notes what was acknowledged.

It is a client with a fresh route: a second thread asks the name server who the master is, every
10 ms. When the master changes, the writer gives up the send that waits and continues at the new
one. A client that asks more rarely sees the same, and its own interval in addition.

Each message is sent once. A send without an acknowledgement may be stored.
"""

import json
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from rmqkit.wire import fastjson

_GET_ROUTE, _SEND = 105, 310
_PAUSE_S = 0.01
#: how often a waiting send looks whether the master has changed
_LOOK_S = 0.005
#: a master that is alive and does not answer for so long gets the next message
_ANSWER_S = 1.0
_CONNECT_S = 0.5
_MASTER_ID = "0"


class Ack(NamedTuple):
    at_s: float
    address: str
    body: str


class _Line:
    """A connection for one request after the other."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self._socket = socket.create_connection((host, int(port)), timeout=_CONNECT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = bytearray()
        self._opaque = 0

    def ask(self, code: int, fields: Mapping[str, str], body: bytes, is_over: Any) -> tuple[dict[str, Any], bytes]:
        """Send a request and return the answer's header and body.

        Raises OSError, also once `is_over()` is true.
        """
        self._opaque += 1
        header = json.dumps(
            {
                "code": code,
                "extFields": dict(fields),
                "flag": 0,
                "language": "OTHER",
                "opaque": self._opaque,
                "version": 479,
            }
        ).encode()
        self._socket.sendall(struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body)
        self._socket.settimeout(_LOOK_S)
        while True:
            if len(self._read) >= 8:
                length, size = struct.unpack_from(">iI", self._read)
                if len(self._read) >= 4 + length:
                    frame = bytes(self._read[8 : 4 + length])
                    del self._read[: 4 + length]
                    return json.loads(frame[:size]), frame[size:]
            try:
                piece = self._socket.recv(65536)
            except TimeoutError:
                if is_over():
                    raise ConnectionError("given up") from None
                continue
            if not piece:
                raise ConnectionError("closed before its answer")
            self._read += piece

    def close(self) -> None:
        self._socket.close()


class SteadyWriter:
    """Sends from its start to `close`. `acks` has every acknowledged message, in order."""

    def __init__(self, nameserver: str, topic: str, broker_name: str, name: str) -> None:
        """`name` is the start of each body, so that the messages of several writers differ."""
        self.acks: list[Ack] = []
        #: the master that the route names, "" without one
        self.master = ""
        self._nameserver = nameserver
        self._topic = topic
        self._broker_name = broker_name
        self._name = name
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._follow, self._write)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def first_after(self, since_s: float, other_than: str) -> Ack | None:
        """Return the first acknowledgement after a time by another broker than `other_than`."""
        return next((ack for ack in list(self.acks) if ack.at_s > since_s and ack.address != other_than), None)

    def _follow(self) -> None:
        line: _Line | None = None
        while not self._ended.wait(_PAUSE_S):
            try:
                line = line or _Line(self._nameserver)
                header, body = line.ask(_GET_ROUTE, {"topic": self._topic}, b"", self._ended.is_set)
            except OSError:
                line = _closed(line)
                continue
            datas = fastjson.loads(body)["brokerDatas"] if header["code"] == 0 else []
            members = next((each["brokerAddrs"] for each in datas if each["brokerName"] == self._broker_name), {})
            self.master = {str(key): address for key, address in members.items()}.get(_MASTER_ID, "")

    def _write(self) -> None:
        line: _Line | None = None
        number = 0
        while not self._ended.wait(_PAUSE_S):
            master = self.master
            if line is not None and line.address != master:
                line = _closed(line)
            if not master:
                continue
            number += 1
            body = f"{self._name} {number}"
            until_s = time.monotonic() + _ANSWER_S

            def is_over(master: str = master, until_s: float = until_s) -> bool:
                return self.master != master or time.monotonic() > until_s or self._ended.is_set()

            try:
                line = line or _Line(master)
                header, _ = line.ask(_SEND, self._fields(), body.encode(), is_over)
            except OSError:
                line = _closed(line)
                continue
            if header["code"] == 0:
                self.acks.append(Ack(time.monotonic(), master, body))

    def _fields(self) -> dict[str, str]:
        return {
            "a": "steady-writer",
            "b": self._topic,
            "c": "TBW102",
            "d": "1",
            "e": "0",
            "f": "0",
            "g": str(time.time_ns() // 1_000_000),
            "h": "0",
            "i": "",
            "j": "0",
            "k": "false",
            "m": "false",
        }


def _closed(line: _Line | None) -> None:
    if line is not None:
        line.close()
