"""Metadata: a slave's copies of what is not in the log: topics, consumer offsets, delay offsets, groups, request modes.

    a master of ours   one question after the other (43 with fields of ours, see `metadata_server`): the answer has the
                       changed offsets, the delay offsets and the versions of the tables; a table with a newer version is
                       fetched. A change is here within half a second and the way there
    Apache's master    knows nothing of these fields and answers with all offsets: then everything is asked for one after
                       the other as Apache's slaves do, every `PERIOD_MS`
    no master          while it is away its other slaves ask the head of the group, who acts for it and answers like it; a
                       master that comes back and says so (906) is asked from that moment on

What is taken: topics and groups when the master's version is newer than the copy's, whole tables
only, and an empty table never; the copy then has the master's version, so that the two agree until
the next change. Offsets by entry, the greater one (`OffsetTable.merge`). Delay offsets never
backwards, never beyond the end of the queue (`DelayOffsets.merge`), and only once this log has what
was delivered, or a takeover would leave messages out. What takes something away, and delay offsets,
only from a broker whose log is known to be this one.

When it is on disk: soon, however rarely the master writes (`COPY_SAVE_MS`; a large table less often, as all of it is
written). A slave that is killed may be all that is left of the group when it starts again.

What is given back: offsets that this slave has and its master does not, because they were committed here while the master
was away, or because the master died before it saved them. They go with the next question to a master of ours whose log is
this one: numbers of other messages mean nothing. An Apache master asks for them itself (pre-online), with a plain 43.

Source: `broker/.../slave/SlaveSynchronize.java`.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rmqkit.broker.metadata.metadata_server import ENTRIES_MAX, HOLD_MS, Told
from rmqkit.broker.metadata.request_modes import RequestModes
from rmqkit.broker.metadata.table_pages import GROUPS, TOPICS, Pages
from rmqkit.broker.special.contract import Progress, Snapshot
from rmqkit.broker.tables.offsets import DUTY as OFFSETS_DUTY
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome, Reply, code_name
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import (
    ConsumerOffsetTable,
    DataVersion,
    MessageRequestModeTable,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.offsets import GetAllConsumerOffsetRequest, GetAllConsumerOffsetResponse

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker

DUTY = "metadata-copy"
#: of everything with Apache's master, of the request modes with ours
PERIOD_MS = 10_000
#: after a failure, and while the master's address is unknown
RETRY_MS = 500
TIMEOUT_MS = 3000
#: by then the name servers know of a master that has come back, or it has not
SUMMONED_MS = 3000
#: from a copied change to the file: with `HOLD_MS` before it well under a second
COPY_SAVE_MS = 250
#: and no sooner than a millisecond for each so many pairs of the table
COPY_SAVE_PAIRS = 4
#: Apache's slaves ask for topics at the port P - 2
VIP_PORT_GAP = 2

Then = Callable[[], None]


class Metadata:
    def __init__(self, broker: "Broker", folder: str) -> None:
        self._broker = broker
        self.modes = RequestModes(broker.ports.disk, folder)
        #: the other side: what slaves of this broker are told
        self.told = Told(broker)
        #: why the last question came to nothing; "" when it did not
        self.failure = ""
        #: tables whose version at the master is older than the copy's
        self.older: dict[str, DataVersion] = {}
        self._running = False
        self._is_asking = False
        #: counts the rounds: an answer to a question of another round, which was given up, is none
        self._round = 0
        #: whether the log of who was asked last is known to be this one
        self._belongs = False
        #: whether who was asked last is a master
        self._is_of_master = True
        #: a master that has said that it comes back is asked before the name servers know it; when it said so, -1: none has
        self._summoned_ms = -1
        #: not asked before
        self._ask_ms = 0
        self._copied: list[Then] = []
        #: when the question under way was asked, if the master was to hold it; -1: it was not
        self._held_since_ms = -1
        self._master: Address | None = None
        #: how far the master's changes are known
        self._known = ""
        #: pairs that this life of the master has told, while it has not told all of them
        self._seen: set[str] | None = None
        self._more = False
        #: pairs that go with the question under way, as they were told
        self._giving: dict[str, dict[int, int]] = {}
        #: progress of special duties that waits for the log to reach this far; -1: for the next round
        self._progress: tuple[int, Progress] | None = None
        self._steps: deque[Callable[[Then], None]] = deque()
        self._answered_ms = -1
        self._modes_due_ms = self._save_due_ms = 0
        broker.duties.add(DUTY, self._run, None)

    # --- life ---------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Raises KeptFileDamaged."""
        self.modes.load()
        if self._broker.replication.is_slave and not self._broker.offsets.version.counter:
            # Drawn at this start: no older than the master's version, but it says nothing.
            self._broker.offsets.version = DataVersion()

    def start(self) -> None:
        """The slave serves."""
        self._running = True
        self._broker.offsets.untold = {}
        self._broker.replication.follow.on_following = self.again
        self._broker.role.on_change.append(self._look)
        self._look()

    def _look(self) -> None:
        """Who is asked may be another one now."""
        self._broker.duties.wake(DUTY, self._broker.clock.mono_ms)

    def stop(self) -> None:
        """Also a master's: its slaves get the last state."""
        self._running = False
        self.told.hand_over()

    def facts(self) -> dict[str, str]:
        """`metadataAge` in ms since the last answer, -1 without one, of `metadataFrom`; `metadataWhy` for people."""
        if not self._running:
            return {}
        age_ms = -1 if self._answered_ms < 0 else self._broker.clock.mono_ms - self._answered_ms
        older = [f"the master's table of {name} is older than this copy and not taken" for name in sorted(self.older)]
        return {
            "metadataAge": str(age_ms),
            "metadataFrom": "" if self._master is None else str(self._master),
            "metadataWhy": "; ".join([self.failure] * bool(self.failure) + older),
        }

    # --- who is asked -------------------------------------------------------------------------------------------------

    @property
    def source(self) -> Address | None:
        """The master or, while it is away, the head of the group; None while that is this broker, or nobody is known."""
        broker = self._broker
        master, roles = broker.replication.master_address, broker.roles
        if roles.is_enabled and self._summoned_ms < 0:
            own_id = broker.config.identity.broker_id
            others = roles.others
            if others and 0 not in others:
                head = min(others)
                is_head = own_id in roles.members and own_id < head
                return None if is_head else others[head]
            if not others and roles.members:
                return None
            master = master or others.get(0)
        return None if master == broker.address else master

    def summoned(self) -> None:
        """The master comes back: it is asked for all, and told all."""
        self._summoned_ms = self._broker.clock.mono_ms
        self.again()

    def again(self) -> None:
        """Ask at once and for everything: what was asked before may be of another time."""
        if self._running:
            self._known = ""
            self._give_up()

    def _give_up(self) -> None:
        """The question under way is answered too late, or never."""
        self._round += 1
        self._steps.clear()
        self._is_asking = False
        self._ask_ms = self._broker.clock.mono_ms
        self._broker.duties.wake(DUTY, self._ask_ms)

    def when_copied(self, then: Then) -> None:
        """Call `then` at the end of the next round that goes well and after which nothing is left to be asked."""
        self._copied.append(then)

    # --- one question after the other ---------------------------------------------------------------------------------

    def _run(self, now_ms: int) -> int | None:
        if not self._running:
            return None
        if 0 in self._broker.roles.members and now_ms - self._summoned_ms > SUMMONED_MS:
            self._summoned_ms = -1
        source = self.source
        if source is None:
            if self._broker.role.is_acting:
                self.failure = ""  # what it has is what there is
            return now_ms + RETRY_MS
        if source != self._master:
            self._master, self._known, self._belongs = source, "", False
            self._give_up()
        if self._is_asking:
            return None
        if now_ms < self._ask_ms:
            return self._ask_ms
        self._ask(source)
        return None

    def _of_this_round(self, take: Callable[..., None]) -> Callable[..., None]:
        number = self._round

        def came(*answer: Any) -> None:
            if number == self._round:
                take(*answer)

        return came

    def _ask(self, master: Address) -> None:
        self._is_asking = True
        offsets = self._broker.offsets
        self._giving, entries = {}, 0
        # Whether the master is one that takes offsets, and of this log, is known from its first answer on.
        may_give = bool(self._known) and self._belongs
        for key in (offsets.untold or ()) if may_give else ():
            entries += max(1, len(offsets.table[key]))
            if self._giving and entries > ENTRIES_MAX:
                break
            self._giving[key] = dict(offsets.table[key])
        body = offsets.part(self._giving).encode() if self._giving else b""
        wait = bool(self._known) and not self._more and not body and not self._has_to_give_yet
        self._held_since_ms = self._broker.clock.mono_ms if wait else -1
        self._broker.remoting.call(
            master,
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            GetAllConsumerOffsetRequest(
                known_changes=self._known, wait=wait, broker_id=self._broker.config.identity.broker_id
            ),
            body,
            timeout_ms=TIMEOUT_MS + HOLD_MS,
            then=self._of_this_round(lambda outcome: self._answered(outcome, bool(body))),
        )

    @property
    def _has_to_give_yet(self) -> bool:
        """Whether something waits to be given until this log is known to be the master's."""
        return bool(self._broker.offsets.untold) and not self._belongs and self._broker.replication.follow.may_belong

    def _answered(self, outcome: Outcome, gave: bool) -> None:
        if isinstance(outcome, CallFailed):
            self._summoned_ms = -1
            self._ended(f"the master {outcome.address} gave no answer: {outcome.text}")
        elif not outcome.is_ok:
            self._ended(f"the master {outcome.address} answered {outcome.code}: {outcome.remark}")
        else:
            try:
                table = ConsumerOffsetTable.decode(outcome.body)
                if "changes" in outcome.ext:
                    self._take_changes(outcome.read(GetAllConsumerOffsetResponse), table, gave)
                else:
                    self._take_all(table)
            except RemoteProtocolError as error:
                self._ended(f"the master {outcome.address} answered with what cannot be read: {error}")

    def _ended(self, failure: str, wait_ms: int = RETRY_MS) -> None:
        """The round is over; `failure` "" when it went well."""
        now_ms = self._broker.clock.mono_ms
        self._steps.clear()
        self._is_asking = False
        if failure != self.failure and self._running:
            self.failure = failure
            if failure:
                self._broker.log.warning("metadata-not-copied", why=failure)
            else:
                self._broker.log.info("metadata-copied", master=str(self._master))
        if not failure:
            self._answered_ms = now_ms
            if not self._more:
                copied, self._copied = self._copied, []
                for then in copied:
                    then()
        self._ask_ms = now_ms + wait_ms
        self._broker.duties.wake(DUTY, self._ask_ms)

    # --- a master of ours ---------------------------------------------------------------------------------------------

    def _take_changes(self, answer: GetAllConsumerOffsetResponse, table: ConsumerOffsetTable, gave: bool) -> None:
        broker, offsets = self._broker, self._broker.offsets
        topics_version = DataVersion.decode(answer.topics_version)
        groups_version = DataVersion.decode(answer.groups_version)
        progress = broker.special.read(answer)
        life = answer.changes.rpartition(".")[0]
        untold = offsets.untold if offsets.untold is not None else {}
        if gave:
            for key, told in self._giving.items():
                if offsets.table.get(key) == told:  # else it was committed again meanwhile
                    untold.pop(key, None)
        if life != self._known.rpartition(".")[0]:
            # A master that has just started, or another one: it tells everything, and may lack what we have.
            self._seen = set()
            self._progress = None  # its log may have lost what another life has delivered
        ahead = offsets.merge(table)
        log_of = life if answer.log_of is None else answer.log_of
        self._is_of_master = log_of == life
        belongs = self._belongs = broker.replication.follow.belongs_to(log_of)
        if belongs:
            offsets.remove_pairs(table.removed or ())
        offsets.follow_version(table.data_version)
        self._save_soon()
        if self._seen is not None:
            self._seen.update(table.offset_table)
            untold.update(dict.fromkeys(ahead))
            if not answer.more:
                untold.update(dict.fromkeys(key for key in offsets.table if key not in self._seen))
                self._seen = None
        self._known, self._more = answer.changes, answer.more
        if belongs:
            self._take_progress(answer.log_end, progress)
            if self._is_newer("topics", topics_version, broker.topics.version):
                self._steps.append(self._fetch_topics)
            if self._is_newer("groups", groups_version, broker.groups.version):
                self._steps.append(self._fetch_groups)
        if self._modes_due_ms <= broker.clock.mono_ms:
            self._steps.append(self._fetch_modes)
        # A master with too many questions holds none: it must not be asked without end.
        held_ms = broker.clock.mono_ms - self._held_since_ms
        is_early = self._held_since_ms >= 0 and held_ms < HOLD_MS // 2
        self._next(wait_ms=RETRY_MS if is_early or self._has_to_give_yet else 0)

    def _is_newer(self, name: str, theirs: DataVersion, ours: DataVersion) -> bool:
        if theirs.newer_than(ours) or theirs == ours:
            self.older.pop(name, None)
            return theirs != ours
        if self._is_of_master and self.older.get(name) != theirs:
            self.older[name] = theirs
            self._broker.log.warning("metadata-older", table=name, master=theirs.counter, ours=ours.counter)
        return False

    def _take_progress(self, log_end: int, progress: Progress) -> None:
        """Deliveries count here when this log has them; while it lags, the oldest progress that waits is kept."""
        special, written = self._broker.special, self._broker.store.offset_written
        for waiting in (self._progress, (log_end, progress)):
            if waiting is not None and waiting[0] <= written:
                special.merge(waiting[1])
                self._progress = None
            elif waiting is not None and self._progress is None:
                self._progress = waiting

    # --- Apache's master ----------------------------------------------------------------------------------------------

    def _take_all(self, table: ConsumerOffsetTable) -> None:
        offsets = self._broker.offsets
        offsets.merge(table)
        offsets.follow_version(table.data_version)
        self._save_soon()
        self._known, self._more, self._is_of_master = "", False, True
        # It asks for what it lacks itself; what was committed here stays until then.
        (offsets.untold or {}).clear()
        if self._broker.replication.follow.belongs_to(None):
            self._steps.extend((self._fetch_topics, self._fetch_groups, self._fetch_progress, self._fetch_modes))
        self._next(wait_ms=PERIOD_MS)

    def _fetch_progress(self, then: Then) -> None:
        progress: dict[str, Snapshot] = {}
        left = list(self._broker.special.rows)

        def next_row() -> None:
            if left:
                row = left.pop(0)
                self._fetch(row.code, lambda reply: progress.update({row.name: row.decode(reply.body)}), next_row)
                return
            if self._progress is not None:
                # Of the round before: what was delivered then has arrived by now.
                self._broker.special.merge(self._progress[1])
            self._progress = (-1, progress)
            then()

        next_row()

    # --- tables -------------------------------------------------------------------------------------------------------

    def _next(self, wait_ms: int) -> None:
        if self._steps:
            self._steps.popleft()(lambda: self._next(wait_ms))
        else:
            self._save_progress()
            self._ended("", wait_ms)

    def _save_soon(self) -> None:
        """Changes that come until then are written with this one."""
        offsets = self._broker.offsets
        if offsets.is_dirty:
            wait_ms = max(COPY_SAVE_MS, len(offsets.table) // COPY_SAVE_PAIRS)
            self._broker.duties.wake(OFFSETS_DUTY, self._broker.clock.mono_ms + wait_ms)

    def _save_progress(self) -> None:
        """A special duty that is on saves its progress itself; here it is off."""
        broker, now_ms = self._broker, self._broker.clock.mono_ms
        if now_ms >= self._save_due_ms:
            self._save_due_ms = now_ms + broker.special.save_interval_ms
            broker.special.save()

    def _fetch(self, code: int, came: Callable[[Reply], None], then: Then) -> None:
        def ended(outcome: Outcome) -> None:
            if isinstance(outcome, CallFailed):
                self._ended(f"the master {outcome.address} gave no answer to {code_name(code)}: {outcome.text}")
                return
            try:
                if not outcome.is_ok:
                    raise RemoteProtocolError(f"{outcome.code}: {outcome.remark}")
                came(outcome)
            except RemoteProtocolError as error:
                self._ended(f"the master {outcome.address} answered {code_name(code)} with {error}")
                return
            then()

        assert self._master is not None
        self._broker.remoting.call(self._master, code, timeout_ms=TIMEOUT_MS, then=self._of_this_round(ended))

    def _fetch_topics(self, then: Then) -> None:
        def came(table: TopicConfigTable | None, why: str) -> None:
            if table is None:
                self._ended(f"topics: {why}")
                return
            broker = self._broker
            if table.topic_config_table and self._is_newer("topics", table.data_version, broker.topics.version):
                gone = broker.topics.follow(table)
                for name in gone:
                    broker.view.delete_topic(name)
                broker.log.info("topics-copied", count=len(table.topic_config_table), gone=len(gone))
            then()

        master = self._master
        assert master is not None
        vip = Address(master.host, master.port - VIP_PORT_GAP)
        Pages(self._broker.remoting, TOPICS, [master] if self._known else [vip, master], self._of_this_round(came)).fetch()

    def _fetch_groups(self, then: Then) -> None:
        def came(table: SubscriptionGroupTable | None, why: str) -> None:
            if table is None:
                self._ended(f"groups: {why}")
                return
            broker = self._broker
            if table.subscription_group_table and self._is_newer("groups", table.data_version, broker.groups.version):
                gone = broker.groups.follow(table)
                for name in gone:
                    broker.statistics.forget_group(name)
                broker.log.info("groups-copied", count=len(table.subscription_group_table), gone=len(gone))
            then()

        assert self._master is not None
        Pages(self._broker.remoting, GROUPS, [self._master], self._of_this_round(came)).fetch()

    def _fetch_modes(self, then: Then) -> None:
        def came(reply: Reply) -> None:
            self.modes.follow(MessageRequestModeTable.decode(reply.body))

        self._modes_due_ms = self._broker.clock.mono_ms + PERIOD_MS
        self._fetch(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, came, then)
