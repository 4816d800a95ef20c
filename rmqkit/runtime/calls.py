"""Requests and responses as values, and the table of handlers by request code.

A handler is a function `(node, call) -> Response | LATER`. It either returns a `Response`, or parks
the call and returns `LATER`; never both. A parked call must end exactly once, by `call.finish`; if
the connection is closed by then, the response is dropped. `call.later` is for a handler whose
response comes through a callback that may be called immediately.

    rows = Handlers()

    @rows.handles(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequest, access=on_topic(SUB, GET))
    def max_offset(broker, call):
        return call.ok(GetMaxOffsetResponse(offset=...))

`access` is the rule of access control for the code (`rmqkit.access.rules`); a row without one does
not construct.

For bad input a handler raises `Refused(code, remark)` or returns `call.error(code, remark)`.

Before its first change of state, a handler calls `call.changing()`. Until then any other exception
is logged and answered with SYSTEM_ERROR. After it, an exception is a broken invariant and stops the
node.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from rmqkit.errors import RmqkitError
from rmqkit.runtime.connection import Address, Buffer, Connection
from rmqkit.wire.codes import OwnRequestCode, RequestCode, ResponseCode
from rmqkit.wire.remoting.frames import CODEC_JSON
from rmqkit.wire.remoting.headers import RequestDecoder, decoder_of
from rmqkit.wire.schema import Ext, from_ext

if TYPE_CHECKING:
    from rmqkit.runtime.remoting import Remoting

E = TypeVar("E", bound=Ext)


class Response(NamedTuple):
    """The response to a request.

    `body` is one buffer, or several that are sent one after the other.

    `head` is the frame up to the body, if the handler has encoded it itself (the hot path of
    pulls). It then contains `ext` and `remark`, and `body` must be a sequence.
    """

    code: int
    ext: Ext | Mapping[str, str] | None = None
    body: Buffer | Sequence[Buffer] = b""
    remark: str | None = None
    head: Buffer | None = None


#: remark for a peer on another machine that tries to change settings
REMOTE_UPDATE_REFUSED = (
    "settings can only be changed on the node's own machine; remoteConfigUpdateEnable=true in its file allows others"
)

#: returned by a handler that has parked the call
LATER = Response(-1)


class Refused(RmqkitError):
    """Ends a handler with an error response. Raise it only before any state was changed.

    If `closes`, the connection is closed instead.
    """

    def __init__(self, code: int, remark: str, *, closes: bool = False) -> None:
        super().__init__(remark)
        self.code = code
        self.closes = closes


class AccessRule(Protocol):
    """What a request code demands of its caller (`rmqkit.access.rules.Rule`)."""

    @property
    def text(self) -> str:
        """The short form in the documentation."""

    @property
    def is_hint(self) -> bool:
        """Whether a name server may send it without a signature."""

    @property
    def is_change(self) -> bool:
        """Whether the audit notes the request when it has succeeded."""

    @property
    def refusal(self) -> Callable[[Any, "Call[Any]"], str | None]:
        """Function that returns why a caller may not make a call, None if it may."""


class CallerRights(Protocol):
    """Who sent a request, and what it may do (`rmqkit.access.caller.Principal`)."""

    name: str
    is_inner: bool

    def check(self, call: "Call[Any]") -> None:
        """Raise Refused unless the rule of the request code allows the call."""

    def answered(self, call: "Call[Any]", code: int) -> None:
        """Note the outcome of the call, if it was a change."""

    def demand(self, rule: AccessRule, call: "Call[Any]") -> None: ...
    def visible(self, kind: Any, names: Collection[str]) -> Collection[str]: ...


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
    #: header format of the request and of its response: CODEC_JSON or CODEC_ROCKETMQ
    codec: int = CODEC_JSON
    finished: bool = False
    changed: bool = False
    #: who sent it; None if access control is off, or if this node sent it to itself
    caller: CallerRights | None = None

    @property
    def oneway(self) -> bool:
        return bool(self.flag & 2)

    @property
    def is_alive(self) -> bool:
        """Whether a response can still reach the peer."""
        return not self.finished and not self.conn.closing

    def ok(self, ext: Ext | Mapping[str, str] | None = None, body: Buffer | Sequence[Buffer] = b"") -> Response:
        return Response(0, ext, body)

    def error(self, code: int, remark: str) -> Response:
        return Response(code, None, b"", remark)

    def check_again(self) -> None:
        """Raise Refused if the caller has lost its right since the call was parked."""
        if self.caller is not None:
            self.caller.check(self)

    def demand(self, rule: AccessRule) -> None:
        """Raise Refused unless the caller satisfies a rule about what the handler has read."""
        if self.caller is not None:
            self.caller.demand(rule, self)

    def visible(self, kind: Any, names: Collection[str], *, whole: AccessRule | None = None) -> Collection[str]:
        """Return the names of topics or groups that the caller may see in a list.

        A caller that satisfies `whole` sees all of it.
        """
        if self.caller is None or (whole is not None and whole.refusal(self.caller, self) is None):
            return names
        return self.caller.visible(kind, names)

    @property
    def user(self) -> str:
        """The caller's name, "" without access control."""
        return "" if self.caller is None else self.caller.name

    def changing(self) -> None:
        """Declare that state changes from here on; later exceptions stop the node."""
        self.changed = True

    def later(self, begin: Callable[[Answer], object]) -> Response:
        """Answer through a callback; return what the handler has to return.

        `begin` gets a function that takes the response. It calls that function once, immediately or
        in a later turn.
        """
        at_once: list[Response] = []
        answer: Answer = at_once.append
        begin(lambda response: answer(response))
        if at_once:
            return at_once[0]
        answer = self.finish
        return LATER

    def finish(self, response: Response) -> None:
        """Send the response of a parked call."""
        self.remoting.answer(self, response)

    def finish_framed(self, code: int) -> bool:
        """End the call with a frame that the caller encodes and sends (the hot path of sends).

        `code` is the response code in the frame. Return whether the peer waits for the frame.
        """
        assert not self.finished, f"call {self.opaque} of {self.conn} is answered twice"
        self.finished = True
        return not self.flag & 2 and not self.conn.closing


