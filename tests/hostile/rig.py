"""A node with many misbehaving peers: bytes in, one turn per batch, answers read and checked.

It is lighter than `tests.helpers.script`, since it handles hundreds of thousands of frames: it only
splits answers into frames. A peer whose connection the node has closed is replaced by a new one.
"""

import random
from collections import deque
from typing import Any

from rmqkit.runtime.connection import Address, Connection
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Clock, Ports
from rmqkit.wire.remoting.frames import FrameBuffer
from tests.helpers.script import ScriptDisk, ScriptLog

PEERS = 8


class Log(ScriptLog):
    """Keeps the last log lines, and all errors."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: Any = deque(maxlen=50)
        self.errors: list[tuple[str, dict[str, Any]]] = []

    def error(self, event: str, **fields: Any) -> None:
        super().error(event, **fields)
        self.errors.append((event, fields))


class Peer:
    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.answers = FrameBuffer(64 * 1024 * 1024)


class Rig:
    def __init__(self, make: Any, tags: tuple[str, ...] = ("remoting",)) -> None:
        self.clock = Clock(1_000_000, 1_760_000_000_000)
        self.log = Log()
        self.disk = ScriptDisk()
        self.node: BaseNode = make(Ports(self.clock, self.disk, random.Random(1), self.log))
        self.tags = tags
        self.answer_count = 0
        self.closed_count = 0
        self._next_id = 1
        self._by_conn: dict[int, Peer] = {}
        self.node.start()
        for _ in range(10):
            self.turn()
        self.peers = [self._peer() for _ in range(PEERS)]

    def feed(self, at: int, data: bytes) -> None:
        peer = self.peers[at % PEERS]
        if peer.conn.closing:
            peer = self.peers[at % PEERS] = self._peer()
        self.node.received(peer.conn, data)

    def end_frame(self, at: int) -> None:
        """Close the peer's connection if the node still waits for the rest of a frame.

        Otherwise the next frame would be read as that rest.
        """
        conn = self.peers[at % PEERS].conn
        if conn.state.partial_size and not conn.closing:
            self._hang_up(conn)

    def _hang_up(self, conn: Connection) -> None:
        conn.closing = "closed by peer"
        self._by_conn.pop(id(conn), None)
        self.node.closed(conn, conn.closing)

    def turn(self) -> None:
        """Run one turn (completions, dues, settle, outbox) and advance the clock by 7 ms."""
        node = self.node
        self.clock.mono_ms += 7
        self.clock.wall_ms += 7
        for completion, error in self.disk.take_completions():
            node.done(completion, error)
        node.run_due()
        node.settle()
        outbox = node.outbox
        for conn in outbox.dirty:
            self._read(conn)
        gone = [conn for conn, _ in outbox.closes] + outbox.dials
        for effects in (outbox.dials, outbox.dirty, outbox.closes, outbox.reads_changed):
            effects.clear()
        for conn in dict.fromkeys(gone):
            conn.closing = conn.closing or "refused"
            self._by_conn.pop(id(conn), None)
            self.closed_count += 1
            node.closed(conn, conn.closing)

    def close_all(self) -> None:
        """Close every peer's connection, then run 5 turns so that the node can clean up."""
        for peer in self.peers:
            if not peer.conn.closing:
                self._hang_up(peer.conn)
        for _ in range(5):
            self.turn()

    def _read(self, conn: Connection) -> None:
        data = b"".join(bytes(buffer) for buffer in conn.out)
        conn.out.clear()
        conn.out_size = 0
        peer = self._by_conn.get(id(conn))
        if peer is not None:
            self.answer_count += len(peer.answers.feed(data))
            assert peer.answers.error is None, peer.answers.error

    def _peer(self, tag: str = "") -> Peer:
        tag = tag or self.tags[self._next_id % len(self.tags)]
        conn = Connection(self._next_id, tag, Address("10.9.0.1", 1024 + self._next_id % 60_000))
        self._next_id += 1
        peer = Peer(conn)
        self._by_conn[id(conn)] = peer
        self.node.opened(conn)
        return peer
