"""Runs a real broker process, with peers on raw sockets.

The process ends with the test, because its lifeline then closes.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.helpers.script import write_command
from tests.hostile.good import SEND

DEADLINE_S = 20.0


def poll(reached: Callable[[], Any], what: str) -> Any:
    """Wait until `reached` returns a true value; fail after a deadline."""
    until_s = time.monotonic() + DEADLINE_S
    while not (found := reached()):
        assert time.monotonic() < until_s, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.01)
    return found


class Node:
    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.log = log
        self.process = process
        self.stats = psutil.Process(process.pid)
        self.ports = poll(self._ready, "the broker is ready")
        self.port: int = self.ports["remoting_port"]
        self._sockets: list[socket.socket] = []
        poll(lambda: "serving" in self.events(), "the broker serves")

    def lines(self) -> list[dict[str, Any]]:
        text = self.log.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines()]

    def private_bytes(self) -> int:
        return int(self.stats.memory_full_info().uss)

    def connect(self, source: str = "127.0.0.1", *, read_buffer: int = 0) -> socket.socket:
        sock = socket.socket()
        if read_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_buffer)
        sock.settimeout(DEADLINE_S)
        sock.bind((source, 0))
        sock.connect(("127.0.0.1", self.port))
        self._sockets.append(sock)
        return sock

    def close_sockets(self) -> None:
        for sock in self._sockets:
            sock.close()

    def _ready(self) -> dict[str, int] | None:
        assert self.process.poll() is None, self.log.read_text()
        return next((line["fields"] for line in self.lines() if line["event"] == "ready"), None)


@contextmanager
def running(folder: Path, *settings: str) -> Iterator[Node]:
    """Run a broker with these settings; it must still run at the end."""
    read_end, lifeline = os.pipe()
    log = folder / "log"
    command = [sys.executable, "-m", "rmqkit.process", "--lifeline", str(read_end), "--log-format", "json"]
    own = ("listenPort=0", "bindAddress=127.0.0.1", "brokerIP1=127.0.0.1", "brokerIP2=127.0.0.1", "brokerName=broker-a")
    own += (f"storePathRootDir={folder}/store", "mappedFileSizeCommitLog=67108864")
    for setting in (*own, *settings):
        command += ["--set", setting]
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, pass_fds=[read_end], cwd=folder)
    os.close(read_end)
    node: Node | None = None
    try:
        node = Node(process, log)
        yield node
        assert process.poll() is None, log.read_text()
        assert "node failed" not in node.events()
    finally:
        if node is not None:
            node.close_sockets()
        process.kill()
        process.wait()
        os.close(lifeline)


class Good:
    """A well-behaved client."""

    def __init__(self, node: Node, source: str = "127.0.0.1") -> None:
        self.sock = node.connect(source)
        self._opaque = 0

    def send(self, body: bytes = b"x" * 1024) -> dict[str, Any]:
        return self.ask(10, SEND, body)

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> dict[str, Any]:
        """Send a request and return the header of the answer, which must be a success."""
        self._opaque += 1
        self.sock.sendall(write_command(code, ext, body, opaque=self._opaque))
        header, _ = read_answer(self.sock)
        assert header["opaque"] == self._opaque
        assert header["code"] == 0, header
        return header


def read_answer(sock: socket.socket) -> tuple[dict[str, Any], bytes]:
    length, mark = struct.unpack(">iI", read_exactly(sock, 8))
    rest = read_exactly(sock, length - 4)
    size = mark & 0xFFFFFF
    return json.loads(rest[:size]), rest[size:]


def read_exactly(sock: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        piece = sock.recv(size - len(got))
        if not piece:
            raise ConnectionError("closed")
        got += piece
    return bytes(got)


def is_closed(sock: socket.socket) -> bool:
    """Return whether the node has closed the connection; data it sent before is discarded."""
    sock.setblocking(False)
    try:
        while sock.recv(65_536):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        sock.settimeout(DEADLINE_S)
