"""What each mode promises under which fault: the one table, for the survival checker and for `docs/promises.md`.

A cell says where an *acknowledged* message (SEND_OK) certainly is once the broken node is back:

    MASTER   at the master, and so for every reader
    SLAVE    at a slave at least; the master may have come back without it
    NOWHERE  no promise: it may be lost

The fault hits the master; one that hits a slave takes nothing from the master. An answer that says less than SEND_OK
stands in another row: FLUSH_DISK_TIMEOUT in that of ASYNC_FLUSH, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE in that of
ASYNC_MASTER, and so does SEND_OK of a quorum that had shrunk to the master alone, or of a group without slaves
(`cell`).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from rmqkit.drill.plan import Flush, Mode, ReplicationMode


class Harm(StrEnum):
    """What a fault does to a node, as far as its messages are concerned."""

    KILL = "kill"  # the process ends, its machine does not
    PAUSE = "pause"  # the process stops running and continues later
    ISOLATE = "isolate"  # no traffic reaches it, or some does not
    POWER_CUT = "power-cut"  # what was not synced is lost
    DISK_LOSS = "disk-loss"  # everything is lost


class Where(StrEnum):
    MASTER = "master"
    SLAVE = "slave"
    NOWHERE = "nowhere"


class Cell(NamedTuple):
    where: Where
    text: str


KEPT = Cell(Where.MASTER, "survives")
ON_SLAVE = Cell(Where.SLAVE, "survives on the slave")
MEMORY = Cell(Where.NOWHERE, "**may be lost** if sent within the last `commitIntervalCommitLog`")
UNSYNCED = Cell(Where.NOWHERE, "**may be lost** if written since the last flush (`flushIntervalCommitLog`)")
UNCOPIED = Cell(Where.NOWHERE, "**may be lost** if no slave had it yet")


def _row(kill: Cell, power_cut: Cell, disk_loss: Cell) -> Mapping[Harm, Cell]:
    """A node that is paused or isolated loses nothing in any mode."""
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
}

#: answers that say less than SEND_OK, and in whose row they stand
AS_ALONE = ("FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE")
AS_UNSYNCED = ("FLUSH_DISK_TIMEOUT",)


def cell(mode: Mode, harm: Harm, status: str = "SEND_OK", *, copies: int = 2, hits_master: bool = True) -> Cell:
    """What is promised of a message that was answered `status` while `copies` replicas were in sync."""
    if not hits_master:
        return KEPT
    replication, flush = mode.replication, mode.flush
    if status in AS_ALONE or copies < 2:
        replication = ReplicationMode.ASYNC
    if status in AS_UNSYNCED and flush is Flush.SYNC:
        flush = Flush.ASYNC
    return TABLE[replication, flush][harm]


#: the modes by the names that users write
REPLICATIONS = {
    ReplicationMode.ASYNC: "ASYNC_MASTER",
    ReplicationMode.SYNC: "SYNC_MASTER, plain, `inSyncReplicas=2`",
    ReplicationMode.QUORUM: "SYNC_MASTER, quorum, 2 in sync",
}
FLUSHES = {Flush.ASYNC: "ASYNC_FLUSH", Flush.SYNC: "SYNC_FLUSH", Flush.POOL: "`transientStorePoolEnable`"}
