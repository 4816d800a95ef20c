"""Takeover: what an elected broker does before it serves as master.

    idle       ->  settling
    settling   ->  cutting, comparing, noting, idle
    cutting    ->  settling, idle
    comparing  ->  noting, idle
    noting     ->  settling, copying, idle
    copying    ->  idle

    settling   has stopped following; waits until the queues have every whole record of the log.
               Everything in the log of a member of the set may be acknowledged, so all of it counts
    cutting    removes the half record behind the last whole one, which a transfer has left
    comparing  only if this master was elected before it was restarted, in the same epoch: asks the
               members in sync for the ends of their logs. If one is longer, this log has lost
               records that may be acknowledged, and that member is the better master (`on_yield`)
    noting     syncs the log, and writes the epoch and its start to the file, durably
    copying    becomes master, and copies newer progress from the live members (pre-online)

Every step is bounded except dispatch, which is as long as the backlog. `Election` withholds the
heartbeats of a takeover that takes too long, so another member is elected.

Apache cuts the half record only if dispatch is behind the confirm offset, waits for dispatch
without a bound, and copies nothing back (`ReplicasManager.changeToMaster`).
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Protocol

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.replication.epochs import EpochError, Epochs
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome, Reply
from rmqkit.runtime.connection import Address
from rmqkit.runtime.states import Moves, StateMachine
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.bodies import BrokerReplicasInfo
from rmqkit.wire.schemas.admin import ExchangeHAInfoResponse

if TYPE_CHECKING:
    from rmqkit.broker.replication.member_calls import MemberCalls

DUTY = "election-takeover"
LOOK_MS = 10
#: what is left of the log is half a record if dispatch has made no progress for this long
STUCK_MS = 100
RETRY_MS = 500
COMPARE_MS = 3000


class TakeoverState(StrEnum):
    IDLE = "idle"
    SETTLING = "settling"
    CUTTING = "cutting"
    COMPARING = "comparing"
    NOTING = "noting"
    COPYING = "copying"


IDLE, SETTLING, CUTTING, COMPARING, NOTING, COPYING = TakeoverState

MOVES = Moves(
    {
        IDLE: (SETTLING,),
        SETTLING: (CUTTING, COMPARING, NOTING, IDLE),
        CUTTING: (SETTLING, IDLE),
        COMPARING: (NOTING, IDLE),
        NOTING: (SETTLING, COPYING, IDLE),
        COPYING: (IDLE,),
    }
)


class LeadingParts(Protocol):
    """What a takeover changes of the broker (`RoleSwitch`)."""

    @property
    def is_following(self) -> bool:
        """Whether the slave's side may still change the log."""

    def stop_following(self) -> None: ...
    def lead(self, epoch: int) -> None: ...
    def copy_progress(self, members: Mapping[int, Address], then: Callable[[str], None]) -> None: ...


