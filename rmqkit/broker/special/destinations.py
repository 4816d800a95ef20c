"""The two destinations of due messages: the own store of a master, the escape of an acting slave."""

from collections.abc import Callable

from rmqkit.broker.escape.bridge import Escape
from rmqkit.broker.special.contract import Then
from rmqkit.store.contract import Put

#: escapes in flight for one line of work
ESCAPES_MAX = 8
RETRY_MAX_MS = 60_000
#: while a group has no master a retry costs no more than a look at the routes, and the group waits for it
ESCAPE_RETRY_MAX_MS = 2_000
#: what an acting slave has put is in no log of its own: after a kill only the saved progress knows of it
ESCAPE_SAVE_MS = 1_000
#: a replicated record arrives without an append by this broker
ESCAPE_POLL_MS = 100


class OwnStore:
    """A master appends due messages to its own log."""

    in_flight_max: int | None = None
    is_serial = False
    retry_max_ms = RETRY_MAX_MS
    save_max_ms: int | None = None
    poll_ms: int | None = None
    needs_dedup = False
    why = ""

    def __init__(self, put: Callable[[Put, Then], None]) -> None:
        self._put = put

    def put(self, put: Put, origin: str, then: Then) -> None:
        self._put(put, then)


class EscapeBridge:
    """An acting slave may not append to its log. Its due messages go to the master of another group.

    An attempt may fail for a whole queue, and may have been carried out nevertheless. So each queue has
    one put in flight, which keeps its order; and after a failure one message alone is tried, or each of
    them might be stored again and again."""

    in_flight_max: int | None = ESCAPES_MAX
    is_serial = True
    retry_max_ms = ESCAPE_RETRY_MAX_MS
    save_max_ms: int | None = ESCAPE_SAVE_MS
    poll_ms: int | None = ESCAPE_POLL_MS
    needs_dedup = True

    def __init__(self, escape: Escape) -> None:
        self._escape = escape

    @property
    def why(self) -> str:
        return self._escape.why

    def put(self, put: Put, origin: str, then: Then) -> None:
        self._escape.put(put, origin, then)
