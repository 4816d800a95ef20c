"""Promise: the logs of a master and its slaves have the same bytes, up to the offset that all have.

As TigerBeetle's checker does, it compares pieces of the files by checksum once nothing changes any
more. A piece is also wrong if a slave lacks it although the slave's log begins before it.

If the table lets the master come back without records that a slave has, then a slave that stopped
because it is *ahead* is not compared. It is counted and named instead.
"""

from rmqkit.drill.history import OK, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.facts import MASTER, allowed_ahead


class LogsEqual:
    name = "logs-equal"
    text = "the logs of master and slaves have the same bytes, up to the offset that all of them have"

    def applies(self, plan: Plan) -> bool:
        return plan.replicas > 1

    def check(self, history: History, plan: Plan) -> Finding:
        ahead = allowed_ahead(history, plan)
        pieces: dict[tuple[str, int, int], HistoryRow] = {}
        slaves: list[HistoryRow] = []
        for row in history.by_kind["log"]:
            if row.outcome != OK:
                return judged(0, (), lacking=f"the log of {row.client} could not be read: {row.extra.get('error', '')}")
            if row.extra.get("role", MASTER) == MASTER:
                pieces[row.broker, row.offset, int(row.extra["size"])] = row
            elif row.client not in ahead:
                slaves.append(row)
        broken = []
        facts = size = 0
        for row in slaves:
            master = pieces.get((row.broker, row.offset, int(row.extra["size"])))
            if master is None:
                continue
            facts += 1
            size += int(row.extra["size"])
            if master.value != row.value:
                what = (
                    f"{row.client} differs from {master.client} in bytes {row.offset} to {row.offset + row.extra['size']}"
                )
                broken.append(Broken("", what))
        broken += _lacking(pieces, slaves)
        counts = {"pieces": facts, "bytes": size, "slaves ahead": len(ahead)}
        facts += len(ahead)
        lacking = "" if facts else "no slave's log could be compared"
        why = "; ".join(
            f"{node} is ahead of its master, which this fault allows: its log is not compared" for node in ahead
        )
        return judged(facts, broken, counts, lacking=lacking, why=why)


def _lacking(pieces: dict[tuple[str, int, int], HistoryRow], slaves: list[HistoryRow]) -> list[Broken]:
    """Return a violation for each slave that lacks pieces of its master's log."""
    had: dict[tuple[str, str], set[int]] = {}
    for row in slaves:
        had.setdefault((row.client, row.broker), set()).add(row.offset)
    broken = []
    for (node, broker), offsets in sorted(had.items()):
        first = min(offsets)
        wanted = {offset for name, offset, _size in pieces if name == broker and offset >= first}
        if wanted - offsets:
            broken.append(Broken("", f"{node} lacks {len(wanted - offsets)} pieces from byte {min(wanted - offsets)} on"))
    return broken
