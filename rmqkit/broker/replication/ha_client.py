"""The slave's side of HA: finds its master, identifies itself, compares the logs, and follows.

The states are in `ha_state.py`. On each HA connection the slave asks the master's main port (906)
whether the two logs fit together, and follows the master if they do. It reconnects `RETRY_MS` after
a connection was lost or refused.

Following: what arrives must continue this log byte for byte. The slave appends it, and once it is
written (end of the turn) reports the end of its log. So a report means "in this broker's page
cache", not "on its disk".

A master that does not know our fields (Apache's) is followed, too; its answer decides from where.
Such a master knows this slave by its connection alone, and sends an empty slave its last log file
only.

Source: `store/.../ha/DefaultHAClient.java`, `broker/.../BrokerController.onMasterOnline`.
"""

from collections.abc import Callable

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.replication import tail_probe
from rmqkit.broker.replication.divergence import Divergence, DivergenceVerdict
from rmqkit.broker.replication.ha_state import (
    AHEAD,
    CONNECTING,
    FOLLOWING,
    FOREIGN,
    MOVES,
    NO_MASTER,
    REFUSED,
    STOPPED,
    HaState,
)
from rmqkit.broker.replication.member_calls import MemberCalls
from rmqkit.broker.replication.tail_probe import TailComparison
from rmqkit.broker.replication.truncation import Truncation, TruncationState
from rmqkit.errors import RemoteProtocolError, RmqkitError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address, Connection
from rmqkit.runtime.states import StateMachine
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.ha.stream import Transfers, encode_report
from rmqkit.wire.schemas.admin import ExchangeHAInfoResponse

#: pause before reconnecting
RETRY_MS = 1000
SCAN_MS = 500
#: the pause doubles with each failed write, up to this
PAUSE_MS_MAX = 16_000
#: with haMasterAddress: how long to wait for a name server to report the master's main port
TOLD_MS = 3000
TAG = "ha-master"

#: part of the reason in the state `ahead` during a truncation; `cluster status` looks for it
CUTTING = "they are copied and cut off now"


