"""Derives the events of the timeline that only the rows of a history show.

The engine records its own events while the drill runs. `derive` adds the rest at the end: the first
failed send, the first send that was acknowledged again, the first read that a slave served while
its master was gone, and the stages of takeover and return.
"""

from collections.abc import Callable, Iterable, Sequence

from rmqkit.drill import history as names
from rmqkit.drill.contract import DrillNode
from rmqkit.drill.history import OK, History, HistoryRow
from rmqkit.drill.workload import LATE

LATE_READER = f"{LATE}-0"


def derive(history: History) -> None:
    """Add the events that follow from the rows. Called once, when the drill has ended."""
    rows = list(history.rows)
    begin_ms = _first(rows, names.FAULT_BEGINS)
    if begin_ms is None:
        return
    failed = _earliest(row for row in rows if row.kind == "send" and row.outcome != OK and row.complete_ms >= begin_ms)
    if failed is not None:
        value = f"{failed.client}: {failed.extra.get('error', failed.outcome)}"
        history.add("event", key=names.FIRST_FAILED_SEND, invoke_ms=failed.complete_ms, value=value)
        # A send to another group says nothing about the broken one.
        broken = next((row.broker for row in rows if row.kind == "event" and row.key == names.FAULT_BEGINS), "")
        again = _earliest(
            row
            for row in rows
            if row.kind == "send" and row.outcome == OK and row.broker == broken and row.invoke_ms >= failed.complete_ms
        )
        if again is not None:
            took_ms = again.complete_ms - failed.complete_ms
            value = f"{again.client}, {took_ms / 1000:.1f} s after the first failed send"
            history.add("event", key=names.FIRST_SEND_AGAIN, invoke_ms=again.complete_ms, value=value)
    late = _earliest(row for row in rows if row.kind == "deliver" and row.client == LATE_READER)
    if late is not None:
        history.add("event", key=names.LATE_READ, invoke_ms=late.complete_ms, value=str(late.extra.get("group", "")))
    served = _earliest(
        row
        for row in rows
        if row.kind == "probe" and row.outcome == OK and row.extra.get("broker_id") and row.complete_ms >= begin_ms
    )
    if served is not None:
        history.add("event", key=names.SLAVE_READ, invoke_ms=served.complete_ms, value=str(served.extra.get("node", "")))
    if any(row.kind == "role" and "epoch" in row.extra for row in rows):
        _election_stages(history, rows)
    else:
        _stages(history, rows)


def taken_over(history: History, node: DrillNode) -> bool:
    """Return whether another broker has done a master's work since the fault began.

    That is: it has granted a lock and released a delayed message.
    """
    rows = list(history.rows)
    begin_ms = _first(rows, names.FAULT_BEGINS)
    since = [row for row in rows if begin_ms is not None and row.complete_ms >= begin_ms and row.outcome == OK]
    lent = any(row.kind == "lock" and row.extra.get("node") != node.name for row in since)
    return lent and any(row.kind == "due" and row.extra.get("escaped_by") for row in since)


def _stages(history: History, rows: Sequence[HistoryRow]) -> None:
    """Add the stages of the first takeover and of the last return that the rows show."""
    begins = [row for row in rows if row.kind == "event" and row.key == names.FAULT_BEGINS]
    hit = begins[0]
    node, broker = str(hit.extra.get("node", "")), hit.broker
    begin_ms, end_ms = hit.invoke_ms, _first(rows, names.FAULT_ENDS)
    broker_id = int(node.rpartition("-")[2]) if node.rpartition("-")[2].isdigit() else 0
    routes = [row for row in rows if row.kind == "route" and row.broker == broker]
    roles = [row for row in rows if row.kind == "role" and row.broker == broker and row.outcome == OK]
    others = [row for row in roles if row.client != node]

    def found(key: str, since_ms: int | None, candidates: Iterable[HistoryRow], value: Callable[[HistoryRow], str]) -> None:
        if since_ms is not None:
            row = _earliest(row for row in candidates if row.complete_ms >= since_ms)
            if row is not None:
                history.add("event", key=key, invoke_ms=row.complete_ms, value=value(row))

    found(names.NOTICED, begin_ms, (row for row in routes if broker_id not in row.extra["members"]), _listed)
    found(names.ANNOUNCED, begin_ms, (row for row in others if broker_id not in row.extra.get("members", ())), _sees_alive)
    changed = (row for row in routes if row.key != node)
    found(
        names.ROUTE_CHANGED, begin_ms, changed, lambda row: f"now names {row.key or 'no broker'} as master{_read_only(row)}"
    )
    found(names.ACTS, begin_ms, (row for row in others if row.key == "acting"), _with_reason)
    # If the fault hits a slave, its master keeps granting locks: no broker has taken over.
    hits_master = hit.extra.get("role", "master") == "master"
    asked = (row for row in rows if row.kind == "lock" and row.outcome == OK and hits_master)
    locks = (row for row in asked if row.extra.get("node") != node)
    found(names.LOCK_GRANTED, begin_ms, locks, lambda row: f"queue {row.queue}, by {row.extra.get('node', '')}")
    dues = (row for row in rows if row.kind == "due" and row.extra.get("escaped_by"))
    found(names.DELAY_DELIVERED, begin_ms, dues, _put_on)
    timers = (row for row in rows if row.kind == "timer-due" and row.extra.get("escaped_by"))
    found(names.TIMER_DELIVERED, begin_ms, timers, _put_on)
    ended = (row for row in rows if hits_master and _is_resolved(row, node))
    found(names.CHECKED, begin_ms, ended, _put_on)
    acks = (row for row in rows if row.kind == "acked" and row.broker == broker and row.outcome == OK and hits_master)
    elsewhere = (row for row in acks if row.extra.get("node") != node)
    found(names.ACK_ACCEPTED, begin_ms, elsewhere, lambda row: f"{row.key}, by {row.extra.get('node', '')}")
    own = [row for row in roles if row.client == node]
    off_ms = next((row.complete_ms for row in own if _after(row, end_ms) and not row.value.endswith("/online")), end_ms)
    online = (row for row in own if row.value.endswith("/online") and _is_new(row, own, begin_ms))
    found(names.PRE_ONLINE_DONE, off_ms, online, lambda row: f"{node}: {row.extra.get('why', '')}".rstrip(": "))
    gone_ms = next((row.complete_ms for row in routes if row.complete_ms >= begin_ms and row.key != node), None)
    if gone_ms is not None:
        again = (row for row in routes if row.key == node and broker_id in row.extra["members"])
        found(names.REGISTERED, end_ms, again, _listed)


