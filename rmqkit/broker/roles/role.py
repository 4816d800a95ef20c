"""What a broker may be, and which duty runs in which role: one table, `DUTIES`.

    role     master   brokerId 0
             slave    follows the master
             acting   a slave with the smallest id alive, while the master is away: it reads, locks, keeps offsets and
                      delivers delayed messages for the master, and never appends to its own log
    online   isolated    not registered, no heartbeat, clients are refused; finds out who else of the group is alive
             pre-online  the same, while it takes over what the others know better
             online      registered; clients are served

Source: `broker/.../BrokerController.java` (`isIsolated`, `changeSpecialServiceStatus`), RIP-32.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum

from rmqkit.config import BrokerRole, NodeConfig
from rmqkit.wire.codes import RequestCode

MASTER_ID = 0


class Role(StrEnum):
    MASTER = "master"
    SLAVE = "slave"
    ACTING = "acting"


class Online(StrEnum):
    ISOLATED = "isolated"
    PRE_ONLINE = "pre-online"
    ONLINE = "online"


class Duty(StrEnum):
    """What depends on the role."""

    #: messages of clients go into the own log
    PUT = "put"
    #: special duties are on (`broker/special`): delay levels are delivered
    SPECIAL = "special"
    #: queues are locked for consumers in order
    LOCK = "lock"
    #: name servers are told of this broker
    REGISTER = "register"
    #: and that it is alive; only with enableSlaveActingMaster
    HEARTBEAT = "heartbeat"


_MASTER, _SLAVE, _ACTING = Role.MASTER, Role.SLAVE, Role.ACTING
_ONLINE = frozenset((Online.ONLINE,))

#: the roles that have a duty, and how far online the broker has to be for it
DUTIES: Mapping[Duty, tuple[frozenset[Role], frozenset[Online]]] = {
    Duty.PUT: (frozenset((_MASTER,)), _ONLINE),
    Duty.SPECIAL: (frozenset((_MASTER, _ACTING)), _ONLINE),
    Duty.LOCK: (frozenset((_MASTER, _ACTING)), _ONLINE),
    Duty.REGISTER: (frozenset(Role), _ONLINE),
    Duty.HEARTBEAT: (frozenset(Role), _ONLINE),
}

#: what clients ask for that only a broker that is online answers; members of the group and people are answered always.
#: LOCK_BATCH_MQ tells itself who asks (`handlers/consumers/locks.py`): a member that is not online still votes
CLIENT_CODES = frozenset(
    (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.QUERY_CONSUMER_OFFSET,
        # what a master that stood still finds in its sockets is older than what it is about to take back
        RequestCode.UPDATE_CONSUMER_OFFSET,
    )
)


def does(duty: Duty, role: Role, online: Online) -> bool:
    """Whether a broker of that role has the duty now."""
    roles, states = DUTIES[duty]
    return role in roles and online in states


WHY_STARTED = "it has started, and does not know who else of its group is alive"


class RoleState:
    """What this broker is now: its role and how far online it is. `Roles` alone changes it; every other part reads it.

    It imports no other part of the broker, so any part may take it.
    """

    def __init__(self, config: NodeConfig, wall_ms: int, *, has_nameservers: bool) -> None:
        #: whether the role can change at all
        self.is_enabled = config.acting.enable and has_nameservers
        self.role = Role.SLAVE if config.identity.broker_role is BrokerRole.SLAVE else Role.MASTER
        starts_isolated = self.is_enabled and config.replication.total_replicas > 1 and not config.acting.skip_pre_online
        self.online = Online.ISOLATED if starts_isolated else Online.ONLINE
        #: the reason of the last change, for people, and its wall time
        self.why = WHY_STARTED if starts_isolated else "as configured"
        self.since_ms = wall_ms
        #: changes of role or online state in this life
        self.change_count = 0
        #: duties that are off although the role has them: an acting master stops delivering before its master is back
        self.suspended: frozenset[Duty] = frozenset()
        #: called after each change of role, online state or head of the group
        self.on_change: list[Callable[[], None]] = []

    @property
    def is_master(self) -> bool:
        """Whether the broker may append messages to its log on its own account."""
        return self.does(Duty.PUT)

    @property
    def is_acting(self) -> bool:
        return self.role is Role.ACTING

    @property
    def refusal(self) -> str:
        """Why clients are refused, "" while they are not."""
        return "" if self.online is Online.ONLINE else f"the broker is {self.online}: {self.why}"

    def does(self, duty: Duty) -> bool:
        return duty not in self.suspended and does(duty, self.role, self.online)

    def changed(self) -> None:
        """Call everything in `on_change`."""
        for then in list(self.on_change):
            then()
