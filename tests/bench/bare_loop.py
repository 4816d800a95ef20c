"""The minimum that a Python process must do to accept messages; the reference for a broker's rates.

    python -m tests.bench.bare_loop     prints the name server address, serves until stdin ends

One selectors loop is both name server and broker. It reads the fields of either header form and
builds a log record with its CRC and a queue entry. It writes the records of a turn with one call
and the entries with another. It answers every send with a success that has the fields which a Java
client requires.

It does nothing else: no checks, topics, waiting, flushing, index or recovery, and no reading.
"""

import json
import os
import selectors
import socket
import struct
import sys
import tempfile
import time
import zlib

HOST = "127.0.0.1"
QUEUES = 8
_HEAD = struct.Struct(">iI")
_BINARY = struct.Struct(">hbhi")
_RECORD = struct.Struct(">iiiiiqqiq8sq8siqi")
_ENTRY = struct.Struct(">qiq")
_PLACE = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
_SENDS = frozenset({10, 310, 320})
_ROUTE = 105


class Loop:
    """Serves `port` until stdin ends."""

    def __init__(self, file: int, queue_file: int) -> None:
        self._listener = socket.create_server((HOST, 0), backlog=256)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._held: dict[socket.socket, bytearray] = {}
        self._file = file
        self._queue_file = queue_file
        self._offset = 0
        self._queues: dict[tuple[str, int], int] = {}
        self._entries = bytearray()

    def run(self) -> None:
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)
                elif not os.read(sys.stdin.fileno(), 1):
                    return

    def _accept(self) -> None:
        conn, _ = self._listener.accept()
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(conn, selectors.EVENT_READ)
        self._held[conn] = bytearray()

    def _read(self, conn: socket.socket) -> None:
        held = self._held[conn]
        try:
            data = conn.recv(65_536)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(conn)
            del self._held[conn]
            conn.close()
            return
        held += data
        position, bodies, answers = 0, [], []
        while len(held) - position >= 8:
            length, mark = _HEAD.unpack_from(held, position)
            end = position + 4 + length
            if end > len(held):
                break
            body_start = position + 8 + (mark & 0xFFFFFF)
            header = bytes(held[position + 8 : body_start])
            answer = self._answer(mark >> 24, header, bodies, held, body_start, end)
            if answer:
                answers.append(answer)
            position = end
        del held[:position]
        if bodies:
            os.write(self._file, b"".join(bodies))
            os.write(self._queue_file, self._entries)
            self._entries.clear()
        if answers:
            conn.sendall(b"".join(answers))

    def _answer(self, codec: int, header: bytes, bodies: list[bytes], held: bytearray, body_start: int, end: int) -> bytes:
        if codec == 1:
            code, _language, _version, opaque = _BINARY.unpack_from(header)
            fields = _binary_fields(header)
        else:
            read = json.loads(header)
            code, opaque, fields = read["code"], read["opaque"], read.get("extFields", {})
        if code in _SENDS:
            queue_id, queue_offset, phy_offset = self._store(fields, bytes(held[body_start:end]), bodies)
            place = (
                f'{{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"7F00000100002A9F{phy_offset:016X}",'
                f'"queueId":"{queue_id}","queueOffset":"{queue_offset}"}}'
            )
            return _framed(0, opaque, place)
        if code == _ROUTE:
            return _framed(0, opaque, "{}", self._route())
        return _framed(0, opaque, "{}")

    def _store(self, fields: dict[str, str], body: bytes, out: list[bytes]) -> tuple[int, int, int]:
        topic, queue_id = fields["b"], int(fields["e"])
        properties, name = fields.get("i", "").encode(), topic.encode()
        size = _RECORD.size + len(body) + 1 + len(name) + 2 + len(properties)
        queue_offset = self._queues.get((topic, queue_id), 0)
        self._queues[topic, queue_id] = queue_offset + 1
        phy_offset, now_ms = self._offset, time.time_ns() // 1_000_000
        self._offset += size
        crc = zlib.crc32(body) & 0x7FFFFFFF
        times = int(fields["g"]), now_ms
        head = _RECORD.pack(
            size, -626843481, crc, queue_id, int(fields["h"]), queue_offset, phy_offset, int(fields["f"]),
            times[0], _PLACE, times[1], _PLACE, 0, 0, len(body),
        )  # fmt: skip
        tail = bytes((len(name),)) + name + len(properties).to_bytes(2, "big") + properties
        out += (head, body, tail)
        self._entries += _ENTRY.pack(phy_offset, size, 0)
        return queue_id, queue_offset, phy_offset

    def _route(self) -> bytes:
        queues = f'"perm":6,"readQueueNums":{QUEUES},"topicSysFlag":0,"writeQueueNums":{QUEUES}'
        return (
            f'{{"brokerDatas":[{{"brokerAddrs":{{"0":"{HOST}:{self.port}"}},"brokerName":"bare","cluster":"bare"}}],'
            f'"filterServerTable":{{}},"queueDatas":[{{"brokerName":"bare",{queues}}}]}}'
        ).encode()


def _binary_fields(header: bytes) -> dict[str, str]:
    fields = {}
    position = 21 + int.from_bytes(header[13:17], "big")
    while position < len(header):
        start = position + 2
        position = start + int.from_bytes(header[position:start], "big")
        key = header[start:position].decode()
        start = position + 4
        position = start + int.from_bytes(header[position:start], "big")
        fields[key] = header[start:position].decode()
    return fields


def _framed(code: int, opaque: int, fields: str, body: bytes = b"") -> bytes:
    header = f'{{"code":{code},"extFields":{fields},"flag":1,"language":"PYTHON","opaque":{opaque},"version":473}}'.encode()
    return _HEAD.pack(4 + len(header) + len(body), len(header)) + header + body


def main() -> int:
    with tempfile.TemporaryFile(prefix="bare-") as file, tempfile.TemporaryFile(prefix="bare-") as queue_file:
        loop = Loop(file.fileno(), queue_file.fileno())
        print(f"{HOST}:{loop.port}", flush=True)
        loop.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
