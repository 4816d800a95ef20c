"""Requests and answers as values: what a handler gets, what it returns, and the table that leads from code to handler.

A handler is a function `(node, call) -> Response | LATER`. It returns a `Response`, or parks the call
somewhere and returns `LATER`; it never does both. A parked call ends exactly once, by `call.finish`;
finishing after the connection is gone does nothing. `call.later` is for a handler whose answer comes by
a callback that may be called at once.

    rows = Handlers()

    @rows.handles(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequest)
    def max_offset(broker, call):
        return call.ok(GetMaxOffsetResponse(offset=...))

Bad input is `raise Refused(code, remark)` or `return call.error(code, remark)`. Any other exception is answered with
SYSTEM_ERROR and logged as long as the handler has not called `call.changing()`, which it does before its first change of
state; after that an exception is a broken invariant and stops the node.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rmqkit.errors import RmqkitError
from rmqkit.runtime.connection import Address, Buffer, Connection
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.remoting.frames import CODEC_JSON
from rmqkit.wire.remoting.headers import RequestDecoder
from rmqkit.wire.schema import Ext, from_ext

if TYPE_CHECKING:
    from rmqkit.runtime.remoting import Remoting

E = TypeVar("E", bound=Ext)


class Response(NamedTuple):
    """An answer. `body` is one buffer, or several that are sent one after the other.

    `head` is the frame up to the body where the handler has built it (the hot path of pulls); `ext` and
    `remark` are in it then, and `body` is a sequence.
    """

    code: int
    ext: Ext | Mapping[str, str] | None = None
    body: Buffer | Sequence[Buffer] = b""
    remark: str | None = None
    head: Buffer | None = None


#: What a peer on another machine is told that wants to change settings.
REMOTE_UPDATE_REFUSED = (
    "settings are changed from the node's own machine; remoteConfigUpdateEnable=true in its file lets other machines do it"
)

#: What a handler returns when it has parked the call.
LATER = Response(-1)


class Refused(RmqkitError):
    """Ends a handler with an error answer. Raise it only before anything was changed."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code


Answer = Callable[[Response], None]


@dataclass(slots=True, eq=False)
class Call(Generic[E]):
    """One request of a peer."""

    remoting: "Remoting"
    conn: Connection
    code: int
    args: E
    body: bytes
    opaque: int
    flag: int
    version: int
    language: str | int | None
    #: the form of the request's header, and so of its answer's
    codec: int = CODEC_JSON
    finished: bool = False
    changed: bool = False

    @property
    def oneway(self) -> bool:
        return bool(self.flag & 2)

    @property
    def is_alive(self) -> bool:
        """Whether an answer can still reach the peer."""
        return not self.finished and not self.conn.closing

    def ok(self, ext: Ext | Mapping[str, str] | None = None, body: Buffer | Sequence[Buffer] = b"") -> Response:
        return Response(0, ext, body)

    def error(self, code: int, remark: str) -> Response:
        return Response(code, None, b"", remark)

    def changing(self) -> None:
        """From here on state changes: an exception is not the peer's fault any more."""
        self.changed = True

    def later(self, begin: Callable[[Answer], object]) -> Response:
        """Let `begin` answer by the function that it gets, at once or later; what the handler returns then."""
        at_once: list[Response] = []
        answer: Answer = at_once.append
        begin(lambda response: answer(response))
        if at_once:
            return at_once[0]
        answer = self.finish
        return LATER

    def finish(self, response: Response) -> None:
        self.remoting.answer(self, response)

    def finish_frame(self, code: int, frame: Buffer) -> None:
        """Answer with a whole frame of response `code` that the caller built (the hot path of sends).

        The frame of a one-way call is not sent, and may be empty.
        """
        assert not self.finished, f"call {self.opaque} of {self.conn} is answered twice"
        self.finished = True
        if not self.flag & 2 and not self.conn.closing:
            self.remoting.outbox.send(self.conn, frame)


Handler = Callable[[Any, Call[Any]], Response]


class HandlerRow(NamedTuple):
    code: int
    decoder: RequestDecoder[Any]
    handler: Handler
    name: str


class Handlers:
    """The rows of one area or of a whole node."""

    def __init__(self, *parts: "Handlers") -> None:
        self.rows: dict[int, HandlerRow] = {}
        for part in parts:
            self.include(part)

    def handles(self, code: int, schema: type[E]) -> Callable[[Handler], Handler]:
        """Decorator: this function answers requests of `code`, whose extFields are a `schema`."""

        def register(function: Handler) -> Handler:
            self._add(HandlerRow(int(code), RequestDecoder(schema), function, code_name(code)))
            return function

        return register

    def include(self, part: "Handlers") -> None:
        for row in part.rows.values():
            self._add(row)

    def without(self, codes: Iterable[int]) -> "Handlers":
        """A table lacking these codes (the VIP port has no pull)."""
        left_out = {int(code) for code in codes}
        table = Handlers()
        table.rows = {code: row for code, row in self.rows.items() if code not in left_out}
        return table

    def _add(self, row: HandlerRow) -> None:
        other = self.rows.get(row.code)
        if other is not None:
            where, there = row.handler.__module__, other.handler.__module__
            raise RmqkitError(f"request code {row.code} ({row.name}) is handled by both {there} and {where}")
        self.rows[row.code] = row


def code_name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return str(int(code))


class Reply(NamedTuple):
    """The answer to a call of ours."""

    code: int
    ext: Mapping[str, Any]
    remark: str
    body: bytes
    version: int
    address: Address

    @property
    def is_ok(self) -> bool:
        return self.code == ResponseCode.SUCCESS

    def read(self, schema: type[E]) -> E:
        """The extFields as a schema. Raises RemoteProtocolError."""
        return from_ext(schema, self.ext)


class CallFailed(NamedTuple):
    """A call of ours that got no answer. `kind` is connect | lost | timeout | closed.

    `maybe_done`: the request may have reached the peer and may have been carried out.
    """

    kind: str
    address: Address
    text: str
    maybe_done: bool


Outcome = Reply | CallFailed
Then = Callable[[Outcome], None]
