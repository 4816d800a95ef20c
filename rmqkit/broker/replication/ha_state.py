"""The states of a slave's HA client, and the moves between them.

    stopped     ->  no-master
    no-master   ->  connecting, stopped
    connecting  ->  following, ahead, foreign, refused, stopped
    following   ->  connecting, stopped
    ahead       ->  following, connecting, foreign, refused, stopped
    foreign     ->  following, ahead, refused, stopped
    refused     ->  following, ahead, foreign, stopped

`following` means that an HA connection is open and the log of its master belongs to this one. A client that is `ahead`,
`foreign` or `refused` asks again at each new connection, but shows what it knows until the answer says otherwise.
"""

from enum import StrEnum

from rmqkit.runtime.states import Moves


class HaState(StrEnum):
    """What code 28 shows as `replicationState`."""

    STOPPED = "stopped"
    NO_MASTER = "no-master"
    CONNECTING = "connecting"
    FOLLOWING = "following"
    #: this log has bytes that the master never had
    AHEAD = "ahead"
    #: this log has other content than the master's
    FOREIGN = "foreign"
    #: the master refuses this slave, or has removed what this log lacks
    REFUSED = "refused"


STOPPED, NO_MASTER, CONNECTING, FOLLOWING, AHEAD, FOREIGN, REFUSED = HaState

MOVES = Moves(
    {
        STOPPED: (NO_MASTER,),
        NO_MASTER: (CONNECTING, STOPPED),
        CONNECTING: (FOLLOWING, AHEAD, FOREIGN, REFUSED, STOPPED),
        FOLLOWING: (CONNECTING, STOPPED),
        AHEAD: (FOLLOWING, CONNECTING, FOREIGN, REFUSED, STOPPED),
        FOREIGN: (FOLLOWING, AHEAD, REFUSED, STOPPED),
        REFUSED: (FOLLOWING, AHEAD, FOREIGN, STOPPED),
    }
)
