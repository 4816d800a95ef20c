"""Remoting: requests and responses in both directions, over all frame connections of one node.

One object serves every frame connection, accepted or dialled. Bytes go through the connection's
`FrameBuffer`. A frame is either a request, which goes to the handler of its code, or the response
to a request of this node. Responses are matched by opaque per connection, in any order; unmatched
ones are dropped.

A response has the header format of its request (JSON or ROCKETMQ), since a client that writes JSON
may read nothing else. (Upstream's servers use the format that they are configured for, by default
JSON.) Requests of this node are JSON.

Requests of this node: `call(to, ...)` takes an address (one shared connection per address, dialled
on demand) or a connection that the peer opened. `then` is called exactly once: with a `Reply`, or
with a `CallFailed` if the peer was unreachable, the connection was lost or the time was up. If
nothing at all arrived on a dialled connection since the call, a timeout also closes the connection:
the peer went away without closing it (half-open).

Access control. With a `gate`, every request is admitted by the extFields as they arrived. Its
header is decoded from these fields, and the rule of its code is checked before the handler runs;
also before a parked call runs again. With `sign`, the requests on connections that this node
dialled are signed. Those to its clients are not: a client could send them to another broker.

Limits: the size of a frame, the time to complete a frame, the bytes in incomplete frames over all
connections, and the pending bytes of responses to one peer. The connection that exceeds a limit is
closed, with a log line; other connections are not affected.

Source for the rules: `remoting/.../netty/NettyRemotingAbstract.java`.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from heapq import heappop, heappush
from typing import Any, Protocol

from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import (
    LATER,
    Call,
    CallerRights,
    CallFailed,
    Handler,
    HandlerRow,
    Handlers,
    Outcome,
    Refused,
    Reply,
    Response,
    Then,
    code_name,
)
from rmqkit.runtime.connection import Address, Buffer, Connection, Outbox
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Clock, Log
from rmqkit.settings.node_sections import NetworkLimits
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.remoting.frames import CODEC_ROCKETMQ, Frame, FrameBuffer, frame
from rmqkit.wire.remoting.headers import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    BadHeader,
    Head,
    TypedHead,
    decode_head,
    encode_answer,
    encode_request,
    peek_code,
)
from rmqkit.wire.schema import Ext, to_ext

TAG = "remoting"
_OPAQUE_MAX = 2**31 - 1


class Gate(Protocol):
    """Admits requests (`rmqkit.access.gate.AccessGate`)."""

    def admit(self, conn: Connection, row: HandlerRow, fields: Mapping[str, Any], body: bytes) -> CallerRights:
        """Return who sent a request with these extFields. Raises Refused."""


class Express(Protocol):
    """Handles the most frequent requests, many at a time, with less work for each.

    `broker.handlers.messages.plain_sends` implements it.
    """

    #: the first bytes of the binary headers of these requests
    start: bytes

    def take(self, conn: Connection, peer: "Peer", frames: Sequence[Frame], at: int) -> int:
        """Handle frames from position `at` on; return the position of the next one.

        That is `at` if the first one has to be handled like any other request.
        """


#: returns the extFields with those of a signature over them and the body
Sign = Callable[[Mapping[str, str] | None, bytes], Mapping[str, str]]


class _PendingCall:
    """A request of this node that has no response yet."""

    __slots__ = ("conn", "opaque", "received_before", "then")

    def __init__(self, conn: Connection, opaque: int, then: Then, received_before: int) -> None:
        self.conn = conn
        self.opaque = opaque
        self.then = then
        self.received_before = received_before


class Peer:
    """Remoting's state of a connection, stored in `Connection.state`."""

    __slots__ = ("calls", "frames", "partial_since_ms", "partial_size", "received_count", "rows", "was_open")

    def __init__(self, rows: dict[int, HandlerRow], size_max: int) -> None:
        self.rows = rows
        self.frames = FrameBuffer(size_max)
        self.calls: dict[int, _PendingCall] = {}
        #: bytes may have reached the peer. Stored here, since a closed connection does not tell
        #: whether it ever was open
        self.was_open = False
        self.received_count = 0
        self.partial_since_ms = -1
        self.partial_size = 0


