"""What several checkers read out of a history: which fault it was, which nodes were read to their ends, who was in sync."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from rmqkit.drill.history import FAIL, FAULT_BEGINS, OK, History, HistoryRow
from rmqkit.drill.plan import Plan, ReplicationMode
from rmqkit.drill.promises.table import Harm, Where, cell

MASTER = "master"


class Hit(NamedTuple):
    """The fault as the time line tells it."""

    harm: Harm
    node: str
    broker: str
    hits_master: bool
    begin_ms: int

    def hits(self, broker: str) -> bool:
        """Whether it hit the master of that group."""
        return self.hits_master and self.broker in ("", broker)


#: from the mildest to the worst, as far as messages are concerned
WORSE = (Harm.PAUSE, Harm.ISOLATE, Harm.KILL, Harm.POWER_CUT, Harm.DISK_LOSS)


def fault_of(history: History) -> Hit | None:
    """None when no fault is on record, or one of a kind that the table does not know. Of several (in the simulator)
    the worst one; `begin_ms` is the first one's."""
    hits: list[Hit] = []
    for row in history.events:
        if row.key == FAULT_BEGINS:
            try:
                harm = Harm(str(row.extra.get("harm", "")))
            except ValueError:
                return None
            hits_master = row.extra.get("role", MASTER) == MASTER
            hits.append(Hit(harm, str(row.extra.get("node", "")), row.broker, hits_master, row.invoke_ms))
    if not hits:
        return None
    return max(hits, key=lambda hit: (hit.hits_master, WORSE.index(hit.harm)))._replace(begin_ms=hits[0].begin_ms)


def nodes_of(history: History) -> tuple[list[str], list[str]]:
    """Masters and slaves that the last reading asked, by node name."""
    roles = {row.client: row.extra.get("role", MASTER) for row in history.by_kind["end"]}
    masters = [node for node, role in roles.items() if role == MASTER]
    return masters, [node for node in roles if node not in masters]


def unfinished(history: History, nodes: Iterable[str]) -> str:
    """Why the last reading of these nodes proves nothing; "" when every queue of them was read to its end."""
    wanted = set(nodes)
    for row in history.by_kind["end"]:
        if row.client in wanted and row.outcome != OK:
            return f"{row.client} could not be read to its end (queue {row.queue}: {row.extra.get('error', 'no answer')})"
    return ""


class Copies:
    """How many replicas of a broker were in sync, by what its master said of itself."""

    def __init__(self, history: History) -> None:
        fault = fault_of(history)
        self._fault_ms = fault.begin_ms if fault is not None else 0
        self._times: dict[str, list[int]] = {}
        self._counts: dict[str, list[int]] = {}
        for row in sorted(history.by_kind["node"], key=lambda row: row.complete_ms):
            if row.outcome == OK and row.extra.get("role") == MASTER and row.extra.get("in_sync") is not None:
                self._times.setdefault(row.broker, []).append(row.complete_ms)
                self._counts.setdefault(row.broker, []).append(int(row.extra["in_sync"]))

    def of(self, row: HistoryRow, plan: Plan) -> int:
        """How many have an acknowledged message: a plain SYNC_MASTER says SEND_OK for no fewer than it is set to."""
        if plan.replicas < 2:
            return 1
        return self.during(row) if plan.mode.replication is ReplicationMode.QUORUM else 2

    def during(self, row: HistoryRow) -> int:
        """The fewest that are known from just before a send to just after it; 1 when nobody looked.

        A look that is missing on one side counts as 1: nothing is taken for promised that may not have been. But what was
        answered before the fault is not excused by what is seen after it: until then nothing was broken.
        """
        times = self._times.get(row.broker, [])
        counts = self._counts.get(row.broker, [])
        first = bisect_right(times, row.invoke_ms) - 1
        last = bisect_left(times, row.complete_ms)
        if row.complete_ms < self._fault_ms <= (times[last] if last < len(times) else self._fault_ms):
            last -= 1
        last = max(first, last)  # a look in the very millisecond is both
        if first < 0 or last >= len(times):
            return 1
        return min(counts[first : last + 1])


def given_up(history: History, plan: Plan) -> set[str]:
    """Messages that the master came back without, where the mode lets it: their places are given to others."""
    fault = fault_of(history)
    if fault is None:
        return set()
    masters, _slaves = nodes_of(history)
    there = {row.key for row in history.reads if row.outcome == OK and row.client in masters}
    copies = Copies(history)
    found = set()
    for row in history.sends:
        if row.outcome != FAIL and row.key not in there and fault.hits(row.broker):
            told = cell(plan.mode, fault.harm, row.status or "SEND_OK", copies=copies.of(row, plan))
            if told.where is not Where.MASTER:
                found.add(row.key)
    return found


Copy = tuple[str, str, int, int]


def unanswered_copies(history: History) -> set[Copy]:
    """(key, broker, queue, offset) of what was given to readers before its send was answered, and is at no master after a
    power cut: readers are given what is written, in SYNC_FLUSH too, as Apache's brokers do. Its place goes to another."""
    fault = fault_of(history)
    if fault is None or not fault.hits_master or fault.harm is not Harm.POWER_CUT:
        return set()
    masters, _slaves = nodes_of(history)
    certain = {copy_of(row) for row in history.acknowledged}
    certain |= {copy_of(row) for row in history.reads if row.outcome == OK and row.client in masters}
    return {copy_of(row) for row in (*history.deliveries, *history.reads)} - certain


def copy_of(row: HistoryRow) -> Copy:
    return row.key, row.broker, row.queue, row.offset


def allowed_ahead(history: History, plan: Plan) -> list[str]:
    """Slaves that say they are ahead, where a master may come back without what a slave has: the mode promises no more, or
    the power went while nobody had been answered yet (slaves get a record while the master's disk is still at work).

    A slave that was away until its master had gone on further than itself sees other bytes there and says *foreign*. That
    is as it may be only if it has not followed a later life of the master (`start`, where a driver tells it).
    """
    fault = fault_of(history)
    if fault is None or not fault.hits_master:
        return []
    rewound = [
        row.invoke_ms
        for row in history.events
        if row.key == FAULT_BEGINS and row.extra.get("role") == MASTER and _rewinds(plan, str(row.extra.get("harm")))
    ]
    if not rewound:
        return []
    looks = history.by_kind["node"]
    lives: dict[str, int] = {}
    for row in looks:
        if row.extra.get("role") == MASTER and "start" in row.extra:
            lives.setdefault(str(row.extra["start"]), row.complete_ms)
    found = set()
    for row in looks:
        state, follows = row.extra.get("state"), row.extra.get("start")
        is_gone = state == "foreign" and follows is not None and lives.get(str(follows), 0) < rewound[-1]
        if row.extra.get("final") and (state == "ahead" or is_gone):
            found.add(row.client)
    return sorted(found)


def _rewinds(plan: Plan, harm: str) -> bool:
    """Whether a harm may take something from the master that a slave has."""
    return harm == Harm.POWER_CUT or cell(plan.mode, Harm(harm)).where is not Where.MASTER
