"""Pre-online: what a broker does after it knows its group's live members and before it serves.

A master calls every other member at the same time (`reverse_sync`). The member follows this master
from now on, and sends the progress of its special duties and consumers. Then our members have a
bounded time to send the metadata that is newer than the master's. The states of a master:

    asking   ->  waiting
    waiting  ->  ended
    ended    ->  (end)

A slave follows the master, if there is one, and copies the tables once from the live member with
the smallest id. It does not serve clients in two cases:

- Its log is no copy of its master's (foreign, refused).
- Its log is empty, the master is away and other members have messages. The slave may have the
  smallest id, and clients would then be sent to a broker without the group's messages.

The states of a slave:

    locating   ->  kept-away, copying, ended
    kept-away  ->  locating, ended
    copying    ->  kept-away, copied, ended
    copied     ->  kept-away, ended
    ended      ->  (end)

Every other wait is bounded. The result names what was not reached, and the broker goes online
without it. The broker stops waiting for a member that the name servers no longer list (or, if they
list nobody, that no longer answers). A member that appears meanwhile is called as well. Progress
only moves forward, and the member that sent it keeps it. So a broker that dies at any step can
begin again.

The caller calls `start` when `Online` has become PRE_ONLINE and `roles.others` is not empty. `then`
is called once, with a sentence about the result ("" if all is well), and the broker goes online.
`stop` ends it without calling `then`: the broker stops, or isolates itself and will call `start`
again.

Source: `broker/.../BrokerPreOnlineService.java`.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.metadata.copied_tables import CopiedTables
from rmqkit.broker.replication.ha_state import AHEAD, FOLLOWING, FOREIGN, REFUSED
from rmqkit.broker.replication.replication import Replication
from rmqkit.broker.roles.reverse_sync import LOOK_MS, ReverseSync
from rmqkit.broker.roles.role import MASTER_ID
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.runtime.states import Moves, StateMachine
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.schemas.admin import ExchangeHAInfoResponse

DUTY = "pre-online"
#: how long our members may take to send their newer metadata, after all were asked
IN_STEP_MS = 2000
#: how long a slave may take to follow its master and copy the tables
SLAVE_MS = 10_000
ASK_MS = 3000
ASKING = "asking the other members where their logs end, as its own log is empty"

#: called with a sentence about the result, "" if all is well
Then = Callable[[str], None]


class MasterState(StrEnum):
    #: copying progress from the members
    ASKING = "asking"
    #: waiting for newer metadata from our members
    WAITING = "waiting"
    ENDED = "ended"


MASTER_MOVES = Moves(
    {
        MasterState.ASKING: (MasterState.WAITING,),
        MasterState.WAITING: (MasterState.ENDED,),
        MasterState.ENDED: (),
    }
)


class SlaveState(StrEnum):
    #: asking for the master's HA address, and following its log
    LOCATING = "locating"
    #: not serving clients, because this log is no copy of the master's
    KEPT_AWAY = "kept-away"
    COPYING = "copying"
    COPIED = "copied"
    ENDED = "ended"


LOCATING, KEPT_AWAY, COPYING, COPIED, ENDED = SlaveState

SLAVE_MOVES = Moves(
    {
        LOCATING: (KEPT_AWAY, COPYING, ENDED),
        KEPT_AWAY: (LOCATING, ENDED),
        COPYING: (KEPT_AWAY, COPIED, ENDED),
        COPIED: (KEPT_AWAY, ENDED),
        ENDED: (),
    }
)


class PeerFacts(Protocol):
    """What `Roles` knows of the other members."""

    @property
    def others(self) -> Mapping[int, Address]: ...
    @property
    def known_before(self) -> dict[int, Address]: ...


class PreOnline:
    """Runs one pre-online at a time: a `MasterReturn` or a `SlaveJoin`."""

    def __init__(
        self,
        group: PeerFacts,
        context: BrokerContext,
        store: StorageEngine,
        replication: Replication,
        tables: CopiedTables,
    ) -> None:
        self._group = group
        self._context = context
        self._store = store
        self._replication = replication
        self._tables = tables
        #: the current step, for status; "" while none runs
        self.stage = ""
        self._flow: MasterReturn | SlaveJoin | None = None
        self._then: Then = lambda how: None
        context.duties.add(DUTY, self._run, None)

    def start(self, then: Then) -> None:
        self._then = then
        if self._replication.is_slave:
            self._flow = SlaveJoin(self._group, self._context, self._store, self._replication)
        else:
            self._flow = MasterReturn(self._group, self._context, self._store, self._replication, self._tables)
        self._context.duties.wake(DUTY, self._context.clock.mono_ms)

    def stop(self) -> None:
        self.stage = ""
        self._flow = None

    def _run(self, now_ms: int) -> int | None:
        flow = self._flow
        if flow is None:
            return None
        how = flow.step(now_ms)
        if self._flow is not flow:
            return None
        if how is None:
            self.stage = flow.stage
            return now_ms + LOOK_MS
        self.stop()
        self._then(how)
        return None


class MasterReturn(StateMachine[MasterState]):
    """The pre-online of a master: copies newer progress from every other member."""

    def __init__(
        self,
        group: PeerFacts,
        context: BrokerContext,
        store: StorageEngine,
        replication: Replication,
        tables: CopiedTables,
    ) -> None:
        super().__init__(MASTER_MOVES)
        self._group = group
        self._context = context
        self._store = store
        self._replication = replication
        self._tables = tables
        self.stage = ""
        self._members: dict[int, ReverseSync] = {}
        #: deadline in monotonic ms for our members' newer metadata; -1 until all members were asked
        self._until_ms = -1
        replication.metadata_server.stop_waiting(is_complete=False)

    def validate(self) -> None:
        assert (self.state is MasterState.ASKING) == (self._until_ms < 0)
        assert self.state is MasterState.ASKING or all(each.is_done for each in self._members.values())

    def step(self, now_ms: int) -> str | None:
        """Take the next step. Return the result once it is over, None before."""
        if self.state is MasterState.ASKING:
            self._ask(now_ms)
            asked = [member for member in self._members.values() if not member.is_done]
            if asked:
                self.stage = "copying progress: " + ", ".join(f"member {each.broker_id} {each.stage}" for each in asked)
                return None
            self.move(MasterState.WAITING)
            self._until_ms = now_ms + IN_STEP_MS
        alive = self._group.others
        untold = sorted(each for each in self._replication.metadata_server.waited_for if each in alive)
        if untold and now_ms < self._until_ms:
            self.stage = "waiting for newer metadata from members: " + ", ".join(map(str, untold))
            return None
        self.move(MasterState.ENDED)
        return self._end(untold)

    def _ask(self, now_ms: int) -> None:
        alive = self._group.others
        for broker_id, address in sorted(alive.items()):
            member = self._members.get(broker_id)
            if member is None or member.address != address:
                member = ReverseSync(self._context, self._store, self._replication, self._tables, broker_id, address)
                self._members[broker_id] = member
        for broker_id, member in self._members.items():
            if broker_id not in alive:
                member.leave_out("the name servers no longer list it")
            member.step(now_ms)

    def _end(self, untold: list[int]) -> str:
        found = [f"member {each.broker_id} ({each.address}): {each.why}" for each in self._members.values() if each.why]
        found += [f"member {broker_id} has not sent all its newer metadata within {IN_STEP_MS} ms" for broker_id in untold]
        self._replication.metadata_server.stop_waiting(is_complete=not found)
        self._tables.offsets.save()
        self._tables.special.save()
        return "; ".join(found)


def why_no_copy(replication: Replication) -> str:
    """Return why a slave's log is no copy of its master's; "" if it may be one."""
    follow = replication.follow
    return follow.why if follow.state in (FOREIGN, REFUSED) else ""


class SlaveJoin(StateMachine[SlaveState]):
    """The pre-online of a slave: follows the master and copies the tables once."""

    def __init__(self, group: PeerFacts, context: BrokerContext, store: StorageEngine, replication: Replication) -> None:
        super().__init__(SLAVE_MOVES)
        self._group = group
        self._context = context
        self._store = store
        self._replication = replication
        self.stage = "asking the master for its HA address"
        self._until_ms = context.clock.mono_ms + SLAVE_MS
        self._ask_ms = context.clock.mono_ms
        #: the ends of the other members' logs, by id, for those that have answered
        self._ends: dict[int, int] = {}
        self._ends_asked_ms = -1

    def validate(self) -> None:
        assert (self.state is KEPT_AWAY) == (self.stage == ASKING or self.stage.startswith("kept away"))
        assert self.state in (LOCATING, KEPT_AWAY, ENDED) or self.stage.startswith("copying")

    def step(self, now_ms: int) -> str | None:
        """Take the next step. Return the result once it is over, None before."""
        follow, members = self._replication.follow, self._group.others
        no_copy = why_no_copy(self._replication) or self._why_empty(members, now_ms)
        if no_copy:
            if self.state is not KEPT_AWAY:
                self.move(KEPT_AWAY)
            self.stage = ASKING if no_copy is ASKING else f"kept away from clients: {no_copy}"
            self._until_ms = now_ms + SLAVE_MS
            return None
        if self.state is COPIED or not members:
            return self._end(follow.why if follow.state == AHEAD else "")
        if now_ms >= self._until_ms:
            why = self._replication.metadata.failure or follow.why
            return self._end(f"not finished within {SLAVE_MS} ms: {self.stage} ({why})")
        if self.state is KEPT_AWAY:
            # A master may be alive by now.
            self.move(LOCATING)
            self.stage = "asking the master for its HA address"
        if self.state is LOCATING:
            self._follow_or_copy(members, now_ms)
        return None

    def _follow_or_copy(self, members: Mapping[int, Address], now_ms: int) -> None:
        if MASTER_ID in members and self._replication.follow.state not in (FOLLOWING, AHEAD):
            if now_ms >= self._ask_ms:
                self._ask_ms = now_ms + ASK_MS
                self._ask(members[MASTER_ID])
            return
        self.move(COPYING)
        self.stage = f"copying tables from member {min(members)}"
        self._replication.metadata.again()
        self._replication.metadata.when_copied(self._copied)

    def _end(self, how: str) -> str:
        self.move(ENDED)
        self.stage = ""
        return how

    def _why_empty(self, members: Mapping[int, Address], now_ms: int) -> str:
        """Return why an empty slave does not serve clients yet; "" if it may.

        Without a master, clients would read from a slave that has lost its disk, and not from the
        members that have the messages.
        """
        if MASTER_ID in members or not members or self._store.offset_written > self._store.offset_min:
            return ""
        if self._ends_asked_ms < 0 or now_ms >= self._ends_asked_ms + ASK_MS:
            if self._ends_asked_ms >= 0 and not any(self._ends.get(broker_id) for broker_id in members):
                return ""
            self._ends_asked_ms = now_ms
            for broker_id, address in members.items():
                self._ask_end(broker_id, address)
        longer = [broker_id for broker_id in members if self._ends.get(broker_id)]
        if longer:
            return f"its log is empty, member {longer[0]}'s ends at {self._ends[longer[0]]}, and the master is away"
        is_known = all(broker_id in self._ends for broker_id in members)
        return "" if is_known else ASKING

    def _ask_end(self, broker_id: int, address: Address) -> None:
        def answered(outcome: Outcome) -> None:
            if isinstance(outcome, CallFailed):
                self._group.known_before.pop(broker_id, None)
                return
            try:
                self._ends[broker_id] = outcome.read(ExchangeHAInfoResponse).log_end or 0 if outcome.is_ok else 0
            except RemoteProtocolError:
                self._ends[broker_id] = 0

        self._replication.calls.locate(address, answered)

    def _ask(self, master: Address) -> None:
        def answered(outcome: Outcome) -> None:
            if isinstance(outcome, CallFailed):
                self._group.known_before.pop(MASTER_ID, None)
            if isinstance(outcome, CallFailed) or not outcome.is_ok:
                self._ask_ms = self._context.clock.mono_ms + 5 * LOOK_MS
                return
            try:
                said = outcome.read(ExchangeHAInfoResponse)
                address = Address.parse(said.master_address) if said.master_address else master
                ha_address = Address.parse(said.master_ha_address) if said.master_ha_address else None
            except (RemoteProtocolError, ValueError):
                return
            if ha_address is not None:
                if self.state is LOCATING:
                    self.stage = f"following the master {address}"
                self._replication.follow.learned(address, ha_address)

        self._replication.calls.locate(master, answered)

    def _copied(self) -> None:
        if self.state is COPYING:
            self.move(COPIED)
            self._context.duties.wake(DUTY, self._context.clock.mono_ms)
