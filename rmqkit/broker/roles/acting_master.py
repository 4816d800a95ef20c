"""Decides when a slave acts for its master, and when it stops.

A slave begins to act once all of this holds. `why_not` names the first condition that does not:

- It is online, and no other broker is registered with its id.
- Its id is the smallest alive. A name server that has known the slave for long enough to know all
  other members must say so.
- The master was alive since the slave's start and is gone, or the slave has been up for
  `brokerNotActiveTimeoutMillis`: a group that was just started as a whole waits for its master.
- Its log is a copy of its master's: neither foreign nor refused.
- In the last `RELEASE_MS` it has not told its master that it still follows it, or its connection to
  the master has ended. After such an answer the master releases due messages (`group_contact.py`),
  whose copies may still be in flight. After the end of the connection no copy is in flight. If a
  reset connection has lost copies, the master and this slave both release these messages.
- Its queues have everything that its log has. Half a record at the end of the log does not count: a
  master that died during a transfer leaves one.

It stops as soon as a smaller id is alive, when it is not online any more, and when no name server
has answered for about `brokerNotActiveTimeoutMillis`: another slave may act by then. The restart of
a name server does not stop it.
"""

from typing import TYPE_CHECKING

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.replication.ha_state import FOLLOWING
from rmqkit.broker.replication.replication import Replication
from rmqkit.broker.roles.group_contact import ANSWER_MS
from rmqkit.broker.roles.pre_online import why_no_copy
from rmqkit.broker.roles.role import MASTER_ID, Online, Role
from rmqkit.store.contract import StorageEngine

if TYPE_CHECKING:
    from rmqkit.broker.roles import Roles

DUTY = "roles-acting"
#: how often a slave checks again while it waits only for time to pass, or for work of its own
LOOK_MS = 50
RIPE_LOOK_MS = 250
#: until the copies that an answer allowed have arrived: the time for which the answer counts, and
#: 100 ms for the transfer
RELEASE_MS = ANSWER_MS + 100
#: dispatch counts as finished after this long without progress
STUCK_MS = 100


class ActingMaster:
    """Decides whether this slave acts; `why_not` says why it does not, "" while it acts or may."""

    def __init__(self, roles: "Roles", context: BrokerContext, store: StorageEngine, replication: Replication) -> None:
        self._roles = roles
        self._context = context
        self._store = store
        self._replication = replication
        self.why_not = ""
        self._is_master_known = False
        self._started_ms = 0
        #: how far the log was dispatched, and the monotonic time in ms when it got there
        self._dispatched = (-1, 0)
        self._context.duties.add(DUTY, self._run, None)

    def start(self) -> None:
        self._started_ms = self._context.clock.mono_ms

    @property
    def had_time(self) -> bool:
        """Whether this broker has run long enough to have seen a live master."""
        return self._context.clock.mono_ms >= self._started_ms + self._context.config.acting.not_active_ms

    def update(self) -> None:
        """Decide again: members, role or online state have changed."""
        roles = self._roles
        if roles.role is Role.MASTER:
            return
        is_followed = self._replication.state == FOLLOWING
        self._is_master_known = self._is_master_known or is_followed or MASTER_ID in roles.members
        if roles.role is Role.ACTING:
            why = self._why_end()
            if why:
                roles.set_acting(False, why)
            return
        self.why_not, wait_ms = self._why_not()
        if not self.why_not:
            gone = "the master is gone" if self._is_master_known else "no master has been seen since it was started"
            roles.set_acting(True, f"{gone}, and its id is the smallest alive")
        elif wait_ms:
            self._context.duties.wake(DUTY, self._context.clock.mono_ms + wait_ms)

    def _run(self, now_ms: int) -> None:
        if self._roles.is_running:
            self.update()

    def _why_end(self) -> str:
        roles = self._roles
        if roles.conflict:
            return f"{roles.conflict} is registered with its id, too"
        smaller = next((broker_id for broker_id in roles.members if broker_id < roles.broker_id), None)
        if smaller is not None:
            return "the master is back" if smaller == MASTER_ID else f"id {smaller}, which is smaller, is alive"
        return "no name server answers: another slave may act by now" if roles.is_cut_off else ""

    def _why_not(self) -> tuple[str, int]:
        """Return what keeps this slave from acting, and after how many ms to check again.

        The reason is "" if nothing does. 0 ms: only a change of members, role or online state can
        change the answer.
        """
        roles, now_ms = self._roles, self._context.clock.mono_ms
        if roles.online is not Online.ONLINE:
            return f"it is {roles.online}", 0
        if roles.conflict:
            return f"{roles.conflict} is registered with its id, too", 0
        if roles.is_cut_off:
            return "no name server answers", 0
        if roles.broker_id not in roles.members:
            return "no name server lists it", 0
        smallest = next(iter(roles.members))
        if smallest != roles.broker_id:
            return f"id {smallest} is alive", 0
        if not roles.is_ripe:
            return "no name server that lists live members has known it long enough to know them all", RIPE_LOOK_MS
        up_ms = self._started_ms + self._context.config.acting.not_active_ms - now_ms
        if not self._is_master_known and up_ms > 0:
            return "no master has been seen since it was started, and it was started only recently", up_ms
        no_copy = why_no_copy(self._replication)
        if no_copy:
            return no_copy, LOOK_MS
        followed_ms = self._replication.answers.followed_ms
        is_copying = self._replication.follow.state == FOLLOWING
        if is_copying and followed_ms >= 0 and now_ms < followed_ms + RELEASE_MS:
            return "copies of what its master has just released may be in flight", LOOK_MS
        if not self._has_dispatched(now_ms):
            return "its queues do not have all of its log yet", LOOK_MS
        return "", 0

    def _has_dispatched(self, now_ms: int) -> bool:
        dispatched = self._store.offset_dispatched
        if dispatched >= self._store.offset_max:
            return True
        if dispatched != self._dispatched[0]:
            self._dispatched = (dispatched, now_ms)
        return now_ms - self._dispatched[1] >= STUCK_MS
