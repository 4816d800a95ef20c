"""Locks are exclusive: of one queue no two members of a group hold a lease at the same time.

A member certainly holds a lock from the answer that granted it (or renewed it) to the moment it asks to give it back, is
refused a renewal, or the lease ends, 60 s after it *asked*. Two such times that overlap are broken with `lockMode=strict`
or `fencing`, where a quorum of the group grants; with `loose` each broker decides alone and knows nothing of what another
one granted, so they are counted. An unanswered call may have been granted: it begins nothing and ends nothing. A give-back
without an answer may be carried out at any time later (it waited in a cut link): until that member has had an answer to
another one, what it is granted is not certain.

A lease is advice. A consumer that stood still and goes on may work on a queue whose lease it has lost meanwhile: how often
two members were given messages of a queue in turns is counted, and promised by nobody.
"""

from typing import NamedTuple

from rmqkit.drill.history import FAIL, FAULT_BEGINS, OK, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.facts import MASTER


class ObservedLease(NamedTuple):
    client: str
    place: tuple[str, str, int]
    begin_ms: int
    end_ms: int
    node: str


class LocksExclusive:
    name = "locks-exclusive"
    text = "with strict locks, two members of a group never hold the lock of one queue at the same time"

    def applies(self, plan: Plan) -> bool:
        return plan.acting

    def check(self, history: History, plan: Plan) -> Finding:
        asked = history.by_kind["lock"]
        granted = [row for row in asked if row.outcome == OK]
        overlaps, longest_ms = _overlaps(leases(history))
        counts = {
            "granted": len(granted),
            "refused": sum(row.outcome == FAIL for row in asked),
            "without an answer": sum(row.outcome not in (OK, FAIL) for row in asked),
            "leases that overlap": len(overlaps),
            "longest overlap ms": longest_ms,
            "gap at takeover ms": gap_ms(history) or 0,
            "worked on in turns": _in_turns(history),
        }
        lacking = "" if granted else "no lock was granted"
        why = "lockMode is loose: overlapping leases are only counted" if not plan.strict_locks else ""
        return judged(len(asked), overlaps if plan.strict_locks else (), counts, lacking=lacking, why=why)


def leases(history: History) -> list[ObservedLease]:
    """What members certainly held, in the order of the begins."""
    held: dict[tuple[str, tuple[str, str, int]], ObservedLease] = {}
    found: list[ObservedLease] = []
    #: members whose give-back may still be under way
    doubtful: set[tuple[str, tuple[str, str, int]]] = set()
    rows = (*history.by_kind["lock"], *history.by_kind["unlock"])
    for row in sorted(rows, key=lambda row: (row.complete_ms, row.op)):
        place = (row.key, row.broker, row.queue)
        known = held.get((row.client, place))
        if known is not None and known.end_ms < row.invoke_ms:
            known = None  # it ran out in between: another lease begins
        if row.kind == "unlock" or row.outcome == FAIL:
            ended = held.pop((row.client, place), None)
            if ended is not None:  # one that ran out before was held until then all the same
                found.append(ended._replace(end_ms=min(ended.end_ms, row.invoke_ms)))
            if row.kind == "unlock":
                (doubtful.discard if row.outcome == OK else doubtful.add)((row.client, place))
        elif row.outcome == OK and (row.client, place) not in doubtful:
            until_ms = int(row.extra.get("granted_until", row.complete_ms))
            if known is None:
                if (row.client, place) in held:
                    found.append(held[row.client, place])
                known = ObservedLease(row.client, place, row.complete_ms, until_ms, str(row.extra.get("node", "")))
            held[row.client, place] = known._replace(end_ms=max(known.end_ms, until_ms))
    last_ms = max((row.complete_ms for row in history.rows), default=0)
    found += [lease._replace(end_ms=min(lease.end_ms, last_ms)) for lease in held.values()]
    return sorted((lease for lease in found if lease.end_ms > lease.begin_ms), key=lambda lease: lease.begin_ms)


def _overlaps(found: list[ObservedLease]) -> tuple[list[Broken], int]:
    by_place: dict[tuple[str, str, int], list[ObservedLease]] = {}
    broken = []
    longest_ms = 0
    for lease in found:
        running = [other for other in by_place.get(lease.place, ()) if other.end_ms > lease.begin_ms]
        for other in running:
            if other.client != lease.client:
                until_ms = min(other.end_ms, lease.end_ms)
                longest_ms = max(longest_ms, until_ms - lease.begin_ms)
                group, broker, queue = lease.place
                what = (
                    f"{broker} queue {queue}, group {group}: {other.client} (granted by {other.node}) and {lease.client}"
                    f" (granted by {lease.node}) both hold the lock from {lease.begin_ms} to {until_ms} ms"
                )
                broken.append(Broken("", what))
        by_place[lease.place] = [*running, lease]
    return broken, longest_ms


def gap_ms(history: History) -> int | None:
    """From a fault of the master to the first lock that another broker granted; None without one."""
    fault = next((row for row in history.events if row.key == FAULT_BEGINS), None)
    if fault is None or fault.extra.get("role", MASTER) != MASTER:
        return None
    first = first_elsewhere(history.by_kind["lock"], str(fault.extra.get("node", "")), fault.invoke_ms)
    return None if first is None else first.complete_ms - fault.invoke_ms


def first_elsewhere(rows: list[HistoryRow], node: str, since_ms: int) -> HistoryRow | None:
    """The first lock granted after `since_ms` by a node that is not `node`."""
    found = (row for row in rows if row.outcome == OK and row.invoke_ms >= since_ms and row.extra.get("node") != node)
    return min(found, key=lambda row: row.complete_ms, default=None)


def _in_turns(history: History) -> int:
    """How often a member was given a queue's message although another had been given one since its own last."""
    last: dict[tuple[str, str, int], str] = {}
    worked: dict[tuple[str, str, int], set[str]] = {}
    turns = 0
    for row in history.deliveries:
        if row.extra.get("ordered"):
            place = (str(row.extra.get("group", "")), row.broker, row.queue)
            if last.get(place, row.client) != row.client and row.client in worked[place]:
                turns += 1
            last[place] = row.client
            worked.setdefault(place, set()).add(row.client)
    return turns
