"""Pre-online: what a broker does between knowing who else of its group is alive and serving.

    master                every other member is asked at the same time (`reverse`): it shall follow this master from now
                          on, and tells how far delay levels and consumers are; then the members of ours may still tell
                          what they know better, a bounded time
    slave, master there   follows it and copies its tables once
    slave, no master      copies the tables of the head of the group once
    slave, no copy        one whose master refuses it or has another log, and one with an empty log while the master is away
                          and others have more, stays away from clients: its id may be the smallest, and they would be
                          sent to what has no messages of the group

Every other wait is bounded; what was not reached is told, and the broker is online without it. A member that the name
servers list no more (or, if they list nobody, that answers no more) is waited for no longer; one that appears meanwhile is
asked as well. Nothing is given up on the way: what is taken only ever moves progress forward, and whoever told it keeps it,
so a broker that dies at any step begins anew.

`start` is called when `Online` has become PRE_ONLINE, with at least one of `roles.others`; `then` is called once, with a
sentence about how it went ("" is all well), and the broker is online. `stop` ends it without a word: the broker stops, or
isolates itself anew and will start it again.

Source: `broker/.../BrokerPreOnlineService.java`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rmqkit.broker.replication.ha_state import AHEAD, FOLLOWING, FOREIGN, REFUSED
from rmqkit.broker.roles.reverse_sync import LOOK_MS, Reverse
from rmqkit.broker.roles.role import MASTER_ID
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.wire.schemas.admin import ExchangeHAInfoResponse

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker

DUTY = "pre-online"
#: how long members of ours may take to tell what they know better
IN_STEP_MS = 2000
#: how long a slave tries to follow its master, and to copy tables
SLAVE_MS = 10_000
ASK_MS = 3000
ASKING = "asking the others of the group what they have, as its own log is empty"

#: how it went, for people
Then = Callable[[str], None]


class PreOnline:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        #: what it is doing, "" when nothing
        self.stage = ""
        self._way: MasterWay | SlaveWay | None = None
        self._then: Then = lambda how: None
        broker.duties.add(DUTY, self._run, None)

    def start(self, then: Then) -> None:
        self._then = then
        self._way = SlaveWay(self._broker) if self._broker.replication.is_slave else MasterWay(self._broker)
        self._broker.duties.wake(DUTY, self._broker.clock.mono_ms)

    def stop(self) -> None:
        self.stage = ""
        self._way = None

    def _run(self, now_ms: int) -> int | None:
        way = self._way
        if way is None:
            return None
        how = way.look(now_ms)
        if self._way is not way:
            return None
        if how is None:
            self.stage = way.stage
            return now_ms + LOOK_MS
        self.stop()
        self._then(how)
        return None


class MasterWay:
    """How a master comes back."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.stage = ""
        self._members: dict[int, Reverse] = {}
        #: until when members may tell what they know better, -1: they are being asked
        self._until_ms = -1
        broker.replication.metadata.told.wait_no_more(is_complete=False)

    def look(self, now_ms: int) -> str | None:
        """How it went, once it is over."""
        if self._until_ms < 0:
            self._ask(now_ms)
            asked = [member for member in self._members.values() if not member.is_done]
            if asked:
                self.stage = "taking progress back: " + ", ".join(f"member {each.broker_id} {each.stage}" for each in asked)
                return None
            self._until_ms = now_ms + IN_STEP_MS
        told = self._broker.replication.metadata.told
        alive = self._broker.roles.others
        untold = sorted(broker_id for broker_id in told.waited_for if broker_id in alive)
        if untold and now_ms < self._until_ms:
            self.stage = "waiting until members have told what they know better: " + ", ".join(map(str, untold))
            return None
        return self._end(untold)

    def _ask(self, now_ms: int) -> None:
        alive = self._broker.roles.others
        for broker_id, address in sorted(alive.items()):
            member = self._members.get(broker_id)
            if member is None or member.address != address:
                member = self._members[broker_id] = Reverse(self._broker, broker_id, address)
                member.start()
        for broker_id, member in self._members.items():
            if broker_id not in alive:
                member.leave_out("the name servers list it no more")
            member.look(now_ms)

    def _end(self, untold: list[int]) -> str:
        broker = self._broker
        found = [f"member {each.broker_id} ({each.address}): {each.why}" for each in self._members.values() if each.why]
        found += [f"member {broker_id} has not told all it knows within {IN_STEP_MS} ms" for broker_id in untold]
        broker.replication.metadata.told.wait_no_more(is_complete=not found)
        broker.offsets.save()
        broker.special.save()
        return "; ".join(found)


