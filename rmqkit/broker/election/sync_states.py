"""SyncStates: the members that have every acknowledged message (the SyncStateSet), at its master.

The controllers elect only a member of the set that they know. So with `allAckInSyncStateSet` a
message is acknowledged once every member of that set has it. The master proposes changes of the set
(1001), one at a time, and never knows when exactly the controllers apply one. Therefore a put waits
for the *union* of the set that the controllers have confirmed, of every proposal that they may
still apply, and of the members that are about to join:

- A proposal names the set's version (`syncStateSetEpoch`), and is applied only to this version. So
  it is over once the controllers answer it, or report a newer version. A proposal without an answer
  may be in a controller's queue: it stays in the union until the version grows, `PROPOSAL_MS` at
  most. (A controller gives up an event that its log does not take within 5 s.)
- A member joins in two steps. Once it lacks at most `JOIN_GAP` bytes, puts wait for it as well. The
  end of the log at that moment bounds everything that was acknowledged without it. When it has
  reported that end, the set with it is proposed. (Apache proposes it at once, and acknowledges
  messages without it in between.) A member that does not get there within `JOIN_MS` starts again.
- A member leaves if its connection has ended, or if it has not reached the end of the log for
  `haMaxTimeSlaveNotCatchup`. Until the controllers have answered, puts still wait for it.

*Copied* is the smallest report of the union. A put waits until its record is copied. The *confirm
offset* is the same. With SYNC_FLUSH it is also at most what is on this master's own disk, because
the answer of a put waits for that disk, too. Neither offset goes back.

With `allAckInSyncStateSet` consumers get only what is confirmed. After a power cut of all members,
the master may return first, without the end of its log. It must not withdraw a message that a
consumer has read. (Apache's confirm offset ignores all disks.)

Source: `store/.../ha/autoswitch/AutoSwitchHAService.java`, `AutoSwitchHAConnection.java`,
`broker/.../ReplicasManager.checkSyncStateSetAndDoReport`, `ReplicasInfoManager.alterSyncStateSet`.
"""

from collections.abc import Callable, Mapping

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.election.controllers import Controllers
from rmqkit.broker.replication.ha_connection import ReplicaLink
from rmqkit.config import FlushDiskType
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import Reply
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.bodies import SyncStateSet
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.controller import AlterSyncStateSetRequest

DUTY = "election-sync-states"
#: bytes that a member may lack when puts begin to wait for it: below a second of most loads
JOIN_GAP = 4 * 1024 * 1024
#: how long a member may take from there to the end of the log
JOIN_MS = 3000
#: how long a proposal without an answer may still be applied
PROPOSAL_MS = 30_000
#: pause after a proposal that was refused or not answered
RETRY_MS = 500
#: the confirm offset while every message counts as confirmed
EVERYTHING = 2**63 - 1


class _Progress:
    """How long a member has been behind the end of the log.

    `caught_up_ms` is the newest time at which the member is known to have had the whole log. A
    member that has not reached the present end may have reached an earlier one: `mark` is the end
    of the log at `marked_ms`, and a report of `mark` proves that the member had everything then.
    """

    __slots__ = ("caught_up_ms", "mark", "marked_ms")

    def __init__(self, now_ms: int) -> None:
        self.caught_up_ms = self.marked_ms = now_ms
        self.mark = -1

    def reported(self, acked: int, end: int, now_ms: int) -> None:
        if acked >= end:
            self.caught_up_ms = now_ms
        elif 0 <= self.mark <= acked:
            self.caught_up_ms = max(self.caught_up_ms, self.marked_ms)
        if acked >= self.mark:
            self.mark, self.marked_ms = end, now_ms


