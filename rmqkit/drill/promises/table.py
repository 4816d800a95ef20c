"""The table of promises: which message each mode keeps under which fault.

The survival checker and `docs/promises.md` both use it. A cell says where an *acknowledged* message
(SEND_OK) certainly is once the broken node is back:

    MASTER   on the master, and so readable by every client
    SLAVE    on a slave at least; the master may have come back without it
    NOWHERE  no promise: it may be lost

The fault hits the master; a fault that hits a slave takes nothing from the master. An answer that
is weaker than SEND_OK uses the row of a weaker mode (`cell`):

- FLUSH_DISK_TIMEOUT: the row of ASYNC_FLUSH;
- FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE: the row of ASYNC_MASTER;
- In controller mode (all-ack, some-ack) such an answer means what some-ack means: another member
  may be elected, and what the old master alone had is removed from its log.
- SEND_OK of a quorum that had shrunk to the master alone, or of a group without slaves: the row of
  ASYNC_MASTER.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from rmqkit.drill.plan import ELECTED, Flush, Mode, ReplicationMode


class Harm(StrEnum):
    """The effect of a fault on a node, as far as its messages are concerned."""

    KILL = "kill"  # the process ends, its machine does not
    PAUSE = "pause"  # the process stops running and continues later
    ISOLATE = "isolate"  # no traffic reaches it, or some does not
    POWER_CUT = "power-cut"  # what was not synced is lost
    DISK_LOSS = "disk-loss"  # everything is lost


class Where(StrEnum):
    """Where a message certainly is; see the head of this module."""

    MASTER = "master"
    SLAVE = "slave"
    NOWHERE = "nowhere"


class Cell(NamedTuple):
    """One cell of the table, with its text in `docs/promises.md` (Markdown)."""

    where: Where
    text: str


KEPT = Cell(Where.MASTER, "survives")
ON_SLAVE = Cell(Where.SLAVE, "survives on the slave")
MEMORY = Cell(Where.NOWHERE, "**may be lost** if sent within the last `commitIntervalCommitLog`")
UNSYNCED = Cell(Where.NOWHERE, "**may be lost** if written since the last flush (`flushIntervalCommitLog`)")
BY_ELECTION = Cell(Where.NOWHERE, "**may be lost** if it was sent in the last moments and another member is elected")
UNCOPIED = Cell(Where.NOWHERE, "**may be lost** if no slave had it yet")


def _row(kill: Cell, power_cut: Cell, disk_loss: Cell) -> Mapping[Harm, Cell]:
    """Return the cells of a mode. A paused or isolated node loses nothing in any mode."""
    return {
        Harm.KILL: kill,
        Harm.PAUSE: KEPT,
        Harm.ISOLATE: KEPT,
        Harm.POWER_CUT: power_cut,
        Harm.DISK_LOSS: disk_loss,
    }


TABLE: Mapping[tuple[ReplicationMode, Flush], Mapping[Harm, Cell]] = {
    (ReplicationMode.ASYNC, Flush.ASYNC): _row(KEPT, UNSYNCED, UNCOPIED),
    (ReplicationMode.ASYNC, Flush.SYNC): _row(KEPT, KEPT, UNCOPIED),
    (ReplicationMode.ASYNC, Flush.POOL): _row(MEMORY, UNSYNCED, UNCOPIED),
    (ReplicationMode.SYNC, Flush.ASYNC): _row(KEPT, ON_SLAVE, ON_SLAVE),
    (ReplicationMode.SYNC, Flush.SYNC): _row(KEPT, KEPT, ON_SLAVE),
    (ReplicationMode.SYNC, Flush.POOL): _row(ON_SLAVE, ON_SLAVE, ON_SLAVE),
    (ReplicationMode.QUORUM, Flush.ASYNC): _row(KEPT, ON_SLAVE, ON_SLAVE),
    (ReplicationMode.QUORUM, Flush.SYNC): _row(KEPT, KEPT, ON_SLAVE),
    (ReplicationMode.QUORUM, Flush.POOL): _row(ON_SLAVE, ON_SLAVE, ON_SLAVE),
    # A member in sync is elected, and it has every message that was answered SEND_OK.
    (ReplicationMode.ALL_ACK, Flush.ASYNC): _row(KEPT, KEPT, KEPT),
    (ReplicationMode.ALL_ACK, Flush.SYNC): _row(KEPT, KEPT, KEPT),
    (ReplicationMode.SOME_ACK, Flush.ASYNC): dict.fromkeys(Harm, BY_ELECTION),
    (ReplicationMode.SOME_ACK, Flush.SYNC): dict.fromkeys(Harm, BY_ELECTION),
}

#: answers weaker than SEND_OK: in the row of ASYNC_MASTER, or of ASYNC_FLUSH
AS_ALONE = ("FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE")
AS_UNSYNCED = ("FLUSH_DISK_TIMEOUT",)


def cell(mode: Mode, harm: Harm, status: str = "SEND_OK", *, copies: int = 2, hits_master: bool = True) -> Cell:
    """Return the promise for an answer `status` with `copies` replicas in sync."""
    if not hits_master:
        return KEPT
    replication, flush = mode.replication, mode.flush
    if replication in ELECTED and status in AS_ALONE:
        replication = ReplicationMode.SOME_ACK
    elif replication is ReplicationMode.ALL_ACK and copies < 2:
        # Only this master is in sync, so no other is elected.
        replication = ReplicationMode.ASYNC
    elif replication not in ELECTED and (status in AS_ALONE or copies < 2):
        replication = ReplicationMode.ASYNC
    if status in AS_UNSYNCED and flush is Flush.SYNC:
        flush = Flush.ASYNC
    return TABLE[replication, flush][harm]


#: the modes by the names that users write
REPLICATIONS = {
    ReplicationMode.ASYNC: "ASYNC_MASTER",
    ReplicationMode.SYNC: "SYNC_MASTER, plain, `inSyncReplicas=2`",
    ReplicationMode.QUORUM: "SYNC_MASTER, quorum, 2 in sync",
    ReplicationMode.ALL_ACK: "controller mode, `allAckInSyncStateSet`",
    ReplicationMode.SOME_ACK: "controller mode, `inSyncReplicas=2`",
}
FLUSHES = {Flush.ASYNC: "ASYNC_FLUSH", Flush.SYNC: "SYNC_FLUSH", Flush.POOL: "`transientStorePoolEnable`"}