class Takeover(StateMachine[TakeoverState]):
    """One takeover at a time, from `begin` until `on_done` is called, or `cancel`."""

    def __init__(
        self, context: BrokerContext, store: StorageEngine, epochs: Epochs, calls: "MemberCalls", parts: LeadingParts
    ) -> None:
        super().__init__(MOVES)
        self._context = context
        self._store = store
        self._epochs = epochs
        self._calls = calls
        self._parts = parts
        #: called with a sentence about the copied progress once this broker may serve
        self.on_done: Callable[[str], None] = lambda how: None
        #: called with the id of a member that has more of the log
        self.on_yield: Callable[[int], None] = lambda broker_id: None
        #: why the takeover cannot continue; "" if it can
        self.why = ""
        self._epoch = -1
        self._members: dict[int, Address] = {}
        self._number = 0
        #: how far the log was dispatched, and since when (monotonic ms)
        self._dispatched = (-1, 0)
        self._rivals: dict[int, Address] = {}
        self._waiting: set[int] = set()
        self._due_ms = 0
        context.duties.add(DUTY, self._run, None)

    def validate(self) -> None:
        assert self.state is COMPARING or not self._waiting

    @property
    def is_on(self) -> bool:
        return self.state is not IDLE

    def begin(self, epoch: int, members: Mapping[int, Address], rivals: Mapping[int, Address]) -> None:
        """Take over in `epoch`. `members` are the other live members.

        `rivals` are those in sync, if this broker was master in this epoch before it was restarted.
        """
        assert not self.is_on
        self._number += 1
        self._epoch, self._members, self._rivals, self.why = epoch, dict(members), dict(rivals), ""
        self._dispatched = (-1, 0)
        self.move(SETTLING)
        self._parts.stop_following()
        self._store.offset_confirmed = None
        self._wake(0)

    def cancel(self) -> None:
        """Stop: another master was elected, or the broker stops."""
        self._number += 1
        self._waiting.clear()
        if self.is_on:
            self.move(IDLE)

    def _wake(self, wait_ms: int) -> None:
        self._due_ms = self._context.clock.mono_ms + wait_ms
        self._context.duties.wake(DUTY, self._due_ms)

    # --- settling ---------------------------------------------------------------------------------

    def _run(self, now_ms: int) -> int | None:
        if self.state is COMPARING and now_ms >= self._due_ms:
            self._waiting.clear()
            self._note()
        if self.state is not SETTLING:
            return None
        if now_ms < self._due_ms:
            return self._due_ms
        store = self._store
        if store.is_broken:
            self.why = store.failed
            return now_ms + RETRY_MS
        if self._parts.is_following:
            return now_ms + LOOK_MS
        dispatched = store.offset_dispatched
        if dispatched < store.offset_max:
            if dispatched != self._dispatched[0]:
                self._dispatched = (dispatched, now_ms)
            if now_ms - self._dispatched[1] < STUCK_MS:
                self._context.duties.wake("store-dispatch", now_ms)
                return now_ms + LOOK_MS
            self.move(CUTTING)
            store.truncate(dispatched, partial(self._cut, self._number))
        elif self._rivals:
            self._compare(now_ms)
        else:
            self._note()
        return None

    def _cut(self, number: int, error: OSError | None) -> None:
        if number != self._number:
            return
        self.why = "" if error is None else f"the half record at the end cannot be removed: {error}"
        self.move(SETTLING)
        self._wake(LOOK_MS if error is None else RETRY_MS)

    # --- comparing --------------------------------------------------------------------------------

    def _compare(self, now_ms: int) -> None:
        self.move(COMPARING)
        self._waiting = set(self._rivals)
        self._wake(COMPARE_MS)
        for broker_id, address in self._rivals.items():
            self._calls.locate(address, partial(self._located, self._number, broker_id))

    def _located(self, number: int, broker_id: int, outcome: Outcome) -> None:
        if number != self._number or self.state is not COMPARING:
            return
        self._waiting.discard(broker_id)
        end = -1
        if not isinstance(outcome, CallFailed) and outcome.is_ok:
            try:
                end = outcome.read(ExchangeHAInfoResponse).log_end or -1
            except RemoteProtocolError:
                end = -1
        if end > self._store.offset_written:
            self.why = f"member {broker_id}'s log ends at {end}, this one at {self._store.offset_written}"
            self._context.log.warning("takeover-yields", epoch=self._epoch, why=self.why)
            self.cancel()
            self.on_yield(broker_id)
        elif not self._waiting:
            self._note()

    # --- the epoch --------------------------------------------------------------------------------

    def _note(self) -> None:
        """Sync the log, then note where it ends: an epoch's start must survive a power cut."""
        self.move(NOTING)
        self._store.sync(self._store.offset_written, partial(self._synced, self._number))

    def _synced(self, number: int, is_durable: bool) -> None:
        if number != self._number:
            return
        if not is_durable:
            self.why = f"the log cannot be synced: {self._store.failed}"
            self.move(SETTLING)
            self._wake(RETRY_MS)
            return
        try:
            is_new = self._epochs.begin(self._epoch, self._store.offset_written)
        except EpochError as error:
            self.why = f"it cannot be master in epoch {self._epoch}: {error}"
            self._context.log.error("takeover-refused", why=self.why)
            return  # without heartbeats, another member is elected
        self._context.log.info("epoch", epoch=self._epoch, start=self._store.offset_written, is_new=is_new)
        self._epochs.save(partial(self._noted, number))

    def _noted(self, number: int) -> None:
        if number != self._number:
            return
        error = self._epochs.save_error
        if error is not None:
            self.why = f"the epoch cannot be written: {error}"
            self.move(SETTLING)
            self._wake(RETRY_MS)
            return
        self.move(COPYING)
        self.why = ""
        self._parts.lead(self._epoch)

        def copied(how: str) -> None:
            if number == self._number:
                self.move(IDLE)
                self.on_done(how)

        self._parts.copy_progress(self._members, copied)


def listed_members(reply: Reply | None, name: str, own_id: int) -> dict[int, tuple[Address, bool]]:
    """Return the other members and whether each is alive, from the answer to 1006."""
    if reply is None or not reply.is_ok:
        return {}
    try:
        info = BrokerReplicasInfo.decode(reply.body).replicas_info_table.get(name)
        listed = [] if info is None else [*info.in_sync_replicas, *info.not_in_sync_replicas]
        return {
            each.broker_id: (Address.parse(each.broker_address), bool(each.alive))
            for each in listed
            if each.broker_id is not None and each.broker_address and each.broker_id != own_id
        }
    except (RemoteProtocolError, ValueError):
        return {}
