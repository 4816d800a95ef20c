"""ReverseSync: a master that comes back takes from one member of its group what that one knows better.

    asking     906: it comes back, and this member shall follow it; a member of ours tells where its log ends
    handshake  the member's HA connection is waited for, a bounded time
    progress   45: how far the delay levels were delivered; then the same for each other special duty
    offsets    43: how far consumers are, from a member of ours with the times of resets

The states, and those that follow each:

    asking     ->  handshake, progress, offsets, done
    handshake  ->  progress, offsets, done
    progress   ->  progress, offsets, done
    offsets    ->  done
    done       ->  (end)

A call that fails is tried again until the member's time is over; then the member is left out, as is one that the name
servers do not list any more. What was taken until then stays.

What is taken. Offsets of consumers by entry, the greater one (`OffsetTable.merge`), of topics that are known here and no
further than a queue's end. Progress of special duties, forward only: this log has every delayed message, but not
necessarily what the member counts as delivered. So it is not taken from a member whose log is longer than this one:
what was delivered may lie in the end that this master has lost. And nothing is taken from a log with other content.

`GiveWay` is the other side: an acting master whose master comes back delivers no more from the 906 on, and tells its
progress when its puts in flight are answered, so that no message is delivered by both.

Source: `broker/.../BrokerPreOnlineService.syncMetadataReverse`, which takes whole tables, the last member's last.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.metadata.copied_tables import CopiedTables
from rmqkit.broker.replication import log_tail
from rmqkit.broker.replication.ha_state import FOLLOWING
from rmqkit.broker.replication.log_tail import LogTail
from rmqkit.broker.replication.replication import Replication
from rmqkit.broker.special.contract import SpecialRow
from rmqkit.broker.special.duties import SpecialDuties
from rmqkit.broker.tables.offsets import SEPARATOR
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome, Reply
from rmqkit.runtime.connection import Address
from rmqkit.runtime.states import Moves, StateMachine
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.bodies import ConsumerOffsetTable
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.schemas.admin import ExchangeHAInfoResponse

#: until the next try of a call that failed
RETRY_MS = 100
#: how long a member may give no answer
MEMBER_MS = 3000
#: how long its HA connection is waited for: a slave of ours dials at once, Apache's within some seconds
HANDSHAKE_MS = 2000
HANDSHAKE_APACHE_MS = 10_000
#: what is answered by a broker that will answer better in a while
BUSY = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY)

GIVE_WAY_MS = 10_000
STILL_MS = 1000
LOOK_MS = 20
GIVE_WAY_DUTY, STILL_DUTY = "roles-give-way", "roles-still"


class SyncState(StrEnum):
    ASKING = "asking"
    HANDSHAKE = "handshake"
    PROGRESS = "progress"
    OFFSETS = "offsets"
    DONE = "done"


ASKING, HANDSHAKE, PROGRESS, OFFSETS, DONE = SyncState

MOVES = Moves(
    {
        ASKING: (HANDSHAKE, PROGRESS, OFFSETS, DONE),
        HANDSHAKE: (PROGRESS, OFFSETS, DONE),
        PROGRESS: (PROGRESS, OFFSETS, DONE),
        OFFSETS: (DONE,),
        DONE: (),
    }
)


class ReverseSync(StateMachine[SyncState]):
    """One member. `look` drives it; at the end `why` says what was not taken, "" when all was."""

    def __init__(
        self,
        context: BrokerContext,
        store: StorageEngine,
        replication: Replication,
        tables: CopiedTables,
        broker_id: int,
        address: Address,
    ) -> None:
        super().__init__(MOVES)
        self._context = context
        self._store = store
        self._replication = replication
        self._tables = tables
        self.broker_id = broker_id
        self.address = address
        self.why = ""
        #: whether the member's log is this one, and whether it ends beyond it; None: an Apache member's, which does not say
        self.is_same: bool | None = None
        self.is_longer = False
        #: a member of ours: it tells by itself, later, what it knows better
        self.is_ours = False
        self._asked_ms = context.clock.mono_ms
        #: until then the member may give no answer
        self._deadline_ms = self._asked_ms + MEMBER_MS
        #: when to make the call of this state; None: it is in flight
        self._retry_ms: int | None = self._asked_ms
        self._failure = ""
        #: special duties whose progress is still to be asked for, and the one of the state `progress`
        self._rows = list(tables.special.rows)
        self._row: SpecialRow | None = None

    @property
    def is_done(self) -> bool:
        return self.state is DONE

    @property
    def stage(self) -> str:
        """The state for people: which progress is asked for."""
        return self._row.name if self._row is not None else self.state

    def validate(self) -> None:
        assert self.is_done or (self.state is PROGRESS) == (self._row is not None)
        assert self.state is not HANDSHAKE or self._retry_ms is None
        assert self.is_ours or self.is_same is None

    # --- driven by PreOnline ------------------------------------------------------------------------------------------

    def look(self, now_ms: int) -> None:
        if self.is_done:
            return
        if self.state is HANDSHAKE:
            self._shake(now_ms)
        elif self._retry_ms is not None and now_ms >= self._retry_ms:
            self._retry_ms = None
            self._ask()
        elif now_ms >= self._deadline_ms:
            self.leave_out(self._failure or f"gave no answer within {MEMBER_MS} ms")

    def leave_out(self, why: str) -> None:
        """Without this member, or without what it has not told yet."""
        if not self.is_done:
            self._end(f"{self.stage}: {why}; left out")

    def _end(self, why: str) -> None:
        self.move(DONE)
        self.why = "; ".join(each for each in (self.why, why) if each)
        log = self._context.log.warning if self.why else self._context.log.info
        log("progress-taken-back", member=self.broker_id, address=str(self.address), why=self.why)

    # --- calls --------------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        calls = self._replication.calls
        if self.state is ASKING:
            calls.announce_return(self.address, self._taking(self._asked))
        elif self._row is not None:
            calls.progress(self.address, self._row.code, self._taking(partial(self._told_progress, self._row)))
        else:
            calls.offsets(self.address, self._taking(self._told_offsets))

    def _taking(self, then: Callable[[Reply], None]) -> Callable[[Outcome], None]:
        """`then` for an answer of this stage; a call that fails is tried again."""
        stage = self.stage

        def ended(outcome: Outcome) -> None:
            if self.is_done or stage != self.stage:
                return
            if isinstance(outcome, CallFailed):
                self._try_again(outcome.text)
            elif outcome.code in BUSY:
                self._try_again(f"answered {outcome.code}: {outcome.remark}")
            else:
                try:
                    then(outcome)
                except RemoteProtocolError as error:
                    self.leave_out(f"answered what cannot be read: {error}")

        return ended

    def _try_again(self, failure: str) -> None:
        self._failure = failure
        self._retry_ms = self._context.clock.mono_ms + RETRY_MS
        if self._retry_ms >= self._deadline_ms:
            self.leave_out(failure)

    def _next(self, state: SyncState) -> None:
        now_ms = self._context.clock.mono_ms
        self.move(state)
        self._failure = ""
        self._deadline_ms = now_ms + MEMBER_MS
        self._retry_ms = None
        if state is HANDSHAKE:
            self._deadline_ms = now_ms + (HANDSHAKE_MS if self.is_ours else HANDSHAKE_APACHE_MS)
            self._shake(now_ms)
        else:
            self._ask()

    def _next_row(self) -> None:
        """Ask for the progress of the next special duty, and for the offsets of consumers behind the last one."""
        self._row = self._rows.pop(0) if self._rows else None
        self._next(OFFSETS if self._row is None else PROGRESS)

    # --- asking -------------------------------------------------------------------------------------------------------

    def _asked(self, reply: Reply) -> None:
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._next_row()  # older than 5.0
            return
        if not reply.is_ok:
            self.leave_out(f"refuses: {reply.remark or reply.code}")
            return
        said = reply.read(ExchangeHAInfoResponse)
        if said.log_end is None:
            self._next(HANDSHAKE)
            return
        self.is_ours = True
        self.is_longer = said.log_end > self._store.offset_written
        self.is_same = log_tail.is_same(self._store, LogTail(said.tail_offset, said.tail_size, said.tail_crc))
        if self.is_same is False:
            self._end(f"its log, which ends at {said.log_end}, has other content than this one: nothing is taken from it")
            return
        self._replication.metadata_server.wait_for(self.broker_id)
        # One that is longer does not follow, or cuts its log first.
        if self.is_longer:
            self._next_row()
        else:
            self._next(HANDSHAKE)

    # --- handshake ----------------------------------------------------------------------------------------------------

    def _shake(self, now_ms: int) -> None:
        if self._is_linked():
            self._next_row()
        elif now_ms >= self._deadline_ms:
            self.why = "no HA connection came from it"
            self._next_row()

    def _is_linked(self) -> bool:
        replication = self._replication
        if self.is_ours:
            link = replication.members.bound.get(self.broker_id)
            return link is not None and not link.conn.closing and link.acked >= 0 and link.read_ms >= self._asked_ms
        host = Address(self.address.host, 0)
        links = replication.accept.links.values()
        return any(link.peer.host == host.host and link.binding is None and not link.conn.closing for link in links)

    # --- what it tells ------------------------------------------------------------------------------------------------

    def _told_progress(self, row: SpecialRow, reply: Reply) -> None:
        if reply.is_ok and reply.body:
            snapshot = row.decode(reply.body)
            if self.is_longer or (not self.is_ours and not self._is_linked()):
                note = "its log is longer than this one" if self.is_longer else "whether its log is this one is not known"
                self.why = "; ".join(each for each in (self.why, f"{row.progress} not taken: {note}") if each)
            else:
                self._tables.special.merge({row.name: snapshot})
        self._next_row()

    def _told_offsets(self, reply: Reply) -> None:
        if reply.is_ok and reply.body:
            self._tables.offsets.merge(self._within(ConsumerOffsetTable.decode(reply.body)))
        self._end("")

    def _within(self, told: ConsumerOffsetTable) -> ConsumerOffsetTable:
        """What can be of this log: of topics that are known here, up to the ends of the queues."""
        table: dict[str, dict[int, int]] = {}
        for key, queues in told.offset_table.items():
            topic = key.partition(SEPARATOR)[0]
            if topic in self._tables.topics.by_name:
                table[key] = {
                    queue_id: min(offset, self._store.queue_range(topic, queue_id).offset_max)
                    for queue_id, offset in queues.items()
                    if queue_id >= 0 and offset >= 0
                }
        return ConsumerOffsetTable(data_version=told.data_version, offset_table=table, reset_table=told.reset_table)


class GiveWay:
    """An acting master whose master is coming back."""

    def __init__(
        self,
        context: BrokerContext,
        replication: Replication,
        special: SpecialDuties,
        is_master_back: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self._context = context
        self._replication = replication
        self._special = special
        self._is_master_back = is_master_back
        self._changed = changed
        #: nothing is delivered until then, -1: no master is coming back
        self._until_ms = -1
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        context.duties.add(GIVE_WAY_DUTY, self._run, None)
        context.duties.add(STILL_DUTY, self._look, None)

    @property
    def is_on(self) -> bool:
        return self._until_ms >= 0

    def begin(self) -> None:
        """The master said that it comes back (906)."""
        now_ms = self._context.clock.mono_ms
        self._until_ms = now_ms + GIVE_WAY_MS
        self._context.duties.wake(GIVE_WAY_DUTY, now_ms + HANDSHAKE_MS)
        self._changed()

    def end(self) -> None:
        if self.is_on:
            self._until_ms = -1
            self._changed()

    def _run(self, now_ms: int) -> int | None:
        """The master is back; or it has gone again on its way, without ever having been there for the name servers."""
        if not self.is_on:
            return None
        is_gone = self._replication.follow.state != FOLLOWING
        if now_ms >= self._until_ms or is_gone or self._is_master_back():
            self.end()
            return None
        return min(self._until_ms, now_ms + MEMBER_MS // 6)

    # --- puts in flight --------------------------------------------------------------------------------------------

    def when_still(self, then: Callable[[], None]) -> bool:
        """Whether a put is in flight; then `then` is called once none is, or after `STILL_MS`."""
        if not self.is_on or not self._special.is_moving:
            return False
        now_ms = self._context.clock.mono_ms
        self._waiting.append((now_ms + STILL_MS, then))
        self._context.duties.wake(STILL_DUTY, now_ms + LOOK_MS)
        return True

    def _look(self, now_ms: int) -> int | None:
        if self._waiting and (not self._special.is_moving or now_ms >= self._waiting[0][0]):
            waiting, self._waiting = self._waiting, []
            for _, then in waiting:
                then()
        return now_ms + LOOK_MS if self._waiting else None