Handler = Callable[[Any, Call[Any]], Response]


class HandlerRow(NamedTuple):
    """A request code, the decoder of its header, its handler, and what it demands of its caller."""

    code: int
    decoder: RequestDecoder[Any]
    handler: Handler
    name: str
    access: AccessRule


class Handlers:
    """A table of handlers by request code, for one area or for a whole node."""

    def __init__(self, *parts: "Handlers") -> None:
        self.rows: dict[int, HandlerRow] = {}
        for part in parts:
            self.include(part)

    def handles(self, code: int, schema: type[E], *, access: AccessRule) -> Callable[[Handler], Handler]:
        """Decorate a function that handles requests of `code`, whose extFields have this schema.

        `access` is what the code demands of its caller. Raises RmqkitError if it is no rule.
        """
        if not callable(getattr(access, "refusal", None)):
            raise RmqkitError(
                f"request code {int(code)} ({code_name(code)}) has no access rule: use one of rmqkit.access.rules"
            )

        def register(function: Handler) -> Handler:
            self._add(HandlerRow(int(code), decoder_of(schema), function, code_name(code), access))
            return function

        return register

    def include(self, part: "Handlers") -> None:
        """Add all rows of another table.

        Raises RmqkitError if a code already has a handler.
        """
        for row in part.rows.values():
            self._add(row)

    def without(self, codes: Iterable[int]) -> "Handlers":
        """Return a copy of the table without these codes (the VIP port does not serve pulls)."""
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
    """Return the name of a request code, or its number if it is unknown."""
    for codes in (RequestCode, OwnRequestCode):
        try:
            return codes(code).name
        except ValueError:
            continue
    return str(int(code))


class Reply(NamedTuple):
    """A peer's response to a request of this node."""

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
        """Return the extFields as a schema value. Raises RemoteProtocolError."""
        return from_ext(schema, self.ext)


class CallFailed(NamedTuple):
    """A request of this node that got no response. `kind` is connect, lost, timeout or closed.

    `maybe_done` is true if the request may have reached the peer and may have been executed.
    """

    kind: str
    address: Address
    text: str
    maybe_done: bool


Outcome = Reply | CallFailed
Then = Callable[[Outcome], None]
