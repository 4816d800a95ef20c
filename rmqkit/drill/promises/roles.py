"""Promises about roles: with acting slaves `one-master`, with controllers the two of elections.

**one-master**: two brokers of a group never append at once, and a slave acts only while it must.

A node certainly has the role that it reports between the first and the last poll of that state
(`rmqkit.drill.roles`). Only these intervals are judged:

- Two nodes that append at the same time break the promise.
- A slave that acts must see no smaller broker id alive. If it sees one, it breaks the promise at
  once.
- A master and an acting slave (or two acting slaves) may overlap while a node is isolated or
  paused, because neither can know of the other. Outside faults they may overlap for two periods in
  which a broker asks which members are alive (`syncBrokerMemberGroupPeriod`), plus `MARGIN_MS`. All
  overlaps are counted.
- While the only node that may append is gone, no send can be acknowledged. If one is, an acting
  slave has stored it, and acting slaves must never append.

**one-master-per-epoch, confirm-forward**: each poll of a broker in controller mode reports the
epoch in which it has its role (`role` rows), and its confirm offset (`node` rows). Both promises
hold at every moment, also during a fault: a master that is isolated keeps its epoch, and the next
master has a larger one. The confirm offset is the end of what consumers may see. With
`allAckInSyncStateSet` all members in sync have everything before it, so no election may take it
back. The checker orders the reports of masters by epoch and time. Without that setting an election
may lose messages, so nothing is promised about it.
"""

from itertools import pairwise

from rmqkit.drill.history import FAULT_BEGINS, FAULT_BITES, FAULT_ENDS, OK, History, HistoryRow
from rmqkit.drill.plan import Plan, ReplicationMode
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.facts import fault_of
from rmqkit.drill.promises.heads import RoleInterval, fault_windows, outside, overlaps, spans
from rmqkit.drill.promises.table import Harm

MASTER = "master"
MARGIN_MS = 1_000
#: harms under which a node certainly answers no request
SILENT = (Harm.KILL, Harm.PAUSE, Harm.POWER_CUT, Harm.DISK_LOSS)


class OneMaster:
    name = "one-master"
    text = "two brokers of a group never append at once, and a slave acts only while it sees no smaller broker id alive"

    def applies(self, plan: Plan) -> bool:
        return plan.acting

    def check(self, history: History, plan: Plan) -> Finding:
        seen = spans(history)
        broken: list[Broken] = []
        for span in seen:
            if span.acts and span.members and min(span.members) < span.broker_id:
                what = f"{span.node} acts as master at {span.begin_ms} ms"
                broken.append(Broken("", f"{what}, although it sees broker id {min(span.members)} alive"))
        wrong, both_ms, after_ms = _overlaps(seen, history, 2 * plan.member_sync_ms + MARGIN_MS)
        broken += wrong
        broken += _stored_by_nobody(history)
        acting = [span for span in seen if span.acts]
        changes = sum(a.node == b.node and a.role != b.role for a, b in pairwise(sorted(seen, key=lambda s: s.node)))
        counts = {
            "looks": len(history.by_kind["role"]),
            "changes of role": changes,
            "acting ms": sum(span.end_ms - span.begin_ms for span in acting),
            "master and acting at once, ms": both_ms,
            "of these without a fault, ms": after_ms,
        }
        return judged(len(seen), broken, counts, lacking="" if seen else "no broker reported its role")


def _overlaps(seen: list[RoleInterval], history: History, most_ms: int) -> tuple[list[Broken], int, int]:
    """Find nodes that serve at the same time.

    Return the violations, and for how many ms a master and an acting slave served at once: in
    total, and outside faults. `most_ms` is the limit outside faults.
    """
    windows = fault_windows(history)
    broken: list[Broken] = []
    both_ms = 0
    alone: dict[tuple[str, str], int] = {}
    for other, span, until_ms in overlaps(seen):
        if span.appends and other.appends:
            what = f"{other.node} and {span.node} both append from {span.begin_ms} to {until_ms} ms"
            broken.append(Broken("", what))
            continue
        if span.acts and other.acts:
            what = f"{other.node} and {span.node} both act as master"
        else:
            what = f"{other.node} is {other.role} and {span.node} is {span.role}"
        both_ms += until_ms - span.begin_ms
        pair = (min(other.node, span.node), max(other.node, span.node))
        alone[pair] = alone.get(pair, 0) + outside(span.begin_ms, until_ms, windows)
        if alone[pair] > most_ms:
            broken.append(Broken("", f"{what}, for {alone[pair]} ms that no fault explains"))
    return broken, both_ms, sum(alone.values())


