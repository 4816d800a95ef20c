"""What each mode promises under which fault: the one table. The survival checker looks here, and `docs/promises.md`
shows it.

    python -m rmqkit.drill.promises.table        # the parts of docs/promises.md that are made from this

A cell says where an *acknowledged* message (SEND_OK) certainly is once the broken node is back:

    MASTER   at the master, and so for every reader
    SLAVE    at a slave at least; the master may have come back without it
    NOWHERE  no promise: it may be lost

The fault hits the master; one that hits a slave takes nothing from the master. An answer that says less than SEND_OK
stands in another row: FLUSH_DISK_TIMEOUT in that of ASYNC_FLUSH, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE in that of
ASYNC_MASTER, and so does SEND_OK of a quorum that had shrunk to the master alone, or of a group without slaves
(`cell`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from rmqkit.drill.plan import Flush, Mode, Replication


class Harm(StrEnum):
    """What a fault does to a node, as far as its messages are concerned."""

    KILL = "kill"  # the process is gone, its machine is not
    PAUSE = "pause"  # the process stands still and goes on
    ISOLATE = "isolate"  # nobody reaches it, or some do not
    POWER_CUT = "power-cut"  # what was not synced is gone
    DISK_LOSS = "disk-loss"  # everything is gone


class Where(StrEnum):
    MASTER = "master"
    SLAVE = "slave"
    NOWHERE = "nowhere"


class Cell(NamedTuple):
    where: Where
    text: str


KEPT = Cell(Where.MASTER, "survives")
ON_SLAVE = Cell(Where.SLAVE, "survives on the slave")
MEMORY = Cell(Where.NOWHERE, "**may be lost**: up to `commitIntervalCommitLog` of them")
UNSYNCED = Cell(Where.NOWHERE, "**may be lost**: since the last flush, `flushIntervalCommitLog`")
UNCOPIED = Cell(Where.NOWHERE, "**may be lost**: what no slave had yet")


def _row(kill: Cell, power_cut: Cell, disk_loss: Cell) -> Mapping[Harm, Cell]:
    """A node that stands still or is cut off forgets nothing in any mode."""
    return {
        Harm.KILL: kill,
        Harm.PAUSE: KEPT,
        Harm.ISOLATE: KEPT,
        Harm.POWER_CUT: power_cut,
        Harm.DISK_LOSS: disk_loss,
    }


TABLE: Mapping[tuple[Replication, Flush], Mapping[Harm, Cell]] = {
    (Replication.ASYNC, Flush.ASYNC): _row(KEPT, UNSYNCED, UNCOPIED),
    (Replication.ASYNC, Flush.SYNC): _row(KEPT, KEPT, UNCOPIED),
    (Replication.ASYNC, Flush.POOL): _row(MEMORY, UNSYNCED, UNCOPIED),
    (Replication.SYNC, Flush.ASYNC): _row(KEPT, ON_SLAVE, ON_SLAVE),
    (Replication.SYNC, Flush.SYNC): _row(KEPT, KEPT, ON_SLAVE),
    (Replication.SYNC, Flush.POOL): _row(ON_SLAVE, ON_SLAVE, ON_SLAVE),
    (Replication.QUORUM, Flush.ASYNC): _row(KEPT, ON_SLAVE, ON_SLAVE),
    (Replication.QUORUM, Flush.SYNC): _row(KEPT, KEPT, ON_SLAVE),
    (Replication.QUORUM, Flush.POOL): _row(ON_SLAVE, ON_SLAVE, ON_SLAVE),
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
        replication = Replication.ASYNC
    if status in AS_UNSYNCED and flush is Flush.SYNC:
        flush = Flush.ASYNC
    return TABLE[replication, flush][harm]


# --- the page

REPLICATIONS = {
    Replication.ASYNC: "ASYNC_MASTER",
    Replication.SYNC: "SYNC_MASTER, plain, `inSyncReplicas=2`",
    Replication.QUORUM: "SYNC_MASTER, quorum, 2 in sync",
}
FLUSHES = {Flush.ASYNC: "ASYNC_FLUSH", Flush.SYNC: "SYNC_FLUSH", Flush.POOL: "`transientStorePoolEnable`"}
HARMS = {
    Harm.KILL: "master killed",
    Harm.PAUSE: "paused (SIGSTOP)",
    Harm.ISOLATE: "isolated",
    Harm.POWER_CUT: "power cut",
    Harm.DISK_LOSS: "its disk lost",
}
BEGIN, END = "<!-- table: python -m rmqkit.drill.promises.table -->", "<!-- end of table -->"


def _special() -> list[tuple[str, Mapping[Harm, Cell]]]:
    alone = Mode(Replication.QUORUM, Flush.ASYNC)
    joined = Cell(Where.NOWHERE, "**lost** before the slave's first file; later ones: the row of the mode")
    return [
        ("a quorum degraded to 1 (`enableAutoInSyncReplicas`), ASYNC_FLUSH", {h: cell(alone, h, copies=1) for h in Harm}),
        (
            "any mode, a slave that joined at the last file (`syncFromLastFile`)",
            {h: joined if h is Harm.DISK_LOSS else Cell(Where.MASTER, "the row of the mode") for h in Harm},
        ),
        ("any mode, the fault hits a slave", {h: cell(Mode(), h, hits_master=False) for h in Harm}),
    ]


def markdown() -> str:
    """The table as the page has it."""
    rows = [(f"{REPLICATIONS[row[0]]} · {FLUSHES[row[1]]}", cells) for row, cells in TABLE.items()]
    lines = ["| SEND_OK in the mode | " + " | ".join(HARMS.values()) + " |", "|---" * (len(HARMS) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(cells[harm].text for harm in HARMS) + " |" for name, cells in rows + _special()]
    return "\n".join([BEGIN, *lines, END]) + "\n"


# --- takeovers


class Kept(NamedTuple):
    """What is promised while a slave acts for its master and when the master comes back, and what is counted only."""

    promise: str
    where: str
    promised: str
    counted: str


TAKEOVER: Sequence[Kept] = (
    Kept(
        "one-master",
        "`enableSlaveActingMaster`",
        "never two brokers of a group append; a slave acts only while it knows of no smaller id that is alive, and stores"
        " nothing as the group's master",
        "how long a master that is cut off still took itself for one while a slave acted",
    ),
    Kept(
        "locks-exclusive",
        "`lockMode=strict`, 3 replicas or more",
        "leases of a queue never overlap, whoever grants them",
        "gap until another broker grants",
    ),
    Kept(
        "",
        "`lockMode=strict`, 2 replicas",
        "the same; while one of the two is away nobody is granted a lock",
        "",
    ),
    Kept("", "`lockMode=loose`", "nothing across a takeover", "leases that overlap, and for how long"),
    Kept(
        "", "any, a consumer that stood still itself", "nothing: a lease is advice", "how often two members worked in turns"
    ),
    Kept(
        "delay-kept",
        "`escapeStrategy` `auto` or `remote`, a master in another group",
        "never early, none lost, released while the master is away",
        "to whom; released twice: what was released in the last second before a takeover or a return, and while a master"
        " was cut off and both released",
    ),
    Kept(
        "",
        "`escapeStrategy=none`, or nobody to escape to",
        "never early, none lost: it waits for a master",
        "how late",
    ),
    Kept(
        "progress-forward",
        "`enableSlaveActingMaster`",
        "who takes over knows what was committed a second before, and the returning master what was committed since",
        "messages given again, at takeover and at return",
    ),
)
BEGIN_TAKEOVER, END_TAKEOVER = "<!-- takeover: python -m rmqkit.drill.promises.table -->", "<!-- end of takeover -->"


def takeover_markdown() -> str:
    lines = ["| promise | where | promised | counted |", "|---|---|---|---|"]
    for each in TAKEOVER:
        name = f"`{each.promise}`" if each.promise else ""
        lines.append(f"| {name} | {each.where} | {each.promised} | {each.counted} |")
    return "\n".join([BEGIN_TAKEOVER, *lines, END_TAKEOVER]) + "\n"


if __name__ == "__main__":
    print(markdown(), takeover_markdown(), sep="\n", end="")
