"""The two destinations of due messages: a master's own store, an acting master's escape."""

from collections.abc import Callable

from rmqkit.broker.escape.bridge import Escape
from rmqkit.broker.special.contract import Then
from rmqkit.store.contract import Put, PutResult

#: escapes in flight per line of work
ESCAPES_MAX = 8
RETRY_MAX_MS = 60_000
#: short, because the group waits for the retry; without a reachable master a retry costs only a
#: route lookup
ESCAPE_RETRY_MAX_MS = 2_000
#: short, because escaped messages are not in the acting master's own log: after a kill only the
#: saved progress records them
ESCAPE_SAVE_MS = 1_000
#: polling is needed, because replicated records arrive without an append by this broker
ESCAPE_POLL_MS = 100


class OwnStore:
    """A master appends due messages to its own log."""

    in_flight_max: int | None = None
    is_serial = False
    retry_max_ms = RETRY_MAX_MS
    save_max_ms: int | None = None
    poll_ms: int | None = None
    needs_dedup = False
    takes_internal = True
    why = ""

    def __init__(self, put: Callable[[Put, Then], PutResult]) -> None:
        self._put = put

    def put(self, put: Put, origin: str, then: Then) -> PutResult:
        return self._put(put, then)


class EscapeBridge:
    """An acting master may not append to its log. It puts due messages on the master of another
    group.

    An attempt may fail although the message was stored. So each queue has one put in flight, which
    keeps its order. After a failure only one message is retried until it succeeds; retrying all of
    them could store each of them several times.
    """

    in_flight_max: int | None = ESCAPES_MAX
    is_serial = True
    retry_max_ms = ESCAPE_RETRY_MAX_MS
    save_max_ms: int | None = ESCAPE_SAVE_MS
    poll_ms: int | None = ESCAPE_POLL_MS
    needs_dedup = True
    takes_internal = False

    def __init__(self, escape: Escape) -> None:
        self._escape = escape

    @property
    def why(self) -> str:
        return self._escape.why

    def put(self, put: Put, origin: str, then: Then) -> None:
        self._escape.put(put, origin, then)
