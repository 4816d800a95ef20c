"""Generates the tables of docs/promises.md: what survives a fault, and what a takeover keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rmqkit.drill.plan import Flush, Mode, ReplicationMode
from rmqkit.drill.promises.table import FLUSHES, REPLICATIONS, TABLE, Cell, Harm, Where, cell

HARMS = {
    Harm.KILL: "master killed",
    Harm.PAUSE: "paused (SIGSTOP)",
    Harm.ISOLATE: "isolated",
    Harm.POWER_CUT: "power cut",
    Harm.DISK_LOSS: "its disk lost",
}


def _special() -> list[tuple[str, Mapping[Harm, Cell]]]:
    alone = Mode(ReplicationMode.QUORUM, Flush.ASYNC)
    joined = Cell(Where.NOWHERE, "**lost** before the slave's first file; later ones: the row of the mode")
    return [
        ("a quorum degraded to 1 (`enableAutoInSyncReplicas`), ASYNC_FLUSH", {h: cell(alone, h, copies=1) for h in Harm}),
        (
            "any mode, a slave that joined at the last file (`syncFromLastFile`)",
            {h: joined if h is Harm.DISK_LOSS else Cell(Where.MASTER, "the row of the mode") for h in Harm},
        ),
        ("any mode, the fault hits a slave", {h: cell(Mode(), h, hits_master=False) for h in Harm}),
    ]


def survival_table() -> str:
    rows = [(f"{REPLICATIONS[row[0]]} · {FLUSHES[row[1]]}", cells) for row, cells in TABLE.items()]
    lines = ["| SEND_OK in the mode | " + " | ".join(HARMS.values()) + " |", "|---" * (len(HARMS) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(cells[harm].text for harm in HARMS) + " |" for name, cells in rows + _special()]
    return "\n".join(lines)


# --- takeovers


class Kept(NamedTuple):
    """A promise for a takeover and the master's return; `counted` is measured, not promised."""

    promise: str
    where: str
    promised: str
    counted: str


TAKEOVER: Sequence[Kept] = (
    Kept(
        "one-master",
        "`enableSlaveActingMaster`",
        "two brokers of a group never append at once; a slave acts only while it sees no smaller live broker id, and"
        " it never appends as the master of its group",
        "how long an isolated master still considered itself the master while a slave acted",
    ),
    Kept(
        "one-master-per-epoch",
        "controller mode",
        "at most one broker of a group is master in an epoch, and no broker returns to a smaller epoch",
        "",
    ),
    Kept(
        "confirm-forward",
        "controller mode with `allAckInSyncStateSet`",
        "the confirm offset, up to which consumers may read, never decreases, also when another broker is elected",
        "",
    ),
    Kept(
        "epochs-equal",
        "controller mode",
        "two logs with the same epoch have the same start and the same bytes of it, at every moment (simulated drills)",
        "",
    ),
    Kept(
        "lease-kept",
        "controller mode",
        "once the next master takes messages, the old one refuses them when its lease is over (simulated drills)",
        "how long both took messages",
    ),
    Kept(
        "election-ends",
        "controller mode",
        "after the faults a group has one master, and all members are in sync with it (simulated drills)",
        "",
    ),
    Kept(
        "locks-exclusive",
        "`lockMode=strict`, 3 replicas or more",
        "leases of a queue never overlap, whichever broker grants them",
        "time until another broker grants a lock",
    ),
    Kept(
        "",
        "`lockMode=strict`, 2 replicas",
        "the same; while one of the two is away, no lock is granted",
        "",
    ),
    Kept(
        "",
        "`lockMode=loose`",
        "nothing for locks granted in the last second before a takeover",
        "leases that overlap, and for how long",
    ),
    Kept(
        "",
        "any, a consumer that stalled itself",
        "nothing: a lease is advisory",
        "how often two members alternated on one queue",
    ),
    Kept(
        "delay-kept",
        "`escapeStrategy` `auto` or `remote`, a master in another group",
        "the message is delivered, never early, and released while the master is away",
        "the group that stores it; second releases: possible for messages released in the last second before a takeover or"
        " a return; under isolation only for those in the round trip in which it began",
    ),
    Kept(
        "",
        "`escapeStrategy=none`, or no other group",
        "the message is delivered, never early: it waits for a master",
        "how late it is delivered",
    ),
    Kept(
        "timer-kept",
        "a master in another group",
        "a timer is delivered, never early, and released while the master is away; a timer whose recall was confirmed is"
        " not delivered",
        "second releases, possible as for `delay-kept`; how late timers are delivered",
    ),
    Kept(
        "transaction-atomic",
        "a master in another group",
        "every transaction ends in the way that its producers decided: a committed message is delivered, a rolled back one"
        " never; brokers go on asking about undecided ones, also if their producer is dead",
        "second releases of a message whose commit was recorded in the last second before a takeover or a return, or"
        " whose half an acting slave moved while its master, which had returned quickly, already served",
    ),
    Kept(
        "pop-kept",
        "any",
        "a message is popped at least once, by nobody else while it is invisible, and never again once acked",
        "messages popped again although their pop, their ack, or the end of their invisible time was in the"
        " last second before a takeover or a return;"
        " such a repeat, and a pop without an answer, make a second copy, which can come back as well",
    ),
    Kept(
        "progress-forward",
        "`enableSlaveActingMaster`",
        "a slave that takes over knows the offsets committed up to a second before; a returning master knows those"
        " committed since, and after a kill or a pause no message is redelivered at the return",
        "messages redelivered at the takeover; at the return, if another fault disturbs it",
    ),
)


def takeover_table() -> str:
    lines = ["| promise | where | promised | counted |", "|---|---|---|---|"]
    for each in TAKEOVER:
        name = f"`{each.promise}`" if each.promise else ""
        lines.append(f"| {name} | {each.where} | {each.promised} | {each.counted} |")
    return "\n".join(lines)


def tables() -> dict[str, str]:
    return {"survival": survival_table(), "takeover": takeover_table()}
