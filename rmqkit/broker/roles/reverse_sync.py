"""Reverse sync: a returning master copies newer progress from one member of its group.

    asking     906: announces that the master is back and that the member should follow it; one of
               our members answers with the end of its log
    handshake  waits for the member's HA connection, a bounded time
    progress   45: the progress of the delay levels, then of each other special duty
    offsets    43: the consumer offsets; one of our members adds the times of resets

The states and their possible successors:

    asking     ->  handshake, progress, offsets, done
    handshake  ->  progress, offsets, done
    progress   ->  progress, offsets, done
    offsets    ->  done
    done       ->  (end)

The master retries a failed call until the member's time is over. Then it skips the member, as it
does with a member that the name servers no longer list. It keeps what it has copied until then.

What the master copies:

- Consumer offsets: for each entry the greater one (`OffsetTable.merge`), of topics that it knows,
  and no further than the end of the queue.
- Progress of special duties, forward only. This log has every delayed message, but may lack
  messages that the member counts as delivered. So the master does not copy progress from a member
  whose log is longer than this one: the delivered messages may lie in the end that this master has
  lost.
- Nothing from a member whose log has other bytes.

- Users and access rules, if the member's are newer. Then this master has lost its disk.
- The leases of queues in lock mode `loose`, from the member that acted. They replace this broker's.

`handover` has the other side: how the member that acted stops, so that its tables do not change any
more.

Source: `broker/.../BrokerPreOnlineService.syncMetadataReverse`, which copies whole tables, so that
the last member's wins.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.metadata.copied_tables import CopiedTables
from rmqkit.broker.replication import log_tail
from rmqkit.broker.replication.log_tail import LogTail
from rmqkit.broker.replication.replication import Replication
from rmqkit.broker.special.contract import SpecialRow
from rmqkit.broker.tables.offsets import SEPARATOR
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome, Reply
from rmqkit.runtime.connection import Address
from rmqkit.runtime.states import Moves, StateMachine
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.bodies import AccessTableBody, ConsumerOffsetTable
from rmqkit.wire.codes import OwnRequestCode, ResponseCode
from rmqkit.wire.schemas.access import GetAccessTableRequest
from rmqkit.wire.schemas.admin import ExchangeHAInfoResponse

#: pause before a failed call is retried
RETRY_MS = 100
#: how long a member may take to answer in one state, retries included
MEMBER_MS = 3000
#: how long to wait for the member's HA connection: our slaves dial at once, Apache's within seconds
HANDSHAKE_MS = 2000
HANDSHAKE_APACHE_MS = 10_000
#: codes after which a call is retried: the broker is starting or busy
BUSY = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY)
LOOK_MS = 20


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
    """The exchange with one member. `step` drives it.

    At the end `why` says what was not copied, "" if everything was.
    """

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
        #: whether the member's log has the same bytes as this one; None if unknown, as for an
        #: Apache member
        self.is_same: bool | None = None
        #: whether the member's log ends beyond this one
        self.is_longer = False
        #: whether the member is one of ours: it later sends its newer metadata by itself
        self.is_ours = False
        self._asked_ms = context.clock.mono_ms
        #: the member is skipped if it has not answered by then (monotonic ms)
        self._deadline_ms = self._asked_ms + MEMBER_MS
        #: when to make the call of this state (monotonic ms); None: it is in flight
        self._retry_ms: int | None = self._asked_ms
        self._failure = ""
        #: special duties whose progress was not asked for yet
        self._rows = list(tables.special.rows)
        #: in the state `progress`: the special duty that is asked for; else None
        self._row: SpecialRow | None = None

    @property
    def is_done(self) -> bool:
        return self.state is DONE

    @property
    def stage(self) -> str:
        """The state for status; in `progress`, the name of the special duty."""
        return self._row.name if self._row is not None else self.state

    def validate(self) -> None:
        assert self.is_done or (self.state is PROGRESS) == (self._row is not None)
        assert self.state is not HANDSHAKE or self._retry_ms is None
        assert self.is_ours or self.is_same is None

    # --- driven by PreOnline ----------------------------------------------------------------------

    def step(self, now_ms: int) -> None:
        """Take the next step, if one is due."""
        if self.is_done:
            return
        if self.state is HANDSHAKE:
            self._check_link(now_ms)
        elif self._retry_ms is not None and now_ms >= self._retry_ms:
            self._retry_ms = None
            self._ask()
        elif now_ms >= self._deadline_ms:
            self.leave_out(self._failure or f"gave no answer within {MEMBER_MS} ms")

    def leave_out(self, why: str) -> None:
        """End the exchange without what this member has not sent yet."""
        if not self.is_done:
            self._end(f"{self.stage}: {why}; skipped")

    def _end(self, why: str) -> None:
        self.move(DONE)
        self.why = "; ".join(each for each in (self.why, why) if each)
        log = self._context.log.warning if self.why else self._context.log.info
        log("progress-taken-back", member=self.broker_id, address=str(self.address), why=self.why)

    # --- calls ------------------------------------------------------------------------------------

    def _ask(self) -> None:
        calls = self._replication.calls
        if self.state is ASKING:
            calls.announce_return(self.address, self._taking(self._announced))
        elif self._row is not None:
            calls.progress(self.address, self._row.code, self._taking(partial(self._take_progress, self._row)))
        else:
            calls.offsets(self.address, self._taking(self._take_offsets))

    def _taking(self, then: Callable[[Reply], None]) -> Callable[[Outcome], None]:
        """Return a callback that passes this stage's answer to `then` and retries a failed call."""
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
                    self.leave_out(f"its answer cannot be read: {error}")

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
            self._check_link(now_ms)
        else:
            self._ask()

    def _next_row(self) -> None:
        """Ask for the next special duty's progress; after the last one for the consumer offsets."""
        if not self.is_ours:
            self._rows = [row for row in self._rows if not row.is_own]
        self._row = self._rows.pop(0) if self._rows else None
        self._next(OFFSETS if self._row is None else PROGRESS)

    # --- announcement -----------------------------------------------------------------------------

    def _announced(self, reply: Reply) -> None:
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
        self._ask_for_users()
        self.is_longer = said.log_end > self._store.offset_written
        self.is_same = log_tail.is_same(self._store, LogTail(said.tail_offset, said.tail_size, said.tail_crc))
        if self.is_same is False:
            self._end(f"its log, which ends at {said.log_end}, has other bytes than this one: nothing is copied from it")
            return
        self._replication.metadata_server.wait_for(self.broker_id)
        # A member with a longer log does not follow, or truncates its log first.
        if self.is_longer:
            self._next_row()
        else:
            self._next(HANDSHAKE)

    def _ask_for_users(self) -> None:
        """Copy users and access rules if the member's are newer: this master has lost its disk.

        Nobody changes them while a member acts, so otherwise the versions are equal. The exchange
        does not wait for the answer, nor does it depend on the logs.
        """
        access = self._tables.access
        if access is None:
            return
        table = access

        def ended(outcome: Outcome) -> None:
            if isinstance(outcome, CallFailed) or not outcome.is_ok or not outcome.body:
                return
            try:
                told = AccessTableBody.decode(outcome.body)
                if told.users and told.data_version.newer_than(table.version):
                    table.follow(told)
                    self._context.log.info("access-taken-back", member=self.broker_id, users=len(told.users))
            except RemoteProtocolError as error:
                self._context.log.warning("access-unreadable", member=self.broker_id, error=str(error))

        request = GetAccessTableRequest(known_version=table.version.encode().decode())
        code = OwnRequestCode.GET_ACCESS_TABLE
        self._context.remoting.call(self.address, code, request, timeout_ms=MEMBER_MS, then=ended)

    # --- handshake --------------------------------------------------------------------------------

    def _check_link(self, now_ms: int) -> None:
        if self._is_linked():
            self._next_row()
        elif now_ms >= self._deadline_ms:
            self.why = "it has opened no HA connection"
            self._next_row()

    def _is_linked(self) -> bool:
        replication = self._replication
        if self.is_ours:
            link = replication.members.bound.get(self.broker_id)
            return link is not None and not link.conn.closing and link.acked >= 0 and link.read_ms >= self._asked_ms
        host = Address(self.address.host, 0)
        links = replication.accept.links.values()
        return any(link.peer.host == host.host and link.binding is None and not link.conn.closing for link in links)

    # --- answers with progress and offsets --------------------------------------------------------

    def _take_progress(self, row: SpecialRow, reply: Reply) -> None:
        if reply.is_ok and reply.body:
            snapshot = row.decode(reply.body)
            if self.is_longer or (not self.is_ours and not self._is_linked()):
                note = "its log is longer than this one" if self.is_longer else "whether its log is the same is unknown"
                self.why = "; ".join(each for each in (self.why, f"{row.progress} not copied: {note}") if each)
            else:
                self._tables.special.merge({row.name: snapshot})
        self._next_row()

    def _take_offsets(self, reply: Reply) -> None:
        if reply.is_ok and reply.body:
            told = ConsumerOffsetTable.decode(reply.body)
            self._tables.offsets.merge(self._limit(told))
            if told.leases is not None and self._tables.leases is not None:
                self._tables.leases.adopt(told.leases, self._context.clock.mono_ms)
        self._end("")

    def _limit(self, told: ConsumerOffsetTable) -> ConsumerOffsetTable:
        """Return the offsets that fit this log: of known topics, limited to the queues' ends."""
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
