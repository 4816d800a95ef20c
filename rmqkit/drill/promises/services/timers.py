"""Promise: timers are delivered with their body, never early, released once; recalled ones never.

A timer is due at the earliest when its delay has passed since the *start* of its send. The rules
for lost timers and for second releases are those of delayed messages (`promises/delays.py`): an
acknowledged timer must be delivered wherever the mode promises that the master still has it, and a
timer may be released twice only around a takeover or a return, where the progress of the last
second is not known to the successor; after an isolation alone, only around its begin.

A recalled timer must not be delivered if the recall was confirmed at least `RECALL_MARGIN_MS`
before the timer was due. Excused is a recall that the mode does not promise to survive: it was
confirmed by a master that alone had it, and that was then hit by the fault (with asynchronous
replication: within `allowed_again`). Excused recalls are counted.
"""

from collections.abc import Iterable, Mapping

from rmqkit.drill.history import OK, UNKNOWN, History, HistoryRow
from rmqkit.drill.plan import TIMERS, Plan, ReplicationMode
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.delays import EARLY_MS, Place, allowed_again, escaped_to, lost_of, released_again
from rmqkit.drill.promises.facts import Copies, with_sends

#: a recall that is confirmed later than this before the timer is due may come too late
RECALL_MARGIN_MS = 300
FLUSH_MS = 1_000


class TimerKept:
    name = "timer-kept"
    text = "a timer is delivered, never before it is due, and is released only once; a recalled one is not delivered"

    def applies(self, plan: Plan) -> bool:
        return TIMERS in plan.services

    def check(self, history: History, plan: Plan) -> Finding:
        sent = {row.key: row for row in history.by_kind["timer"]}
        dues = history.by_kind["timer-due"]
        recalls = {row.key: row for row in history.by_kind["recall"]}
        allowed = allowed_again(history, plan, plan.setting("timerFlushIntervalMs", FLUSH_MS))
        broken: list[Broken] = []
        copies: dict[str, dict[Place, HistoryRow]] = {}
        latest_ms = 0
        for row, send in with_sends(dues, sent, broken):
            early_ms = int(send.extra["due_ms"]) - row.complete_ms
            if early_ms > EARLY_MS:
                broken.append(Broken(row.key, f"delivered at {row.complete_ms} ms, {early_ms} ms before it was due"))
            places = copies.setdefault(row.key, {})
            if not places:
                latest_ms = max(latest_ms, -early_ms)
            places.setdefault((row.broker, row.queue, row.offset), row)
        missing = (
            (row, int(row.extra["due_ms"]))
            for row in sent.values()
            if row.key not in copies and not _may_be_gone(row, recalls)
        )
        lost, excused = lost_of(history, plan, missing)
        again, unexplained = released_again(copies, allowed)
        ignored, excused_recalls = _ignored(history, plan, recalls.values(), copies, allowed)
        escaped = escaped_to(dues)
        counts = {
            "acknowledged": sum(row.outcome == OK for row in sent.values()),
            "unknown": sum(row.outcome == UNKNOWN for row in sent.values()),
            "delivered": len(copies),
            "latest ms": latest_ms,
            "recalled": sum(row.outcome == OK for row in recalls.values()),
            "recalled and delivered, allowed": excused_recalls,
            "released twice": sum(map(len, copies.values())) - len(copies),
            "of these unexplained": len(unexplained),
            "escaped": sum(escaped.values()),
            "lost where nothing is promised": excused,
            **again,
        }
        lacking = "" if sent else "no timer was sent"
        return judged(len(sent) + len(dues), [*broken, *lost, *unexplained, *ignored], counts, lacking=lacking)


def _may_be_gone(row: HistoryRow, recalls: Mapping[str, HistoryRow]) -> bool:
    """Return whether a recall may have removed the timer."""
    recall = recalls.get(row.key)
    return recall is not None and recall.outcome in (OK, UNKNOWN)


def _ignored(
    history: History,
    plan: Plan,
    recalls: Iterable[HistoryRow],
    copies: Mapping[str, Mapping[Place, HistoryRow]],
    allowed: Iterable[tuple[int, int]],
) -> tuple[list[Broken], int]:
    """Find timers that were delivered although their recall was confirmed in time.

    Return the violations, and how many more the mode allows.
    """
    in_sync = history.view(Copies)
    windows = list(allowed)
    broken = []
    excused = 0
    for row in recalls:
        if row.outcome != OK or row.key not in copies or row.complete_ms + RECALL_MARGIN_MS > int(row.extra["due_ms"]):
            continue
        is_alone = plan.mode.replication is ReplicationMode.ASYNC or in_sync.of(row, plan) < 2
        if is_alone and any(since <= row.complete_ms <= until for since, until in windows):
            excused += 1
            continue
        first = min(copies[row.key].values(), key=lambda each: each.complete_ms)
        what = f"recalled at {row.complete_ms} ms, but delivered at {first.complete_ms} ms"
        broken.append(Broken(row.key, what))
    return broken, excused
