"""The slave's side of HA in controller mode: as `ha_client`, with a handshake of epochs.

After the question of 906 the slave sends who it is, and gets the epochs of the master. They decide
up to where the two logs are the same (`Epochs.common_end`):

- all of this log: the slave follows;
- less: the slave truncates its log there, after it has copied the rest to `diverged/`, and connects
  again. The removed records were written under an older master, and the log of the new one lacks
  them;
- nothing in common: the state is *refused*, and nothing changes.

With one of our masters the comparison of bytes (906) still counts: other bytes before that point
are *foreign*, and a log that is longer than the master's was when it started is cut back to there.
An epoch cannot show the latter if the same master has restarted in its epoch.

A transfer carries the epoch of its bytes, which the slave notes before it appends them, and the
confirm offset, up to which readers see this log.

With SYNC_FLUSH a report means that the bytes are on this broker's disk. Apache's slaves report what
is in their page cache, so a member that was elected after a power cut may lack acknowledged
messages.

Source: `store/.../ha/autoswitch/AutoSwitchHAClient.java`.
"""

from collections.abc import Sequence

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.replication.divergence import Divergence, DivergenceVerdict
from rmqkit.broker.replication.epochs import EpochError, Epochs
from rmqkit.broker.replication.ha_client import HaClient
from rmqkit.broker.replication.ha_state import AHEAD, FOLLOWING, FOREIGN, REFUSED, STOPPED
from rmqkit.broker.replication.log_tail import whole_end
from rmqkit.broker.replication.member_calls import MemberCalls
from rmqkit.broker.replication.tail_probe import TailComparison
from rmqkit.broker.replication.truncation import Truncation
from rmqkit.config import FlushDiskType
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.connection import Address, Connection
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.ha.epochs import (
    EpochStart,
    EpochTransfer,
    EpochTransfers,
    MasterHandshake,
    SlaveHandshake,
    encode_epoch_report,
    encode_slave_handshake,
)
from rmqkit.wire.schemas.admin import ExchangeHAInfoResponse


