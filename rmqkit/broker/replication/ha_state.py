"""The states of a slave's HA client, and the moves between them.

    stopped     ->  no-master
    no-master   ->  connecting, stopped
    connecting  ->  following, ahead, foreign, refused, stopped
    following   ->  connecting, stopped
    ahead       ->  following, connecting, foreign, refused, stopped
    foreign     ->  following, ahead, refused, stopped
    refused     ->  following, ahead, foreign, stopped

`following` means that an HA connection is open and that this log is the beginning of the master's.

A client in `ahead`, `foreign` or `refused` compares the logs again at each new connection. Its
state stays the same until the master's answer changes it.
"""

from enum import StrEnum

from rmqkit.runtime.states import Moves


class HaState(StrEnum):
    """The state of a slave's HA client; code 28 reports it as `replicationState`."""

    STOPPED = "stopped"
    NO_MASTER = "no-master"
    CONNECTING = "connecting"
    FOLLOWING = "following"
    #: this log has bytes that the master never had
    AHEAD = "ahead"
    #: this log has other bytes than the master's at the same offsets
    FOREIGN = "foreign"
    #: the master refuses this slave, or has removed the bytes that this log needs next
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
