"""Promise: delayed messages are delivered with their body, never early, and are released only once.

A message is due when its delay has passed since the *start* of its send, because the broker cannot
have stored it earlier. Early deliveries are not judged once the clock of a broker's machine was
changed. An acknowledged message must be delivered wherever the mode promises that the master still
has it. A message with copies at two offsets was released twice. A single copy that was delivered
twice was only redelivered. Both are counted.

A second release is allowed where no broker can avoid it:

- for messages released in the last second before another broker took over, because the progress of
  the delay levels is copied each second;
- while two brokers believed that they serve.

If the only fault is an isolation, neither excuse holds. The master stops to release
when contact is lost, so only a message that it released in the round trip in which the isolation
began (`ISOLATED_MS`) may be released again by the acting slave.

A group of one broker reads its progress from its own file (`flushDelayOffsetInterval`). Any other
second release breaks the promise, including that of an escaped message.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

from rmqkit.drill.history import FAULT_BEGINS, LOAD_ENDS, OK, STEP_ENDS, UNKNOWN, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.facts import Copies, fault_of, with_sends
from rmqkit.drill.promises.heads import broken_times, fault_windows, heads
from rmqkit.drill.promises.progress import changes_of
from rmqkit.drill.promises.table import Harm, Where, cell

#: the times of two clocks are rounded to ms, so a delivery may seem this much early
EARLY_MS = 2
#: a takeover may lose the progress of this last interval
GIVEN_BACK_MS = 1_000
MARGIN_MS = 500
FLUSH_DELAY_OFFSET_MS = 10_000
#: an isolation takes effect at most this long after its event
ISOLATED_MS = 200
#: how long after its due time a message may still be in flight when the load ends
ON_ITS_WAY_MS = 1_000

#: name of the event: the clock of a broker's machine was changed
CLOCK_JUMPS = "clock jumps"

Place = tuple[str, int, int]


class DelayKept:
    name = "delay-kept"
    text = "a delayed message is delivered, never before it is due, and is released only once"

    def applies(self, plan: Plan) -> bool:
        return plan.acting

    def check(self, history: History, plan: Plan) -> Finding:
        sent = {row.key: row for row in history.by_kind["delay"]}
        dues = history.by_kind["due"]
        copies: dict[str, dict[Place, HistoryRow]] = {}
        broken: list[Broken] = []
        latest_ms = unjudged = 0
        jumped_ms = history.event_ms(CLOCK_JUMPS)
        for row, send in with_sends(dues, sent, broken):
            early_ms = int(send.extra["due_ms"]) - row.complete_ms
            is_judged = jumped_ms is None or row.complete_ms < jumped_ms
            unjudged += not is_judged
            if early_ms > EARLY_MS and is_judged:
                what = f"delivered at {row.complete_ms} ms, {early_ms} ms before it was due"
                broken.append(Broken(row.key, what))
            first = copies.setdefault(row.key, {})
            if not first:
                latest_ms = max(latest_ms, row.complete_ms - send.complete_ms - int(send.extra["delay_ms"]))
            first.setdefault((row.broker, row.queue, row.offset), row)
        there = {row.key for row in dues}
        due = ((row, int(row.extra["due_ms"])) for row in history.by_kind["delay"] if row.key not in there)
        lost, excused = lost_of(history, plan, due)
        again, unexplained = released_again(copies, allowed_again(history, plan))
        places = sum(map(len, copies.values()))
        known = sum(row.key in sent for row in dues)
        escaped = escaped_to(dues)
        counts = {
            "acknowledged": sum(row.outcome == OK for row in sent.values()),
            "unknown": sum(row.outcome == UNKNOWN for row in sent.values()),
            "delivered": len(copies),
            "latest ms": latest_ms,
            "released twice": places - len(copies),
            "of these unexplained": len(unexplained),
            "delivered twice": known - places,
            "escaped": sum(escaped.values()),
            **{f"escaped to {broker}": count for broker, count in sorted(escaped.items())},
            "lost where nothing is promised": excused,
            **again,
        }
        counts |= {"after a clock was set": unjudged} if unjudged else {}
        lacking = "" if sent else "no delayed message was sent"
        return judged(len(sent) + len(dues), [*broken, *lost, *unexplained], counts, lacking=lacking)


def lost_of(history: History, plan: Plan, missing: Iterable[tuple[HistoryRow, int]]) -> tuple[list[Broken], int]:
    """Find acknowledged messages that were never delivered, among sends and their due times in ms.

    Return the violations, and how many more messages are missing that the mode allows to be lost.
    Messages that may still be in flight at the end of the load are neither.
    """
    fault = fault_of(history)
    end_ms = history.event_ms(LOAD_ENDS)
    in_sync = history.view(Copies)
    lost = []
    excused = 0
    for row, due_ms in missing:
        if row.outcome != OK or end_ms is None or due_ms + ON_ITS_WAY_MS > end_ms:
            continue
        if fault is not None:
            told = cell(
                plan.mode,
                fault.harm,
                row.status or "SEND_OK",
                copies=in_sync.of(row, plan),
                hits_master=fault.hits(row.broker),
            )
            if told.where is not Where.MASTER:
                excused += 1
                continue
        lost.append(Broken(row.key, f"answered {row.status or 'SEND_OK'} at {row.complete_ms} ms, but never delivered"))
    return lost, excused


def released_again(
    copies: Mapping[str, Mapping[Place, HistoryRow]],
    allowed: Iterable[tuple[int, int]],
    excuse: Callable[[HistoryRow, HistoryRow], bool] = lambda _before, _row: False,
) -> tuple[dict[str, int], list[Broken]]:
    """Find messages with copies at several places.

    `copies` has the first delivery of each copy, `allowed` the result of `allowed_again`. `excuse`
    returns whether the second of two releases has another explanation. Return counts by the kind of
    broker that released them again, and the releases without explanation.
    """
    allowed = list(allowed)
    counts: dict[str, int] = {}
    broken = []
    for key, places in copies.items():
        rows = sorted(places.values(), key=stored_ms)
        for before, row in pairwise(rows):
            how = "released twice, by an acting master" if row.extra.get("escaped_by") else "released twice, by a master"
            counts[how] = counts.get(how, 0) + 1
            at_ms = stored_ms(before)
            if not any(since <= at_ms <= until for since, until in allowed) and not excuse(before, row):
                what = f"released {_by(before)} and again {_by(row)}; no fault or takeover explains the second release"
                broken.append(Broken(key, what))
    return counts, broken


def _by(row: HistoryRow) -> str:
    by = row.extra.get("escaped_by")
    return f"at {stored_ms(row)} ms to {row.broker} queue {row.queue}" + (f" by {by}" if by else "")


def stored_ms(row: HistoryRow) -> int:
    """Return when a message was stored where it was delivered from, in ms."""
    return int(row.extra.get("stored_ms", row.complete_ms))


def allowed_again(history: History, plan: Plan, save_ms: int | None = None, copied_ms: int = 0) -> list[tuple[int, int]]:
    """Return intervals, in ms: a message that was released in one of them may be released again.

    `save_ms` is how often a broker saves its progress; by default, that of the delay levels.
    `copied_ms` is how long before an isolation the record of a release may be unknown to the slave.
    """
    isolated_ms = only_isolated_ms(history)
    if isolated_ms is not None:
        return [(isolated_ms - copied_ms, isolated_ms + ISOLATED_MS)]
    save_ms = plan.setting("flushDelayOffsetInterval", FLUSH_DELAY_OFFSET_MS) if save_ms is None else save_ms
    back_ms = (GIVEN_BACK_MS if plan.replicas > 1 else save_ms) + MARGIN_MS
    faults = [row for row in history.events if row.key == FAULT_BEGINS]
    if len({(row.broker, row.extra.get("node")) for row in faults}) > 1:
        # The broker with the newer progress may have been hit as well. Only a clean stop writes the
        # progress before the end.
        are_clean = all(row.extra.get("clean", False) for row in faults if "clean" in row.extra)
        is_told = any("clean" in row.extra for row in faults)
        back_ms = MARGIN_MS if is_told and are_clean else max(back_ms, save_ms + MARGIN_MS)
    until_ms = 2 * plan.member_sync_ms + MARGIN_MS
    moments = [row.invoke_ms for row in faults]
    served = heads(history)
    for found in served.values():
        moments += [head.begin_ms for head in found] + [head.end_ms for head in found]
    windows = fault_windows(history)
    moments += [end_ms for _begin_ms, end_ms in windows]
    allowed = [(at_ms - back_ms, at_ms + until_ms) for at_ms in moments]
    broken_at = broken_times(history)
    for change in changes_of(served):
        # The broker with the newer progress may have been down when its successor began, so the
        # successor could not copy it.
        allowed.append((change.sure_ms(broken_at) - MARGIN_MS, change.after.begin_ms + until_ms))
    return allowed


def only_isolated_ms(history: History) -> int | None:
    """Return when a node was isolated, if that was the only fault; else None.

    A fault of another group matters too: an escape may be stored there without an answer.
    """
    begins = [row for row in history.events if row.key == FAULT_BEGINS]
    is_series = any(row.key == STEP_ENDS for row in history.events)
    # In a series the first row is the engine's, for all steps together.
    steps = begins[1:] if is_series else begins
    is_one = len(steps) == 1 and steps[0].extra.get("harm") == Harm.ISOLATE
    return steps[0].invoke_ms if is_one else None


def escaped_to(rows: Iterable[HistoryRow]) -> dict[str, int]:
    """Return the number of different messages that were put on each other broker."""
    found: dict[str, set[str]] = {}
    for row in rows:
        if row.extra.get("escaped_from"):
            found.setdefault(row.broker, set()).add(str(row.extra["escaped_from"]))
    return {broker: len(origins) for broker, origins in found.items()}
