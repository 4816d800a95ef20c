"""A rogue replica on the HA port of a simulated master: it acknowledges data that it never stores.

It reports the end of what was sent to it, or an offset far beyond the log. A broker that counts
such reports as acknowledgements answers SEND_OK for messages that no other broker has.
"""

from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.connection import Address, Connection
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Ports
from rmqkit.wire.ha.stream import Transfers, encode_report

HUGE = 1 << 40
AGAIN_MS = 300


class Stranger(BaseNode):
    """A node that connects to the HA port of `peer`. `is_huge`: it reports `HUGE` offsets."""

    def __init__(self, name: str, ports: Ports, peer: Address, *, is_huge: bool) -> None:
        super().__init__(name, ports)
        self._peer = peer
        self._is_huge = is_huge
        self._transfers = Transfers()
        self._conn: Connection | None = None
        self.duties.add("report", self._run, None)

    def start(self) -> None:
        self.duties.wake("report", self.clock.mono_ms)

    def _run(self, now_ms: int) -> int:
        if self._conn is None:
            self._transfers = Transfers()
            self._conn = self.outbox.dial(self._peer, "stranger")
        elif self._conn.is_open and self._is_huge:
            self.outbox.send(self._conn, encode_report(HUGE))
        return now_ms + AGAIN_MS

    def opened(self, conn: Connection) -> None:
        self.outbox.send(conn, encode_report(HUGE if self._is_huge else 0))

    def received(self, conn: Connection, data: bytes) -> None:
        if self._is_huge:
            return
        try:
            for offset, body in self._transfers.feed(data):
                self.outbox.send(conn, encode_report(offset + len(body)))
        except RemoteProtocolError as error:
            self.outbox.abort(conn, str(error))

    def closed(self, conn: Connection, reason: str) -> None:
        self._conn = None
