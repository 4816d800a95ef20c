"""Facts that several checkers derive from a history.

They are: the fault, the nodes that were read to their ends, how many replicas were in sync, and the
messages and slaves to which the usual rules do not apply.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from rmqkit.drill.history import FAIL, FAULT_BEGINS, OK, History, HistoryRow
from rmqkit.drill.plan import Plan, ReplicationMode
from rmqkit.drill.promises.contract import Broken
from rmqkit.drill.promises.table import Harm, Where, cell

MASTER = "master"


class Hit(NamedTuple):
    """The fault as recorded in the timeline."""

    harm: Harm
    node: str
    broker: str
    hits_master: bool
    begin_ms: int

    def hits(self, broker: str) -> bool:
        """Return whether the fault hit the master of that group."""
        return self.hits_master and self.broker in ("", broker)


#: harms by their effect on messages, from the mildest to the worst
WORSE = (Harm.PAUSE, Harm.ISOLATE, Harm.KILL, Harm.POWER_CUT, Harm.DISK_LOSS)


def fault_of(history: History) -> Hit | None:
    """Return the fault of the drill.

    Return None if there is no fault in the timeline, or one whose harm the table does not know. If
    there are several (in the simulator), return the worst one, with the `begin_ms` of the first.
    """
    return history.view(_fault_of)


def _fault_of(history: History) -> Hit | None:
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
    """Return the names of the masters and of the slaves that the last reading covers."""
    roles = {row.client: row.extra.get("role", MASTER) for row in history.by_kind["end"]}
    masters = [node for node, role in roles.items() if role == MASTER]
    return masters, [node for node in roles if node not in masters]


def unfinished(history: History, nodes: Iterable[str]) -> str:
    """Return why the last reading of these nodes is incomplete; "" if it is complete."""
    wanted = set(nodes)
    for row in history.by_kind["end"]:
        if row.client in wanted and row.outcome != OK:
            return f"{row.client} could not be read to its end (queue {row.queue}: {row.extra.get('error', 'no answer')})"
    return ""


class Copies:
    """How many replicas of each broker group were in sync, as its master reported over time."""

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
        """Return how many replicas certainly had an acknowledged message.

        In a plain SYNC_MASTER that is 2: it answers SEND_OK only when as many replicas as
        configured have the message.
        """
        if plan.replicas < 2:
            return 1
        counts = (ReplicationMode.QUORUM, ReplicationMode.ALL_ACK)
        return self.during(row) if plan.mode.replication in counts else 2

    def during(self, row: HistoryRow) -> int:
        """Return the smallest number of replicas in sync around a send.

        It covers the polls from the last one before the send until the first one after it. Return 1
        if one of these two is missing: a checker must not assume a promise that may not have
        existed. For a send that was answered before the fault, polls after the fault do not count,
        since nothing was broken yet.
        """
        times = self._times.get(row.broker, [])
        counts = self._counts.get(row.broker, [])
        first = bisect_right(times, row.invoke_ms) - 1
        last = bisect_left(times, row.complete_ms)
        if row.complete_ms < self._fault_ms <= (times[last] if last < len(times) else self._fault_ms):
            last -= 1
        last = max(first, last)  # a poll in the same millisecond is both the one before and the one after
        if first < 0 or last >= len(times):
            return 1
        return min(counts[first : last + 1])


def given_up(history: History, plan: Plan) -> set[str]:
    """Return the keys of messages that the master lost in a way that the mode allows.

    Their offsets go to other messages.
    """
    fault = fault_of(history)
    if fault is None:
        return set()
    masters, _slaves = nodes_of(history)
    there = {row.key for row in history.reads if row.outcome == OK and row.client in masters}
    copies = history.view(Copies)
    found = set()
    for row in history.sends:
        if row.outcome != FAIL and row.key not in there and fault.hits(row.broker):
            told = cell(plan.mode, fault.harm, row.status or "SEND_OK", copies=copies.of(row, plan))
            if told.where is not Where.MASTER:
                found.add(row.key)
    return found


#: key, broker, queue, offset
Copy = tuple[str, str, int, int]


def unanswered_copies(history: History) -> set[Copy]:
    """Return copies that were read before their send was answered, and that a power cut then took.

    Brokers deliver what is written, even with SYNC_FLUSH before the flush, as Apache's brokers do.
    So a power cut can take a message that was already delivered, and its offset goes to another
    message.
    """
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
    """Return the slaves that are ahead of their master at the end, where that is allowed.

    It is allowed if the master may come back without records that a slave has. Either the mode
    promises no more, or the power failed before the sends were answered (slaves receive a record
    while the master's disk is still writing it).

    A slave that is away until its master has written past the slave's end finds other bytes there,
    and reports *foreign*. That is allowed only if the slave has not followed a later run of the
    master (`start` identifies the run, if the driver records it).
    """
    fault = fault_of(history)
    if fault is None or not fault.hits_master or plan.elected:
        return []  # in controller mode a slave cuts its log, and follows
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
    """Return whether this harm may take records from the master that a slave has."""
    return harm == Harm.POWER_CUT or cell(plan.mode, Harm(harm)).where is not Where.MASTER


def with_sends(
    rows: Iterable[HistoryRow], sent: Mapping[str, HistoryRow], broken: list[Broken], *, how: str = "delivered"
) -> Iterator[tuple[HistoryRow, HistoryRow]]:
    """Yield each delivered message with its send.

    Messages that nobody sent, or with another body, are added to `broken` instead.
    """
    for row in rows:
        send = sent.get(row.key)
        if send is not None and send.value == row.value:
            yield row, send
        else:
            why = "was never sent" if send is None else f"has another body (checksum {row.value}, not {send.value})"
            broken.append(Broken(row.key, f"{how} at {row.complete_ms} ms, but {why}"))
