"""The roles and online states of a broker, and the table of its duties in each of them (`DUTIES`).

    role     master      broker id 0
             slave       follows the master
             acting      a slave with the smallest live id, while the master is away: it serves
                         reads, locks queues, keeps offsets and delivers delayed messages for the
                         master, and never appends to its own log
    online   isolated    not registered, no heartbeats, refuses clients; finds out which other
                         members of the group are alive
             pre-online  as isolated, while it copies newer metadata from the other members
             online      registered; serves clients

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
    """A task that a broker has only in some roles."""

    #: append messages of clients to this broker's log
    PUT = "put"
    #: run the special duties (`broker/special`): delayed messages are delivered
    SPECIAL = "special"
    #: lock queues for orderly consumers
    LOCK = "lock"
    #: register this broker at the name servers
    REGISTER = "register"
    #: send heartbeats to the name servers; only with enableSlaveActingMaster
    HEARTBEAT = "heartbeat"


_MASTER, _ACTING = Role.MASTER, Role.ACTING
_ONLINE = frozenset((Online.ONLINE,))

#: for each duty, the roles that have it and the online states that it needs
DUTIES: Mapping[Duty, tuple[frozenset[Role], frozenset[Online]]] = {
    Duty.PUT: (frozenset((_MASTER,)), _ONLINE),
    Duty.SPECIAL: (frozenset((_MASTER, _ACTING)), _ONLINE),
    Duty.LOCK: (frozenset((_MASTER, _ACTING)), _ONLINE),
    Duty.REGISTER: (frozenset(Role), _ONLINE),
    Duty.HEARTBEAT: (frozenset(Role), _ONLINE),
}

#: client requests that an acting slave refuses once its master has copied the final snapshot
#: (`handover`). Pulls are held instead, locks are refused by their handler, and commits are passed
#: on to the master
HANDOVER_CODES = frozenset(
    (
        RequestCode.END_TRANSACTION,
        RequestCode.RECALL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    )
)
#: client requests that only a broker that is online answers; requests of members and administrators
#: are always answered. LOCK_BATCH_MQ is not listed: its handler (`handlers/consumers/locks.py`)
#: tells clients from members, and a member that is not online still votes
CLIENT_CODES = HANDOVER_CODES | frozenset(
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
        # commits that a stalled master finds in its sockets are older than the offsets that it is
        # about to copy from its members
        RequestCode.UPDATE_CONSUMER_OFFSET,
    )
)


def does(duty: Duty, role: Role, online: Online) -> bool:
    """Return whether a broker in this role and online state has the duty."""
    roles, states = DUTIES[duty]
    return role in roles and online in states


WHY_NOT_ELECTED = "no controller has told it yet which member of its group is master"
WHY_STARTED = "it has started, and does not know yet which other members of its group are alive"


class RoleState:
    """This broker's role and online state. Only `Roles` changes it; every other part reads it.

    The module imports no other part of the broker, so any part may use this class.
    """

    def __init__(self, config: NodeConfig, wall_ms: int, *, has_nameservers: bool) -> None:
        #: whether the role can change at all
        self.is_enabled = config.acting.enable and has_nameservers
        self.role = Role.SLAVE if config.identity.broker_role is BrokerRole.SLAVE else Role.MASTER
        starts_isolated = self.is_enabled and config.replication.total_replicas > 1 and not config.acting.skip_pre_online
        #: whether controllers decide the role (`broker/election`)
        self.is_elected = config.election.enable
        self.online = Online.ISOLATED if starts_isolated or self.is_elected else Online.ONLINE
        #: the reason of the last change, for status
        self.why = WHY_STARTED if starts_isolated else WHY_NOT_ELECTED if self.is_elected else "as configured"
        #: wall time in ms of the last change
        self.since_ms = wall_ms
        #: changes of role or online state since the broker started
        self.change_count = 0
        #: duties that are off although the role has them: an acting master stops delivering while
        #: its master is returning
        self.suspended: frozenset[Duty] = frozenset()
        #: whether the returning master has copied everything: what an acting slave did from now on
        #: would be missing there
        self.is_sealed = False
        #: called after each change of the role, the online state or the group's smallest live id
        self.on_change: list[Callable[[], None]] = []

    @property
    def is_master(self) -> bool:
        """Whether the broker may append messages of clients to its log: it is an online master."""
        return self.does(Duty.PUT)

    @property
    def is_acting(self) -> bool:
        return self.role is Role.ACTING

    @property
    def refusal(self) -> str:
        """Why all requests of clients are refused; "" while they are served."""
        return "" if self.online is Online.ONLINE else f"the broker is {self.online}: {self.why}"

    @property
    def handover(self) -> str:
        """Why an acting slave refuses `HANDOVER_CODES` and locks, and holds pulls; "" otherwise."""
        is_over = self.is_acting and self.is_sealed
        return "the master returns and has copied the progress of this slave: ask again by a new route" if is_over else ""

    def does(self, duty: Duty) -> bool:
        """Return whether this broker has the duty now and it is not suspended."""
        return duty not in self.suspended and does(duty, self.role, self.online)

    def changed(self) -> None:
        """Call everything in `on_change`."""
        for then in list(self.on_change):
            then()
