"""Promise: strict locks are exclusive, so only one member of a group holds the lock of a queue.

A member certainly holds a lock from the answer that granted or renewed it, until one of these
events:

- the member asks to release the lock;
- the broker refuses to renew it;
- the lease ends, `lockMaxLiveTime` (60 s by default) after the member *asked* for it.

Two such leases that overlap break the promise with `lockMode=strict` or `fencing`, where a quorum
of the group grants locks. With `loose`, each broker decides alone and does not know what the others
granted, so overlaps are only counted.

A lock request without an answer may have been granted, so it neither begins nor ends a lease. A
release without an answer may take effect at any later time, for instance when it was delayed by an
isolation. Until the member has received the answer to a later release, locks granted to it are
uncertain and are not counted as leases.

A lease is advice. A consumer that stalls and then continues may work on a queue whose lease it has
lost. How often two members alternate on one queue is counted; no mode promises that this never
happens.
"""

from typing import NamedTuple

from rmqkit.drill.history import FAIL, FAULT_BEGINS, OK, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.facts import MASTER


class ObservedLease(NamedTuple):
    """A time in which a member certainly held a lock. `place` is (group, broker, queue)."""

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
    """Return the leases that members certainly held, in order of their start."""
    held: dict[tuple[str, tuple[str, str, int]], ObservedLease] = {}
    found: list[ObservedLease] = []
    #: members with a release that may still be in flight
    doubtful: set[tuple[str, tuple[str, str, int]]] = set()
    rows = (*history.by_kind["lock"], *history.by_kind["unlock"])
    for row in sorted(rows, key=lambda row: (row.complete_ms, row.op)):
        place = (row.key, row.broker, row.queue)
        known = held.get((row.client, place))
        if known is not None and known.end_ms < row.invoke_ms:
            known = None  # the lease expired before this request: another one begins
        if row.kind == "unlock" or row.outcome == FAIL:
            ended = held.pop((row.client, place), None)
            if ended is not None:  # a lease that expired earlier was still held until then
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
    last_ms = history.last_ms
    found += [lease._replace(end_ms=min(lease.end_ms, last_ms)) for lease in held.values()]
    return sorted((lease for lease in found if lease.end_ms > lease.begin_ms), key=lambda lease: lease.begin_ms)


def _overlaps(found: list[ObservedLease]) -> tuple[list[Broken], int]:
    """Return the leases that overlap, and the longest overlap in ms."""
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
    """Return the time from the fault to the first lock that another broker granted, in ms.

    Return None if no other broker granted one, or if the fault hit a slave.
    """
    fault = next((row for row in history.events if row.key == FAULT_BEGINS), None)
    if fault is None or fault.extra.get("role", MASTER) != MASTER:
        return None
    first = first_elsewhere(history.by_kind["lock"], str(fault.extra.get("node", "")), fault.invoke_ms)
    return None if first is None else first.complete_ms - fault.invoke_ms


def first_elsewhere(rows: list[HistoryRow], node: str, since_ms: int) -> HistoryRow | None:
    """Return the first lock that another node than `node` granted after `since_ms`."""
    found = (row for row in rows if row.outcome == OK and row.invoke_ms >= since_ms and row.extra.get("node") != node)
    return min(found, key=lambda row: row.complete_ms, default=None)


def _in_turns(history: History) -> int:
    """Count how often members alternate on one queue.

    That is: a member receives a message although another one has received one since its own last.
    """
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
