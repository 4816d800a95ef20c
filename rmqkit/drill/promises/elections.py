"""Promises in controller mode: one master in an epoch, and a confirm offset that never goes back.

Each poll of a broker reports the epoch in which it has its role (`role` rows), and its confirm
offset (`node` rows). Both promises hold at every moment, so each poll counts, also one during a
fault: a master that is isolated keeps its epoch, and the next master has a larger one.

The confirm offset is the end of what consumers may see. With `allAckInSyncStateSet` all members in
sync have everything before it, so no election may take it back. The checker orders the reports of
masters by epoch and time. Without that setting an election may lose messages, so nothing is
promised about it.
"""

from rmqkit.drill.history import OK, History, HistoryRow
from rmqkit.drill.plan import Plan, ReplicationMode
from rmqkit.drill.promises.contract import Broken, Finding, judged

MASTER = "master"


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
