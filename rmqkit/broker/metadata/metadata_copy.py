"""MetadataCopy: a slave's copies of the tables outside the log.

The tables are topics, subscription groups, consumer offsets, the progress of special duties (delay
offsets) and request modes. The slave copies them from a source:

    rmqkit master   A long poll (43 with fields of ours, see `metadata_server`). The answer has the
                    changed offsets, the progress and the versions of the tables. The slave then
                    fetches each table with a newer version. A change arrives within `HOLD_MS` plus
                    transfer time.
    Apache master   It ignores our fields and answers with all offsets. The slave then fetches each
                    table in turn, as Apache's slaves do, every `PERIOD_MS`.
    no master       While the master is away, the remaining slaves ask the acting master (the
                    smallest live id), which answers like a master. A returning master announces
                    itself (906), and is asked from then on.

What the slave copies:

- Topics and groups: only whole tables, only if the master's version is newer, and never an empty
  table. The copy then has the master's version, so both agree until the next change.
- Offsets: the newer of each entry (`OffsetTable.merge`).
- Delay offsets: never backwards, and never beyond the end of the queue (`DelayOffsets.merge`).
  They take effect only once this log holds the delivered messages; otherwise a takeover would lose
  messages.
- Users and access rules, with access control: like topics and groups.
- Leases of lock mode `loose`: as the master has them, unless this slave acts.
- Removals and delay offsets: only from a broker whose log is known to be the same as this one.

When it is saved: soon, even if the master saves rarely (`COPY_SAVE_MS`). A large table is saved
less often, because each save writes all of it. A killed slave may be the only member left when it
restarts.

What the slave sends: offsets that its master may lack, because consumers committed them here while
the master was away, or the master was killed before it saved them. They go with the next request to
an rmqkit master whose log is the same as this one; offsets into another log would mean other
messages. A commit that arrives while the master holds a request makes the slave abandon that
request after `GIVE_MS` and send a new one. So the master has the offset at once: it may be
returning (`roles/handover.py`). An Apache master asks for them itself (pre-online), with a plain
43.

The states:

    stopped   ->  waiting
    waiting   ->  waiting, asking, stopped
    asking    ->  waiting, fetching, stopped
    fetching  ->  waiting, stopped

    waiting    until the next request is due, or a source is known
    asking     43 is in flight; an rmqkit master may hold it for `HOLD_MS`
    fetching   the tables that are newer at the master are fetched, one after the other

If a request is abandoned (the source changed, the master returned), the state becomes `waiting`,
and its answer is ignored.

Source: `broker/.../slave/SlaveSynchronize.java`.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.metadata.copied_tables import CopiedTables
from rmqkit.broker.metadata.copy_round import CopyRound, CopySource, GroupMembers, Then
from rmqkit.broker.metadata.metadata_server import ENTRIES_MAX, HOLD_MS
from rmqkit.broker.metadata.progress_copy import ProgressCopy
from rmqkit.broker.metadata.request_modes import RequestModes
from rmqkit.broker.metadata.table_pages import GROUPS, TOPICS, Pages, TableKind
from rmqkit.broker.replication.ha_client import HaClient
from rmqkit.broker.replication.ha_state import FOLLOWING
from rmqkit.broker.roles.role import RoleState
from rmqkit.broker.special.contract import Snapshot
from rmqkit.broker.tables.groups import GroupTable
from rmqkit.broker.tables.offsets import DUTY as OFFSETS_DUTY
from rmqkit.broker.tables.topics import TopicTable
from rmqkit.config import BrokerRole
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome, Reply, code_name
from rmqkit.runtime.connection import Address
from rmqkit.runtime.states import Moves, StateMachine
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.bodies import (
    AccessTableBody,
    ConsumerOffsetTable,
    DataVersion,
    MessageRequestModeTable,
)
from rmqkit.wire.codes import OwnRequestCode, RequestCode, ResponseCode
from rmqkit.wire.schemas.offsets import GetAllConsumerOffsetRequest, GetAllConsumerOffsetResponse

DUTY = "metadata-copy"
#: interval between copies of all tables from an Apache master, and of the request modes from an
#: rmqkit master
PERIOD_MS = 10_000
#: after a failure, and while the master's address is unknown
RETRY_MS = 500
TIMEOUT_MS = 3000
#: how long an announced master is asked although the name servers do not list it; after that they
#: do, or it has not returned
RETURN_MS = 3000
#: time from a copied change to its save; with `HOLD_MS` before it, well below 1 s
COPY_SAVE_MS = 250
#: a save waits at least 1 ms per this many pairs of the table
COPY_SAVE_PAIRS = 4
#: time from a commit at this slave to the request that sends it to the master
GIVE_MS = 10
GIVE_DUTY = "metadata-give"
#: as Apache's slaves do, fetch topics from an Apache master at its main port - 2 (the VIP port)
#: first
VIP_PORT_GAP = 2


class CopyState(StrEnum):
    """The states of the copy; the module head describes them."""

    STOPPED = "stopped"
    WAITING = "waiting"
    ASKING = "asking"
    FETCHING = "fetching"


STOPPED, WAITING, ASKING, FETCHING = CopyState

MOVES = Moves(
    {
        STOPPED: (WAITING,),
        WAITING: (WAITING, ASKING, STOPPED),
        ASKING: (WAITING, FETCHING, STOPPED),
        FETCHING: (WAITING, STOPPED),
    }
)


class MetadataCopy(StateMachine[CopyState]):
    """A slave's copy of the tables: it runs one round after another until `stop`."""

    def __init__(
        self,
        context: BrokerContext,
        store: StorageEngine,
        role: RoleState,
        tables: CopiedTables,
        modes: RequestModes,
        follow: HaClient,
        group: Callable[[], GroupMembers],
    ) -> None:
        super().__init__(MOVES)
        self._context = context
        self._role = role
        self._tables = tables
        self._modes = modes
        self._follow = follow
        self._group = group
        self.progress = ProgressCopy(context, store, tables.special)
        #: called with the name of a topic, or group, that the master has deleted
        self.on_topic_gone: Callable[[str], None] = lambda name: None
        self.on_group_gone: Callable[[str], None] = lambda name: None
        #: why the last round failed, "" if it succeeded
        self.failure = ""
        #: tables whose version at the master is older than the copy's
        self.older: dict[str, DataVersion] = {}
        #: when a returning master announced itself (it is asked before the name servers list it),
        #: else -1
        self._return_ms = -1
        #: whether the master was listed in the last look at the source
        self._is_listed = False
        self._source: CopySource | None = None
        #: the current round; set in the states `asking` and `fetching`
        self._question: CopyRound | None = None
        #: time of the next request
        self._ask_ms = 0
        self._copied: list[Then] = []
        self._answered_ms = -1
        self._modes_due_ms = 0
        context.duties.add(DUTY, self._run, None)
        context.duties.add(GIVE_DUTY, self._give, None)

    def validate(self) -> None:
        assert (self._question is not None) == (self.state in (ASKING, FETCHING))
        if self._question is not None:
            assert self._question.source is self._source
            assert self.state is FETCHING or not self._question.steps

    # --- start and stop ---------------------------------------------------------------------------

    def load(self) -> None:
        """Read the request modes. Raises AtomicFileDamaged if the file cannot be read."""
        self._modes.load()
        offsets, identity = self._tables.offsets, self._context.config.identity
        if identity.broker_role is BrokerRole.SLAVE and not offsets.version.counter:
            # This version was drawn at this start. It would not be older than the master's,
            # although the table has no content.
            offsets.version = DataVersion()

    def start(self) -> None:
        """Start to copy as a slave."""
        self.move(WAITING)
        self._tables.offsets.untold = {}
        self._tables.offsets.on_untold = self._committed
        self._follow.on_following = self.again
        if self._wake not in self._role.on_change:
            self._role.on_change.append(self._wake)
        self._wake()

    def _wake(self) -> None:
        """Check at once whether the source has changed."""
        self._context.duties.wake(DUTY, self._context.clock.mono_ms)

    def stop(self) -> None:
        self._question = None
        self._tables.offsets.untold, self._tables.offsets.on_untold = None, lambda: None
        if self.state is not STOPPED:
            self.move(STOPPED)

    @property
    def is_on(self) -> bool:
        return self.state is not STOPPED

    def facts(self) -> dict[str, str]:
        """Return the fields that code 28 (GET_BROKER_RUNTIME_INFO) shows.

        `metadataAge` is the time in ms since the last successful round, -1 if there was none.
        `metadataFrom` is the source's address, and `metadataWhy` describes problems.
        """
        if self.state is STOPPED:
            return {}
        age_ms = -1 if self._answered_ms < 0 else self._context.clock.mono_ms - self._answered_ms
        older = [f"the master's table of {name} is older than this copy, so it is skipped" for name in sorted(self.older)]
        return {
            "metadataAge": str(age_ms),
            "metadataFrom": "" if self._source is None else str(self._source.address),
            "metadataWhy": "; ".join([self.failure] * bool(self.failure) + older),
        }

    # --- the source -------------------------------------------------------------------------------

    def _address(self) -> Address | None:
        """Return the address of the master or, while it is away, of the live slave with the
        smallest id.

        None if that is this broker, or if no such member is known. In controller mode also None
        until this log is the master's: a truncation would take newer offsets back to queue ends.
        """
        if self._context.config.election.enable and self._follow.state != FOLLOWING:
            return None
        master, group = self._follow.master, self._group()
        if self._role.is_enabled and self._return_ms < 0:
            own_id = self._context.config.identity.broker_id
            others = group.others
            if others and 0 not in others:
                head = min(others)
                is_head = own_id in group.members and own_id < head
                return None if is_head else others[head]
            if not others and group.members:
                return None
            master = master or others.get(0)
        return None if master == self._context.address else master

    def master_returns(self) -> None:
        """A master announced its return: ask it at once, for everything."""
        self._return_ms = self._context.clock.mono_ms
        self.again()

    def again(self) -> None:
        """Ask at once and for everything: the source may have another log or other tables now."""
        if self.state is not STOPPED:
            if self._source is not None:
                self._source.known = ""
            self._give_up()

    def _give_up(self) -> None:
        """Abandon the current request, and ask again at once."""
        self._wait(0)

    def _wait(self, wait_ms: int) -> None:
        self._question = None
        self.move(WAITING)
        self._ask_ms = self._context.clock.mono_ms + wait_ms
        self._context.duties.wake(DUTY, self._ask_ms)

    def _committed(self) -> None:
        """Send a commit to the master soon, if it holds a request."""
        if self.state is ASKING and self._current.held_since_ms >= 0:
            self._context.duties.wake(GIVE_DUTY, self._context.clock.mono_ms + GIVE_MS)

    def _give(self, now_ms: int) -> None:
        if self.state is ASKING and self._current.held_since_ms >= 0 and self._tables.offsets.untold:
            self._give_up()

    def when_copied(self, then: Then) -> None:
        """Call `then` after the next successful round that leaves no further changes to fetch."""
        self._copied.append(then)

    # --- rounds -----------------------------------------------------------------------------------

    def _run(self, now_ms: int) -> int | None:
        if self.state is STOPPED:
            return None
        was_listed, self._is_listed = self._is_listed, 0 in self._group().members
        if (self._is_listed or was_listed) and now_ms - self._return_ms > RETURN_MS:
            # It is back, or has left again.
            self._return_ms = -1
        address = self._address()
        if address is None:
            if self._role.is_acting:
                self.failure = ""  # no member has newer tables than the acting master
            return now_ms + RETRY_MS
        source = self._source
        if source is None or source.address != address:
            source = self._source = CopySource(address)
            self._give_up()
        if self.state is not WAITING:
            return None
        if now_ms < self._ask_ms:
            return self._ask_ms
        self._ask(source)
        return None

    @property
    def _current(self) -> CopyRound:
        assert self._question is not None
        return self._question

    def _of(self, question: CopyRound, take: Callable[..., None]) -> Callable[..., None]:
        """Wrap `take` so that it is not called once the request has been abandoned."""

        def came(*answer: Any) -> None:
            if question is self._question:
                take(*answer)

        return came

    def _ask(self, source: CopySource) -> None:
        offsets = self._tables.offsets
        question = self._question = CopyRound(source)
        self.move(ASKING)
        entries = 0
        # Only the source's first answer shows whether it accepts offsets, and has the same log.
        may_give = bool(source.known) and source.belongs
        for key in (offsets.untold or ()) if may_give else ():
            entries += max(1, len(offsets.table[key]))
            if question.giving and entries > ENTRIES_MAX:
                break
            question.giving[key] = dict(offsets.table[key])
        body = offsets.part(question.giving).encode() if question.giving else b""
        wait = bool(source.known) and not source.has_more and not body and not self._has_more_to_send(source)
        if wait:
            question.held_since_ms = self._context.clock.mono_ms
        broker_id = self._context.config.identity.broker_id
        wants_leases = self._role.is_enabled and self._tables.leases is not None
        known_leases = source.leases_version if wants_leases else None
        request = GetAllConsumerOffsetRequest(
            known_changes=source.known, wait=wait, broker_id=broker_id, known_leases=known_leases
        )
        self._context.remoting.call(
            source.address,
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            request,
            body,
            timeout_ms=TIMEOUT_MS + HOLD_MS,
            then=self._of(question, lambda outcome: self._answered(question, outcome)),
        )

    def _has_more_to_send(self, source: CopySource) -> bool:
        """Whether offsets wait to be sent until the logs are known to be the same."""
        return bool(self._tables.offsets.untold) and not source.belongs and self._follow.may_belong

    def _answered(self, question: CopyRound, outcome: Outcome) -> None:
        if isinstance(outcome, CallFailed):
            self._return_ms = -1
            self._end_round(f"the master {outcome.address} gave no answer: {outcome.text}")
        elif not outcome.is_ok:
            self._end_round(f"the master {outcome.address} answered {outcome.code}: {outcome.remark}")
        else:
            try:
                table = ConsumerOffsetTable.decode(outcome.body)
                if "changes" in outcome.ext:
                    self._take_changes(question, outcome.read(GetAllConsumerOffsetResponse), table)
                else:
                    self._take_all(question, table)
            except RemoteProtocolError as error:
                self._end_round(f"the master {outcome.address} sent an answer that cannot be decoded: {error}")

    def _end_round(self, failure: str, wait_ms: int = RETRY_MS) -> None:
        """End the round. `failure` is "" if it succeeded."""
        source = self._current.source
        if failure != self.failure:
            self.failure = failure
            if failure:
                self._context.log.warning("metadata-not-copied", why=failure)
            else:
                self._context.log.info("metadata-copied", master=str(source.address))
        self._wait(wait_ms)
        if not failure:
            self._answered_ms = self._context.clock.mono_ms
            if not source.has_more:
                copied, self._copied = self._copied, []
                for then in copied:
                    then()

    # --- an rmqkit master -------------------------------------------------------------------------

    def _take_changes(self, question: CopyRound, answer: GetAllConsumerOffsetResponse, table: ConsumerOffsetTable) -> None:
        tables, source = self._tables, question.source
        topics_version = DataVersion.decode(answer.topics_version)
        groups_version = DataVersion.decode(answer.groups_version)
        progress = tables.special.read(answer)
        self.move(FETCHING)
        self._forget_sent(question)
        life = answer.changes.rpartition(".")[0]
        if life != source.known.rpartition(".")[0]:
            # The master has restarted, or another broker is the source. It sends everything, and
            # may lack offsets that we have.
            source.seen = set()
            self.progress.forget()  # its log may have lost deliveries of the previous run
        log_of = life if answer.log_of is None else answer.log_of
        source.is_master = log_of == life
        source.belongs = self._follow.belongs_to(log_of)
        self._take_offsets(source, table, answer.more)
        # An acting slave knows the leases better than the master that returns.
        if table.leases is not None and tables.leases is not None and not self._role.is_acting:
            tables.leases.adopt(table.leases, self._context.clock.mono_ms)
            source.leases_version = -1 if answer.leases_version is None else answer.leases_version
        source.known, source.has_more = answer.changes, answer.more
        if source.belongs:
            self.progress.take(answer.log_end, progress)
            if self._is_newer("topics", topics_version, tables.topics.version):
                question.steps.append(self._fetch_topics)
            if self._is_newer("groups", groups_version, tables.groups.version):
                question.steps.append(self._fetch_groups)
            access, version = tables.access, answer.access_version
            if access is not None and version and self._is_newer("access", DataVersion.decode(version), access.version):
                question.steps.append(self._fetch_access)
        now_ms = self._context.clock.mono_ms
        if self._modes_due_ms <= now_ms:
            question.steps.append(self._fetch_modes)
        # A master that holds too many requests answers at once: pause, to avoid a busy loop.
        is_early = question.held_since_ms >= 0 and now_ms - question.held_since_ms < HOLD_MS // 2
        self._next_step(question, wait_ms=RETRY_MS if is_early or self._has_more_to_send(source) else 0)

    def _forget_sent(self, question: CopyRound) -> None:
        """Forget the offsets sent with the request: the master has them."""
        offsets = self._tables.offsets
        for key, sent in question.giving.items():
            # If the entry differs, it was committed again in the meantime and must be sent again.
            if offsets.untold is not None and offsets.table.get(key) == sent:
                offsets.untold.pop(key, None)

    def _take_offsets(self, source: CopySource, table: ConsumerOffsetTable, more: bool) -> None:
        offsets = self._tables.offsets
        untold = offsets.untold if offsets.untold is not None else {}
        ahead = offsets.merge(table)
        if source.belongs:
            offsets.remove_pairs(table.removed or ())
        offsets.follow_version(table.data_version)
        self._save_soon()
        if source.seen is not None:
            source.seen.update(table.offset_table)
            untold.update(dict.fromkeys(ahead))
            if not more:
                untold.update(dict.fromkeys(key for key in offsets.table if key not in source.seen))
                source.seen = None

    def _is_newer(self, name: str, theirs: DataVersion, ours: DataVersion) -> bool:
        if theirs.newer_than(ours) or theirs == ours:
            self.older.pop(name, None)
            return theirs != ours
        if self._current.source.is_master and self.older.get(name) != theirs:
            self.older[name] = theirs
            self._context.log.warning("metadata-older", table=name, master=theirs.counter, ours=ours.counter)
        return False

    # --- an Apache master -------------------------------------------------------------------------

    def _take_all(self, question: CopyRound, table: ConsumerOffsetTable) -> None:
        offsets, source = self._tables.offsets, question.source
        self.move(FETCHING)
        offsets.merge(table)
        offsets.follow_version(table.data_version)
        self._save_soon()
        source.known, source.has_more, source.is_master = "", False, True
        # An Apache master asks for missing offsets itself (pre-online), so none are sent.
        (offsets.untold or {}).clear()
        if self._follow.belongs_to(None):
            question.steps.extend((self._fetch_topics, self._fetch_groups, self._fetch_progress, self._fetch_modes))
        self._next_step(question, wait_ms=PERIOD_MS)

    def _fetch_progress(self, then: Then) -> None:
        progress: dict[str, Snapshot] = {}
        left = [row for row in self._tables.special.rows if not row.is_own]

        def next_row() -> None:
            if left:
                row = left.pop(0)
                # A master of an older version has no timers.
                self._fetch(
                    row.code,
                    lambda reply: progress.update({row.name: row.decode(reply.body)}),
                    next_row,
                    is_optional=True,
                )
                return
            self.progress.take_later(progress)
            then()

        next_row()

    # --- tables -----------------------------------------------------------------------------------

    def _next_step(self, question: CopyRound, wait_ms: int) -> None:
        if question.steps:
            question.steps.popleft()(lambda: self._next_step(question, wait_ms))
        else:
            self.progress.save()
            self._end_round("", wait_ms)

    def _save_soon(self) -> None:
        """Schedule a save of the offsets; changes until then are saved together."""
        offsets = self._tables.offsets
        if offsets.is_dirty:
            wait_ms = max(COPY_SAVE_MS, len(offsets.table) // COPY_SAVE_PAIRS)
            self._context.duties.wake(OFFSETS_DUTY, self._context.clock.mono_ms + wait_ms)

    def _fetch(self, code: int, came: Callable[[Reply], None], then: Then, *, is_optional: bool = False) -> None:
        def ended(outcome: Outcome) -> None:
            if isinstance(outcome, CallFailed):
                self._end_round(f"the master {outcome.address} gave no answer to {code_name(code)}: {outcome.text}")
                return
            try:
                if is_optional and outcome.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    then()
                    return
                if not outcome.is_ok:
                    raise RemoteProtocolError(f"{outcome.code}: {outcome.remark}")
                came(outcome)
            except RemoteProtocolError as error:
                self._end_round(f"the answer of the master {outcome.address} to {code_name(code)} failed: {error}")
                return
            then()

        question = self._current
        self._context.remoting.call(question.source.address, code, timeout_ms=TIMEOUT_MS, then=self._of(question, ended))

    def _fetch_topics(self, then: Then) -> None:
        source = self._current.source
        master = source.address
        vip = Address(master.host, master.port - VIP_PORT_GAP)
        addresses = [master] if source.known else [vip, master]
        self._fetch_pages(TOPICS, addresses, self._tables.topics, self.on_topic_gone, then)

    def _fetch_groups(self, then: Then) -> None:
        self._fetch_pages(GROUPS, [self._current.source.address], self._tables.groups, self.on_group_gone, then)

    def _fetch_pages(
        self,
        kind: TableKind,
        addresses: Sequence[Address],
        ours: TopicTable | GroupTable,
        on_gone: Callable[[str], None],
        then: Then,
    ) -> None:
        def came(table: Any, why: str) -> None:
            if table is None:
                self._end_round(f"{kind.name}: {why}")
                return
            entries = kind.entries(table)
            if entries and self._is_newer(kind.name, table.data_version, ours.version):
                gone = ours.follow(table)
                for name in gone:
                    on_gone(name)
                self._context.log.info(f"{kind.name}-copied", count=len(entries), gone=len(gone))
            then()

        Pages(self._context.remoting, kind, addresses, self._of(self._current, came)).fetch()

    def _fetch_access(self, then: Then) -> None:
        table = self._tables.access

        def came(reply: Reply) -> None:
            told = AccessTableBody.decode(reply.body)
            if table is not None and told.users and self._is_newer("access", told.data_version, table.version):
                table.follow(told)
                self._context.log.info("access-copied", users=len(told.users))

        self._fetch(OwnRequestCode.GET_ACCESS_TABLE, came, then)

    def _fetch_modes(self, then: Then) -> None:
        def came(reply: Reply) -> None:
            self._modes.follow(MessageRequestModeTable.decode(reply.body))

        self._modes_due_ms = self._context.clock.mono_ms + PERIOD_MS
        self._fetch(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, came, then)
