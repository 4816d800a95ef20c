"""The destinations of due messages: a master's own store, an acting master's escape.

The store of a master whose slaves may act for it is guarded: a message is put only when contact
with the group is proven (`roles/group_contact.py`). Until then it waits here, in order, and counts
as in flight. All messages that wait are put when the proof arrives, so at most the messages of one
turn are not replicated when the master is isolated. Messages for internal topics do not wait,
because no consumer reads them. The exception are messages that are released later from an internal
topic (`GOES_ON`): the member that acts releases the original of a half or a timer that an isolated
master has put again.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from rmqkit.broker.escape.bridge import Escape
from rmqkit.broker.special.contract import Then
from rmqkit.store.contract import Put, PutResult, PutRun, PutStatus
from rmqkit.wire.topic_names import HALF_TOPIC, SEND_FORBIDDEN, SYSTEM_PREFIX, TIMER_TOPIC

#: internal topics with messages that are released later
GOES_ON = (HALF_TOPIC, TIMER_TOPIC)

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


class OwnPuts(Protocol):
    """What a destination needs of `Puts`."""

    def put(self, put: Put, then: Then) -> PutResult: ...
    def put_run(self, run: PutRun, then: Then) -> int: ...


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

    def __init__(self, puts: OwnPuts) -> None:
        self._put = puts.put
        self._put_run = puts.put_run

    def put(self, put: Put, origin: str, then: Then) -> PutResult | None:
        return self._put(put, then)

    def put_run(self, run: PutRun, then: Then) -> int:
        return self._put_run(run, then)

    def withdraw(self) -> None:
        """Nothing waits here."""


class Contact(Protocol):
    """What a guarded store needs of `GroupContact`."""

    on_proof: Callable[[], None]
    why: str

    @property
    def is_needed(self) -> bool: ...
    @property
    def is_proven(self) -> bool: ...
    def ask(self) -> None: ...


class GuardedStore(OwnStore):
    """The own store of a master for which a slave may act."""

    def __init__(self, puts: OwnPuts, contact: Contact) -> None:
        super().__init__(puts)
        self._contact = contact
        contact.on_proof = self._proven
        #: messages that wait for contact
        self._waiting: deque[tuple[Put, Then]] = deque()

    @property
    def why(self) -> str:  # type: ignore[override]
        return self._contact.why

    def put(self, put: Put, origin: str, then: Then) -> PutResult | None:
        contact = self._contact
        is_internal = put.topic in SEND_FORBIDDEN or put.topic.startswith(SYSTEM_PREFIX)
        if is_internal and put.topic not in GOES_ON:
            return self._put(put, then)
        if not self._waiting and (contact.is_proven or not contact.is_needed):
            return self._put(put, then)
        self._waiting.append((put, then))
        contact.ask()
        return None

    def put_run(self, run: PutRun, then: Then) -> int:
        """Put the messages if none has to wait; those that have to are given to `put`."""
        if self._waiting or (self._contact.is_needed and not self._contact.is_proven):
            return 0
        return self._put_run(run, then)

    def _proven(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for put, then in waiting:
            self._put(put, then)

    def withdraw(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, then in waiting:
            then(PutStatus.SERVICE_NOT_AVAILABLE)


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

    def put_run(self, run: PutRun, then: Then) -> int:
        return 0

    def withdraw(self) -> None:
        """Nothing waits here: puts in flight end by themselves."""