class Remoting:
    """All frame connections of one node."""

    def __init__(
        self,
        node: Any,
        *,
        outbox: Outbox,
        clock: Clock,
        duties: Duties,
        log: Log,
        tables: Mapping[str, Handlers],
        limits: NetworkLimits | None = None,
        on_closed: Callable[[Connection], None] | None = None,
    ) -> None:
        """Serve requests from `tables`: handlers by connection tag.

        Dialled connections use the tag `remoting`.
        """
        self.node = node
        self.outbox = outbox
        self.clock = clock
        self.duties = duties
        self.log = log
        self.tables = {tag: table.rows for tag, table in tables.items()}
        limits = limits or NetworkLimits()
        self.frame_size_max = limits.frame_size_max
        self.frame_complete_ms = limits.frame_complete_ms
        self.partial_bytes_max = limits.partial_bytes_max
        self.unread_bytes_max = limits.outbox_max
        self.partial_bytes = 0
        #: why requests get SERVICE_NOT_AVAILABLE (e.g. the node is stopping); "" while it serves
        self.unavailable = ""
        #: codes that are served even while `unavailable`
        self.served: Set[int] = frozenset()
        #: connections we dialled, by address
        self.links: dict[Address, Connection] = {}
        #: requests received since the start, by code
        self.counts: dict[int, int] = {}
        #: `measure` replaces both: the class of calls, and the function called with each response
        #: admits requests; None without access control
        self.gate: Gate | None = None
        #: None if all requests are handled one by one. Not used with access control
        self.express: Express | None = None
        #: signs the requests of this node; None without credentials
        self.sign: Sign | None = None
        self.make_call: Callable[..., Call[Any]] = Call
        self._answered: Callable[[Any, int, int], None] | None = None
        self._on_closed = on_closed
        self._partial: dict[int, Connection] = {}
        self._opaque = 0
        self._deadlines: list[tuple[int, int, _PendingCall]] = []
        self._sequence = 0
        duties.add("remoting-timeouts", self._expire, None)
        duties.add("remoting-partial-frames", self._close_stalled, None)

    # --- connections

    def opened(self, conn: Connection) -> None:
        if conn.state is None:
            conn.state = Peer(self.tables[conn.tag], self.frame_size_max)
        conn.state.was_open = True

    def closed(self, conn: Connection, reason: str) -> None:
        peer: Peer = conn.state
        if self.links.get(conn.peer) is conn:
            del self.links[conn.peer]
        self._partial.pop(conn.id, None)
        self.partial_bytes -= peer.partial_size
        peer.partial_size = 0
        calls, peer.calls = peer.calls, {}
        kind = "lost" if peer.was_open else "connect"
        for waiting in calls.values():
            _end(waiting, CallFailed(kind, conn.peer, reason, peer.was_open))
        if self._on_closed is not None:
            self._on_closed(conn)

    def received(self, conn: Connection, data: bytes) -> None:
        peer: Peer = conn.state
        peer.received_count += 1
        buffer = peer.frames
        frames = buffer.feed(data)
        conn.frame_count = len(frames)
        if self.express is None:
            for each in frames:
                self._take(conn, peer, each)
        else:
            self._take_all(conn, peer, frames, self.express)
        if buffer.error is not None:
            self._refuse(conn, buffer.error)
        pending = buffer.pending
        if pending or peer.partial_size:
            self._note_partial(conn, peer, pending, bool(frames))

    def measure(self, make_call: Callable[..., Call[Any]], answered: Callable[[Any, int, int], None]) -> None:
        """Create calls with `make_call` from now on.

        `answered` is called with (call, response code, now) for each response.
        """
        self.make_call = make_call
        self._answered = answered

    @property
    def is_measured(self) -> bool:
        """Whether `measure` was called."""
        return self._answered is not None

    def link(self, address: Address) -> Connection:
        """Return the shared connection to an address; dial it if there is none."""
        conn = self.links.get(address)
        if conn is None or conn.closing:
            conn = self.outbox.dial(address, TAG)
            conn.state = Peer(self.tables.get(TAG, {}), self.frame_size_max)
            self.links[address] = conn
        return conn

    def dial_again(self, address: Address) -> None:
        """Give up an unfinished dial to an address: its peer can be reached again.

        TCP repeats a lost first packet only after seconds. The next call dials again. The calls
        that wait for the old dial fail.
        """
        conn = self.links.get(address)
        if conn is not None and not conn.is_open and not conn.closing:
            self.outbox.abort(conn, "the peer can be reached again")

    # --- requests of this node

    def call(
        self,
        to: Address | Connection,
        code: int,
        ext: Ext | Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int,
        then: Then,
    ) -> None:
        """Send a request; `then` is called once with the outcome, within `timeout_ms`."""
        conn = to if isinstance(to, Connection) else self.link(to)
        peer: Peer = conn.state
        opaque = self._opaque = self._opaque % _OPAQUE_MAX + 1
        if conn.closing:
            then(CallFailed("closed", conn.peer, conn.closing, False))
            return
        waiting = _PendingCall(conn, opaque, then, peer.received_count)
        peer.calls[opaque] = waiting
        self.outbox.send(conn, frame(encode_request(code, opaque, self._fields(conn, ext, body)), body))
        self._sequence += 1
        due_ms = self.clock.mono_ms + timeout_ms
        heappush(self._deadlines, (due_ms, self._sequence, waiting))
        if self._deadlines[0][2] is waiting:
            self.duties.wake("remoting-timeouts", due_ms)

    def oneway(
        self, to: Address | Connection, code: int, ext: Ext | Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Send a request that gets no response. Nothing reports whether it arrived."""
        conn = to if isinstance(to, Connection) else self.link(to)
        self._opaque = self._opaque % _OPAQUE_MAX + 1
        fields = self._fields(conn, ext, body)
        self.outbox.send(conn, frame(encode_request(code, self._opaque, fields, oneway=True), body))

    def _fields(self, conn: Connection, ext: Ext | Mapping[str, str] | None, body: bytes) -> Mapping[str, str] | None:
        fields = _flat(ext)
        return self.sign(fields, body) if self.sign is not None and conn.dialled else fields

    # --- frames

    def _take_all(self, conn: Connection, peer: Peer, frames: Sequence[Frame], express: Express) -> None:
        """Handle frames in their order; `express` handles what it can."""
        at, count, start = 0, len(frames), express.start
        while at < count:
            each = frames[at]
            if (
                each.codec == CODEC_ROCKETMQ
                and each.header.startswith(start)
                and self.gate is None
                and not self.unavailable
                and not conn.closing
                and (at_next := express.take(conn, peer, frames, at)) > at
            ):
                at = at_next
            else:
                self._take(conn, peer, each)
                at += 1

    def _take(self, conn: Connection, peer: Peer, each: Frame) -> None:
        if conn.closing:
            return
        try:
            if not peer.calls and not self.unavailable:
                row = peer.rows.get(peek_code(each))
                if row is not None:
                    self._request(conn, row, each)
                    return
            head = decode_head(each)
            if head.flag & FLAG_RESPONSE:
                self._reply(conn, peer, head, each.body)
                return
            row = peer.rows.get(head.code)
            if row is None:
                remark = f" request type {head.code} not supported"
                self._turn_away(conn, head, each.codec, Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
            elif self.unavailable and head.code not in self.served:
                remark = f"service not available now: {self.unavailable}"
                self._turn_away(conn, head, each.codec, Response(ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark))
            else:
                self._request(conn, row, each)
        except RemoteProtocolError as error:
            self._refuse(conn, error)

    def _request(self, conn: Connection, row: HandlerRow, each: Frame) -> None:
        caller: CallerRights | None = None
        try:
            if self.gate is None:
                head = row.decoder.decode(each)
            else:
                raw = decode_head(each)
                if raw.flag & FLAG_RESPONSE:
                    return
                caller = self._admit(self.gate, conn, row, raw, each)
                if caller is None:
                    return
                head = row.decoder.read(raw)
        except BadHeader as bad:
            if not bad.head.flag & FLAG_RESPONSE:
                response = Response(ResponseCode.SYSTEM_ERROR, remark=f"{row.name}: {bad}")
                self._turn_away(conn, bad.head, each.codec, response)
            return
        self.run(conn, row, head, each, caller)

    def run(
        self, conn: Connection, row: HandlerRow, head: TypedHead[Any], each: Frame, caller: CallerRights | None = None
    ) -> None:
        """Run the handler for a request whose header is decoded."""
        if head.flag & FLAG_RESPONSE:
            return
        code = row.code
        self.counts[code] = self.counts.get(code, 0) + 1
        call = self.make_call(
            self, conn, code, head.ext, each.body, head.opaque, head.flag, head.version, head.language, each.codec
        )
        call.caller = caller
        self.handle(call, row.handler)

    def _admit(self, gate: "Gate", conn: Connection, row: HandlerRow, raw: Head, each: Frame) -> CallerRights | None:
        """Return who sent a request. If that is no known user, answer or close, and return None."""
        try:
            return gate.admit(conn, row, raw.ext_fields or {}, each.body)
        except Refused as refused:
            if refused.closes:
                self.outbox.close(conn, "too many requests without a right signature")
            else:
                self._turn_away(conn, raw, each.codec, Response(refused.code, remark=str(refused)))
            return None

    def handle(self, call: Call[Any], handler: Handler) -> None:
        """Run a handler for a call; also used to run a parked call again from the start."""
        try:
            if call.caller is not None:
                call.caller.check(call)
            response = handler(self.node, call)
        except Refused as refused:
            response = Response(refused.code, remark=str(refused))
        except RemoteProtocolError as error:
            # The body does not fit the code. The frame was valid, so the connection stays open.
            response = Response(ResponseCode.SYSTEM_ERROR, remark=f"{code_name(call.code)}: {error}")
        except Exception as error:
            if call.changed:
                raise
            name = code_name(call.code)
            self.log.error("handler-failed", request=name, peer=str(call.conn.peer), error=repr(error))
            response = Response(ResponseCode.SYSTEM_ERROR, remark=f"{name} failed: {type(error).__name__}: {error}")
        if response is not LATER:
            self.answer(call, response)
        else:
            assert not call.finished, f"{code_name(call.code)}: the handler both answered and parked the call"

    def answer(self, call: Call[Any], response: Response) -> None:
        """Send the response of a call, unless it is one-way."""
        assert not call.finished, f"call {call.opaque} of {call.conn} is answered twice"
        call.finished = True
        if self._answered is not None:
            self._answered(call, response.code, self.clock.mono_ms)
        if call.caller is not None:
            call.caller.answered(call, response.code)
        if not call.flag & FLAG_ONEWAY and not call.conn.closing:
            self._send(call.conn, call.opaque, call.codec, response)

    def _send(self, conn: Connection, opaque: int, codec: int, response: Response) -> None:
        code, ext, body, remark, head = response
        if isinstance(body, Buffer):
            buffers: Sequence[Buffer] = (body,) if len(body) else ()
        else:
            buffers = body
        if head is None:
            head = encode_answer(code, opaque, _flat(ext), remark, sum(map(len, buffers)), codec)
        self.outbox.send(conn, head, *buffers)
        if conn.out_size > self.unread_bytes_max:
            self._drop_unread(conn)

    def _turn_away(self, conn: Connection, head: Head, codec: int, response: Response) -> None:
        if not head.flag & FLAG_ONEWAY:
            self._send(conn, head.opaque, codec, response)

    def _reply(self, conn: Connection, peer: Peer, head: Head, body: bytes) -> None:
        waiting = peer.calls.pop(head.opaque, None)
        if waiting is not None:
            _end(waiting, Reply(head.code, head.ext_fields or {}, head.remark or "", body, head.version, conn.peer))

    def _refuse(self, conn: Connection, error: RemoteProtocolError) -> None:
        self.log.warning("connection-refused-bytes", peer=str(conn.peer), error=str(error))
        self.outbox.close(conn, f"protocol error: {error}")

    # --- limits

    def _note_partial(self, conn: Connection, peer: Peer, pending: int, completed: bool) -> None:
        self.partial_bytes += pending - peer.partial_size
        peer.partial_size = pending
        if not pending:
            self._partial.pop(conn.id, None)
            return
        if completed or conn.id not in self._partial:
            peer.partial_since_ms = self.clock.mono_ms
        self._partial[conn.id] = conn
        self.duties.wake("remoting-partial-frames", self.clock.mono_ms + self.frame_complete_ms)
        if self.partial_bytes > self.partial_bytes_max:
            largest = max(self._partial.values(), key=lambda each: (each.state.partial_size, each.id))
            self._drop_partial(largest, f"incomplete frames hold more than {self.partial_bytes_max} bytes")

    def _close_stalled(self, now_ms: int) -> int | None:
        for conn in list(self._partial.values()):
            if now_ms - conn.state.partial_since_ms >= self.frame_complete_ms:
                self._drop_partial(conn, f"a frame was not complete after {self.frame_complete_ms} ms")
        if not self._partial:
            return None
        first_ms: int = min(conn.state.partial_since_ms for conn in self._partial.values())
        return first_ms + self.frame_complete_ms

    def _drop_partial(self, conn: Connection, reason: str) -> None:
        self.log.warning("connection-limit", peer=str(conn.peer), reason=reason)
        self._partial.pop(conn.id, None)
        self.outbox.abort(conn, reason)

    def _drop_unread(self, conn: Connection) -> None:
        """Close a connection whose peer does not read.

        Many small requests in one turn can have large responses: enforce the limit now, not at the
        end of the turn.
        """
        reason = f"the peer does not read: {conn.out_size} bytes wait"
        if not conn.closing:
            self.log.warning("connection-limit", peer=str(conn.peer), reason=reason)
        conn.out.clear()
        conn.out_size = 0
        self.outbox.abort(conn, reason)

    def _expire(self, now_ms: int) -> int | None:
        heap = self._deadlines
        while heap:
            due_ms, _, waiting = heap[0]
            conn = waiting.conn
            peer: Peer = conn.state
            if peer.calls.get(waiting.opaque) is not waiting:
                heappop(heap)
                continue
            if due_ms > now_ms:
                return due_ms
            heappop(heap)
            del peer.calls[waiting.opaque]
            silent = peer.received_count == waiting.received_before
            if silent and conn.dialled:
                self.outbox.abort(conn, "no response, and nothing received since the call")
                if self.links.get(conn.peer) is conn:
                    del self.links[conn.peer]
            outcome: Outcome = CallFailed("timeout", conn.peer, "no answer in time", peer.was_open)
            waiting.then(outcome)
        return None


def _end(waiting: _PendingCall, outcome: Outcome) -> None:
    """Report the outcome of a call, and release the callback.

    The heap of deadlines still refers to the call until its time is up; the callback and the data
    it holds need not stay alive that long.
    """
    then, waiting.then = waiting.then, _ended_twice
    then(outcome)


def _ended_twice(outcome: Outcome) -> None:
    raise AssertionError("a call must end only once")


def _flat(ext: Ext | Mapping[str, str] | None) -> Mapping[str, str] | None:
    return to_ext(ext) if isinstance(ext, Ext) else ext