class EpochClient(HaClient):
    """A slave's HA client in controller mode. `follow_master` says whom it follows."""

    def __init__(
        self,
        context: BrokerContext,
        store: StorageEngine,
        calls: MemberCalls,
        divergence: Divergence,
        truncation: Truncation,
        epochs: Epochs,
    ) -> None:
        super().__init__(context, store, calls, divergence, truncation, has_nameservers=True)
        self._epochs = epochs
        self._frames = EpochTransfers()
        #: the master's answer to 906 for this connection, and what it says about the logs
        self._said = ExchangeHAInfoResponse()
        self._verdict = DivergenceVerdict()
        #: the epochs of the master's handshake
        self._master_epochs: Sequence[EpochStart] = ()
        #: the connection on which a report was sent
        self._reported: Connection | None = None
        self._is_syncing = False

    @property
    def is_busy(self) -> bool:
        """Whether a truncation may still change the log."""
        return self._truncation.is_busy

    def follow_master(self, master: Address) -> None:
        """Follow the broker at this main port. Its HA address is learned later (`learned`)."""
        if master == self.master and self._running:
            return
        self.pause("another master was elected")
        self._truncation.is_allowed = True
        self.master, self.master_ha, self.master_end = master, None, -1
        self.start()

    def start(self) -> None:
        super().start()
        self.why = (
            "no controller has named a master yet" if self.master is None else f"{self.master} is asked for its HA port"
        )

    def pause(self, why: str) -> None:
        """Stop following, and drop the connection at once."""
        conn, self._conn = self._conn, None
        self._running = self._truncation.is_allowed = self._report_due = False
        self.master = None
        self._set(STOPPED, why)
        if conn is not None:
            self._context.outbox.abort(conn, why)

    # --- the logs ---------------------------------------------------------------------------------

    def _compare(self, conn: Connection, said: ExchangeHAInfoResponse) -> None:
        self._judge(conn, said, None)  # epochs decide, also with Apache's master

    def _judge(self, conn: Connection, said: ExchangeHAInfoResponse, found: TailComparison | None) -> None:
        """Send the handshake; the verdict of 906 waits for its answer."""
        is_ours = said.master_log_end is not None
        self._said = said
        self._verdict = self.divergence.judge(said, found) if is_ours else DivergenceVerdict()
        self._follow(conn)

    def _follow(self, conn: Connection, why: str = "") -> None:
        config = self._context.config
        self._frames = EpochTransfers()
        own = SlaveHandshake(config.identity.broker_id, config.replication.sync_from_last_file, config.election.is_learner)
        self._context.outbox.send(conn, encode_slave_handshake(own))

    def _greeted(self, conn: Connection, master: MasterHandshake) -> None:
        end, verdict = self._store.offset_written, self._verdict
        same = self._epochs.common_end(master.epochs, master.log_end, end)
        if same is None:
            why = f"no epoch of this log ({self._epochs.entries[-1]}) is one of the master's: the log is another group's"
            self._context.outbox.abort(conn, why)
            self._set(REFUSED, f"{why}. To copy the master again, move this store folder away")
        elif same < end:
            self._cut(conn, same, f"this log ends at {end}, and is the master's up to {same}")
        elif verdict.state is AHEAD and verdict.cut_to >= 0:
            self._cut(conn, verdict.cut_to, verdict.why)
        elif verdict.state in (FOREIGN, REFUSED):
            self._context.outbox.abort(conn, verdict.why)
            self._set(verdict.state, verdict.why)
        else:
            self.divergence.follow(self._said)
            self.master_end, self._master_epochs = master.log_end, master.epochs
            self._is_whole = not self._context.config.replication.sync_from_last_file
            self._store.expect_copy(master.log_end)
            self._epochs.cut(end)
            super()._follow(conn)

    def _cut(self, conn: Connection, offset: int, why: str) -> None:
        confirmed = self._store.offset_confirmed
        confirmed = -1 if confirmed is None else whole_end(self._store, confirmed)
        if self._context.config.election.all_ack and offset < confirmed:
            # The elected member was not in sync, or its disk has lost the end of its log.
            self._context.log.error("confirmed-messages-cut", offset=offset, confirmed=confirmed, master=str(self.master))
            why = f"{why}, and was confirmed up to {confirmed}: acknowledged messages are lost with the cut"
        if self._truncation.failure:
            why = f"{why}; {self._truncation.failure}"
        self._context.outbox.abort(conn, why)
        if self._truncation.failure:
            self._set(AHEAD, why)
        elif offset < self._store.offset_min:
            self._set(REFUSED, f"{why}, before its first byte. To copy the master again, move this store folder away")
        else:
            self._truncate(self._said, DivergenceVerdict(AHEAD, why, offset), is_known=True)

    def _cut_ended(self, error: OSError | None) -> None:
        if error is None:
            self._epochs.cut(self._store.offset_written)
            self._epochs.save()
        super()._cut_ended(error)

    # --- the stream -------------------------------------------------------------------------------

    def received(self, conn: Connection, data: bytes) -> None:
        if conn is not self._conn or conn.closing:
            return
        self.read_ms = self._context.clock.mono_ms
        try:
            frames = self._frames.feed(data)
        except RemoteProtocolError as error:
            self._context.outbox.abort(conn, str(error))
            return
        for frame in frames:
            if isinstance(frame, MasterHandshake):
                self._greeted(conn, frame)
            elif self.state != FOLLOWING or not self._take(conn, frame):
                return
            if conn.closing:
                return

    def _take(self, conn: Connection, frame: EpochTransfer) -> bool:
        store = self._store
        # An empty log takes any offset: the master begins at its first byte.
        is_next = store.offset_max in (0, frame.offset)
        # A heartbeat shows an epoch in which nothing was written yet.
        epoch = self._epochs.of_transfer(frame.offset, frame.epoch, self._master_epochs)
        if is_next and (frame.body or epoch.start <= store.offset_max) and epoch.epoch > 0:
            try:
                if self._epochs.begin(*epoch):
                    self._context.log.info("epoch", epoch=epoch.epoch, start=epoch.start)
                    self._epochs.save()
            except EpochError as error:
                self._context.outbox.abort(conn, f"the master sends bytes of epoch {epoch}: {error}")
                return False
        if not self._append(conn, frame.offset, frame.body):
            return False
        end = store.offset_max
        before = store.offset_confirmed
        store.offset_confirmed = max(min(frame.confirmed, end), 0 if before is None else before)
        return True

    def _report(self) -> None:
        """Report the end of the log; with SYNC_FLUSH only what is on this broker's disk.

        The first report decides where the master begins to send, so it waits for the disk.
        """
        self._report_due = False
        conn, store = self._conn, self._store
        if conn is None or conn.closing or self.state != FOLLOWING:
            return
        end = store.offset_written
        if self._context.config.flush.flush_disk_type is FlushDiskType.SYNC_FLUSH and store.offset_synced < end:
            if not self._is_syncing:
                self._is_syncing = True
                store.sync(end, self._synced)
            if conn is not self._reported:
                return
            end = store.offset_synced
        self._reported = conn
        self.written_ms = self._context.clock.mono_ms
        self._context.outbox.send(conn, encode_epoch_report(end))

    def _synced(self, is_durable: bool) -> None:
        self._is_syncing = False
        if is_durable:
            self._report()