def _stored_by_nobody(history: History) -> list[Broken]:
    """Return acknowledged sends to a group whose only master certainly answered no request."""
    fault = fault_of(history)
    begins = [row for row in history.events if row.key == FAULT_BEGINS]
    since_ms, until_ms = history.event_ms(FAULT_BITES), history.event_ms(FAULT_ENDS)
    if fault is None or len(begins) != 1 or since_ms is None or until_ms is None:
        return []
    if not fault.hits_master or fault.harm not in SILENT:
        return []
    return [
        Broken(
            row.key,
            f"acknowledged at {row.complete_ms} ms while {fault.node} was gone: an acting slave must have stored it",
        )
        for row in (*history.sends, *history.by_kind["delay"])
        if row.outcome == OK and row.broker == fault.broker and since_ms < row.invoke_ms and row.complete_ms < until_ms
    ]


class OneMasterPerEpoch:
    name = "one-master-per-epoch"
    text = "in an epoch of a group at most one broker is master, and no broker returns to a smaller epoch"

    def applies(self, plan: Plan) -> bool:
        return plan.elected

    def check(self, history: History, plan: Plan) -> Finding:
        masters: dict[tuple[str, int], HistoryRow] = {}
        last: dict[str, HistoryRow] = {}
        broken: list[Broken] = []
        facts = 0
        rows = (row for row in history.by_kind["role"] if row.outcome == OK and "epoch" in row.extra)
        for row in sorted(rows, key=lambda row: (row.complete_ms, row.op)):
            epoch = int(row.extra["epoch"])
            if epoch < 0:
                continue  # it has no role yet
            facts += 1
            before = last.get(row.client)
            if before is not None and epoch < before.extra["epoch"] and row.extra.get("boot") == before.extra.get("boot"):
                what = f"{row.client} was in epoch {before.extra['epoch']}, and in epoch {epoch} at {row.complete_ms} ms"
                broken.append(Broken("", what))
            last[row.client] = row
            if row.key != MASTER:
                continue
            first = masters.setdefault((row.broker, epoch), row)
            if first.client != row.client:
                what = f"{first.client} is master of {row.broker} in epoch {epoch}, and so is {row.client}"
                broken.append(Broken("", f"{what} at {row.complete_ms} ms"))
        counts = {"looks": facts, "epochs with a master": len(masters)}
        lacking = "" if masters else "no broker reported that it is master in an epoch"
        return judged(len(masters), broken, counts, lacking=lacking)


class ConfirmForward:
    name = "confirm-forward"
    text = "the confirm offset of a group never decreases, also when another broker is elected"

    def applies(self, plan: Plan) -> bool:
        return plan.mode.replication is ReplicationMode.ALL_ACK

    def check(self, history: History, plan: Plan) -> Finding:
        looks: dict[str, list[HistoryRow]] = {}
        for row in history.by_kind["node"]:
            if row.outcome == OK and row.extra.get("role") == MASTER and row.extra.get("confirm") is not None:
                looks.setdefault(row.broker, []).append(row)
        broken = []
        facts = 0
        for broker, rows in looks.items():
            highest: HistoryRow | None = None
            for row in sorted(rows, key=lambda row: (row.extra["epoch"], row.complete_ms, row.op)):
                facts += 1
                if highest is not None and row.extra["confirm"] < highest.extra["confirm"]:
                    before = f"{highest.client} confirmed {highest.extra['confirm']} in epoch {highest.extra['epoch']}"
                    now = f"{row.client} {row.extra['confirm']} in epoch {row.extra['epoch']} at {row.complete_ms} ms"
                    broken.append(Broken("", f"{broker}: {before}, and {now}"))
                else:
                    highest = row
        return judged(facts, broken, {"looks": facts}, lacking="" if facts else "no master reported a confirm offset")
