"""Promise: consumer progress survives a takeover and the return of the master.

A broker that begins to serve a group must know the offsets that its predecessor held a second
earlier. The broker that serves (`heads`) is the master, then the slave that acts for it, then the
master again. At each change, the checker compares two values for each consumer group:

- what the predecessor was seen to hold `ALLOWED_MS` before its end;
- what the successor holds when it begins to serve.

If the second value is less, the promise is broken. Commits of the last second may be rolled back,
and are counted. Consumers see a rollback as redelivery. So a message must not be redelivered to a
group that had committed a higher offset more than a second before the change. All redeliveries
after takeovers and returns are counted.

At a return nothing may be redelivered at all, if all faults until then are kills and pauses, and
the slave acted from the takeover to the return without a fault: it hands over everything that it
has accepted (`broker/roles/handover.py`). A message that was first delivered after the return was
not handed over. If it is redelivered, its queue has moved to another member of the group: as
always, delivery is at least once. Nor was a message that was delivered before the takeover, if the
acting slave never held an offset behind it: its consumer could commit nowhere, and then lost the
lock of the queue.

A successor knows only what was replicated to it. If neither broker was broken when the successor
began to serve, that is everything. (A predecessor that has only just recovered counts as broken for
another `BACK_MS`, because nobody asks it yet.) Otherwise the successor must know what the
predecessor held a second before the end of the last interval of at least `TOGETHER_MS` in which
neither of them was broken.

A member that was isolated may resume at its old offset and commit that, as with Apache's brokers.
If the driver saw the predecessor accept such a commit (`by_member`), the lower offset counts.

After a power cut or a lost disk the messages may be gone too, and other messages may have their
offsets. Then rollbacks are only counted.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from rmqkit.drill.history import FAULT_BEGINS, OK, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.facts import fault_of
from rmqkit.drill.promises.heads import ACTING, ServiceInterval, broken_times, heads
from rmqkit.drill.promises.table import Harm

#: a change may roll back what was committed within this time before it
ALLOWED_MS = 1_000
#: a poll at most this long after a change shows the offset with which the successor began
LOOK_MS = 400
#: the same limit where every poll is a row, because a busy machine delays polls; a later poll
#: proves nothing
LATE_LOOK_MS = 5_000
#: an interval of this length is enough for one broker to replicate everything to the other
TOGETHER_MS = 2_000
#: time until the other brokers notice that a broker is back
BACK_MS = 1_000
LACKING = "no broker that served the group reported its offsets"
REWINDING = (Harm.POWER_CUT, Harm.DISK_LOSS)
#: faults after whose return nothing may be redelivered
HANDED_OVER = (Harm.KILL, Harm.PAUSE)
#: later than the end of any drill
NEVER_MS = 1 << 62

#: group, queue
Kept = tuple[str, int]


class Change(NamedTuple):
    """The node `after` begins to serve a broker group that `before` served until then."""

    broker: str
    before: ServiceInterval
    after: ServiceInterval

    @property
    def what(self) -> str:
        return "takeover" if self.after.role == ACTING else "return"

    def sure_ms(self, broken: Mapping[str, Sequence[tuple[int, int]]]) -> int:
        """Return the time until which commits must have reached the successor, in ms.

        The result is negative if nothing could have been replicated. `broken` has the intervals in
        which each node was broken.
        """
        begin_ms = self.after.begin_ms
        sure_ms = min(self.before.end_ms, begin_ms) - ALLOWED_MS
        both = sorted((*broken.get(self.before.node, ()), *broken.get(self.after.node, ())))
        gone = [(since, until + BACK_MS) for since, until in broken.get(self.before.node, ())]
        # A successor that begins to serve while it is still broken has copied nothing.
        gone += broken.get(self.after.node, ())
        if not any(since <= begin_ms < until for since, until in gone):
            return sure_ms
        # The load began in a steady state: both brokers were whole for long enough before the first
        # fault.
        whole_ms, together_ms = -TOGETHER_MS, -1
        for since, until in both:
            if since > begin_ms:
                break
            if since - whole_ms >= TOGETHER_MS:
                together_ms = since
            whole_ms = max(whole_ms, until)
        return min(sure_ms, together_ms - ALLOWED_MS)


class OffsetPolls:
    """The offsets that nodes were seen to hold, over time."""

    def __init__(self, history: History) -> None:
        self._rows: dict[tuple[str, str, int], list[HistoryRow]] = {}
        for row in sorted(history.by_kind["committed"], key=lambda row: (row.complete_ms, row.op)):
            if row.outcome == OK:
                self._rows.setdefault((row.client, row.key, row.queue), []).append(row)
        self._times = {place: [row.complete_ms for row in rows] for place, rows in self._rows.items()}

    def kept(self, node: str) -> list[Kept]:
        """Return the groups and queues for which the node was ever seen to hold an offset."""
        return sorted((group, queue) for client, group, queue in self._rows if client == node)

    def at(self, node: str, kept: Kept, at_ms: int) -> int:
        """Return the offset at the last poll until `at_ms`; -1 if there was none."""
        place = (node, *kept)
        number = bisect_right(self._times.get(place, ()), at_ms)
        return self._rows[place][number - 1].offset if number else -1

    def least(self, node: str, kept: Kept, at_ms: int, end_ms: int) -> int:
        """Return what `at` returns, or less if a member set the offset back until `end_ms`."""
        place = (node, *kept)
        times = self._times.get(place, ())
        later = self._rows.get(place, [])[bisect_right(times, at_ms) : bisect_right(times, end_ms)]
        lowered = [row.offset for row in later if row.extra.get("by_member")]
        return min([self.at(node, kept, at_ms), *lowered])

    def soon(self, node: str, kept: Kept, at_ms: int) -> int | None:
        """Return the offset that the node held at `at_ms`, by the polls before and after it.

        The poll before does not count if the node restarted in between. Return None if the first
        poll after `at_ms` came too late to tell.
        """
        rows = self._rows.get((node, *kept), [])
        number = bisect_right(self._times.get((node, *kept), ()), at_ms)
        before = rows[number - 1] if number else None
        after = rows[number] if number < len(rows) else None
        if after is not None:
            # The simulator writes rows for new offsets only: no row means that nothing has changed.
            wait_ms = LATE_LOOK_MS if after.extra.get("each") else LOOK_MS
            if after.complete_ms > at_ms + wait_ms:
                if after.extra.get("each"):
                    return None
                after = None
        if after is None or before is None or before.extra.get("boot") == after.extra.get("boot"):
            return max((row.offset for row in (before, after) if row is not None), default=-1)
        return after.offset


class ProgressForward:
    name = "progress-forward"
    text = "a broker that serves after a takeover or a return knows all offsets committed more than a second before it"

    def applies(self, plan: Plan) -> bool:
        return plan.acting

    def check(self, history: History, plan: Plan) -> Finding:
        polls = OffsetPolls(history)
        served = heads(history)
        changes = changes_of(served)
        counts = {f"{each} at {what}": 0 for what in ("takeover", "return") for each in ("given back", "given again")}
        counts["changes"] = len(changes)
        broken: list[Broken] = []
        facts = 0
        sure: dict[Change, dict[Kept, int]] = {}
        broken_at = broken_times(history)
        for change in changes:
            sure[change] = {}
            sure_ms = change.sure_ms(broken_at)
            for kept in polls.kept(change.before.node):
                begins = polls.soon(change.after.node, kept, change.after.begin_ms)
                if begins is None:
                    continue
                facts += 1
                least = polls.least(change.before.node, kept, sure_ms, change.before.end_ms)
                last = polls.at(change.before.node, kept, change.before.end_ms)
                sure[change][kept] = least
                counts[f"given back at {change.what}"] += max(0, last - begins)
                if begins < least:
                    broken.append(Broken("", _rollback_text(change, kept, least, sure_ms, begins)))
        broken += _given_again(history, changes, polls, sure, counts, broken_at)
        if served and not changes:
            facts = sum(len(polls.kept(head.node)) for found in served.values() for head in found)
            return judged(facts, (), counts, lacking="" if facts else LACKING, why="no broker took over")
        fault = fault_of(history)
        lacking = "" if facts else LACKING
        if fault is not None and fault.harm in REWINDING:
            return judged(
                facts,
                (),
                counts,
                lacking=lacking,
                why="rolled back offsets are only counted: the fault may have taken the messages too",
            )
        return judged(facts, broken, counts, lacking=lacking)


def changes_of(served: Mapping[str, Sequence[ServiceInterval]]) -> list[Change]:
    """Return the changes of the serving node, broker by broker."""
    return [
        Change(broker, before, after)
        for broker, found in served.items()
        for before, after in pairwise(found)
        if before.node != after.node
    ]


def _rollback_text(change: Change, kept: Kept, least: int, sure_ms: int, begins: int) -> str:
    group, queue = kept
    return (
        f"{change.what}: {change.after.node} serves from {change.after.begin_ms} ms with offset {begins} of group {group},"
        f" {change.broker} queue {queue}; {change.before.node} held {least} at {sure_ms} ms"
    )


def undisturbed_until_ms(history: History, change: Change, broken_at: Mapping[str, Sequence[tuple[int, int]]]) -> int:
    """Return until when no fault disturbs a return, in ms; -1 if the change is a takeover.

    A return is disturbed by a fault that is no kill and no pause, and by any fault of the slave
    that acted or of the broker that is back.
    """
    if change.what != "return":
        return -1
    acted_ms, back_ms = change.before.begin_ms - TOGETHER_MS, change.after.begin_ms
    begins = [
        row.invoke_ms for row in history.events if row.key == FAULT_BEGINS and row.extra.get("harm") not in HANDED_OVER
    ]
    begins += [begin for begin, end in broken_at.get(change.before.node, ()) if end >= acted_ms]
    begins += [begin for begin, end in broken_at.get(change.after.node, ()) if end >= back_ms]
    return min(begins, default=NEVER_MS) - 1


def _given_again(
    history: History,
    changes: Sequence[Change],
    polls: OffsetPolls,
    sure: Mapping[Change, Mapping[Kept, int]],
    counts: dict[str, int],
    broken_at: Mapping[str, Sequence[tuple[int, int]]],
) -> list[Broken]:
    """Count what groups received again after each change, in `counts`.

    Return the redeliveries of messages that the group had certainly committed, and those of
    messages that were handed over at an undisturbed return.
    """
    by_broker: dict[str, list[Change]] = {}
    for change in sorted(changes, key=lambda change: change.after.begin_ms):
        by_broker.setdefault(change.broker, []).append(change)
    begins = {broker: [change.after.begin_ms for change in found] for broker, found in by_broker.items()}
    calm_ms = {change: undisturbed_until_ms(history, change, broken_at) for change in changes}
    first_ms: dict[tuple[str, str, int, int], int] = {}
    broken = []
    for row in history.deliveries:
        group = str(row.extra.get("group", ""))
        place = (group, row.broker, row.queue, row.offset)
        number = bisect_right(begins.get(row.broker, []), row.complete_ms)
        if place in first_ms and number:
            change = by_broker[row.broker][number - 1]
            counts[f"given again at {change.what}"] += 1
            if row.complete_ms <= calm_ms[change] and _is_handed_over(change, polls, row, first_ms[place]):
                what = f"redelivered to group {group} at {row.complete_ms} ms, after {change.before.node} had handed over"
                broken.append(Broken(row.key, f"{what} to {change.after.node}"))
                continue
            if row.offset < sure[change].get((group, row.queue), -1):
                what = (
                    f"redelivered to group {group} at {row.complete_ms} ms, although the group had committed past offset"
                    f" {row.offset} of {row.broker} queue {row.queue} more than a second before the {change.what}"
                )
                broken.append(Broken(row.key, what))
        first_ms.setdefault(place, row.complete_ms)
    return broken


def _is_handed_over(change: Change, polls: OffsetPolls, row: HistoryRow, first_ms: int) -> bool:
    """Return whether the acting slave knew of the delivery of a message before the return.

    `first_ms` is when the group received it first.
    """
    if first_ms > change.after.begin_ms:
        return False
    kept = str(row.extra.get("group", "")), row.queue
    return first_ms >= change.before.begin_ms or row.offset < polls.at(change.before.node, kept, change.before.end_ms)
