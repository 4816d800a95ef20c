"""The server side of HTTP/1.1 for small responses, without a socket.

Received bytes go to `h11`, which parses them; responses go to the outbox. A connection has one
request at a time. Requests that a peer sends ahead (pipelining) wait in h11's buffer until the
previous response is out. At most `REQUESTS_A_TURN` of a connection are handled per turn; meanwhile
its peer is not read. A response may come in a later turn (`answer`). HEAD, keep-alive, HTTP/1.0 and
`Expect: 100-continue` work.

    invalid request, or not HTTP                    400 (431: head too large), then closed
    request not complete in `http_request_ms`       408, then closed
    body (nothing here uses one) > `BODY_SIZE_MAX`  413, then closed
    unread responses > `UNREAD_SIZE_MAX`            closed
    more than `http_connections_max` connections    the one that has been idle longest is closed;
                                                    none idle: the new one gets 503, then closed

If a peer closes its connection, its request is dropped.
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import h11

from rmqkit.runtime.connection import Connection, Outbox
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Clock, Log

DUTY = "http-slow-requests"
DUTY_MORE = "http-requests-ahead"
REQUESTS_A_TURN = 8
BODY_SIZE_MAX = 65_536
UNREAD_SIZE_MAX = 8 * 1024 * 1024
_TEXT = "text/plain; charset=utf-8"


class Request:
    """One complete request.

    `is_open` until it is answered or its peer has closed the connection.
    """

    __slots__ = ("exchange", "method", "target")

    def __init__(self, exchange: "Exchange", method: str, target: str) -> None:
        self.exchange = exchange
        self.method = method
        self.target = target

    @property
    def is_open(self) -> bool:
        return self.exchange.request is self

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class Exchange:
    """One connection, with the request on it."""

    __slots__ = ("advancing", "body_size", "conn", "head", "http", "is_head", "request", "since_ms")

    def __init__(self, conn: Connection, header_size_max: int, now_ms: int) -> None:
        self.conn = conn
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=header_size_max)
        #: the request that is being answered
        self.request: Request | None = None
        #: the head of a request whose body is not complete
        self.head: h11.Request | None = None
        self.body_size = 0
        #: `_take_events` is running; an answer from inside it must not start it again
        self.advancing = False
        #: the request is a HEAD: the response has the length of the body, but no body
        self.is_head = False
        #: monotonic ms: the start of an incomplete request, or of the idle time
        self.since_ms = now_ms

    @property
    def is_idle(self) -> bool:
        return self.request is None and self.head is None and not self.http.trailing_data[0]


class HttpServer:
    """The connections of one endpoint."""

    def __init__(
        self,
        *,
        outbox: Outbox,
        clock: Clock,
        duties: Duties,
        log: Log,
        handle: Callable[[Request], None],
        connections_max: int,
        header_size_max: int,
        request_ms: int,
    ) -> None:
        """Pass each request to `handle`, which calls `answer` for it now or in a later turn."""
        self.exchanges: dict[int, Exchange] = {}
        self._outbox = outbox
        self._clock = clock
        self._duties = duties
        self._log = log
        self._handle = handle
        self._connections_max = connections_max
        self._header_size_max = header_size_max
        self._request_ms = request_ms
        #: connections with pipelined requests that wait for the next turn
        self._ahead: dict[int, Exchange] = {}
        duties.add(DUTY, self._close_slow, None)
        duties.add(DUTY_MORE, self._take_ahead, None)

    # --- connections

    def opened(self, conn: Connection) -> None:
        exchange = Exchange(conn, self._header_size_max, self._clock.mono_ms)
        conn.state = exchange
        if len(self.exchanges) >= self._connections_max and not self._make_room():
            self._log.warning("http-connection-refused", peer=str(conn.peer), connections_max=self._connections_max)
            self._end(exchange, 503, "too many connections")
            return
        self.exchanges[conn.id] = exchange

    def closed(self, conn: Connection, reason: str) -> None:
        exchange: Exchange = conn.state
        exchange.request = None
        self.exchanges.pop(conn.id, None)
        self._ahead.pop(conn.id, None)

    def received(self, conn: Connection, data: bytes) -> None:
        exchange: Exchange = conn.state
        if conn.closing:
            return
        if exchange.is_idle:
            exchange.since_ms = self._clock.mono_ms
            self._duties.wake(DUTY, exchange.since_ms + self._request_ms)
        try:
            exchange.http.receive_data(data)
        except h11.RemoteProtocolError as error:
            self._end(exchange, error.error_status_hint, str(error))
            return
        # h11 buffers pipelined requests without a limit, so stop reading the peer.
        if exchange.request is not None and len(exchange.http.trailing_data[0]) > self._header_size_max:
            self._outbox.read(conn, False)
        self._advance(exchange)

    # --- responses

    def answer(
        self, request: Request, code: int, body: bytes, *, content_type: str = _TEXT, more: Mapping[str, str] | None = None
    ) -> None:
        """Answer a request; does nothing if its peer has closed the connection."""
        exchange = request.exchange
        if not request.is_open:
            return
        exchange.request = None
        self._send(exchange, code, body, content_type, more)
        if exchange.http.our_state is h11.MUST_CLOSE:
            self._outbox.close(exchange.conn, f"answered {code}")
            return
        if exchange.conn.out_size > UNREAD_SIZE_MAX:
            self._outbox.abort(exchange.conn, "answers are not read")
            return
        exchange.http.start_next_cycle()
        exchange.is_head = False
        exchange.since_ms = self._clock.mono_ms
        if exchange.conn.id not in self._ahead:
            self._outbox.read(exchange.conn, True)
        self._advance(exchange)

    def _send(
        self, exchange: Exchange, code: int, body: bytes, content_type: str, more: Mapping[str, str] | None = None
    ) -> None:
        http = exchange.http
        headers = [("Content-Type", content_type), ("Content-Length", str(len(body))), *(more or {}).items()]
        if code >= 400 and http.their_state is not h11.DONE:
            headers.append(("Connection", "close"))
        response = h11.Response(status_code=code, headers=headers, reason=HTTPStatus(code).phrase.encode())
        events: list[Any] = [response, h11.EndOfMessage()]
        if body and not exchange.is_head:
            events.insert(1, h11.Data(data=body))
        self._outbox.send(exchange.conn, b"".join(http.send(each) or b"" for each in events))

    def _end(self, exchange: Exchange, code: int, why: str) -> None:
        """Send a last response, if HTTP still allows one, and close the connection."""
        exchange.request = exchange.head = None
        if exchange.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send(exchange, code, f"{why}\n".encode(), _TEXT)
        self._outbox.close(exchange.conn, why)

    # --- requests

    def _advance(self, exchange: Exchange) -> None:
        """Handle h11's events until a request waits for its response or more bytes are needed."""
        if not exchange.advancing and exchange.conn.id not in self._ahead:
            exchange.advancing = True
            self._take_events(exchange)
            exchange.advancing = False

    def _take_ahead(self, now_ms: int) -> int | None:
        """Handle pipelined requests, up to `REQUESTS_A_TURN` of each connection."""
        waiting, self._ahead = self._ahead, {}
        for exchange in waiting.values():
            self._outbox.read(exchange.conn, True)
            self._advance(exchange)
        return now_ms if self._ahead else None

    def _take_events(self, exchange: Exchange) -> None:
        taken = 0
        while exchange.request is None and not exchange.conn.closing:
            waiting_size = len(exchange.http.trailing_data[0])
            try:
                event: Any = exchange.http.next_event()
            except h11.RemoteProtocolError as error:
                self._end(exchange, error.error_status_hint, str(error))
                return
            if isinstance(event, h11.Request):
                # h11 only limits incomplete heads; this one arrived complete.
                if waiting_size - len(exchange.http.trailing_data[0]) > self._header_size_max:
                    self._end(exchange, 431, f"a request's head has at most {self._header_size_max} bytes")
                    return
                exchange.head, exchange.body_size = event, 0
                exchange.is_head = event.method == b"HEAD"
                if exchange.http.they_are_waiting_for_100_continue:
                    interim = exchange.http.send(h11.InformationalResponse(status_code=100, headers=[]))
                    self._outbox.send(exchange.conn, interim or b"")
            elif isinstance(event, h11.Data):
                exchange.body_size += len(event.data)
                if exchange.body_size > BODY_SIZE_MAX:
                    self._end(exchange, 413, f"a body has at most {BODY_SIZE_MAX} bytes")
            elif isinstance(event, h11.EndOfMessage) and exchange.head is not None:
                head, exchange.head = exchange.head, None
                # A target may have any byte above the space; it is only compared.
                request = Request(exchange, head.method.decode("latin-1"), head.target.decode("latin-1"))
                exchange.request = request
                self._handle(request)
                taken += 1
                if taken == REQUESTS_A_TURN and not exchange.conn.closing:
                    self._ahead[exchange.conn.id] = exchange
                    self._outbox.read(exchange.conn, False)
                    self._duties.wake(DUTY_MORE, self._clock.mono_ms)
                    return
            else:  # NEED_DATA, PAUSED, ConnectionClosed
                return

    def _make_room(self) -> bool:
        idle = [each for each in self.exchanges.values() if each.is_idle and not each.conn.closing]
        if not idle:
            return False
        longest = min(idle, key=lambda each: (each.since_ms, each.conn.id))
        del self.exchanges[longest.conn.id]
        self._outbox.close(longest.conn, "idle, and a new connection needs the slot")
        return True

    def _close_slow(self, now_ms: int) -> int | None:
        slow = [each for each in self.exchanges.values() if not each.is_idle and each.request is None]
        next_ms = None
        for exchange in slow:
            due_ms = exchange.since_ms + self._request_ms
            if due_ms <= now_ms:
                self._end(exchange, 408, f"the request was not complete after {self._request_ms} ms")
            elif next_ms is None or due_ms < next_ms:
                next_ms = due_ms
        return next_ms
