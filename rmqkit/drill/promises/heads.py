"""Role intervals of each node, and which node served each broker group when.

Several checkers derive these from the `role` rows of a history.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rmqkit.drill.history import FAULT_BEGINS, FAULT_ENDS, OK, STEP_ENDS, History, HistoryRow

MASTER, ACTING, ONLINE = "master", "acting", "online"


class RoleInterval(NamedTuple):
    """A node certainly had this role from `begin_ms` to `end_ms`.

    The interval begins with the first answer that reported the role, and ends with the last request
    that was answered so.
    """

    node: str
    broker: str
    broker_id: int
    role: str
    online: str
    members: tuple[int, ...]
    begin_ms: int
    end_ms: int

    @property
    def appends(self) -> bool:
        return self.role == MASTER and self.online == ONLINE

    @property
    def acts(self) -> bool:
        return self.role == ACTING


def spans(history: History) -> list[RoleInterval]:
    """Return the role intervals of all nodes, in order of time."""
    found = (span for rows in _by_node(history).values() for span in _of_node(rows))
    return sorted(found, key=lambda span: span.begin_ms)


def overlaps(seen: Iterable[RoleInterval]) -> Iterator[tuple[RoleInterval, RoleInterval, int]]:
    """Yield (earlier, later, end in ms) for intervals in which two nodes of a group serve at once.

    `seen` is in order of time. The overlap begins with the later interval.
    """
    open_: list[RoleInterval] = []
    for span in seen:
        if not (span.appends or span.acts):
            continue
        open_ = [other for other in open_ if other.end_ms > span.begin_ms]
        for other in open_:
            if other.broker == span.broker and other.node != span.node:
                yield other, span, min(other.end_ms, span.end_ms)
        open_.append(span)


def _by_node(history: History) -> dict[str, list[HistoryRow]]:
    by_node: dict[str, list[HistoryRow]] = {}
    for row in sorted(history.by_kind["role"], key=lambda row: (row.complete_ms, row.op)):
        by_node.setdefault(row.client, []).append(row)
    return by_node


def _of_node(rows: Sequence[HistoryRow]) -> Iterator[RoleInterval]:
    first = last = rows[0]
    for row in rows[1:]:
        if _state(row) == _state(first):
            last = row
            continue
        yield from _span(first, last)
        first = last = row
    yield from _span(first, last)


def _state(row: HistoryRow) -> tuple[object, ...]:
    return row.outcome, row.value, *(row.extra.get(key) for key in ("members", "boot", "since", "epoch"))


def _span(first: HistoryRow, last: HistoryRow) -> Iterator[RoleInterval]:
    if first.outcome == OK:
        role, _, online = first.value.partition("/")
        members = tuple(int(each) for each in first.extra.get("members", ()))
        end_ms = max(first.complete_ms, last.invoke_ms)
        broker_id = int(first.extra.get("broker_id", 0))
        yield RoleInterval(first.client, first.broker, broker_id, role, online, members, first.complete_ms, end_ms)


class ServiceInterval(NamedTuple):
    """A node served the clients of its broker group from `begin_ms` to `end_ms`."""

    node: str
    role: str
    begin_ms: int
    end_ms: int


def heads(history: History) -> dict[str, list[ServiceInterval]]:
    """Return the service intervals of each broker, in order of time.

    The interval of a node ends when a fault hits the node. A new one begins only after the node has
    reported another state. The interval of a master that lies within that of an acting slave is
    left out: for a moment, the master still believed that it was online.
    """
    found: dict[str, list[ServiceInterval]] = {}
    faults: dict[str, list[int]] = {}
    for row in history.events:
        if row.key == FAULT_BEGINS:
            faults.setdefault(str(row.extra.get("node", "")), []).append(row.invoke_ms)
    for node, rows in _by_node(history).items():
        for head in _of_node_heads(rows, faults.get(node, [])):
            found.setdefault(rows[0].broker, []).append(head)
    return {broker: _without_doubtful(each) for broker, each in found.items()}


def _of_node_heads(rows: Sequence[HistoryRow], faults: Sequence[int]) -> Iterator[ServiceInterval]:
    head: ServiceInterval | None = None
    of_run: tuple[object, ...] = ()
    was_broken = False
    for row in rows:
        role, _, online = row.value.partition("/")
        serves = row.outcome == OK and (role == ACTING or (role == MASTER and online == ONLINE))
        run = row.extra.get("boot"), row.extra.get("since")
        goes_on = head is not None and serves and head.role == role and run == of_run
        if goes_on and head is not None:
            if was_broken:
                continue
            cut_ms = next((at_ms for at_ms in faults if head.begin_ms < at_ms < row.invoke_ms), None)
            was_broken = cut_ms is not None
            head = head._replace(end_ms=max(head.end_ms, row.invoke_ms) if cut_ms is None else cut_ms)
            continue
        if head is not None:
            yield head
        head, was_broken, of_run = None, False, run
        if serves:
            head = ServiceInterval(row.client, role, row.complete_ms, row.complete_ms)
    if head is not None:
        yield head


def _without_doubtful(found: list[ServiceInterval]) -> list[ServiceInterval]:
    """Return the intervals without masters whose interval lies within an acting slave's."""
    acting = [head for head in found if head.role == ACTING]
    kept = [
        head
        for head in found
        if head.role == ACTING or not any(a.begin_ms <= head.begin_ms and head.end_ms < a.end_ms for a in acting)
    ]
    return sorted(kept, key=lambda head: head.begin_ms)


def fault_windows(history: History) -> list[tuple[int, int]]:
    """Return the interval from the start of the first fault to the end of the last one, in ms.

    The list is empty without a fault. If no end is recorded, the interval ends with the last row.
    """
    begins = [row.invoke_ms for row in history.events if row.key == FAULT_BEGINS]
    if not begins:
        return []
    end_ms = history.event_ms(FAULT_ENDS)
    return [(begins[0], history.last_ms if end_ms is None else end_ms)]


def broken_times(history: History) -> dict[str, list[tuple[int, int]]]:
    """Return, by node, the intervals in ms in which the node was broken.

    In a series (in the simulator) each step is an event of its own. The engine's event for the
    whole series comes first and is skipped here.
    """
    begins = [row for row in history.events if row.key == FAULT_BEGINS]
    is_series = any(row.key == STEP_ENDS for row in history.events)
    last_ms = history.last_ms
    open_: dict[str, int] = {}
    found: dict[str, list[tuple[int, int]]] = {}
    for row in history.events:
        node = str(row.extra.get("node", ""))
        if row.key == FAULT_BEGINS and not (is_series and row is begins[0]):
            open_.setdefault(node, row.invoke_ms)
        elif row.key == STEP_ENDS and node in open_:
            found.setdefault(node, []).append((open_.pop(node), row.invoke_ms))
        elif row.key == FAULT_ENDS:
            for each, begin_ms in open_.items():
                found.setdefault(each, []).append((begin_ms, row.invoke_ms))
            open_.clear()
    for each, begin_ms in open_.items():
        found.setdefault(each, []).append((begin_ms, last_ms))
    return found


def outside(begin_ms: int, end_ms: int, windows: Sequence[tuple[int, int]]) -> int:
    """Return how many ms of an interval lie in none of the windows. Windows do not overlap."""
    inside = sum(max(0, min(end_ms, until) - max(begin_ms, since)) for since, until in windows)
    return max(0, end_ms - begin_ms - inside)
