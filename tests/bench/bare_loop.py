"""The least a Python process must do to take messages: what a whole broker's rates are held against.

    python -m tests.bench.bare_loop        prints the name server address and serves until its input ends

One selectors loop plays name server and broker at once. It cuts frames by their length, reads code and opaque from the
first bytes of either header form, appends the bodies of a turn to a file with one write, and answers every send with a
success that carries the fields a Java client demands. It checks nothing, keeps no index, and forgets what it stored.
"""

import json
import os
import selectors
import socket
import struct
import sys
import tempfile

HOST = "127.0.0.1"
QUEUES = 8
_HEAD = struct.Struct(">iI")
_BINARY = struct.Struct(">hbhi")
_SENDS = frozenset({10, 310, 320})
_ROUTE = 105


class Loop:
    """Serves `port` until standard input ends."""

    def __init__(self, file: int) -> None:
        self._listener = socket.create_server((HOST, 0), backlog=256)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._held: dict[socket.socket, bytearray] = {}
        self._file = file
        self._offset = 0

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
        if answers:
            conn.sendall(b"".join(answers))

    def _answer(self, codec: int, header: bytes, bodies: list[bytes], held: bytearray, body_start: int, end: int) -> bytes:
        if codec == 1:
            code, _language, _version, opaque = _BINARY.unpack_from(header)
        else:
            read = json.loads(header)
            code, opaque = read["code"], read["opaque"]
        if code in _SENDS:
            bodies.append(bytes(held[body_start:end]))
            self._offset += 1
            place = (
                f'{{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"7F00000100002A9F{self._offset:016X}",'
                f'"queueId":"0","queueOffset":"{self._offset}"}}'
            )
            return _framed(0, opaque, place)
        if code == _ROUTE:
            return _framed(0, opaque, "{}", self._route())
        return _framed(0, opaque, "{}")

    def _route(self) -> bytes:
        queues = f'"perm":6,"readQueueNums":{QUEUES},"topicSysFlag":0,"writeQueueNums":{QUEUES}'
        return (
            f'{{"brokerDatas":[{{"brokerAddrs":{{"0":"{HOST}:{self.port}"}},"brokerName":"bare","cluster":"bare"}}],'
            f'"filterServerTable":{{}},"queueDatas":[{{"brokerName":"bare",{queues}}}]}}'
        ).encode()


def _framed(code: int, opaque: int, fields: str, body: bytes = b"") -> bytes:
    header = f'{{"code":{code},"extFields":{fields},"flag":1,"language":"PYTHON","opaque":{opaque},"version":473}}'.encode()
    return _HEAD.pack(4 + len(header) + len(body), len(header)) + header + body


def main() -> int:
    with tempfile.TemporaryFile(prefix="bare-") as file:
        loop = Loop(file.fileno())
        print(f"{HOST}:{loop.port}", flush=True)
        loop.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
