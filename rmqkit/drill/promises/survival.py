"""Promise: the last reading finds every acknowledged message that the table says survives.

As in Jepsen's total-queue test: lost = acknowledged - read. Lost messages are split per writer into
prefix (all earlier messages are lost too), postfix (all later ones are lost too) and middle. A lost
middle proves a hole in the log; a lost postfix may be the result of a truncation.

Sends without an answer are counted as unknown. Those that the reading finds are counted as well.
"""

from collections.abc import Iterable, Mapping

from rmqkit.drill.history import OK, UNKNOWN, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.facts import Copies, fault_of, nodes_of, unfinished
from rmqkit.drill.promises.table import Where, cell


class Survival:
    name = "acknowledged-survive"
    text = "after the fault, every acknowledged message is stored where the mode promises it"

    def applies(self, plan: Plan) -> bool:
        return True

    def check(self, history: History, plan: Plan) -> Finding:
        fault = fault_of(history)
        if fault is None:
            return judged(0, (), lacking="the history has no fault")
        masters, slaves = nodes_of(history)
        lacking = unfinished(history, masters) if masters else "no master was read"
        at_master = _keys(history, masters)
        at_slave = _keys(history, slaves)
        copies = history.view(Copies)
        lost: list[tuple[HistoryRow, str]] = []
        counts = {"acknowledged": 0, "promised": 0, "lost where nothing is promised": 0, "only on a slave": 0}
        for row in history.acknowledged:
            counts["acknowledged"] += 1
            hits_master = fault.hits(row.broker)
            told = cell(
                plan.mode, fault.harm, row.status or "SEND_OK", copies=copies.of(row, plan), hits_master=hits_master
            )
            counts["promised"] += told.where is not Where.NOWHERE
            if row.key in at_master:
                continue
            if row.key in at_slave:
                counts["only on a slave"] += 1
                if told.where is not Where.MASTER:
                    continue
                lost.append((row, "is stored on a slave only, although the mode promises it on the master"))
            elif told.where is Where.NOWHERE:
                counts["lost where nothing is promised"] += 1
            else:
                lost.append((row, "is stored on no broker"))
        unknown = [row for row in history.sends if row.outcome == UNKNOWN]
        counts["unknown"] = len(unknown)
        counts["unknown, found"] = sum(row.key in at_master or row.key in at_slave for row in unknown)
        parts = split({row.key for row, _ in lost}, history.acknowledged)
        counts |= {f"lost {part}": count for part, count in parts.items() if count}
        broken = [
            Broken(row.key, f"answered {row.status or 'SEND_OK'} at {row.complete_ms} ms, but {why}") for row, why in lost
        ]
        why = "" if counts["promised"] else "the mode promises nothing under this fault: lost messages are only counted"
        return judged(counts["acknowledged"], broken if not lacking else (), counts, lacking=lacking, why=why)


def split(lost: Iterable[str], acknowledged: Iterable[HistoryRow]) -> Mapping[str, int]:
    """Count the lost messages at the start, middle and end of each writer's sends."""
    lost = set(lost)
    counts = {"prefix": 0, "middle": 0, "postfix": 0}
    by_writer: dict[str, list[str]] = {}
    for row in acknowledged:
        by_writer.setdefault(row.client, []).append(row.key)
    for keys in by_writer.values():
        kept = [number for number, key in enumerate(keys) if key not in lost]
        first, last = (kept[0], kept[-1]) if kept else (len(keys), -1)
        for number, key in enumerate(keys):
            if key in lost:
                counts["prefix" if number < first else "postfix" if number > last else "middle"] += 1
    return counts


def _keys(history: History, nodes: Iterable[str]) -> set[str]:
    wanted = set(nodes)
    return {row.key for row in history.reads if row.outcome == OK and row.client in wanted}
