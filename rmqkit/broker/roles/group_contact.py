"""Contact of a master with its group: whether another member may have taken over unnoticed.

A master that is isolated continues for a while without noticing it. What its special duties release
meanwhile is in its own log only, so the member that acts for it releases the same messages again.
So a master releases a due message only when contact was proven in the same millisecond
(`special/destinations.py` holds messages back until then):

1. It asks every other member with 906 (`MemberCalls.contact`). A member answers whether it, or the
   name servers that it hears, have given up this master. Contact is proven when the last answer
   arrives, if none has given it up. If a member is silent, the other answers are old by the time
   that this is known, so those members are asked once more. Apache's members answer too, but never
   report that they have given up the master.
2. If no member answers, the slaves may be down, so the master asks the name servers. An answer to a
   poll that was sent since then proves contact: they still list this master, so no slave acts. If
   they do not, `MemberPolls` isolates the master before it evaluates this round.
3. If nothing answers, the master asks again after `RETRY_MS`. What is due waits.

An answer counts only within its timeout, far below `brokerNotActiveTimeoutMillis`. So no answer
from before an isolation proves contact afterwards. A message that is released in the round trip in
which the isolation begins may still be released twice: nobody can know whether its copy arrived.

The states:

    idle     ->  members
    members  ->  idle, members, names, pause
    names    ->  idle, pause
    pause    ->  members, idle

While no name server answers, the master asks without a due message as well, once per heartbeat.
`is_lost` is then true after a round without proof, and the roles suspend all special duties. They
resume with the next proof. So when only the name servers are down, the master continues.

No contact is needed without `enableSlaveActingMaster`, in a group that never had another member,
and while name servers answer and list no other member.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Protocol

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.replication.member_calls import MemberCalls
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.runtime.states import Moves, StateMachine
from rmqkit.wire.schemas.admin import ExchangeHAInfoResponse

DUTY = "roles-contact"
#: how long members, and after them the name servers, may take to answer
ANSWER_MS = 300
#: pause after a round without proof
RETRY_MS = 100
#: how often the master checks whether a name server has answered
LOOK_MS = 5


class ContactState(StrEnum):
    """The states of a round; the module head describes them."""

    IDLE = "idle"
    MEMBERS = "members"
    NAMES = "names"
    PAUSE = "pause"


IDLE, MEMBERS, NAMES, PAUSE = ContactState

MOVES = Moves(
    {
        IDLE: (MEMBERS,),
        MEMBERS: (IDLE, MEMBERS, NAMES, PAUSE),
        NAMES: (IDLE, PAUSE),
        PAUSE: (MEMBERS, IDLE),
    }
)


class ContactFacts(Protocol):
    """What `Roles` knows of the other members and of the name servers."""

    @property
    def reachable(self) -> Mapping[int, Address]:
        """The members that may follow or have taken over; empty if there is none to ask."""

    @property
    def is_cut_off(self) -> bool: ...
    @property
    def heard_ms(self) -> int:
        """When the newest poll was sent that a name server has answered (monotonic ms)."""

    def hint(self) -> None:
        """Poll the name servers at once."""


class GroupContact(StateMachine[ContactState]):
    """Proves contact in rounds. `ask` begins one, `on_proof` reports success."""

    def __init__(self, context: BrokerContext, calls: MemberCalls, group: ContactFacts) -> None:
        super().__init__(MOVES)
        self._context = context
        self._calls = calls
        self._group = group
        #: called when contact is proven
        self.on_proof: Callable[[], None] = lambda: None
        #: called when `is_lost` has changed
        self.on_change: Callable[[], None] = lambda: None
        #: why the last round proved nothing; "" if it did
        self.why = ""
        self._is_lost = False
        #: whether this broker is an online master
        self._is_on = False
        self._proven_ms = -1
        #: number of the current round; answers to earlier rounds are ignored
        self._round = 0
        #: members of this round that have not answered
        self._waiting: set[int] = set()
        #: members of this round that have answered
        self._heard: dict[int, Address] = {}
        self._given_up = ""
        self._names_asked_ms = -1
        context.duties.add(DUTY, self._run, None)

    def validate(self) -> None:
        assert (self.state is MEMBERS) == bool(self._waiting)
        assert self._is_on or self.state is IDLE
        assert self._is_on or not self._is_lost

    @property
    def is_needed(self) -> bool:
        """Whether a message may be released only when contact is proven."""
        return self._is_on and (self._is_lost or bool(self._group.reachable))

    @property
    def is_proven(self) -> bool:
        """Whether contact was proven in this millisecond."""
        return self._proven_ms == self._context.clock.mono_ms

    @property
    def is_lost(self) -> bool:
        """Whether no name server answers, and no member has answered the last round."""
        return self._is_lost

    def set_on(self, is_on: bool) -> None:
        """Start or stop: this broker became an online master, or is none any more."""
        if is_on == self._is_on:
            return
        self._is_on = is_on
        if not is_on:
            self._round += 1
            self._waiting.clear()
            self.why, self._is_lost, self._proven_ms = "", False, -1
            if self.state is not IDLE:
                self._to_idle()

    def ask(self) -> None:
        """Begin a round, unless one is in flight: a message is due, or no name server answers."""
        if self._is_on and self.state is IDLE:
            self._begin(self._group.reachable)

    def _to_idle(self) -> None:
        if self.state is MEMBERS:
            self._waiting.clear()
        self.move(IDLE)

    # --- one round --------------------------------------------------------------------------------

    def _begin(self, members: Mapping[int, Address]) -> None:
        self._round += 1
        self._heard, self._given_up = {}, ""
        self._waiting = set(members)
        self.move(MEMBERS)
        if not members:
            self._prove()  # no other member can have taken over
        for broker_id, address in members.items():
            self._calls.contact(address, self._timeout_ms(), partial(self._answered, self._round, broker_id, address))

    def _timeout_ms(self) -> int:
        return min(ANSWER_MS, self._context.config.acting.not_active_ms // 4)

    def _answered(self, number: int, broker_id: int, address: Address, outcome: Outcome) -> None:
        if number != self._round or self.state is not MEMBERS:
            return
        self._waiting.discard(broker_id)
        has_answered = not isinstance(outcome, CallFailed)
        if not isinstance(outcome, CallFailed):
            self._heard[broker_id] = address
            try:
                if outcome.is_ok and outcome.read(ExchangeHAInfoResponse).master_given_up:
                    self._given_up = f"member {broker_id} has given up this master"
            except RemoteProtocolError:
                pass  # an answer that cannot be read still shows that the member is alive
        if not self._waiting:
            self._judge(has_answered)

    def _judge(self, has_answered: bool) -> None:
        """End the part of the round in which members are asked.

        `has_answered`: the last member has answered just now. Otherwise it is silent.
        """
        if self._given_up:
            self._pause(self._given_up)
        elif has_answered:
            self._prove()
        elif self._heard:
            self._begin(self._heard)
        else:
            now_ms = self._context.clock.mono_ms
            self.move(NAMES)
            self._names_asked_ms = now_ms
            self._group.hint()
            self._context.duties.wake(DUTY, now_ms + LOOK_MS)

    def _prove(self) -> None:
        self._proven_ms = self._context.clock.mono_ms
        self._to_idle()
        self.why = ""
        self._set_lost(False)
        self.on_proof()
        self._plan()

    def _pause(self, why: str) -> None:
        if why != self.why:
            self.why = why
            self._context.log.warning("no-contact", why=why)
        self.move(PAUSE)
        self._context.duties.wake(DUTY, self._context.clock.mono_ms + RETRY_MS)
        self._set_lost(self._group.is_cut_off)

    def _set_lost(self, is_lost: bool) -> None:
        if is_lost != self._is_lost:
            self._is_lost = is_lost
            self.on_change()

    def _plan(self) -> None:
        """While no name server answers, ask again after a heartbeat."""
        if self._group.is_cut_off and self._is_on:
            now_ms = self._context.clock.mono_ms
            self._context.duties.wake(DUTY, now_ms + self._context.config.acting.heartbeat_ms)

    def _run(self, now_ms: int) -> int | None:
        if self.state is NAMES:
            if self._group.heard_ms >= self._names_asked_ms:
                self._prove()
            elif now_ms < self._names_asked_ms + self._timeout_ms():
                return now_ms + LOOK_MS
            else:
                self._pause("no member of its group and no name server answers")
        elif self.state is PAUSE or (self.state is IDLE and self._is_on and self._group.is_cut_off):
            self._begin(self._group.reachable)
        return None
