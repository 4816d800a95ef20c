"""Rows of a history as lines of text, for the story of a message in a report."""

from collections.abc import Callable, Mapping

from rmqkit.drill.history import OK, HistoryRow
from rmqkit.drill.report import verdict_words


def line(row: HistoryRow) -> str:
    """Return one row of a message's story as text."""
    return LINES.get(row.kind, _read)(row)


def _where(row: HistoryRow) -> str:
    return f"{row.broker} queue {row.queue} offset {row.offset}"


def _took(row: HistoryRow) -> str:
    return f"after {row.complete_ms - row.invoke_ms} ms"


def _ended(row: HistoryRow) -> str:
    """Return how a request ended, with its error."""
    error = row.extra.get("error", "")
    return f"ended {row.outcome} {_took(row)}{f': {error}' if error else ''}"


def _event(row: HistoryRow) -> str:
    what = verdict_words.plain(row.key)
    return f"— {what}: {row.value}" if row.value else f"— {what}"


def _send(row: HistoryRow) -> str:
    if row.outcome == OK:
        return f"{row.client}: send answered {row.status} {_took(row)}: {_where(row)}"
    return f"{row.client}: send ended {row.outcome} {_took(row)}: {row.extra.get('error', '')}"


def _delay(row: HistoryRow) -> str:
    due = f"{_took(row)}, due at {row.extra.get('due_ms')} ms"
    return f"{row.client}: send with delay level {row.extra.get('level')} ended {row.outcome} {due}"


def _deliver(row: HistoryRow) -> str:
    by = f", put there by acting slave {row.extra['escaped_by']}" if row.extra.get("escaped_by") else ""
    return f"{row.client}: delivered to {row.extra.get('group', '')} from {_where(row)}{by}"


def _timer(row: HistoryRow) -> str:
    return f"{row.client}: send of a timer that is due at {row.extra.get('due_ms')} ms {_ended(row)}"


def _recall(row: HistoryRow) -> str:
    return f"{row.client}: recall {_ended(row)}"


def _half(row: HistoryRow) -> str:
    told = f"the local transaction says {row.extra.get('local')}, its record {row.extra.get('decision')}"
    return f"{row.client}: send of a half message {_ended(row)}; {told}"


def _decide(row: HistoryRow) -> str:
    why = "to the check of" if row.extra.get("by") == "check" else "to"
    return f"{row.client}: {row.value} {why} {row.extra.get('node') or 'no broker'} {_ended(row)}"


def _popped(row: HistoryRow) -> str:
    again = f", delivery {row.extra['attempt'] + 1}" if row.extra.get("attempt") else ""
    hidden = f"hidden for {row.extra.get('invisible_ms')} ms from {row.extra.get('pop_ms')} ms"
    return f"{row.client}: popped from {row.extra.get('node')}, {_where(row)}{again}; {hidden}"


def _acked(row: HistoryRow) -> str:
    return f"{row.client}: ack to {row.extra.get('node') or 'no broker'} {_ended(row)}"


def _read(row: HistoryRow) -> str:
    return f"{row.client}: found in the last reading at {_where(row)}"


#: kind of row → its line
LINES: Mapping[str, Callable[[HistoryRow], str]] = {
    "event": _event,
    "send": _send,
    "delay": _delay,
    "deliver": _deliver,
    "due": _deliver,
    "timer-due": _deliver,
    "visible": _deliver,
    "timer": _timer,
    "recall": _recall,
    "half": _half,
    "decide": _decide,
    "popped": _popped,
    "acked": _acked,
}
