"""Who was what, and who served a group when: what several checkers read out of the rows about roles."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rmqkit.drill.history import FAULT_BEGINS, FAULT_ENDS, OK, STEP_ENDS, History, HistoryRow

MASTER, ACTING, ONLINE = "master", "acting", "online"


class RoleInterval(NamedTuple):
    """From `begin_ms` to `end_ms` a node certainly said this of itself: from its first answer to its last question."""

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
    """Of every node, in the order of time."""
    found = (span for rows in _by_node(history).values() for span in _of_node(rows))
    return sorted(found, key=lambda span: span.begin_ms)


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
    return row.outcome, row.value, *(row.extra.get(key) for key in ("members", "boot", "since"))


def _span(first: HistoryRow, last: HistoryRow) -> Iterator[RoleInterval]:
    if first.outcome == OK:
        role, _, online = first.value.partition("/")
        members = tuple(int(each) for each in first.extra.get("members", ()))
        end_ms = max(first.complete_ms, last.invoke_ms)
        broker_id = int(first.extra.get("broker_id", 0))
        yield RoleInterval(first.client, first.broker, broker_id, role, online, members, first.complete_ms, end_ms)


class ServiceInterval(NamedTuple):
    """Clients of a broker group were served by this node from then to then."""

    node: str
    role: str
    begin_ms: int
    end_ms: int


def heads(history: History) -> dict[str, list[ServiceInterval]]:
    """By broker, one after the other. A broken node ends with its fault, and begins again once it has said something
    else in between; a master that still thought itself online for a moment while another one acted is none."""
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
    """Without masters whose time lies within that of an acting one."""
    acting = [head for head in found if head.role == ACTING]
    kept = [
        head
        for head in found
        if head.role == ACTING or not any(a.begin_ms <= head.begin_ms and head.end_ms < a.end_ms for a in acting)
    ]
    return sorted(kept, key=lambda head: head.begin_ms)


def fault_windows(history: History) -> list[tuple[int, int]]:
    """From the first fault's begin to the end of the last one, in ms; without a recorded end to the end of the rows."""
    begins = [row.invoke_ms for row in history.events if row.key == FAULT_BEGINS]
    if not begins:
        return []
    end_ms = history.event_ms(FAULT_ENDS)
    return [(begins[0], max(row.complete_ms for row in history.rows) if end_ms is None else end_ms)]


def broken_times(history: History) -> dict[str, list[tuple[int, int]]]:
    """By node, from when to when it was broken. A series (in the simulator) tells each of its steps, and the engine the
    whole of it before them."""
    begins = [row for row in history.events if row.key == FAULT_BEGINS]
    is_series = any(row.key == STEP_ENDS for row in history.events)
    last_ms = max((row.complete_ms for row in history.rows), default=0)
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
    """How many ms of a stretch are in none of the windows, which do not overlap."""
    inside = sum(max(0, min(end_ms, until) - max(begin_ms, since)) for since, until in windows)
    return max(0, end_ms - begin_ms - inside)