def why_no_copy(broker: "Broker") -> str:
    """Why a slave's log is no copy of its master's, "" when it may be one."""
    follow = broker.replication.follow
    return follow.why if follow.state in (FOREIGN, REFUSED) else ""


class SlaveWay:
    """How a slave joins."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.stage = "asking the master where its log is to be had"
        self._until_ms = broker.clock.mono_ms + SLAVE_MS
        self._ask_ms = broker.clock.mono_ms
        self._is_copying = False
        self._is_copied = False
        #: where the logs of the others end, as far as they have told it
        self._ends: dict[int, int] = {}
        self._ends_asked_ms = -1

    def look(self, now_ms: int) -> str | None:
        """How it went, once it is over."""
        broker = self._broker
        follow, members = broker.replication.follow, broker.roles.others
        no_copy = why_no_copy(broker) or self._why_empty(members, now_ms)
        if no_copy:
            self.stage = ASKING if no_copy is ASKING else f"kept away from clients: {no_copy}"
            # Begun anew when that is over: a master may be there by then.
            self._until_ms, self._is_copying, self._is_copied = now_ms + SLAVE_MS, False, False
            return None
        if self._is_copied or not members:
            return follow.why if follow.state == AHEAD else ""
        if now_ms >= self._until_ms:
            return f"not within {SLAVE_MS} ms: {self.stage} ({broker.replication.metadata.failure or follow.why})"
        if self._is_copying:
            return None
        if 0 in members and follow.state not in (FOLLOWING, AHEAD):
            if now_ms >= self._ask_ms:
                self._ask_ms = now_ms + ASK_MS
                self._ask(members[0])
            return None
        self._is_copying = True
        self.stage = f"copying tables from member {min(members)}"
        broker.replication.metadata.again()
        broker.replication.metadata.when_copied(self._copied)
        return None

    def _why_empty(self, members: Mapping[int, Address], now_ms: int) -> str:
        """Without a master one that lost its disk would be read from in the place of others that have the messages."""
        store = self._broker.store
        if MASTER_ID in members or not members or store.offset_written > store.offset_min:
            return ""
        if self._ends_asked_ms < 0 or now_ms >= self._ends_asked_ms + ASK_MS:
            if self._ends_asked_ms >= 0 and not any(self._ends.get(broker_id) for broker_id in members):
                return ""
            self._ends_asked_ms = now_ms
            for broker_id, address in members.items():
                self._ask_end(broker_id, address)
        longer = [broker_id for broker_id in members if self._ends.get(broker_id)]
        if longer:
            return f"its log is empty, that of member {longer[0]} ends at {self._ends[longer[0]]}, and the master is away"
        is_known = all(broker_id in self._ends for broker_id in members)
        return "" if is_known else ASKING

    def _ask_end(self, broker_id: int, address: Address) -> None:
        def answered(outcome: Outcome) -> None:
            if isinstance(outcome, CallFailed):
                self._broker.roles.known_before.pop(broker_id, None)
                return
            try:
                self._ends[broker_id] = outcome.read(ExchangeHAInfoResponse).log_end or 0 if outcome.is_ok else 0
            except RemoteProtocolError:
                self._ends[broker_id] = 0

        self._broker.replication.calls.locate(address, answered)

    def _ask(self, master: Address) -> None:
        def answered(outcome: Outcome) -> None:
            if isinstance(outcome, CallFailed):
                self._broker.roles.known_before.pop(MASTER_ID, None)
            if isinstance(outcome, CallFailed) or not outcome.is_ok:
                self._ask_ms = self._broker.clock.mono_ms + 5 * LOOK_MS
                return
            try:
                said = outcome.read(ExchangeHAInfoResponse)
                address = Address.parse(said.master_address) if said.master_address else master
                ha_address = Address.parse(said.master_ha_address) if said.master_ha_address else None
            except (RemoteProtocolError, ValueError):
                return
            if ha_address is not None:
                self.stage = f"following the master {address}"
                self._broker.replication.follow.learned(address, ha_address)

        self._broker.replication.calls.locate(master, answered)

    def _copied(self) -> None:
        self._is_copied = True
        self._broker.duties.wake(DUTY, self._broker.clock.mono_ms)
