"""The HTTP endpoint of one node's metrics.

A scrape is produced in pieces, `PIECES_A_TURN` per turn, so that a node with many series does not
delay messages. Scrapes that arrive at the same time are produced one after the other.

- `/metrics` is the text for Prometheus, `/-/healthy` one line while the node serves. Apache's
  exporter has both.
- Other paths get 404; methods other than GET and HEAD get 405.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rmqkit.metrics.families import CONTENT_TYPE, Family, text_pieces
from rmqkit.metrics.http import HttpServer, Request
from rmqkit.runtime.connection import Connection, Outbox
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Clock, Log

if TYPE_CHECKING:
    from rmqkit.config import MetricsSettings

DUTY = "metrics-scrape"
PIECES_A_TURN = 2
METHODS = ("GET", "HEAD")


class _Scrape:
    __slots__ = ("pieces", "request", "text")

    def __init__(self, request: Request, pieces: Iterator[bytes]) -> None:
        self.request = request
        self.pieces = pieces
        self.text: list[bytes] = []


class MetricsEndpoint:
    """The endpoint. The node passes it the events of its connections with the tag `metrics`."""

    def __init__(
        self,
        node: Any,
        families: Sequence[Family],
        labels: dict[str, str],
        settings: "MetricsSettings",
        *,
        outbox: Outbox,
        clock: Clock,
        duties: Duties,
        log: Log,
        healthy: Callable[[], bool],
    ) -> None:
        self.families = families
        self.labels = {**dict(settings.labels), **labels}
        #: returns why a connection is closed, "" if it may read the metrics (access control)
        self.admission: Callable[[Connection], str] = lambda conn: ""
        self._node = node
        self._series_max = settings.series_max
        self._clock = clock
        self._outbox = outbox
        self._duties = duties
        self._healthy = healthy
        self._scrapes: deque[_Scrape] = deque()
        self.http = HttpServer(
            outbox=outbox,
            clock=clock,
            duties=duties,
            log=log,
            handle=self._handle,
            connections_max=settings.http_connections_max,
            header_size_max=settings.http_header_size_max,
            request_ms=settings.http_request_ms,
        )
        duties.add(DUTY, self._write_some, None)

    def opened(self, conn: Connection) -> None:
        self.http.opened(conn)
        fault = self.admission(conn)
        if fault:
            self._outbox.abort(conn, fault)

    def received(self, conn: Connection, data: bytes) -> None:
        self.http.received(conn, data)

    def closed(self, conn: Connection, reason: str) -> None:
        self.http.closed(conn, reason)

    def _handle(self, request: Request) -> None:
        if request.path not in ("/metrics", "/-/healthy"):
            self.http.answer(request, 404, b"not found; the metrics are at /metrics\n")
        elif request.method not in METHODS:
            more = {"Allow": ", ".join(METHODS)}
            self.http.answer(request, 405, b"only GET and HEAD are allowed\n", more=more)
        elif request.path == "/metrics":
            pieces = text_pieces(self.families, self._node, self.labels, self._series_max)
            self._scrapes.append(_Scrape(request, pieces))
            self._duties.wake(DUTY, self._clock.mono_ms)
        elif self._healthy():
            self.http.answer(request, 200, b"healthy\n")
        else:
            self.http.answer(request, 503, b"not serving\n")

    def _write_some(self, now_ms: int) -> int | None:
        for _ in range(PIECES_A_TURN):
            while self._scrapes and not self._scrapes[0].request.is_open:
                self._scrapes.popleft()
            if not self._scrapes:
                return None
            scrape = self._scrapes[0]
            piece = next(scrape.pieces, None)
            if piece is not None:
                scrape.text.append(piece)
                continue
            self._scrapes.popleft()
            self.http.answer(scrape.request, 200, b"".join(scrape.text), content_type=CONTENT_TYPE)
        return now_ms if self._scrapes else None