def _election_stages(history: History, rows: Sequence[HistoryRow]) -> None:
    """Add the stages of the first election after the fault, and of the node's return."""
    hit = next(row for row in rows if row.kind == "event" and row.key == names.FAULT_BEGINS)
    node, begin_ms, end_ms = str(hit.extra.get("node", "")), hit.invoke_ms, _first(rows, names.FAULT_ENDS)
    roles = [row for row in rows if row.kind == "role" and row.broker == hit.broker and row.outcome == OK]
    masters = [row for row in roles if row.client != node and row.key == "master" and row.complete_ms >= begin_ms]

    def found(key: str, candidates: Iterable[HistoryRow], value: Callable[[HistoryRow], str]) -> None:
        row = _earliest(candidates)
        if row is not None:
            history.add("event", key=key, invoke_ms=row.complete_ms, value=value(row))

    if hit.extra.get("role") == "master":
        found(names.CHOSEN, masters, lambda row: f"{row.client}, epoch {row.extra['epoch']}")
        serves = (row for row in masters if row.value.endswith("/online"))
        found(names.SERVES, serves, lambda row: f"{row.client}, epoch {row.extra['epoch']}: {row.extra.get('why', '')}")
        routes = (row for row in rows if row.kind == "route" and row.broker == hit.broker and row.complete_ms >= begin_ms)
        changed = (row for row in routes if row.key and row.key != node)
        found(names.ROUTE_CHANGED, changed, lambda row: f"now names {row.key} as master")
    own = (row for row in roles if row.client == node and row.value == "slave/online" and _after(row, end_ms))
    found(names.FOLLOWS_AGAIN, own, lambda row: f"{node} is slave in epoch {row.extra['epoch']}")


def _is_resolved(row: HistoryRow, node: str) -> bool:
    """Return whether a transaction was resolved by a broker other than `node`.

    Either its message was delivered after an acting slave had put it on another broker, or another
    broker confirmed its outcome.
    """
    if row.kind == "visible":
        return bool(row.extra.get("escaped_by"))
    return row.kind == "decide" and row.outcome == OK and row.extra.get("node", node) not in ("", node)


def _put_on(row: HistoryRow) -> str:
    """Return which broker had a message released or resolved, and on which broker it is."""
    if row.kind == "decide":
        return f"{row.key}: {row.value} by {row.extra.get('by', '')}, confirmed by {row.extra['node']}"
    return f"{row.key}, by {row.extra['escaped_by']}, put on {row.broker}"


def _after(row: HistoryRow, at_ms: int | None) -> bool:
    return at_ms is not None and row.complete_ms >= at_ms


def _is_new(row: HistoryRow, own: Sequence[HistoryRow], begin_ms: int) -> bool:
    """Return whether this row shows that the node went online after the fault began.

    The row says when (`since`), or else an earlier poll saw the node in another state.
    """
    since = row.extra.get("since")
    if since is not None:
        return int(since) > begin_ms
    return any(begin_ms < each.complete_ms < row.complete_ms and not each.value.endswith("/online") for each in own)


def _listed(row: HistoryRow) -> str:
    return f"{row.client} lists broker ids {row.value or 'none'}"


def _sees_alive(row: HistoryRow) -> str:
    return f"{row.client} sees broker ids {','.join(str(each) for each in row.extra.get('members', ())) or 'none'} alive"


def _with_reason(row: HistoryRow) -> str:
    return f"{row.client}: {row.extra.get('why', '')}".rstrip(": ")


def _read_only(row: HistoryRow) -> str:
    return "" if row.extra.get("writable") else ", read-only"


def _first(rows: Sequence[HistoryRow], key: str) -> int | None:
    return next((row.invoke_ms for row in rows if row.kind == "event" and row.key == key), None)


def _earliest(rows: Iterable[HistoryRow]) -> HistoryRow | None:
    return min(rows, key=lambda row: row.complete_ms, default=None)
