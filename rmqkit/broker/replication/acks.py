"""How many copies a put needs, which slaves have them, and the puts that wait for them.

The copies a put of a SYNC_MASTER needs, the master's own included:

    plain (totalReplicas 1)
        inSyncReplicas. If no slave is in sync, the put is stored and answered SLAVE_NOT_AVAILABLE.
    quorum (totalReplicas > 1)
        inSyncReplicas. With enableAutoInSyncReplicas: as many as are in sync, at most
        inSyncReplicas and at least minInSyncReplicas. If fewer are in sync than needed, puts are
        refused and nothing is stored.

In controller mode the set of in-sync replicas decides. If it has fewer than minInSyncReplicas
members, puts are refused. With allAckInSyncStateSet a put waits for all of them, else for
inSyncReplicas as in the quorum mode; reports of members outside of the set do not count.

A put of an ASYNC_MASTER waits for no slave. A message with WAIT=false does not wait either, and a
missing quorum does not refuse it.

Puts wait by log offset, in one table for each number of copies. The offset that the (n-1)th of the
counted slaves has reached ends all waits for n copies up to it. So a slow slave delays only the
puts that need it. A wait ends at `slaveTimeout` with FLUSH_SLAVE_TIMEOUT: the message is stored,
the number of copies is unknown.

Source: `store/.../CommitLog.{needHandleHA,calcNeedAckNums,handleHA}`,
`store/.../ha/GroupTransferService.java`.
"""

from collections.abc import Callable
from typing import Protocol

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.replication.members import ReplicaMembers
from rmqkit.config import BrokerRole
from rmqkit.runtime.waiters import OffsetWaiters

#: copies that a put needs if it waits for no slave: the master's own
OWN = 1
#: `needed` of a put that waits for every member in sync (allAckInSyncStateSet)
EVERY = 0


class SyncSet(Protocol):
    """What puts need of the set of in-sync replicas in controller mode (`SyncStates`)."""

    @property
    def ids(self) -> frozenset[int]: ...
    @property
    def required(self) -> frozenset[int]:
        """The other members that a put waits for."""

    @property
    def copied(self) -> int:
        """Up to here all of them have the log."""


class Acks:
    """Decides how many copies puts need, and parks puts until they exist or time is over."""

    def __init__(self, context: BrokerContext, members: ReplicaMembers) -> None:
        self._context = context
        self._members = members
        #: called when puts start to be refused, and when they are accepted again
        self.on_blocked: Callable[[], None] = lambda: None
        #: the set of in-sync replicas in controller mode, else None
        self.sync_set: SyncSet | None = None
        self._waiting: dict[int, OffsetWaiters] = {}
        #: copies that puts of this turn need, the master's own included
        self.needed = OWN
        #: puts are answered SLAVE_NOT_AVAILABLE at once and do not wait
        self.no_slave = False
        #: why puts are refused; "" while they are accepted
        self.too_few = ""
        context.duties.add("ha-waits", self._expire, None)

    def configure(self) -> None:
        """Recompute what puts need, after a change of settings, connections or gaps."""
        config = self._context.config
        settings = config.replication
        self.needed, self.no_slave, too_few = OWN, False, ""
        if self.sync_set is not None:
            if config.identity.broker_role is BrokerRole.SYNC_MASTER:
                self.needed, too_few = self._needed_of(self.sync_set)
        elif config.identity.broker_role is BrokerRole.SYNC_MASTER:
            in_sync = 1 + len(self._members.in_sync())
            wanted = settings.in_sync_replicas
            if settings.total_replicas > 1:
                if settings.auto_in_sync:
                    wanted = max(min(wanted, in_sync), settings.min_in_sync_replicas)
                if wanted > in_sync:
                    too_few = f"in-sync replicas not enough: {in_sync} of the {wanted} that a put needs are in sync"
            elif wanted > OWN and in_sync == OWN:
                self.no_slave = True
            self.needed = wanted
        if too_few != self.too_few:
            if too_few:
                self._context.log.warning("too-few-in-sync", reason=too_few)
            else:
                self._context.log.info("enough-in-sync")
            self.too_few = too_few
            self.on_blocked()

    def _needed_of(self, sync_set: SyncSet) -> tuple[int, str]:
        """Return how many copies a put needs in controller mode, and why puts are refused or ""."""
        settings, size = self._context.config.replication, len(sync_set.ids)
        if not size:
            return OWN, ""  # not master yet: no put is taken
        least, wanted = settings.min_in_sync_replicas, settings.in_sync_replicas
        if settings.auto_in_sync:
            wanted = max(min(wanted, size), least)
        if self._context.config.election.all_ack:
            wanted = least
        too_few = (
            f"in-sync replicas not enough: {size} of the {wanted} that a put needs are in the set" if wanted > size else ""
        )
        if self._context.config.election.all_ack:
            return EVERY if sync_set.required else OWN, too_few
        return wanted, too_few

    @property
    def copies_needed(self) -> int:
        """How many brokers a put waits for, this one included."""
        return 1 + len(self.sync_set.required) if self.needed == EVERY and self.sync_set is not None else self.needed

    def changed(self) -> None:
        """Recompute what puts need and end waits, after a slave has reported, come or gone."""
        self.configure()
        if not self._waiting:
            return
        acked = sorted((link.acked for link in self._members.counted()), reverse=True)
        for needed, waiting in self._waiting.items():
            if needed == EVERY:
                if self.sync_set is not None and not self.too_few:
                    waiting.reached(self.sync_set.copied)
            elif needed - 2 < len(acked):
                waiting.reached(acked[needed - 2])

    def park(self, offset: int, finish: Callable[[bool], None]) -> None:
        """Call `finish(True)` once `needed` copies have the log up to `offset`.

        Call `finish(False)` if that takes longer than `slaveTimeout`. A put that needs only the
        master's own copy finishes at once.
        """
        if self.needed == OWN:
            finish(True)
            return
        context = self._context
        deadline_ms = context.clock.mono_ms + context.config.replication.slave_timeout_ms
        waiting = self._waiting.get(self.needed)
        if waiting is None:
            waiting = self._waiting[self.needed] = OffsetWaiters()
        waiting.park(offset, deadline_ms, finish)
        context.duties.wake("ha-waits", deadline_ms)

    def fail_all(self) -> None:
        """End all waits as failed: the broker is stopping."""
        for waiting in self._waiting.values():
            waiting.fail_all()

    def _expire(self, now_ms: int) -> int | None:
        dues = [due for waiting in self._waiting.values() if (due := waiting.expire(now_ms)) is not None]
        return min(dues, default=None)
