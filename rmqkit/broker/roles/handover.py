"""Handover: an acting slave stops serving in favour of its returning master, without a gap.

The master lacks what the slave accepts after the master has copied it. So the slave stops in two
steps, and the last thing that the master copies is final:

1. With the announcement (906) the slave stops its special duties. It reports their progress (45,
   60) once its puts in flight are answered, so no message is delivered by both.
2. With the request for the consumer offsets (43) the handover is *sealed*. Until the route names
   the master, the slave grants no lock, holds pulls, and refuses the codes in `HANDOVER_CODES`
   (pop, acks, the end of a transaction) with SERVICE_NOT_AVAILABLE. Clients repeat those by a new
   route.
   An Apache master asks in the order 906, 45, 43, 60; our own asks 43 last.

The snapshot in the answer to 43 includes the leases of lock mode `loose`. Otherwise the master
would grant a queue to a second member while the first one still works on it.

Two hard cases:

- **A commit in flight.** UPDATE_CONSUMER_OFFSET is one-way in Apache's clients, so a refusal would
  never reach the client, and another member would begin at an older offset. The slave accepts such
  a commit as before. It sends it on to the master within `GIVE_MS` (`metadata_copy`), which merges
  it, whether online or not. An Apache master cannot receive it: it gets the offset with the
  client's next commit, which Apache's clients send every 5 s.
- **The master dies between the snapshot and its registration.** Its HA connection ends, or it is
  silent. Then the slave acts again, with everything that it has accepted: at once when the
  connection ends, `SEALED_MS` after the snapshot at the latest. The special duties resume after
  `HANDOVER_MS` at the latest. The returning master starts again with 906.

The states:

    off       ->  yielding
    yielding  ->  yielding, sealed, off
    sealed    ->  yielding, sealed, off

Source: `broker/.../BrokerPreOnlineService.java`. Apache's acting slave serves until the route has
changed, so its master lacks the last commits.
"""

from collections.abc import Callable
from enum import StrEnum

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.replication.ha_state import FOLLOWING
from rmqkit.broker.replication.replication import Replication
from rmqkit.broker.special.duties import SpecialDuties
from rmqkit.runtime.states import Moves, StateMachine

#: how long special duties stay suspended at most while the master returns
HANDOVER_MS = 10_000
#: how long clients are refused at most: a master that has copied all progress needs less
SEALED_MS = 5_000
#: the master's HA connection must exist this long after the announcement
FOLLOW_MS = 2_000
#: how long to wait at most for puts in flight
STILL_MS = 1000
LOOK_MS = 20
#: how often the slave checks whether the master is back, or gone again
BACK_LOOK_MS = 50
HANDOVER_DUTY, STILL_DUTY = "roles-handover", "roles-still"


class HandoverState(StrEnum):
    """The states of a handover; the module head describes them."""

    OFF = "off"
    #: the special duties are suspended
    YIELDING = "yielding"
    #: the master has copied the final snapshot
    SEALED = "sealed"


OFF, YIELDING, SEALED = HandoverState

MOVES = Moves(
    {
        OFF: (YIELDING,),
        YIELDING: (YIELDING, SEALED, OFF),
        SEALED: (YIELDING, SEALED, OFF),
    }
)


class Handover(StateMachine[HandoverState]):
    """The acting slave's side of its master's return."""

    def __init__(
        self,
        context: BrokerContext,
        replication: Replication,
        special: SpecialDuties,
        is_master_back: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        super().__init__(MOVES)
        self._context = context
        self._replication = replication
        self._special = special
        self._is_master_back = is_master_back
        self._changed = changed
        #: when the handover ends at the latest (monotonic ms); -1: no master is returning
        self._until_ms = -1
        #: from when on the master's HA connection must exist
        self._follow_ms = -1
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        context.duties.add(HANDOVER_DUTY, self._run, None)
        context.duties.add(STILL_DUTY, self._check_puts, None)

    def validate(self) -> None:
        assert self.is_on == (self._until_ms >= 0)

    @property
    def is_on(self) -> bool:
        """Whether the special duties are suspended."""
        return self.state is not OFF

    @property
    def is_sealed(self) -> bool:
        """Whether the master has copied the final snapshot, so that clients must wait for it."""
        return self.state is SEALED

    def begin(self) -> None:
        """Suspend special duties: the master has announced its return (906)."""
        now_ms = self._context.clock.mono_ms
        self.move(YIELDING)
        self._until_ms, self._follow_ms = now_ms + HANDOVER_MS, now_ms + FOLLOW_MS
        self._context.duties.wake(HANDOVER_DUTY, now_ms + BACK_LOOK_MS)
        self._changed()

    def seal(self) -> None:
        """Seal the handover: the master asks for the consumer offsets (43).

        Ignored unless a master has announced its return.
        """
        if self.is_on:
            now_ms = self._context.clock.mono_ms
            self.move(SEALED)
            self._until_ms = min(self._until_ms, now_ms + SEALED_MS)
            # From now on, a lost connection means that the master died. If there was none, only
            # the time ends the handover.
            has_followed = self._replication.follow.state == FOLLOWING
            self._follow_ms = now_ms if has_followed else self._until_ms
            self._changed()

    def end(self) -> None:
        if self.is_on:
            self.move(OFF)
            self._until_ms = -1
            self._changed()

    def _run(self, now_ms: int) -> int | None:
        """End the handover once the master is back, or gone again before it was registered."""
        if not self.is_on:
            return None
        is_gone = now_ms >= self._follow_ms and self._replication.follow.state != FOLLOWING
        # Before the handover is sealed, a name server may list the master although it is not back:
        # it has not noticed yet that the master was away.
        is_back = self._is_master_back() and (self.is_sealed or now_ms >= self._follow_ms)
        if now_ms >= self._until_ms or is_gone or is_back:
            self.end()
            return None
        return min(self._until_ms, now_ms + BACK_LOOK_MS)

    # --- puts in flight ---------------------------------------------------------------------------

    def when_still(self, then: Callable[[], None]) -> bool:
        """Return whether a put is in flight.

        If so, `then` is called once no put is in flight, or after `STILL_MS`.
        """
        if not self.is_on or not self._special.is_moving:
            return False
        now_ms = self._context.clock.mono_ms
        self._waiting.append((now_ms + STILL_MS, then))
        self._context.duties.wake(STILL_DUTY, now_ms + LOOK_MS)
        return True

    def _check_puts(self, now_ms: int) -> int | None:
        if self._waiting and (not self._special.is_moving or now_ms >= self._waiting[0][0]):
            waiting, self._waiting = self._waiting, []
            for _, then in waiting:
                then()
        return now_ms + LOOK_MS if self._waiting else None
