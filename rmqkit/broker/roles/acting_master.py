"""Acting: when a slave acts for its master, and when it stops.

It begins when all of this holds, and `why_not` says which does not:

- it is online, and no other broker is registered with its id
- its id is the smallest that is alive, as told by a name server that has known it for long enough to know the others
- the master was alive in this life of the slave and is gone, or the slave has been up for `brokerNotActiveTimeoutMillis`:
  a group that has just been started as a whole waits for its master
- its log is a copy of its master's: neither foreign nor refused
- its queues have everything that its log has; half a record at the end of the log, which a master that died in the middle
  of a transfer leaves, is not waited for

It ends as soon as a smaller id is alive, when it is not online any more, and when it is cut off from all name servers for
`brokerNotActiveTimeoutMillis`: another one may act by then. A name server that is restarted ends nothing.
"""

from typing import TYPE_CHECKING

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.replication.ha_state import FOLLOWING
from rmqkit.broker.replication.replication import Replication
from rmqkit.broker.roles.pre_online import why_no_copy
from rmqkit.broker.roles.role import MASTER_ID, Online, Role
from rmqkit.store.contract import StorageEngine

if TYPE_CHECKING:
    from rmqkit.broker.roles import Roles

DUTY = "roles-acting"
#: how often it is looked at what keeps a slave from acting, where only time or work of its own can change it
LOOK_MS = 50
RIPE_LOOK_MS = 250
#: queues that have not moved for so long have what can be had
STUCK_MS = 100


class ActingMaster:
    def __init__(self, roles: "Roles", context: BrokerContext, store: StorageEngine, replication: Replication) -> None:
        self._roles = roles
        self._context = context
        self._store = store
        self._replication = replication
        self.why_not = ""
        self._is_master_known = False
        self._started_ms = 0
        #: how far the queues were, and since when
        self._dispatched = (-1, 0)
        self._context.duties.add(DUTY, self._run, None)

    def start(self) -> None:
        self._started_ms = self._context.clock.mono_ms

    @property
    def had_time(self) -> bool:
        """Whether it is up for long enough to have seen a master that is alive."""
        return self._context.clock.mono_ms >= self._started_ms + self._context.config.acting.not_active_ms

    def look(self) -> None:
        """Members, role or online have changed."""
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
            self.look()

    def _why_end(self) -> str:
        roles = self._roles
        if roles.conflict:
            return f"{roles.conflict} is registered with its id, too"
        smaller = next((broker_id for broker_id in roles.members if broker_id < roles.broker_id), None)
        if smaller is not None:
            return "the master is back" if smaller == MASTER_ID else f"id {smaller}, which is smaller, is alive"
        return "no name server answers: another one may act by now" if roles.is_cut_off else ""

    def _why_not(self) -> tuple[str, int]:
        """What keeps this slave from acting, "" if nothing; and when to look again, 0: when something changes."""
        roles, now_ms = self._roles, self._context.clock.mono_ms
        if roles.online is not Online.ONLINE:
            return f"it is {roles.online}", 0
        if roles.conflict:
            return f"{roles.conflict} is registered with its id, too", 0
        if roles.is_cut_off:
            return "no name server answers", 0
        if roles.broker_id not in roles.members:
            return "no name server has it registered", 0
        smallest = next(iter(roles.members))
        if smallest != roles.broker_id:
            return f"id {smallest} is alive", 0
        if not roles.is_ripe:
            return "no name server that tells who is alive has known it for long enough to know the others", RIPE_LOOK_MS
        up_ms = self._started_ms + self._context.config.acting.not_active_ms - now_ms
        if not self._is_master_known and up_ms > 0:
            return "no master has been seen since it was started, and that was only just now", up_ms
        no_copy = why_no_copy(self._replication)
        if no_copy:
            return no_copy, LOOK_MS
        if not self._has_dispatched(now_ms):
            return "its queues do not have all of its log yet", LOOK_MS
        return "", 0

    def _has_dispatched(self, now_ms: int) -> bool:
        store = self._store
        behind = int(store.facts().get("dispatchBehindBytes", 0))
        if not behind:
            return True
        dispatched = store.offset_max - behind
        if dispatched != self._dispatched[0]:
            self._dispatched = (dispatched, now_ms)
        return now_ms - self._dispatched[1] >= STUCK_MS
