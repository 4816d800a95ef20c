"""Proxies that forward bytes and record each whole remoting frame on a tape.

`Tape.exchanges` pairs requests with responses by connection, direction and opaque. `parse` reads
just enough of both header forms to select frames. It deliberately does not use rmqkit's codec,
because the selected frames test that codec.
"""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

RESPONSE_FLAG, ONEWAY_FLAG = 1, 2


class Seen(NamedTuple):
    """One recorded frame."""

    link: str  # "nameserver" or "broker": the server of this connection
    conn: int
    upward: bool  # sent by the side that opened the connection
    raw: bytes
    codec: int
    header: dict[str, Any]
    body: bytes


def parse(raw: bytes) -> tuple[int, dict[str, Any], bytes]:
    """Return the codec, the header as a dict with the JSON form's names, and the body."""
    (mark,) = struct.unpack_from(">I", raw, 4)
    size = mark & 0xFFFFFF
    head, body = raw[8 : 8 + size], raw[8 + size :]
    if mark >> 24 == 0:
        return 0, json.loads(head), body
    code, language, version, opaque, flag, remark_size = struct.unpack_from(">hbhiii", head)
    header: dict[str, Any] = {"code": code, "language": language, "version": version, "opaque": opaque, "flag": flag}
    position = 17
    if remark_size:
        header["remark"] = head[position : position + remark_size].decode()
    position += remark_size + 4
    fields = {}
    while position < size:
        (key_size,) = struct.unpack_from(">h", head, position)
        key = head[position + 2 : position + 2 + key_size].decode()
        position += 2 + key_size
        (value_size,) = struct.unpack_from(">i", head, position)
        fields[key] = head[position + 4 : position + 4 + value_size].decode()
        position += 4 + value_size
    header["extFields"] = fields
    return mark >> 24, header, body


@dataclass
class Tape:
    """Every frame of a recording, in the order the proxies read them."""

    frames: list[Seen] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    connections: int = 0

    def opened(self) -> int:
        """Return a number for a new connection."""
        with self.lock:
            self.connections += 1
            return self.connections

    def saw(self, seen: Seen) -> None:
        with self.lock:
            self.frames.append(seen)

    def exchanges(self) -> Iterator[tuple[Seen, Seen | None]]:
        """Yield each request with its response; None if it is one-way or unanswered."""
        answers: dict[tuple[int, bool, int], list[Seen]] = {}
        for seen in self.frames:
            if seen.header["flag"] & RESPONSE_FLAG:
                answers.setdefault((seen.conn, seen.upward, seen.header["opaque"]), []).append(seen)
        for seen in self.frames:
            if not seen.header["flag"] & RESPONSE_FLAG:
                found = answers.get((seen.conn, not seen.upward, seen.header["opaque"]))
                yield seen, found.pop(0) if found else None


class Watcher(Protocol):
    """Receives the frames that a proxy forwards."""

    def opened(self) -> int: ...
    def saw(self, seen: Seen) -> None: ...


class Proxy:
    """Forwards bytes between `listen` and `target`; reports each whole frame to the watcher."""

    def __init__(self, watcher: Watcher, link: str, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self._watcher, self._link, self._target = watcher, link, target
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(listen)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for sock in [self._listener, *self._sockets]:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            self._sockets += [near, far]
            conn = self._watcher.opened()
            for source, sink, upward in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pump, args=(source, sink, conn, upward), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, conn: int, upward: bool) -> None:
        held = bytearray()
        try:
            while data := source.recv(1 << 16):
                held += data
                while len(held) >= 4 and len(held) >= 4 + (size := struct.unpack_from(">i", held)[0]):
                    raw = bytes(held[: 4 + size])
                    del held[: 4 + size]
                    self._watcher.saw(Seen(self._link, conn, upward, raw, *parse(raw)))
                sink.sendall(data)
            # Only this direction has ended: bytes in flight the other way still arrive.
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
