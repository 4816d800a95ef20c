"""The time line of a drill: what is known at the moment is an event of the engine; the rest is found in the rows
afterwards.

`derive` adds the moments that only the rows show: the first send that failed, the first one that was acknowledged
again, the first read that a slave served while its master was gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmqkit.drill import history as names
from rmqkit.drill.history import OK, History, Row
from rmqkit.drill.workload import LATE

LATE_READER = f"{LATE}-0"


def derive(history: History) -> None:
    """Add the events that follow from the rows. Called once, when the load has ended."""
    rows = list(history.rows)
    begin_ms = _first(rows, names.FAULT_BEGINS)
    if begin_ms is None:
        return
    failed = _earliest(row for row in rows if row.kind == "send" and row.outcome != OK and row.complete_ms >= begin_ms)
    if failed is not None:
        value = f"{failed.client}: {failed.extra.get('error', failed.outcome)}"
        history.add("event", key=names.FIRST_FAILED_SEND, invoke_ms=failed.complete_ms, value=value)
        # A send to a group that is whole says nothing about the one that was broken.
        broken = next((row.broker for row in rows if row.kind == "event" and row.key == names.FAULT_BEGINS), "")
        again = _earliest(
            row
            for row in rows
            if row.kind == "send" and row.outcome == OK and row.broker == broken and row.invoke_ms >= failed.complete_ms
        )
        if again is not None:
            took_ms = again.complete_ms - failed.complete_ms
            value = f"{again.client}, {took_ms / 1000:.1f} s after the first that failed"
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


def _first(rows: Sequence[Row], key: str) -> int | None:
    return next((row.invoke_ms for row in rows if row.kind == "event" and row.key == key), None)


def _earliest(rows: Iterable[Row]) -> Row | None:
    return min(rows, key=lambda row: row.complete_ms, default=None)