class HaClient(StateMachine[HaState]):
    """A slave's HA client: at most one connection to one master at a time."""

    def __init__(
        self,
        context: BrokerContext,
        store: StorageEngine,
        calls: MemberCalls,
        divergence: Divergence,
        truncation: Truncation,
        *,
        has_nameservers: bool,
    ) -> None:
        super().__init__(MOVES)
        self._context = context
        self._store = store
        self._calls = calls
        self.divergence = divergence
        self._truncation = truncation
        truncation.on_refused, truncation.on_begun, truncation.on_ended = self._not_cut, self._cut_begun, self._cut_ended
        #: why the log is being truncated, for status
        self._cut_why = ""
        self._has_nameservers = has_nameservers
        self.why = "not started"
        #: the master's main port; None while unknown
        self.master: Address | None = None
        #: the master's HA port; None while unknown
        self.master_ha: Address | None = None
        #: the end of the master's log as far as this slave knows; -1 before the first answer
        self.master_end = -1
        #: whether the master sends its whole log to an empty slave; ours do if asked to
        self._is_whole = False
        #: when this slave began to ask the name servers
        self._asked_ms = 0
        #: pause before the next connection; longer after failed writes
        self._pause_ms = RETRY_MS
        self._conn: Connection | None = None
        self._transfers = Transfers()
        self._running = False
        self._report_due = False
        #: the connection is being closed because the master is back: reconnect without a pause
        self._is_summoned = False
        self.read_ms = self.written_ms = 0
        #: called each time the slave begins to follow, also if it is the same master again
        self.on_following: Callable[[], None] = lambda: None
        context.duties.add("ha-follow", self._run, None)

    # --- life -------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the saved state and `haMasterAddress`.

        Raises RmqkitError if either cannot be read.
        """
        self.divergence.load()
        explicit = self._context.config.ha.master_address
        if explicit:
            try:
                self.master_ha = Address.parse(explicit)
            except ValueError as error:
                raise RmqkitError(f"haMasterAddress: {error}") from None

    def start(self) -> None:
        self._running = True
        self._truncation.resume()
        self._asked_ms = self._context.clock.mono_ms
        self._set(NO_MASTER, "no name server has reported the master's address yet")
        self._context.duties.wake("ha-follow", self._context.clock.mono_ms)

    def stop(self) -> None:
        self._running = self._truncation.is_allowed = False
        self._set(STOPPED, "the broker is stopping")
        if self._conn is not None:
            self._context.outbox.close(self._conn, "the broker is stopping")

    def validate(self) -> None:
        assert not self._report_due, "bytes written in the last turn were not reported"
        if self.state is FOLLOWING:
            assert self._conn is not None
        elif self.state is NO_MASTER:
            assert self._conn is None
        elif self.state is CONNECTING:
            assert self.master_ha is not None
        assert self._conn is None or not self._truncation.is_busy or self._conn.closing

    def learned(self, master: Address | None, master_ha: Address | None) -> None:
        """Take the master's addresses from a registration's answer.

        A configured haMasterAddress takes precedence over the learned HA address.
        """
        if master is not None and master != self.master:
            self._context.log.info("master-known", address=str(master), ha_address=str(master_ha))
            if self.master is None and self._conn is not None and self.state == FOLLOWING:
                self._context.outbox.abort(self._conn, "the master's main port is known now: the logs are compared first")
            self.master = master
        if master_ha is None or self._context.config.ha.master_address or master_ha == self.master_ha:
            return
        self.master_ha = master_ha
        if self._conn is not None:
            self._context.outbox.abort(self._conn, f"the master is at {master_ha} now")
        if self._running:
            self._context.duties.wake("ha-follow", self._context.clock.mono_ms)

    def master_returns(self, master: Address, master_ha: Address, start_id: str | None) -> None:
        """Follow a returning master (906).

        `start_id` is the id of its start, None for an Apache master.
        An older connection is closed: the master may have lost it already.
        """
        conn, now_ms = self._conn, self._context.clock.mono_ms
        self.learned(master, master_ha)
        if not self._running:
            return
        if conn is None or conn.closing:
            pass
        elif self.state == FOLLOWING and start_id is not None and self.divergence.start_id == start_id:
            self._report()  # the master was not restarted, or only stalled, and waits for a report
        else:
            self._context.outbox.abort(conn, "the master is back: reconnecting to it")
        self._is_summoned = self._conn is not None and bool(self._conn.closing)
        self._context.duties.wake("ha-follow", now_ms)

    @property
    def is_truncating(self) -> bool:
        return self._truncation.state is TruncationState.CUTTING

    @property
    def may_belong(self) -> bool:
        """Whether nothing contradicts that this log is the master's."""
        return self.state not in (AHEAD, FOREIGN, REFUSED)

    @property
    def log_of(self) -> str:
        """The start id of the master that wrote this log; "" while unknown."""
        return self.divergence.start_id if self.may_belong else ""

    def belongs_to(self, start_id: str | None) -> bool:
        """Whether this log is known to be the log of that start of the master.

        None stands for an Apache master, which has no start ids: then no contradiction is enough.
        """
        if start_id is None:
            return self.may_belong
        return bool(start_id) and self.log_of == start_id

    # --- the connection ---------------------------------------------------------------------------

    def _run(self, now_ms: int) -> int | None:
        if not self._running:
            return None
        conn, ha = self._conn, self._context.config.ha
        if conn is None:
            return self._connect(now_ms)
        if conn.is_open and not conn.closing:
            if self._store.is_broken:
                self._context.outbox.abort(conn, self._store.failed)
            elif now_ms - self.read_ms > ha.housekeeping_ms:
                self._context.outbox.abort(conn, f"received nothing from the master for {now_ms - self.read_ms} ms")
            elif self.state == FOLLOWING and now_ms - self.written_ms >= ha.heartbeat_ms:
                self._report()
        return now_ms + min(SCAN_MS, ha.heartbeat_ms)

    def _connect(self, now_ms: int) -> int | None:
        store = self._store
        if self._truncation.is_busy or self.master_ha is None:
            return now_ms + RETRY_MS
        if store.is_broken:
            # Written bytes may be lost, so a report could promise a copy that does not exist.
            self._set(STOPPED, f"the store takes nothing more until a restart: {store.failed}")
            return None
        if self.master is None and self._has_nameservers and now_ms < self._asked_ms + TOLD_MS:
            return now_ms + SCAN_MS
        if self.state not in (AHEAD, FOREIGN, REFUSED):
            self._set(CONNECTING, self.why if self.state == CONNECTING else f"connecting to {self.master_ha}")
        self._transfers = Transfers()
        self._store.expect_copy(0)
        self._is_whole = False
        self.read_ms = now_ms
        self._conn = self._context.outbox.dial(self.master_ha, TAG)
        return now_ms + SCAN_MS

    def opened(self, conn: Connection) -> None:
        if conn is not self._conn:
            return
        self.read_ms = self._context.clock.mono_ms
        if self.master is None:
            self._follow(conn, "the logs were not compared: no name server reports the master's main port")
        else:
            self._bind(conn)

    def closed(self, conn: Connection, reason: str) -> None:
        if conn is not self._conn:
            return
        self._conn = None
        self._report_due = False
        if self.state in (CONNECTING, FOLLOWING):
            self._set(CONNECTING, f"no HA connection to {conn.peer}: {conn.closing or reason}")
        if self._running:
            pause_ms = 0 if self._is_summoned else self._pause_ms
            self._is_summoned = False
            self._context.duties.wake("ha-follow", self._context.clock.mono_ms + pause_ms)

    # --- binding ----------------------------------------------------------------------------------

    def _bind(self, conn: Connection) -> None:
        assert self.master is not None

        def answered(outcome: Outcome) -> None:
            if conn is self._conn and not conn.closing:
                self._bound(conn, outcome)

        self._calls.bind(self.master, conn.local, self.divergence.tail(), answered)

    def _bound(self, conn: Connection, outcome: Outcome) -> None:
        if isinstance(outcome, CallFailed):
            self._context.outbox.abort(conn, f"the master's main port {self.master} does not answer: {outcome.text}")
            return
        if outcome.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._follow(conn)  # older than 5.0: 906 is unknown, slaves are known by their connections alone
            return
        if not outcome.is_ok:
            why = f"the master {self.master} refuses: {outcome.remark or outcome.code}"
            if outcome.code == ResponseCode.INVALID_PARAMETER:
                self._set(REFUSED, why)
            self._context.outbox.abort(conn, why)  # with another code the master is starting or stopping
            return
        try:
            said = outcome.read(ExchangeHAInfoResponse)
        except RemoteProtocolError as error:
            self._context.outbox.abort(conn, f"the master's answer cannot be read: {error}")
            return
        self._compare(conn, said)

    def _compare(self, conn: Connection, said: ExchangeHAInfoResponse) -> None:
        """Compare the last record with an Apache master's; ours has compared the logs itself."""
        if said.master_log_end is not None:
            self._judge(conn, said, None)
            return

        def probed(found: TailComparison | None, why: str) -> None:
            if conn is not self._conn or conn.closing:
                return
            if why:
                self._context.outbox.abort(conn, why)
            else:
                self._judge(conn, said, found)

        assert self.master is not None
        tail_probe.ask(self._context.remoting, self._store, self.master, probed)

    def _judge(self, conn: Connection, said: ExchangeHAInfoResponse, found: TailComparison | None) -> None:
        verdict = self.divergence.judge(said, found)
        if verdict.state is not None:
            may_cut = verdict.cut_to >= 0 and self._context.config.replication.truncate_ahead
            failed = f"; {self._truncation.failure}" if may_cut and self._truncation.failure else ""
            self._context.outbox.abort(conn, verdict.why)
            if may_cut and not failed:
                self._truncate(said, verdict)
            else:
                self._set(verdict.state, verdict.why + failed)
            return
        self.divergence.follow(said)
        if said.master_log_end is not None:
            self.master_end = said.master_log_end
            self._is_whole = not self._context.config.replication.sync_from_last_file
        # An Apache master reports the end of its log at its start, which is at most its end now.
        self._store.expect_copy(said.master_log_end or said.master_flush_offset or 0)
        self._follow(conn)

    def _truncate(self, said: ExchangeHAInfoResponse, verdict: DivergenceVerdict, *, is_known: bool = False) -> None:
        assert self.master is not None
        self._cut_why = verdict.why.partition(";")[0]
        self._truncation.begin(self.master, said, verdict.cut_to, is_known=is_known)

    def _not_cut(self, why: str) -> None:
        if self._running:
            self._set(FOREIGN, f"{self._cut_why}; not truncated: {why}")

    def _cut_begun(self) -> None:
        if self._running:
            self._set(AHEAD, f"{self._cut_why}; {CUTTING}")

    def _cut_ended(self, error: OSError | None) -> None:
        if not self._running:
            return
        if error is not None:
            self._set(AHEAD, f"{self.why}; {self._truncation.failure}")
        else:
            self._set(CONNECTING, "truncated to the master's log")
        self._context.duties.wake("ha-follow", self._context.clock.mono_ms)

    def _follow(self, conn: Connection, why: str = "") -> None:
        self._set(FOLLOWING, why)
        self._report()
        self.on_following()

    # --- the stream -------------------------------------------------------------------------------

    def received(self, conn: Connection, data: bytes) -> None:
        if conn is not self._conn or conn.closing or self.state != FOLLOWING:
            return
        self.read_ms = self._context.clock.mono_ms
        try:
            transfers = self._transfers.feed(data)
        except RemoteProtocolError as error:
            self._context.outbox.abort(conn, str(error))
            return
        for offset, body in transfers:
            if not self._append(conn, offset, body):
                return

    def _append(self, conn: Connection, offset: int, body: bytes) -> bool:
        store = self._store
        if not body:
            self.master_end = max(self.master_end, offset)
        if store.offset_max != 0 and offset != store.offset_max:
            self._context.outbox.abort(conn, f"the master continues at {offset}, this log ends at {store.offset_max}")
            return False
        if not body:
            return True
        if store.offset_max == 0:
            self.divergence.begin(0 if self._is_whole else offset)
        if not store.append_log(offset, body):
            why = store.failed or f"bytes for {offset} do not continue the log, which ends at {store.offset_max}"
            self._context.outbox.abort(conn, why)
            return False
        self.master_end = max(self.master_end, offset + len(body))
        self._report_due = True
        return True

    def settle(self) -> None:
        """Report the end of the log: the bytes that arrived in this turn are written."""
        if self._report_due:
            self._pause_ms = RETRY_MS
            self._report()

    def write_failed(self, error: Exception) -> None:
        """Reconnect from the end of the written log: this turn's bytes could not be written."""
        if self._report_due:
            # A connected slave counts for its master, which waits for it. So it stays away for
            # longer each time.
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MS_MAX)
        self._report_due = False
        if self._conn is not None and self.state == FOLLOWING:
            self._context.outbox.abort(self._conn, str(error))

    def _report(self) -> None:
        self._report_due = False
        conn = self._conn
        if conn is not None and not conn.closing:
            self.written_ms = self._context.clock.mono_ms
            self._context.outbox.send(conn, encode_report(self._store.offset_written))

    # --- status -----------------------------------------------------------------------------------

    @property
    def gap(self) -> int:
        """Bytes behind the master, as far as known; -1 while unknown."""
        return max(0, self.master_end - self._store.offset_written) if self.master_end >= 0 else -1

    def _set(self, state: HaState, why: str) -> None:
        if (state, why) == (self.state, self.why):
            return
        log = self._context.log.warning if state in (AHEAD, FOREIGN, REFUSED) else self._context.log.info
        if state != self.state or state in (AHEAD, FOREIGN, REFUSED, CONNECTING):
            log("replication", state=state, why=why)
        if state is not self.state:
            self.move(state)
        self.why = why
