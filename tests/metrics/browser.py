"""HTTP clients of a node, driven by hand: bytes in, bytes out, a clock that the test moves."""

import random
from typing import Any

from rmqkit.runtime.connection import Address, Connection
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Clock, Ports
from tests.helpers.script import ScriptDisk, ScriptLog


class Browser:
    def __init__(self, driver: "Driver", conn: Connection) -> None:
        self.driver = driver
        self.conn = conn
        self.text = b""

    @property
    def closed(self) -> str:
        return self.conn.closing

    def send(self, data: bytes) -> bytes:
        """Feed bytes to the node, run turns until it is idle, and return its response."""
        self.driver.turn(lambda: self.driver.node.received(self.conn, data))
        return self.take()

    def get(self, path: str = "/metrics", method: str = "GET", more: str = "") -> tuple[int, dict[str, str], bytes]:
        return parsed(self.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode()))

    def take(self) -> bytes:
        text, self.text = self.text, b""
        return text


class Driver:
    def __init__(self, make: Any) -> None:
        self.clock = Clock(1_000_000, 1_760_000_000_000)
        self.log = ScriptLog()
        self.disk = ScriptDisk()
        self.node: BaseNode = make(Ports(self.clock, self.disk, random.Random(1), self.log))
        self.peers: dict[int, Browser] = {}
        self.unread: set[int] = set()
        self.turn(self.node.start)

    def connect(self) -> Browser:
        conn = Connection(len(self.peers) + 1, "metrics", Address("10.0.0.9", 40_000))
        self.peers[conn.id] = peer = Browser(self, conn)
        self.turn(lambda: self.node.opened(conn))
        return peer

    def advance(self, ms: int) -> None:
        self.clock.mono_ms += ms
        self.clock.wall_ms += ms
        self.turn()

    def turn(self, event: Any = None, turns: int = 500) -> None:
        for _ in range(turns):
            for completion, error in self.disk.take_completions():
                self.node.done(completion, error)
            if event is not None:
                event()
                event = None
            self.node.run_due()
            self.node.settle()
            self._flush()
            due_ms = self.node.due_ms()
            if not self.disk.completions and (due_ms is None or due_ms > self.clock.mono_ms):
                return

    def _flush(self) -> None:
        outbox = self.node.outbox
        for conn in outbox.dirty:
            peer = self.peers.get(conn.id)
            if peer is not None and conn.id not in self.unread:
                peer.text += b"".join(bytes(each) for each in conn.out)
                conn.out.clear()
                conn.out_size = 0
        closes = [conn for conn, _ in outbox.closes]
        for effects in (outbox.dials, outbox.dirty, outbox.closes, outbox.reads_changed):
            effects.clear()
        for conn in closes:
            self.node.closed(conn, conn.closing)


def parsed(text: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the header fields by lower-case name, and the body."""
    head, _, body = text.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}, body
