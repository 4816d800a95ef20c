"""The logs of a master and its slaves are the same bytes, up to the offset that all of them have.

TigerBeetle's checker idea: compare pieces of the files by checksum once nothing moves. A piece that a slave lacks although
its log begins before it is as wrong as one that differs. A slave that has stopped because it is ahead of its master, or of
another history, is not compared; it is counted and said.
"""

from __future__ import annotations

from rmqkit.drill.history import OK, History, Row
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.facts import MASTER

STOPPED = ("ahead", "foreign", "refused")


class LogsEqual:
    name = "logs-equal"
    text = "master and slaves have the same bytes in their logs, up to the offset that all of them have"

    def applies(self, plan: Plan) -> bool:
        return plan.replicas > 1

    def check(self, history: History, plan: Plan) -> Finding:
        stopped = {row.client: str(row.extra.get("state")) for row in history.by_kind["node"] if _has_stopped(row)}
        pieces: dict[tuple[str, int, int], Row] = {}
        slaves: list[Row] = []
        for row in history.by_kind["log"]:
            if row.outcome != OK:
                return judged(0, (), lacking=f"the log of {row.client} could not be read: {row.extra.get('error', '')}")
            if row.extra.get("role", MASTER) == MASTER:
                pieces[row.broker, row.offset, int(row.extra["size"])] = row
            elif row.client not in stopped:
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
        counts = {"pieces": facts, "bytes": size, "slaves that stopped following": len(stopped)}
        lacking = "" if facts else "no slave's log could be compared"
        why = "; ".join(f"{node} is {state}: its log is left as it is" for node, state in sorted(stopped.items()))
        return judged(facts, broken, counts, lacking=why or lacking if not facts else "", why=why)


def _lacking(pieces: dict[tuple[str, int, int], Row], slaves: list[Row]) -> list[Broken]:
    """Pieces of a master that a slave of it should have and has not."""
    had: dict[tuple[str, str], set[int]] = {}
    for row in slaves:
        had.setdefault((row.client, row.broker), set()).add(row.offset)
    broken = []
    for (node, broker), offsets in sorted(had.items()):
        wanted = {offset for name, offset, _size in pieces if name == broker and offset >= min(offsets)}
        if wanted - offsets:
            broken.append(Broken("", f"{node} lacks {len(wanted - offsets)} pieces from byte {min(wanted - offsets)} on"))
    return broken


def _has_stopped(row: Row) -> bool:
    return bool(row.extra.get("final")) and row.extra.get("state") in STOPPED