class SyncStates:
    """The set of a master, from `begin` to `end`. Idle on a slave."""

    def __init__(self, context: BrokerContext, store: StorageEngine, controllers: Controllers) -> None:
        self._context = context
        self._store = store
        self._controllers = controllers
        #: links by broker id, as `ReplicaMembers` has bound them
        self.links: Mapping[int, ReplicaLink] = {}
        #: called when what puts need may have changed
        self.on_change: Callable[[], None] = lambda: None
        #: called when a controller refuses a proposal: ask for the group's state
        self.on_refused: Callable[[], None] = lambda: None
        self.is_on = False
        self.own_id = 0
        self._master_epoch = 0
        #: the set as the controllers have confirmed it, this master included, and its version
        self.ids: frozenset[int] = frozenset()
        self.version = 0
        #: proposals for this version that may still be applied, and when they end (monotonic ms)
        self._proposals: dict[frozenset[int], int] = {}
        #: proposals that were made again after one without an answer: a refusal does not end them
        self._doubtful: set[frozenset[int]] = set()
        #: whether a proposal is in flight
        self._is_asking = False
        self._retry_ms = 0
        #: members about to join: the offset that they must report, and until when (monotonic ms)
        self._joining: dict[int, tuple[int, int]] = {}
        self._progress: dict[int, _Progress] = {}
        self._copied = self._confirmed = 0
        self._is_syncing = False
        #: the last refusal that was logged
        self._noted: tuple[frozenset[int], str] = (frozenset(), "")
        context.duties.add(DUTY, self._check, None)

    def validate(self) -> None:
        assert not self.is_on or self.own_id in self.ids
        assert self.is_on or not (self._proposals or self._joining)

    # --- life -------------------------------------------------------------------------------------

    def begin(self, own_id: int, master_epoch: int, ids: frozenset[int], version: int) -> None:
        """Take the set with which this broker was elected; its whole log counts as confirmed."""
        now_ms = self._context.clock.mono_ms
        self.is_on, self.own_id, self._master_epoch = True, own_id, master_epoch
        self.ids, self.version = ids | {own_id}, version
        self._proposals, self._joining, self._is_asking, self._retry_ms = {}, {}, False, 0
        self._doubtful.clear()
        self._progress = {member: _Progress(now_ms) for member in ids if member != own_id}
        self._copied = self._confirmed = self._store.offset_written
        self._context.duties.wake(DUTY, now_ms + self._context.config.election.check_ms)
        self.update()

    def end(self) -> None:
        """This broker is no master any more. Readers see what it has confirmed."""
        if self.is_on and self._store.offset_confirmed is not None:
            self._store.offset_confirmed = self._confirmed
        self.is_on = False
        self.ids = frozenset()
        self._proposals, self._joining, self._progress = {}, {}, {}

    def adopt(self, master_epoch: int, ids: frozenset[int], version: int) -> None:
        """Take the set as the leader reports it: of the same master, or of its new epoch."""
        if not self.is_on or version <= self.version:
            return
        self._master_epoch = max(master_epoch, self._master_epoch)
        # A member that was slow to join is not dropped at once: the limit counts from here.
        for member in ids - self.ids:
            self._progress.pop(member, None)
        self.ids, self.version, self._proposals = ids | {self.own_id}, version, {}
        self._doubtful.clear()
        now_ms = self._context.clock.mono_ms
        self._joining = {member: each for member, each in self._joining.items() if member not in ids}
        for member in ids - {self.own_id}:
            self._progress.setdefault(member, _Progress(now_ms))
        self._context.log.info("sync-state-set", ids=sorted(self.ids), version=version)
        self.update()
        self.on_change()

    # --- what puts need ---------------------------------------------------------------------------

    @property
    def required(self) -> frozenset[int]:
        """The other members whose copies a put needs with allAckInSyncStateSet."""
        return self.ids.union(self._joining, *self._proposals) - {self.own_id}

    def counts(self, broker_id: int) -> bool:
        """Whether a member's reports are acknowledgements."""
        return broker_id in self.ids

    @property
    def confirmed(self) -> int:
        """The confirm offset; 0 if this broker is no master."""
        return self._confirmed if self.is_on else 0

    @property
    def copied(self) -> int:
        """All members that a put needs have the log up to here.

        0 if this broker is no master: no put that still waits may be acknowledged.
        """
        return self._copied if self.is_on else 0

    def update(self) -> None:
        """Recompute the confirm offset, and let readers see everything before it."""
        if not self.is_on:
            return
        store, all_ack = self._store, self._context.config.election.all_ack
        required = self.required if all_ack else ()
        is_synced = self._context.config.flush.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._copied = max(self._copied, min((store.offset_written, *map(self._acked, required))))
        self._confirmed = max(self._confirmed, min(self._copied, self._synced_end())) if is_synced else self._copied
        if all_ack:
            store.offset_confirmed = self._confirmed if required or is_synced else EVERYTHING
        else:
            store.offset_confirmed = None

    def _synced_end(self) -> int:
        """Return up to where this log is on its disk, and have the rest synced."""
        store = self._store
        if store.offset_synced < store.offset_written and not self._is_syncing:
            self._is_syncing = True
            store.sync(store.offset_written, self._synced)
        return store.offset_synced

    def _synced(self, is_durable: bool) -> None:
        self._is_syncing = False
        if is_durable:
            self.update()

    def _acked(self, member: int) -> int:
        link = self.links.get(member)
        return -1 if link is None or link.conn.closing else link.acked

    # --- changes ----------------------------------------------------------------------------------

    def reported(self, member: int, *, is_learner: bool) -> None:
        """A member has reported: it may be about to join, or may join now."""
        if not self.is_on:
            return
        now_ms, end, acked = self._context.clock.mono_ms, self._store.offset_written, self._acked(member)
        progress = self._progress.setdefault(member, _Progress(now_ms))
        progress.reported(acked, end, now_ms)
        if member not in self.ids and not is_learner:
            joining = self._joining.get(member)
            if joining is None and end - acked <= JOIN_GAP:
                joining = self._joining[member] = (max(end, self._confirmed), now_ms + JOIN_MS)
                self._context.duties.wake(DUTY, now_ms + JOIN_MS)
                self.on_change()
            if joining is not None and acked >= joining[0]:
                self.propose()
        self.update()

    def gone(self, member: int) -> None:
        """A member's connection has ended: propose the set without it."""
        if self.is_on:
            self._joining.pop(member, None)
            if member not in self.ids:
                self._progress.pop(member, None)
            self.propose()

    def _wanted(self, now_ms: int) -> frozenset[int]:
        wanted = {self.own_id}
        wanted.update(member for member in self.ids - {self.own_id} if self._is_current(member, now_ms))
        for member, (end, _) in self._joining.items():
            if self._acked(member) >= end:
                wanted.add(member)
        return frozenset(wanted)

    def _is_current(self, member: int, now_ms: int) -> bool:
        """Whether a member may stay: it is connected, and was at the end of the log recently.

        Without new messages it reports rarely, so a silent one is dropped late.
        """
        link = self.links.get(member)
        if link is None or link.conn.closing or link.acked < 0:
            return False
        limit_ms = self._context.config.election.catch_up_ms
        if link.acked >= self._store.offset_written:
            return now_ms - link.read_ms <= 2 * self._context.config.ha.heartbeat_ms + limit_ms
        return now_ms - self._progress[member].caught_up_ms <= limit_ms

    def propose(self) -> None:
        """Propose the set as it should be, unless it is or a proposal is in flight."""
        now_ms = self._context.clock.mono_ms
        wanted = self._wanted(now_ms)
        if not self.is_on or self._is_asking or wanted == self.ids or now_ms < self._retry_ms:
            return
        identity = self._context.config.identity
        request = AlterSyncStateSetRequest(
            broker_name=identity.broker_name,
            master_broker_id=self.own_id,
            master_epoch=self._master_epoch,
            invoke_time=self._context.clock.wall_ms,
        )
        body = SyncStateSet(sync_state_set=sorted(wanted), sync_state_set_epoch=self.version).encode()
        self._is_asking = True
        self._proposals[wanted] = now_ms + PROPOSAL_MS
        asked = self._master_epoch, self.version

        def answered(reply: Reply | None, why: str) -> None:
            self._is_asking = False
            if self.is_on and (self._master_epoch, self.version) == asked:
                self._answered(wanted, reply, why)

        code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
        self._controllers.call(code, request, answered, body)

    def _answered(self, wanted: frozenset[int], reply: Reply | None, why: str) -> None:
        now_ms = self._context.clock.mono_ms
        if reply is not None and reply.is_ok:
            try:
                told = SyncStateSet.decode(reply.body)
            except RemoteProtocolError as error:
                why = f"the answer cannot be read: {error}"
            else:
                self.adopt(self._master_epoch, frozenset(told.sync_state_set), told.sync_state_set_epoch)
                self.propose()
                return
        elif reply is None:
            self._doubtful.add(wanted)
        else:
            if wanted not in self._doubtful:
                del self._proposals[wanted]  # refused, so it is not applied
            why = f"code {reply.code}: {reply.remark}"
        if (wanted, why) != self._noted:
            self._noted = wanted, why
            self._context.log.warning("sync-state-set-not-changed", wanted=sorted(wanted), reason=why)
        self._retry_ms = now_ms + RETRY_MS
        self._context.duties.wake(DUTY, self._retry_ms)
        self.on_refused()
        self.on_change()

    def _check(self, now_ms: int) -> int | None:
        """Propose what is due, and drop members and proposals whose time is over."""
        if not self.is_on:
            return None
        late = [member for member, (end, until) in self._joining.items() if now_ms >= until and self._acked(member) < end]
        for member in late:
            del self._joining[member]
        over = [each for each, until in self._proposals.items() if now_ms >= until]
        for each in over:
            del self._proposals[each]
            self._doubtful.discard(each)
        if late or over:
            self.update()
            self.on_change()
        self.propose()
        due_ms = [now_ms + self._context.config.election.check_ms, *(until for _, until in self._joining.values())]
        if self._retry_ms > now_ms:
            due_ms.append(self._retry_ms)
        return max(min(due_ms), now_ms + 10)
